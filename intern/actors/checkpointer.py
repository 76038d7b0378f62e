"""The checkpointer saves how far each channel is settled, so that a restart reads on from there."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Sequence

from anyio import move_on_after, sleep

from intern.actors.loops import exponential_backoff, make_delay_logger, retry, surviving
from intern.chat.checkpoints import Checkpoints
from intern.core.errors import InternError
from intern.core.ids import ChannelId, MessageId
from intern.core.log import get_logger
from intern.stores.tables.checkpoints import StoredCheckpoints

_log = get_logger(__name__)

_PAUSE = 1.0  # seconds; after a crash, messages settled since then are read again
_LONGEST_PAUSE = 60.0  # while the disk fails
_LAST_SECONDS = 3.0  # to save the marks at the end


async def checkpointer(keep: Callable[[StoredCheckpoints], Awaitable[None]], *, checkpoints: Checkpoints) -> None:
    """Save the marks that moved, once a second until cancelled, and then once more; less often while that fails."""
    moved = StoredCheckpoints()

    async def keep_moved() -> None:
        nonlocal moved
        moved = moved.merge(checkpoints.collect_moved())
        await keep(moved)
        moved = StoredCheckpoints()

    delayed = make_delay_logger(_log, "checkpoints_delayed")
    try:
        while True:
            await sleep(_PAUSE)
            backoff = exponential_backoff(2 * _PAUSE, _LONGEST_PAUSE)
            await retry(keep_moved, InternError, backoff=backoff, delayed=delayed)
    finally:
        with move_on_after(_LAST_SECONDS, shield=True), surviving("checkpointer"):
            await keep_moved()


Settle = Callable[[ChannelId, Sequence[MessageId]], object]
"""Takes messages of a channel that need not be handled again after a restart."""


class MessageSettler:
    """Settles messages that are both asked and captured only when both are done.

    Otherwise a restart could skip a message that was answered but not archived yet.
    """

    def __init__(self, settle: Settle, tell: Callable[[Collection[MessageId]], object] = lambda _: None) -> None:
        """`tell` is called with messages whose answer is done."""
        self._settle, self._tell = settle, tell
        self._capturing: set[MessageId] = set()
        self._answered: set[MessageId] = set()

    def expect_capture(self, message_ids: Collection[MessageId]) -> None:
        """Note that these messages go to the capturer as well as to the responder."""
        self._capturing.update(message_ids)

    def settle(self, channel_id: ChannelId, message_ids: Sequence[MessageId]) -> None:
        """Settle these messages, except those that are still to be captured."""
        waiting = self._capturing.intersection(message_ids)
        self._answered |= waiting
        self._tell(message_ids)
        self._settle(channel_id, [each for each in message_ids if each not in waiting])

    def settle_captured(self, channel_id: ChannelId, message_ids: Sequence[MessageId]) -> None:
        """Settle these archived messages, except those that are still to be answered."""
        waiting = self._capturing.intersection(message_ids) - self._answered
        self._capturing.difference_update(message_ids)
        self._answered.difference_update(message_ids)
        self._settle(channel_id, [each for each in message_ids if each not in waiting])
