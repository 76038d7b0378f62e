"""Messages by age. Pure."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from intern.domain import ChatMessage, MessageId, by_age


def position(messages: Sequence[ChatMessage], message_id: MessageId) -> int:
    """Where a message stands, or would stand, among messages that are sorted from the oldest to the newest."""
    return bisect_left(messages, by_age(message_id), key=lambda message: by_age(message.id))
