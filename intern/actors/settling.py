"""What several actors ask of whoever keeps account of handled messages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from intern.domain import ChannelId, MessageId


class Settles(Protocol):
    """Hears of messages that need not be handled again after a restart."""

    def settle(self, channel_id: ChannelId, message_ids: Sequence[MessageId], /) -> None:
        """These messages of a channel are done with."""
        ...
