"""The actor that describes the images of a capture before it is archived."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import timedelta
from functools import partial

from anyio import EndOfStream, current_time, move_on_after
from anyio.streams.memory import MemoryObjectReceiveStream as Receiver, MemoryObjectSendStream as Sender
from msgspec.structs import replace

from intern.actors.activity import ActivityReporter
from intern.actors.capturer import ArchiveCapture
from intern.actors.loops import Backoff, exponential_backoff, wake
from intern.chat.conversations import build_capture
from intern.core.errors import ChatError, ChatRefusedError, LinkExpiredError, ModelError, ModelUnavailableError
from intern.core.flow import CaptureArchived, CapturePending
from intern.core.ids import ChannelId, MessageId
from intern.core.log import bind_trace_id, get_logger
from intern.core.messages import ChatMessage
from intern.learning.captioning import AttachmentCaptioner
from intern.stores.tables.pending_captures import PendingCapture, PendingCaptures

_log = get_logger(__name__)

LookUp = Callable[[ChannelId, MessageId], Awaitable[ChatMessage | None]]
"""Returns a message as it is now; None if it is deleted. Raises the ChatError family, also without permission."""

LAST_TRY = 5  # after 1, 4, 16 and 60 minutes of a model that answers and does not describe an image

_pauses_of_one = partial(exponential_backoff, first=60.0, longest=3600.0, factor=4.0)
"""Seconds between two attempts at one capture's images."""


@dataclass(kw_only=True)
class Captioner:
    """Archives captures once their attachments are in words."""

    pending: PendingCaptures
    captions: AttachmentCaptioner
    keep: ArchiveCapture
    look_up: LookUp
    events: ActivityReporter
    backoff: Backoff = exponential_backoff
    pauses_of_one: Backoff = _pauses_of_one

    async def run(self, inbox: Receiver[CapturePending], archived: Sender[CaptureArchived]) -> None:
        """Process the pending captures: at the start, when one is added, and after growing pauses, until cancelled.

        A capture that fails does not hold up the others. An absent model holds up all of them, for `backoff`. Once the
        inbox ends, it tries the due captures once more, and leaves the rest for the next start.
        """
        self._archived = archived
        # Known to this process only: after a restart, all are due at once, with fresh links.
        self._old: set[int] | None = None
        self._due: dict[int, float] = {}
        self._waits: dict[int, Iterator[float]] = {}
        self._away: Iterator[float] | None = None
        self._turned_away: set[int] = set()
        self._shut_until = 0.0
        async with inbox, archived:
            while True:
                seconds = await self._process_due()
                with move_on_after(seconds):
                    try:
                        await inbox.receive()
                    except EndOfStream:
                        await self._process_due()
                        return

    async def _process_due(self) -> float | None:
        """Try all captures that are due; return the seconds until the next is due, None if none waits."""
        due = await self.pending.list_waiting()
        if self._old is None:
            self._old = set(due)
        for rid in due:
            if current_time() < self._shut_until:
                break
            if self._due.get(rid, 0.0) <= current_time():
                waits = await self.pending.get(rid)
                with bind_trace_id(waits.request.messages[-1].id) if waits else nullcontext():
                    await self._try_capture(rid, waits)
        waiting = await self.pending.list_waiting()
        self._old &= set(waiting)
        self._due = {rid: moment for rid, moment in self._due.items() if rid in waiting}
        self._waits = {rid: waits for rid, waits in self._waits.items() if rid in waiting}
        if not waiting:
            return None
        soonest = min(self._due.get(rid, 0.0) for rid in waiting)
        return max(soonest, self._shut_until) - current_time()

    async def _try_capture(self, rid: int, waits: PendingCapture | None) -> None:
        wait = next(self._waits.setdefault(rid, self.pauses_of_one()))
        try:
            await self._caption_and_archive(rid, waits)
        except (ModelError, ChatError) as error:
            away = isinstance(error, ModelUnavailableError)
            if away:
                self._away = self._away or self.backoff()
                self._shut_until = current_time() + next(self._away)
                self._turned_away.add(rid)
            by_model = isinstance(error, ModelError) and not away
            await self.pending.save_failure(rid, str(error), again_in=timedelta(seconds=wait), by_model=by_model)
            _log.warning("capture_pending", pending_id=rid, reason=str(error), again_in_seconds=wait)
        else:
            self._away = None
        # A finished capture needs no pause; one that cannot be read waits, and delays no other.
        self._due[rid] = current_time() + wait
        if self._away is None:
            # The model is back: retry now.
            self._due.update(dict.fromkeys(self._turned_away - {rid}, 0.0))
            self._turned_away.clear()

    async def _caption_and_archive(self, rid: int, waits: PendingCapture | None) -> None:
        """Caption the attachments and archive the capture; repeat if the capture changes meanwhile."""
        fresh = rid in self._due or rid in (self._old or ())
        while waits is not None:
            if fresh:
                waits = await self._renew_links(waits)
                if waits is None:
                    return
            last_try = waits.attempts >= LAST_TRY - 1
            try:
                await self.captions.caption_missing(waits.request, fresh=fresh, last_try=last_try)
            except LinkExpiredError:
                fresh = True
                continue
            waits = await self.pending.get(rid)
            if waits is not None:
                await self._archive(waits)
                waits = await self.pending.get(rid)

    async def _renew_links(self, waits: PendingCapture) -> PendingCapture | None:
        """Return the capture with fresh links, without messages that are gone from Discord."""
        wanted = await self.captions.find_uncaptioned(waits.request)
        found: list[ChatMessage] = []
        gone: list[MessageId] = []
        for message in waits.request.messages:
            if message.id not in wanted:
                continue
            try:
                now = await self.look_up(message.channel_id, message.id)
            except ChatRefusedError:
                continue  # keep the message that we read before, with its old links
            if now is None:
                gone.append(message.id)
            else:
                # Only its files: Discord reports other edits in channels where we may still learn.
                found.append(replace(message, attachments=now.attachments))
        if gone:
            _log.info("pending_messages_gone", pending_id=waits.id, message_ids=gone)
            await self.pending.forget(gone)
        await self.pending.update_messages(waits.id, found)
        return await self.pending.get(waits.id)

    async def _archive(self, waits: PendingCapture) -> None:
        texts = await self.captions.read_captions(waits.request)
        if texts is None:
            return  # more messages joined meanwhile; they come next
        pair = await self.keep(build_capture(waits.request, texts))
        await self.pending.finish(waits.id, waits.version)
        if pair is not None:
            self.events.report_capture(pair)
            wake(self._archived, CaptureArchived())
