"""The capturer archives team answers: once it has settled one, it is safe on disk."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from anyio.streams.memory import MemoryObjectReceiveStream as Receiver, MemoryObjectSendStream as Sender

from intern.actors.activity import ActivityReporter
from intern.actors.checkpointer import Settle
from intern.actors.loops import wake
from intern.chat.conversations import build_capture
from intern.core.captures import Capture, CapturedPair
from intern.core.flow import CaptureArchived, CapturePending, CaptureRequest
from intern.core.log import bind_trace_id
from intern.stores.tables.pending_captures import AttachmentTexts, PendingCaptures

ArchiveCapture = Callable[[Capture], Awaitable[CapturedPair | None]]
"""Archives a conversation; returns None if the archive holds all of it already. Raises KnowledgeError."""


async def capturer(
    inbox: Receiver[CaptureRequest],
    archived: Sender[CaptureArchived],
    waiting: Sender[CapturePending],
    *,
    keep: ArchiveCapture,
    known: Callable[[CaptureRequest], Awaitable[AttachmentTexts | None]],
    pending: PendingCaptures,
    settle: Settle,
    events: ActivityReporter,
) -> None:
    """Archive each capture, in order, until the inbox ends; captures with unread attachments wait.

    `known` returns the texts of attachments; None if they have to be read or described first.

    It fetches nothing, so an attachment delays its own conversation only. A failing disk ends the process: continuing
    would lose one answer after the other.
    """
    async with inbox, archived, waiting:
        async for request in inbox:
            with bind_trace_id((request.settles or [message.id for message in request.messages])[-1]):
                texts = await known(request)
                if texts is None:
                    await pending.add(request)
                    wake(waiting, CapturePending())
                elif await pending.join_waiting(request):
                    wake(waiting, CapturePending())
                else:
                    pair = await keep(build_capture(request, texts))
                    if pair is not None:
                        events.report_capture(pair)
                        wake(archived, CaptureArchived())
            if request.settles:
                settle(request.channel_id, request.settles)
