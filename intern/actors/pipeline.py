"""Everybody at work: who hands what to whom, how much may lie between them, and in which order they leave.

This page is the whole wiring; a test reads it and checks that it has no cycle. Streams are hints, the disk is the
truth: what a stream loses at a crash is read again from a log, a ledger or Discord's own history.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Generic, Literal, Protocol, TypeVar, get_args

from anyio import Event, create_memory_object_stream, create_task_group, current_time
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream, MemoryObjectStreamStatistics

from intern.actors import captioner as picturer, capturer, poster, responder
from intern.actors.backfill import backfill
from intern.actors.batcher import batcher
from intern.actors.capturer import Keeper
from intern.actors.checker import Posted, Retracts, checker
from intern.actors.checkpointer import MarkKeeper, marker
from intern.actors.classifier import TopicChooser, classifier
from intern.actors.embedder import Embeds, embedder
from intern.actors.events import Witness
from intern.actors.extractor import Extraction, Step, extractor
from intern.actors.fetcher import PageIndex, fetcher
from intern.actors.indexer import Indices, indexer
from intern.actors.integrator import Filer, integrator
from intern.actors.interactions import Desk, interactions
from intern.actors.job_worker import JobQueue, clerk
from intern.actors.listener import listener
from intern.actors.reviewer import Reviews, reviewer
from intern.actors.router import Declines, Dispatch, router
from intern.actors.scout import Changes, Discovers, explorer, scout
from intern.actors.settling import Settling
from intern.actors.wakeups import DueLog, Log, nudge
from intern.chat.batching import Batches
from intern.chat.checkpoints import Attendance
from intern.chat.platform import Gateway, Interactions, Pages
from intern.core.clock import Clock
from intern.core.flow import (
    AnswerRequest,
    Approval,
    Archived,
    Batch,
    CapturePending,
    CaptureRequest,
    Decided,
    FellBehind,
    Filing,
    Heard,
    Interaction,
    LateChange,
    Reply,
    SourceChanged,
    Withdrawal,
)
from intern.core.ids import ChannelId, QAId
from intern.core.log import get_logger
from intern.core.messages import Channel
from intern.core.records import CapturedPair
from intern.learning.attempts import Attempts
from intern.learning.message_changes import MessageChanges
from intern.learning.review import Approvals
from intern.stores.sqlite.jobs import Job

T = TypeVar("T")
Taking = Literal["waits", "busy", "gone"]

# docs/server.md promises an end within 20 seconds. The others are for the marks, the page and the connection.
SHUTDOWN_SECONDS = 12.0

_log = get_logger(__name__)


class Fill:
    """How full each stream is, for whoever looks on; nothing before the office opened."""

    def __init__(self) -> None:
        self._streams: dict[str, tuple[Wire[Any], MemoryObjectSendStream[Any]]] = {}

    def watch(self, wire: Wire[Any], stream: MemoryObjectSendStream[Any]) -> None:
        """Remember the stream that was opened for a wire."""
        # A clone of its own would keep the stream open: only its statistics are ever read, closed or not.
        self._streams[wire.name] = (wire, stream)

    def now(self) -> tuple[StreamFill, ...]:
        """Every stream, in the order of the page."""
        return tuple(_filled(wire, stream.statistics()) for wire, stream in self._streams.values())


def _filled(wire: Wire[Any], seen: MemoryObjectStreamStatistics) -> StreamFill:
    taking: Taking = "waits" if seen.tasks_waiting_receive else "busy" if seen.open_receive_streams else "gone"
    return StreamFill(
        name=wire.name,
        kinds=wire.kinds,
        waiting=seen.current_buffer_used,
        size=wire.size,
        to=wire.to,
        taking=taking,
    )


@dataclass(frozen=True, kw_only=True)
class StreamFill:
    """How many things lie between two actors."""

    name: str
    kinds: tuple[str, ...]
    waiting: int
    size: int
    to: str
    taking: Taking
    """Who takes from it waits for more, is busy with what was taken, or has left."""


@dataclass(frozen=True)
class Wire(Generic[T]):
    """One bounded stream of one type between two actors."""

    carries: object
    source: tuple[str, ...]
    to: str
    size: int

    @property
    def name(self) -> str:
        """From whom to whom, as in `batcher to router`; no two have the same."""
        return f"{' and '.join(self.source)} to {self.to}"

    @property
    def kinds(self) -> tuple[str, ...]:
        """The names of what it carries."""
        kinds: tuple[Any, ...] = get_args(self.carries) or (self.carries,)
        return tuple(each.__name__ for each in kinds)

    def open(self, fill: Fill | None = None) -> tuple[MemoryObjectSendStream[T], MemoryObjectReceiveStream[T]]:
        """A fresh stream, which `fill` can tell of."""
        sends, receives = create_memory_object_stream[T](self.size)
        if fill is not None:
            fill.watch(self, sends)
        return sends, receives


# A burst: the gateway cannot wait. At 1 KB a message this is a megabyte; beyond it, channels fall behind.
EVENTS = Wire[Heard](Heard, ("listener", "backfill"), "batcher", 1000)
# A nudge: attendance holds which channels are behind.
BEHIND = Wire[FellBehind](FellBehind, ("listener",), "backfill", 1)
# Discord waits 3 s for a sign; as many as the actor has in work may queue, more could not be served in time.
INTERACTIONS = Wire[Interaction](Interaction, ("listener",), "interactions", 64)
# A nudge: `Approvals` holds what was approved.
APPROVED = Wire[Approval](Approval, ("listener",), "reviewer", 1)
# The router works on several at once; whatever waits here would wait in a quiet window otherwise.
BATCHES = Wire[Batch | LateChange](Batch | LateChange, ("batcher",), "router", 16)
# A late answer helps nobody: questions beyond this are shed, named and counted.
ANSWERS = Wire[AnswerRequest | Withdrawal](AnswerRequest | Withdrawal, ("router",), "responder", 16)
# An append takes a millisecond; the router waits when the disk is slower.
CAPTURES = Wire[CaptureRequest](CaptureRequest, ("router", "interactions"), "capturer", 16)
# A nudge: the table of pending captures holds the rest.
PENDING = Wire[CapturePending](CapturePending, ("capturer",), "picturer", 1)
# Written down at once, whatever a model is busy with.
WITHDRAWALS = Wire[Withdrawal](Withdrawal, ("router",), "integrator", 16)
# A nudge: the archive holds the rest.
ARCHIVED = Wire[Archived](Archived, ("capturer", "picturer", "reviewer", "clerk"), "classifier", 1)
# None ahead: a pair is classified knowing the topics that those before it opened.
FILINGS = Wire[Filing](Filing, ("classifier",), "integrator", 0)
# A nudge: files, topics and the index cache hold the rest.
CHANGES = Wire[SourceChanged](SourceChanged, ("integrator", "scout", "clerk"), "indexer", 1)
# A nudge: the decisions hold the rest.
DECIDED = Wire[Decided](Decided, ("integrator", "clerk"), "extractor", 1)
# Replies are few and small; one that waits for Discord must not hold up a model call that is done.
REPLIES = Wire[Reply](Reply, ("responder", "router"), "poster", 16)

WIRES: tuple[Wire[Any], ...] = (
    EVENTS,
    BEHIND,
    INTERACTIONS,
    APPROVED,
    BATCHES,
    ANSWERS,
    CAPTURES,
    PENDING,
    WITHDRAWALS,
    ARCHIVED,
    FILINGS,
    CHANGES,
    DECIDED,
    REPLIES,
)


@dataclass(frozen=True, kw_only=True)
class Parts:
    """All that the actors work with."""

    gateway: Gateway
    admits: Callable[[Channel], bool]
    admits_id: Callable[[ChannelId], Awaitable[bool]]
    """Whether the bot may work there; raises the ChatError family."""
    attendance: Attendance
    settling: Settling
    """Over the attendance, for whoever may settle a message that somebody else has, too."""
    approvals: Approvals
    pages: Pages
    marks: MarkKeeper
    open_batches: Batches
    clock: Clock
    dispatch: Dispatch
    declines: Declines
    late: MessageChanges
    keeper: Keeper
    pictures: Pictures
    pending: Pending
    messages: picturer.Messages
    attempts: Attempts
    archive: Log[CapturedPair, QAId]
    archived_until: QAId | None
    """The newest pair that was decided; the classifier begins behind it."""
    settles_in: Callable[[CapturedPair], float]
    """In how many seconds a pair is to be filed: until then its conversation may go on."""
    again: DueLog[CapturedPair]
    """Older pairs that are to be filed after all."""
    chooser: TopicChooser
    filer: Filer
    decisions: Decisions
    extracted_until: int
    """How far the decisions were followed."""
    reviews: Reviews
    indices: AllIndices
    responding: responder.Collaborators
    posting: poster.Collaborators
    desk: Desk
    responses: Interactions
    jobs: JobQueue
    do_job: Callable[[Job, Callable[[], None]], Awaitable[bytes]]
    """Does a job; calls what it is given after it changed the archive or a topic."""
    settle_seconds: float
    scan_interval_seconds: float
    discovery: Discovers | None
    """None where there is nothing to discover."""
    discovery_interval_seconds: float
    file_changes: Changes
    embeds: Embeds | None = None
    """None where the search goes by words alone."""
    posted: Posted
    retractions: Retracts | None
    """None where posted answers are never edited."""
    witness: Witness
    fill: Fill = field(default_factory=Fill)


class AllIndices(Indices, PageIndex, Protocol):
    """What topics, files and pages are listed in."""


class Decisions(Log[Step, int], DueLog[Step], Extraction, Protocol):
    """What was decided, and what is learned from it."""


class Pictures(capturer.Pictures, picturer.Pictures, Protocol):
    """What images show, known and to be found out."""


class Pending(capturer.Pending, picturer.Pending, Protocol):
    """The captures that wait for that."""


async def office(parts: Parts, *, stop: Event, drain: bool = False) -> None:
    """Everybody at work, until `stop` is set or the gateway ends by itself.

    Then calmly, from the source: the listener stops taking, captures reach the archive and replies Discord, within
    SHUTDOWN_SECONDS. Batches still open stay unsettled, and come back from Discord's history; those who follow a log
    are cancelled, for they take up where they were. With `drain` (where no start follows: `intern try`, tests) open
    batches are flushed, and followers read to the end.
    """
    events, to_batch = EVENTS.open(parts.fill)
    behind, to_read = BEHIND.open(parts.fill)
    interacting, to_interact = INTERACTIONS.open(parts.fill)
    approved, to_review = APPROVED.open(parts.fill)
    batches, to_route = BATCHES.open(parts.fill)
    requests, to_answer = ANSWERS.open(parts.fill)
    captures, to_capture = CAPTURES.open(parts.fill)
    waiting, to_picture = PENDING.open(parts.fill)
    withdrawals, to_withdraw = WITHDRAWALS.open(parts.fill)
    archived, to_classify = ARCHIVED.open(parts.fill)
    filings, to_file = FILINGS.open(parts.fill)
    changed, to_index = CHANGES.open(parts.fill)
    decided, to_extract = DECIDED.open(parts.fill)
    replies, to_post = REPLIES.open(parts.fill)
    witness, attendance = parts.witness, parts.attendance

    async with create_task_group() as books:
        books.start_soon(partial(marker, parts.marks, attendance=attendance))
        async with create_task_group() as followers:
            job_archived, pictured, reviewed, job_decided, job_changed, scouted, read, taught, words = (
                archived.clone(),
                archived.clone(),
                archived.clone(),
                decided.clone(),
                changed.clone(),
                changed.clone(),
                events.clone(),
                captures.clone(),
                replies.clone(),
            )
            followers.start_soon(
                partial(
                    classifier,
                    parts.archive,
                    to_classify,
                    filings,
                    after=parts.archived_until,
                    settles_in=parts.settles_in,
                    again=parts.again,
                    chooser=parts.chooser,
                    attempts=parts.attempts,
                    witness=witness,
                )
            )
            followers.start_soon(
                partial(
                    picturer.picturer,
                    to_picture,
                    pictured,
                    pending=parts.pending,
                    pictures=parts.pictures,
                    keeper=parts.keeper,
                    messages=parts.messages,
                    witness=witness,
                )
            )
            followers.start_soon(
                partial(
                    integrator,
                    to_file,
                    to_withdraw,
                    changed,
                    decided,
                    filer=parts.filer,
                    attempts=parts.attempts,
                    witness=witness,
                )
            )
            followers.start_soon(
                partial(indexer, to_index, indices=parts.indices, settle_seconds=parts.settle_seconds, witness=witness)
            )
            followers.start_soon(_extractor, parts, to_extract)
            async with create_task_group() as desk:
                desk.start_soon(
                    partial(
                        batcher,
                        to_batch,
                        batches,
                        open_batches=parts.open_batches,
                        settles=attendance,
                        clock=parts.clock,
                        flush=drain,
                    )
                )
                desk.start_soon(
                    partial(
                        router,
                        to_route,
                        requests,
                        captures,
                        withdrawals,
                        words,
                        dispatch=parts.dispatch,
                        declines=parts.declines,
                        outgoing=parts.responding.outgoing,
                        late=parts.late,
                        settles=parts.settling,
                        capturing=parts.settling.capturing,
                        witness=witness,
                    )
                )
                desk.start_soon(
                    partial(
                        capturer.capturer,
                        to_capture,
                        archived,
                        waiting,
                        keeper=parts.keeper,
                        pictures=parts.pictures,
                        pending=parts.pending,
                        settles=parts.settling.captures,
                        witness=witness,
                    )
                )
                desk.start_soon(partial(responder.responder, to_answer, replies, work_with=parts.responding))
                desk.start_soon(partial(poster.poster, to_post, work_with=parts.posting))
                desk.start_soon(
                    partial(
                        interactions,
                        to_interact,
                        taught,
                        desk=parts.desk,
                        responses=parts.responses,
                    )
                )
                desk.start_soon(
                    partial(
                        reviewer,
                        to_review,
                        reviewed,
                        approvals=parts.approvals,
                        reviews=parts.reviews,
                        admits=parts.admits_id,
                        witness=witness,
                    )
                )
                async with create_task_group() as takers:
                    takers.start_soon(partial(_listener, parts, events, interacting, behind, approved, stop=stop))
                    takers.start_soon(partial(backfill, to_read, read, attendance=attendance, pages=parts.pages))
                    takers.start_soon(partial(scout, scouted, interval_seconds=parts.scan_interval_seconds))
                    takers.start_soon(_on_timers, parts)
                    takers.start_soon(_clerk, parts, job_archived, job_decided, job_changed)
                    await _told_to_stop(stop)
                    takers.cancel_scope.cancel()
                desk.cancel_scope.deadline = current_time() + SHUTDOWN_SECONDS
            _warn_of_deadline(passed=desk.cancel_scope.cancelled_caught)
            if not drain:
                followers.cancel_scope.cancel()
            # A model that is away would hold them for ever.
            followers.cancel_scope.deadline = current_time() + SHUTDOWN_SECONDS
        _warn_of_deadline(passed=drain and followers.cancel_scope.cancelled_caught)
        books.cancel_scope.cancel()
    _log.info("shutdown_finished")


async def _on_timers(parts: Parts) -> None:
    async with create_task_group() as tg:
        tg.start_soon(
            partial(fetcher, parts.indices, interval_seconds=parts.scan_interval_seconds, witness=parts.witness)
        )
        if parts.embeds is not None:
            tg.start_soon(embedder, parts.embeds)
        tg.start_soon(partial(checker, parts.posted, parts.retractions, interval_seconds=parts.scan_interval_seconds))
        if parts.discovery is not None:
            every = parts.discovery_interval_seconds
            await explorer(parts.discovery, interval_seconds=every, changes=parts.file_changes)


async def _listener(
    parts: Parts,
    events: MemoryObjectSendStream[Heard],
    interacting: MemoryObjectSendStream[Interaction],
    behind: MemoryObjectSendStream[FellBehind],
    approved: MemoryObjectSendStream[Approval],
    *,
    stop: Event,
) -> None:
    await listener(
        parts.gateway,
        events,
        interacting,
        behind,
        approved,
        attendance=parts.attendance,
        approvals=parts.approvals,
        admits=parts.admits,
    )
    stop.set()


async def _told_to_stop(stop: Event) -> None:
    await stop.wait()
    _log.info("shutdown_started")


def _warn_of_deadline(*, passed: bool) -> None:
    if passed:
        _log.warning("shutdown_deadline_passed", seconds=SHUTDOWN_SECONDS)


async def _extractor(parts: Parts, decided: MemoryObjectReceiveStream[Decided]) -> None:
    await extractor(
        parts.decisions,
        decided,
        after=parts.extracted_until,
        again=parts.decisions,
        extraction=parts.decisions,
        attempts=parts.attempts,
        witness=parts.witness,
    )


async def _clerk(
    parts: Parts,
    archived: MemoryObjectSendStream[Archived],
    decided: MemoryObjectSendStream[Decided],
    changed: MemoryObjectSendStream[SourceChanged],
) -> None:
    def look() -> None:
        nudge(archived, Archived())
        nudge(decided, Decided())
        nudge(changed, SourceChanged())

    async with archived, decided, changed:
        await clerk(parts.jobs, do=lambda job: parts.do_job(job, look))
