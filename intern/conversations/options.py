"""What an operator can set about reading and posting conversations, and the bounds that are not theirs to set."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct


class ContextBounds(Struct, frozen=True, kw_only=True):
    """How far one request looks around on Discord."""

    window_seconds: float = 60.0
    """Messages of one author that follow each other within this belong together; the batch wait."""
    max_hops: int = 20
    """Replies to replies to replies."""
    max_messages: int = 200
    """Of a thread, and of each reply chain."""
    max_calls: int = 10
    """REST calls in all. Discord allows a channel about one read a second before it makes us wait."""


class ConversationOptions(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the conversations room takes from the settings."""

    message_batch_wait_seconds: Annotated[float, Meta(ge=0)] = 60.0
    max_history_messages: Annotated[int, Meta(ge=0)] = 50
    """Context messages that go to a model with a question."""
    max_history_chars: Annotated[int, Meta(ge=1)] = 12_000
    """Of the question and its context together."""

    @property
    def bounds(self) -> ContextBounds:
        """How far one request looks around."""
        return ContextBounds(window_seconds=self.message_batch_wait_seconds)
