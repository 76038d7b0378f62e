"""How several actors say that messages are handled."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from intern.core.ids import ChannelId, MessageId

Settle = Callable[[ChannelId, Sequence[MessageId]], object]
"""Takes messages of a channel that need not be handled again after a restart."""


class Settling:
    """Settles messages that are both asked and captured only once both came to their end.

    Else a restart could read on behind a message that was answered, and not archived yet.
    """

    def __init__(self, settle: Settle) -> None:
        self._settle = settle
        self._capturing: set[MessageId] = set()
        self._answered: set[MessageId] = set()

    def capturing(self, message_ids: Collection[MessageId]) -> None:
        """These messages go to the capturer, and to the responder besides."""
        self._capturing.update(message_ids)

    def settle(self, channel_id: ChannelId, message_ids: Sequence[MessageId]) -> None:
        """Settle these messages, but for those that are still to be captured."""
        waiting = self._capturing.intersection(message_ids)
        self._answered |= waiting
        self._settle(channel_id, [each for each in message_ids if each not in waiting])

    def captured(self, channel_id: ChannelId, message_ids: Sequence[MessageId]) -> None:
        """Settle these messages, which are safe on disk, but for those that are still to be answered."""
        waiting = self._capturing.intersection(message_ids) - self._answered
        self._capturing.difference_update(message_ids)
        self._answered.difference_update(message_ids)
        self._settle(channel_id, [each for each in message_ids if each not in waiting])
