"""The pipeline: every actor, what it is started with, and in which order they leave.

An actor is one function here and one entry in `ACTORS`; `intern.actors.streams` says which streams join them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, NamedTuple, TypeVar

from anyio import Event, create_task_group, current_time
from anyio.abc import TaskGroup
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream

from intern.actors import poster, responder
from intern.actors.backfill import backfill
from intern.actors.batcher import batcher
from intern.actors.capturer import Keep, LookUp, captioner, capturer
from intern.actors.checkpointer import Settling, checkpointer
from intern.actors.events import Events
from intern.actors.extractor import Extraction, Step, extractor
from intern.actors.filing import Choose, Filer, classifier, integrator
from intern.actors.interactions import Handle, Reviews, interactions, reviewer
from intern.actors.job_worker import job_worker
from intern.actors.listener import listener
from intern.actors.loops import DueLog, Log, wake
from intern.actors.router import Dispatch, router
from intern.actors.streams import (
    ANSWERS,
    APPROVED,
    ARCHIVED,
    BATCHES,
    BEHIND,
    CAPTURES,
    CHANGES,
    DECIDED,
    EVENTS,
    FILINGS,
    INTERACTIONS,
    PENDING,
    REPLIES,
    WIRES,
    WITHDRAWALS,
    Fill,
    Wire,
)
from intern.actors.upkeep import checker, embedder, explorer, fetcher, indexer, scout
from intern.answering.replying import Declining
from intern.chat.batching import Batches
from intern.chat.checkpoints import Checkpoints
from intern.chat.platform import Gateway, Interactions, Pages
from intern.core.clock import Clock
from intern.core.flow import Archived, Decided, SourceChanged
from intern.core.ids import ChannelId, QAId
from intern.core.log import get_logger
from intern.core.messages import Channel
from intern.core.records import CapturedPair
from intern.learning.attempts import Attempts
from intern.learning.captioning import Captioning
from intern.learning.message_changes import MessageChanges
from intern.learning.review import Approvals
from intern.sources.refresh import Refreshed
from intern.sources.searchable import Embedding
from intern.stores.sqlite.chat import Marks
from intern.stores.sqlite.work import Job, Jobs, PendingCaptures

T = TypeVar("T")

# docs/server.md promises an end within 20 seconds. The others are for the marks, the page and the connection.
SHUTDOWN_SECONDS = 12.0

_log = get_logger(__name__)


@dataclass(frozen=True, kw_only=True)
class Parts:
    """All that the actors work with."""

    gateway: Gateway
    admits: Callable[[Channel], bool]
    admits_id: Callable[[ChannelId], Awaitable[bool]]
    """Whether the bot may work there; raises the ChatError family."""
    checkpoints: Checkpoints
    settling: Settling
    """Over the checkpoints, for whoever may settle a message that somebody else has, too."""
    approvals: Approvals
    pages: Pages
    keep_checkpoints: Callable[[Marks], Awaitable[None]]
    open_batches: Batches
    clock: Clock
    dispatch: Dispatch
    declines: Declining
    late: MessageChanges
    keep: Keep
    captions: Captioning
    pending: PendingCaptures
    look_up: LookUp
    attempts: Attempts
    archive: Log[QAId, CapturedPair]
    archived_until: QAId | None
    """The newest pair that was decided; the classifier begins behind it."""
    settles_in: Callable[[CapturedPair], float]
    """In how many seconds a pair is to be filed: until then its conversation may go on."""
    again: DueLog[CapturedPair]
    """Older pairs that are to be filed after all."""
    choose: Choose
    filer: Filer
    decisions: Log[int, Step]
    extracted_until: int
    """How far the decisions were followed."""
    extract_again: DueLog[Step]
    extraction: Extraction
    reviews: Reviews
    refresh: Callable[[], Awaitable[Refreshed]]
    """Compares what is indexed with files and topics, and mends the difference."""
    refresh_pages: Callable[[], Awaitable[Refreshed]]
    """The same for web pages that are due."""
    responding: responder.Collaborators
    posting: poster.Collaborators
    handle: Handle
    responses: Interactions
    jobs: Jobs
    do_job: Callable[[Job, Callable[[], None]], Awaitable[bytes]]
    """Does a job; calls what it is given after it changed the archive or a topic."""
    settle_seconds: float
    scan_interval_seconds: float
    discover: Callable[[], Awaitable[object]] | None
    """None where there is nothing to discover."""
    discovery_interval_seconds: float
    files_changed: Callable[[], Awaitable[object]]
    """Returns once a file changed; maybe never."""
    embeds: Embedding | None = None
    """None where the search goes by words alone."""
    check_posted: Callable[[], Awaitable[None]]
    """Compares posted answers with what they cite. Raises KnowledgeError."""
    retract: Callable[[], Awaitable[None]] | None
    """Edits answers that do not stand any more; None where posted answers are never edited."""
    events: Events
    fill: Fill = field(default_factory=Fill)


class Place:
    """What one actor is started with: its ends of the streams, which it owns and closes, and all the parts."""

    def __init__(
        self, name: str, ends: Mapping[tuple[str, str], Any], parts: Parts, *, stop: Event, drain: bool
    ) -> None:
        self.parts = parts
        self.stop = stop
        """Set once the bot is to leave."""
        self.drain = drain
        """Whether open batches are sent on at the end."""
        self._name = name
        self._ends = ends

    def sends(self, wire: Wire[T]) -> MemoryObjectSendStream[T]:
        """Return the actor's own way into a stream."""
        end: MemoryObjectSendStream[T] = self._ends[self._name, wire.name]
        return end

    def takes(self, wire: Wire[T]) -> MemoryObjectReceiveStream[T]:
        """Return the way out of a stream, which one actor has."""
        end: MemoryObjectReceiveStream[T] = self._ends[self._name, wire.name]
        return end


def _classifier(at: Place) -> Coroutine[Any, Any, None]:
    return classifier(
        at.parts.archive,
        at.takes(ARCHIVED),
        at.sends(FILINGS),
        after=at.parts.archived_until,
        settles_in=at.parts.settles_in,
        again=at.parts.again,
        choose=at.parts.choose,
        attempts=at.parts.attempts,
        events=at.parts.events,
    )


def _captioner(at: Place) -> Coroutine[Any, Any, None]:
    return captioner(
        at.takes(PENDING),
        at.sends(ARCHIVED),
        pending=at.parts.pending,
        captions=at.parts.captions,
        keep=at.parts.keep,
        look_up=at.parts.look_up,
        events=at.parts.events,
    )


def _integrator(at: Place) -> Coroutine[Any, Any, None]:
    return integrator(
        at.takes(FILINGS),
        at.takes(WITHDRAWALS),
        at.sends(CHANGES),
        at.sends(DECIDED),
        filer=at.parts.filer,
        attempts=at.parts.attempts,
        events=at.parts.events,
    )


def _indexer(at: Place) -> Coroutine[Any, Any, None]:
    return indexer(
        at.takes(CHANGES),
        refresh=at.parts.refresh,
        settle_seconds=at.parts.settle_seconds,
        events=at.parts.events,
    )


def _extractor(at: Place) -> Coroutine[Any, Any, None]:
    return extractor(
        at.parts.decisions,
        at.takes(DECIDED),
        after=at.parts.extracted_until,
        again=at.parts.extract_again,
        extraction=at.parts.extraction,
        attempts=at.parts.attempts,
        events=at.parts.events,
    )


def _batcher(at: Place) -> Coroutine[Any, Any, None]:
    return batcher(
        at.takes(EVENTS),
        at.sends(BATCHES),
        open_batches=at.parts.open_batches,
        settle=at.parts.checkpoints.settle,
        clock=at.parts.clock,
        flush=at.drain,
    )


def _router(at: Place) -> Coroutine[Any, Any, None]:
    return router(
        at.takes(BATCHES),
        at.sends(ANSWERS),
        at.sends(CAPTURES),
        at.sends(WITHDRAWALS),
        at.sends(REPLIES),
        dispatch=at.parts.dispatch,
        declines=at.parts.declines,
        outgoing=at.parts.responding.outgoing,
        late=at.parts.late,
        settle=at.parts.settling.settle,
        capturing=at.parts.settling.capturing,
        events=at.parts.events,
    )


def _capturer(at: Place) -> Coroutine[Any, Any, None]:
    return capturer(
        at.takes(CAPTURES),
        at.sends(ARCHIVED),
        at.sends(PENDING),
        keep=at.parts.keep,
        known=at.parts.captions.known,
        pending=at.parts.pending,
        settle=at.parts.settling.captured,
        events=at.parts.events,
    )


def _responder(at: Place) -> Coroutine[Any, Any, None]:
    return responder.responder(at.takes(ANSWERS), at.sends(REPLIES), work_with=at.parts.responding)


def _poster(at: Place) -> Coroutine[Any, Any, None]:
    return poster.poster(at.takes(REPLIES), work_with=at.parts.posting)


def _interactions(at: Place) -> Coroutine[Any, Any, None]:
    return interactions(
        at.takes(INTERACTIONS),
        at.sends(CAPTURES),
        handle=at.parts.handle,
        responses=at.parts.responses,
    )


def _reviewer(at: Place) -> Coroutine[Any, Any, None]:
    return reviewer(
        at.takes(APPROVED),
        at.sends(ARCHIVED),
        approvals=at.parts.approvals,
        reviews=at.parts.reviews,
        admits=at.parts.admits_id,
        events=at.parts.events,
    )


async def _listener(at: Place) -> None:
    await listener(
        at.parts.gateway,
        at.sends(EVENTS),
        at.sends(INTERACTIONS),
        at.sends(BEHIND),
        at.sends(APPROVED),
        checkpoints=at.parts.checkpoints,
        approvals=at.parts.approvals,
        admits=at.parts.admits,
    )
    at.stop.set()


def _backfill(at: Place) -> Coroutine[Any, Any, None]:
    return backfill(at.takes(BEHIND), at.sends(EVENTS), checkpoints=at.parts.checkpoints, pages=at.parts.pages)


def _scout(at: Place) -> Coroutine[Any, Any, None]:
    return scout(at.sends(CHANGES), interval_seconds=at.parts.scan_interval_seconds)


def _fetcher(at: Place) -> Coroutine[Any, Any, None]:
    interval = at.parts.scan_interval_seconds
    return fetcher(at.parts.refresh_pages, interval_seconds=interval, events=at.parts.events)


async def _embedder(at: Place) -> None:
    if at.parts.embeds is not None:
        await embedder(at.parts.embeds)


def _checker(at: Place) -> Coroutine[Any, Any, None]:
    return checker(at.parts.check_posted, at.parts.retract, interval_seconds=at.parts.scan_interval_seconds)


async def _explorer(at: Place) -> None:
    if at.parts.discover is not None:
        every = at.parts.discovery_interval_seconds
        await explorer(at.parts.discover, interval_seconds=every, changed=at.parts.files_changed)


async def _job_worker(at: Place) -> None:
    archived, decided, changed = at.sends(ARCHIVED), at.sends(DECIDED), at.sends(CHANGES)

    def look() -> None:
        wake(archived, Archived())
        wake(decided, Decided())
        wake(changed, SourceChanged())

    async with archived, decided, changed:
        await job_worker(at.parts.jobs, do=lambda job: at.parts.do_job(job, look))


class Actor(NamedTuple):
    """How an actor is started, and when it leaves."""

    start: Callable[[Place], Coroutine[Any, Any, None]]
    leaves: Literal["first", "when done", "last"]
    """`first`: it takes no more once the bot is to stop. `when done`: once what is in work is done, within
    SHUTDOWN_SECONDS. `last`: it follows a log, and may be stopped anywhere, for it takes up where it was."""


ACTORS: Mapping[str, Actor] = {
    "classifier": Actor(_classifier, "last"),
    "captioner": Actor(_captioner, "last"),
    "integrator": Actor(_integrator, "last"),
    "indexer": Actor(_indexer, "last"),
    "extractor": Actor(_extractor, "last"),
    "batcher": Actor(_batcher, "when done"),
    "router": Actor(_router, "when done"),
    "capturer": Actor(_capturer, "when done"),
    "responder": Actor(_responder, "when done"),
    "poster": Actor(_poster, "when done"),
    "interactions": Actor(_interactions, "when done"),
    "reviewer": Actor(_reviewer, "when done"),
    "listener": Actor(_listener, "first"),
    "backfill": Actor(_backfill, "first"),
    "scout": Actor(_scout, "first"),
    "fetcher": Actor(_fetcher, "first"),
    "embedder": Actor(_embedder, "first"),
    "checker": Actor(_checker, "first"),
    "explorer": Actor(_explorer, "first"),
    "job_worker": Actor(_job_worker, "first"),
}


async def run_pipeline(parts: Parts, *, stop: Event, drain: bool = False) -> None:
    """Run all actors until `stop` is set or the gateway ends by itself.

    Then calmly, from the source: the listener stops taking, captures reach the archive and replies Discord, within
    SHUTDOWN_SECONDS. Batches still open stay unsettled, and come back from Discord's history; those who follow a log
    are cancelled, for they take up where they were. With `drain` (where no start follows: `intern try`, tests) open
    batches are flushed, and followers read to the end.
    """
    ends = _opened(parts.fill)

    def start(tg: TaskGroup, leaves: str) -> None:
        for name, actor in ACTORS.items():
            if actor.leaves == leaves:
                tg.start_soon(actor.start, Place(name, ends, parts, stop=stop, drain=drain), name=name)

    async with create_task_group() as books:
        books.start_soon(partial(checkpointer, parts.keep_checkpoints, checkpoints=parts.checkpoints))
        async with create_task_group() as followers:
            start(followers, "last")
            async with create_task_group() as at_work:
                start(at_work, "when done")
                async with create_task_group() as takers:
                    start(takers, "first")
                    await stop.wait()
                    _log.info("shutdown_started")
                    takers.cancel_scope.cancel()
                at_work.cancel_scope.deadline = current_time() + SHUTDOWN_SECONDS
            _warn_of_deadline(passed=at_work.cancel_scope.cancelled_caught)
            if not drain:
                followers.cancel_scope.cancel()
            # A model that is away would hold them for ever.
            followers.cancel_scope.deadline = current_time() + SHUTDOWN_SECONDS
        _warn_of_deadline(passed=drain and followers.cancel_scope.cancelled_caught)
        books.cancel_scope.cancel()
    _log.info("shutdown_finished")


def _opened(fill: Fill) -> Mapping[tuple[str, str], Any]:
    """Return each end of each stream, by its actor's name and the stream's."""
    ends: dict[tuple[str, str], Any] = {}
    for wire in WIRES:
        sends, ends[wire.to, wire.name] = wire.open(fill)
        with sends:
            ends |= {(name, wire.name): sends.clone() for name in wire.source}
    return ends


def _warn_of_deadline(*, passed: bool) -> None:
    if passed:
        _log.warning("shutdown_deadline_passed", seconds=SHUTDOWN_SECONDS)
