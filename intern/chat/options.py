"""What an operator can set about reading and posting conversations, and the bounds that are not theirs to set."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, Final, Literal

from msgspec import Meta, Struct

from intern.core.ids import ChannelId
from intern.core.messages import Channel

ChannelMode = Literal["answer", "mention_only", "capture_only", "off"]
"""`mention_only`: captures, and answers who mentions the bot or replies to it. `capture_only`: captures, never answers.
`off`: neither."""

Language = Literal["en", "de", "es", "fr", "ja", "pt"]
"""Those that the bot speaks."""

STILL_WAITED_FOR: Final = timedelta(days=1)
"""Limit for notices: a member who asked earlier no longer waits for one."""


class ContextBounds(Struct, frozen=True, kw_only=True):
    """How far one request looks around on Discord."""

    window_seconds: float = 60.0
    """Messages of one author that follow each other within this belong together; the batch wait."""
    mention_seconds: float = 900.0
    """A team member's message answers the member that it mentions, if that member asked within this time."""
    question_seconds: float = 300.0
    """Messages of one member that mention no one belong to one question, if the pauses are no longer than this."""
    follow_up_seconds: float = 120.0
    """After an answer, the asker's messages that mention no one join the capture if the pause is no longer than this
    and others wrote meanwhile. On real chat, later ones were mostly about something new."""
    named_follow_up_seconds: float = 300.0
    """The same for messages that mention the team member who answered, or while no one else writes."""
    max_hops: int = 20
    """Replies to replies to replies."""
    max_messages: int = 200
    """Of a thread, and of each reply chain."""
    max_calls: int = 10
    """REST calls in all. Discord allows a channel about one read a second before it makes us wait."""


class ChannelRule(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What intern does in one channel or thread; threads follow the channel that they hang in."""

    id: ChannelId
    mode: ChannelMode


class ConversationOptions(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How conversations are read, and where."""

    message_batch_wait_seconds: Annotated[float, Meta(ge=0)] = 60.0
    """Messages of one author in one channel that follow each other within this pause are one."""
    mention_reply_window: Annotated[float, Meta(ge=0, le=86_400)] = 900.0
    """A team member's message that mentions one member counts as a reply to that member's question of the last so many
    seconds. 0: only Discord's replies count."""
    max_history_messages: Annotated[int, Meta(ge=0)] = 50
    """Context messages that go to a model with a question."""
    max_history_chars: Annotated[int, Meta(ge=1)] = 12_000
    """Of the question and its context together."""
    channels: tuple[ChannelRule, ...] = ()
    """Where intern does something else than `default_mode` says."""
    default_mode: ChannelMode = "answer"
    language: Language = "en"
    """Of a reply to a text whose own language cannot be told."""
    max_question_age: Annotated[float, Meta(gt=0)] = 3600.0
    """Seconds after which a question is not answered any more. The team's answers are captured at any age."""

    @property
    def bounds(self) -> ContextBounds:
        """How far one request looks around."""
        return ContextBounds(
            window_seconds=self.message_batch_wait_seconds,
            mention_seconds=self.mention_reply_window,
        )

    def channel_mode(self, channel: Channel) -> ChannelMode:
        """Return the mode of a channel. A thread without a mode of its own follows its channel."""
        modes: dict[ChannelId | None, ChannelMode] = {rule.id: rule.mode for rule in self.channels}
        return modes.get(channel.id) or modes.get(channel.parent_id) or self.default_mode
