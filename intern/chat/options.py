"""The operator's settings for reading and posting conversations, and the fixed bounds."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, Final, Literal

from msgspec import Meta, Struct

from intern.core.ids import ChannelId
from intern.core.messages import Channel

ChannelMode = Literal["answer", "mention_only", "capture_only", "off"]
"""`mention_only`: captures; answers mentions of the bot and replies to it. `capture_only`: captures, never answers.
`off`: neither."""

Language = Literal["en", "de", "es", "fr", "ja", "pt"]
"""The languages that the bot speaks."""

STILL_WAITED_FOR: Final = timedelta(days=1)
"""Limit for notices: a member who asked earlier no longer waits for one."""


class ContextBounds(Struct, frozen=True, kw_only=True):
    """The bounds of reading around one request on Discord."""

    window_seconds: float = 60.0
    """Seconds within which consecutive messages of one author belong together; the batch wait."""
    mention_seconds: float = 900.0
    """Seconds: a team member's message answers the member that it mentions, if that member asked within this time."""
    question_seconds: float = 300.0
    """Seconds: one member's messages without mentions are one question, if the pauses are no longer than this."""
    follow_up_seconds: float = 120.0
    """Seconds: after an answer, the asker's messages without mentions join the capture if the pause is no longer than
    this and others wrote meanwhile. On real chat, later ones were mostly about something new."""
    named_follow_up_seconds: float = 300.0
    """The same for messages that mention the team member who answered, or while no one else writes."""
    max_hops: int = 20
    """The most hops of a reply chain."""
    max_messages: int = 200
    """The most messages of a thread, and of each reply chain."""
    max_calls: int = 10
    """The most REST calls in all. Discord allows about one read a second for a channel before it makes us wait."""


class ChannelRule(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The mode of one channel or thread; threads follow their channel."""

    id: ChannelId
    mode: ChannelMode


class ConversationOptions(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The operator's settings for reading conversations."""

    message_batch_wait_seconds: Annotated[float, Meta(ge=0)] = 60.0
    """Seconds: consecutive messages of one author in one channel within this pause are one batch."""
    mention_reply_window: Annotated[float, Meta(ge=0, le=86_400)] = 900.0
    """A team member's message that mentions one member counts as a reply to that member's question of the last so many
    seconds. 0: only Discord's replies count."""
    max_history_messages: Annotated[int, Meta(ge=0)] = 50
    """The most context messages that go to a model with a question."""
    max_history_chars: Annotated[int, Meta(ge=1)] = 12_000
    """The most characters of the question and its context together."""
    channels: tuple[ChannelRule, ...] = ()
    """The channels with another mode than `default_mode`."""
    default_mode: ChannelMode = "answer"
    language: Language = "en"
    """The language of a reply if the text's own language is unknown."""
    max_question_age: Annotated[float, Meta(gt=0)] = 3600.0
    """Ignore questions older than this many seconds. The team's answers are captured at any age."""

    @property
    def bounds(self) -> ContextBounds:
        """The bounds of reading around one request."""
        return ContextBounds(window_seconds=self.message_batch_wait_seconds, mention_seconds=self.mention_reply_window)

    def channel_mode(self, channel: Channel) -> ChannelMode:
        """Return the mode of a channel. A thread without a mode of its own follows its channel."""
        modes: dict[ChannelId | None, ChannelMode] = {rule.id: rule.mode for rule in self.channels}
        return modes.get(channel.id) or modes.get(channel.parent_id) or self.default_mode
