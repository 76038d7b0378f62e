"""Read messages over REST that the gateway did not bring: channels that are behind, and threads that were archived.

Backfill may wait for Discord and for room in the stream; the listener may not. It asks again for a page that fails. It
retries a refused page for a day, because permissions come and go. `MissedChangesGateway` looks for missed edits and
deletions.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from anyio import sleep
from anyio.lowlevel import checkpoint
from anyio.streams.memory import MemoryObjectReceiveStream as Receiver, MemoryObjectSendStream as Sender

from intern.actors.loops import REFUSED_FOR_SECONDS, Backoff, exponential_backoff
from intern.chat.checkpoints import Checkpoints, PendingThreadListing
from intern.chat.platform import PAGE, PagedHistory
from intern.core import flow
from intern.core.errors import ChatError, ChatNotFoundError, ChatRefusedError
from intern.core.ids import ChannelId
from intern.core.log import get_logger
from intern.core.tasks import open_task_group

AT_ONCE = 4  # pages asked for or held; Discord allows 50 requests a second over all, and live work needs its share

_log = get_logger(__name__)

_Step = Callable[[], Awaitable[None]]


@dataclass
class _BackfillProgress:
    """The progress of reading a channel."""

    channel_id: ChannelId
    backoff: Iterator[float]
    count: int = 0
    refused: float = 0.0
    """Seconds of waiting for permission."""


@dataclass(kw_only=True)
class Backfill:
    """Reads what is behind, several channels at once and each in order."""

    checkpoints: Checkpoints
    pages: PagedHistory
    backoff: Backoff = exponential_backoff

    async def run(self, inbox: Receiver[flow.BackfillNeeded], events: Sender[flow.BatcherEvent]) -> None:
        """After each wakeup, read what is behind, until cancelled."""
        self._events = events
        self._channels: set[ChannelId] = set()
        self._listings: set[ChannelId] = set()
        self._steps: deque[_Step] = deque()
        self._at_work = 0
        async with inbox, events, open_task_group() as self._tg:
            async for _ in inbox:
                self._queue_unread()

    def _queue_unread(self) -> None:
        """Queue the channels and listings that are not in work yet."""
        for channel_id in self.checkpoints.channels_behind():
            if channel_id not in self._channels:
                self._channels.add(channel_id)
                self._queue_step(partial(self._read_next_page, _BackfillProgress(channel_id, self.backoff())))
        for listing in self.checkpoints.find_unlisted():
            if listing.channel_id not in self._listings:
                self._listings.add(listing.channel_id)
                self._queue_step(partial(self._list_threads, listing, self.backoff()))

    def _queue_step(self, step: _Step) -> None:
        # Hundreds of threads fall behind at once where a session was lost: a waiting step is no task.
        self._steps.append(step)
        if self._at_work < AT_ONCE:
            self._at_work += 1
            self._tg.start_soon(self._run_steps)

    async def _queue_step_after(self, pause: float, step: _Step) -> None:
        await sleep(pause)
        self._queue_step(step)

    async def _run_steps(self) -> None:
        try:
            while self._steps:
                await self._steps.popleft()()
                await checkpoint()  # another task may have to run before the channel can catch up
        finally:
            self._at_work -= 1

    async def _read_next_page(self, course: _BackfillProgress) -> None:
        """Read a page, and queue the next one."""
        channel_id, again = course.channel_id, partial(self._read_next_page, course)
        try:
            course.count += await self._read_page(channel_id)
            course.backoff, course.refused = self.backoff(), 0.0
        except ChatError as error:
            if not isinstance(error, ChatNotFoundError) and course.refused <= REFUSED_FOR_SECONDS:
                pause = next(course.backoff)
                course.refused += pause if isinstance(error, ChatRefusedError) else 0.0
                _log.warning("page_delayed", channel_id=channel_id, reason=str(error), again_in_seconds=pause)
                self._tg.start_soon(self._queue_step_after, pause, again)
                return
            self._give_up(channel_id, error)
        if self.checkpoints.is_behind(channel_id):
            self._queue_step(again)
            return
        # There is no await between the last check and this, so a channel that falls behind again is read again.
        self._channels.discard(channel_id)
        _log.info("channel_read", channel_id=channel_id, messages=course.count)
        await self._events.send(flow.ChannelCaughtUp(channel_id=channel_id))

    def _give_up(self, channel_id: ChannelId, error: ChatError) -> None:
        gone = isinstance(error, ChatNotFoundError)
        (_log.warning if gone else _log.error)("channel_given_up", channel_id=channel_id, reason=str(error))
        if self.checkpoints.is_behind(channel_id):
            self.checkpoints.give_up(channel_id)

    async def _read_page(self, channel_id: ChannelId) -> int:
        if not self.checkpoints.is_behind(channel_id):  # it was closed to us while it waited for its turn
            return 0
        count = 0
        with self.checkpoints.open_page(channel_id) as reading:
            page = await self.pages.page(channel_id, reading.after, limit=PAGE)
            reading.accept_page(page)
            for message in page.messages:
                if reading.is_stale(message):
                    return count
                # Begin it before sending it: else it could be settled before it is begun.
                if self.checkpoints.begin(message):
                    await self._events.send(flow.MessageBackfilled(message=message))
                    count += 1
            self.checkpoints.finish_page(reading)
        return count

    async def _list_threads(self, listing: PendingThreadListing, backoff: Iterator[float]) -> None:
        """List a channel's archived threads; from then on, those with missed messages are behind."""
        threads: Sequence[flow.ChannelSnapshot] = ()
        try:
            threads = await self.pages.list_archived_threads(listing.channel_id, listing.after)
        except ChatRefusedError as refusal:
            _log.info("archived_threads_refused", channel_id=listing.channel_id, reason=str(refusal))
        except ChatError as error:
            place, pause = listing.channel_id, next(backoff)
            _log.warning("archived_threads_delayed", channel_id=place, reason=str(error), again_in_seconds=pause)
            self._tg.start_soon(self._queue_step_after, pause, partial(self._list_threads, listing, backoff))
            return
        self.checkpoints.record_threads(listing, threads)
        self._listings.discard(listing.channel_id)
        self._queue_unread()
