"""What an operator can set about reading and posting conversations, and the bounds that are not theirs to set."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Annotated, Final

from msgspec import Meta, Struct

from intern.discord.options import ChannelMode
from intern.domain import Channel, ChannelId

STILL_WAITED_FOR: Final = timedelta(days=1)
"""Who asked longer ago knows by now that there was nobody."""


_SETTLED_AFTER = 5  # batch waits


class ContextBounds(Struct, frozen=True, kw_only=True):
    """How far one request looks around on Discord."""

    window_seconds: float = 60.0
    """Messages of one author that follow each other within this belong together; the batch wait."""
    mention_seconds: float = 900.0
    """A team member's message answers whom it names, if they asked within this."""
    question_seconds: float = 300.0
    """A member's words for nobody belong to one question, if they pause no longer than this."""
    follow_up_seconds: float = 120.0
    """Who was answered goes on with it by words for nobody among others' words, if they pause no longer than this; on
    real chat, later ones were mostly something new."""
    named_follow_up_seconds: float = 300.0
    """The same by words for the team member who answered, or while nobody else speaks."""
    settle_seconds: float = 300.0
    """A captured conversation is filed if nothing was added to it for this long: in five batch waits, whoever goes on
    is heard."""
    max_hops: int = 20
    """Replies to replies to replies."""
    max_messages: int = 200
    """Of a thread, and of each reply chain."""
    max_calls: int = 10
    """REST calls in all. Discord allows a channel about one read a second before it makes us wait."""


class ConversationOptions(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the conversations room takes from the settings."""

    message_batch_wait_seconds: Annotated[float, Meta(ge=0)] = 60.0
    mention_reply_window: Annotated[float, Meta(ge=0)] = 900.0
    """Seconds within which a team member's message answers the one member that it mentions."""
    max_history_messages: Annotated[int, Meta(ge=0)] = 50
    """Context messages that go to a model with a question."""
    max_history_chars: Annotated[int, Meta(ge=1)] = 12_000
    """Of the question and its context together."""
    modes: Mapping[ChannelId, ChannelMode] = {}
    """Of the channels and threads that have one of their own."""
    default_mode: ChannelMode = "answer"
    max_question_age: Annotated[float, Meta(gt=0)] = 3600.0
    """Seconds; older questions are passed over."""

    @property
    def bounds(self) -> ContextBounds:
        """How far one request looks around."""
        return ContextBounds(
            window_seconds=self.message_batch_wait_seconds,
            mention_seconds=self.mention_reply_window,
            settle_seconds=_SETTLED_AFTER * self.message_batch_wait_seconds,
        )

    def mode_of(self, channel: Channel) -> ChannelMode:
        """What intern does there. A thread that is not named itself follows the channel that it hangs in."""
        for place in (channel.id, channel.parent_id):
            if place is not None and place in self.modes:
                return self.modes[place]
        return self.default_mode
