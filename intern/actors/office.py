"""Everybody at work: who hands what to whom, how much may lie between them, and in which order they leave.

This page is the whole wiring; a test reads it and checks that it has no cycle. Streams are hints, the disk is the
truth: what a stream loses at a crash is read again from a log, a ledger or Discord's own history.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Generic, TypeVar

from anyio import Event, create_memory_object_stream, create_task_group, current_time
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream

from intern.actors.batcher import batcher
from intern.actors.capturer import Keeper, capturer
from intern.actors.classifier import TopicChooser, classifier
from intern.actors.clerk import JobQueue, clerk
from intern.actors.indexer import Indices, indexer
from intern.actors.integrator import Filer, integrator
from intern.actors.listener import Gateway, listener
from intern.actors.nudges import Log, nudge
from intern.actors.poster import Posts, poster
from intern.actors.responder import Answers, responder
from intern.actors.router import Dispatch, router
from intern.actors.scout import scout
from intern.actors.witness import Witness
from intern.conversations.batching import Batches
from intern.domain import (
    AnswerRequest,
    Archived,
    Batch,
    CapturedPair,
    CaptureRequest,
    Filing,
    MessageEvent,
    QAId,
    Reply,
    SourceChanged,
)
from intern.knowledge.jobs import Job
from intern.observe.log import get_logger

T = TypeVar("T")

SHUTDOWN_SECONDS = 20.0  # service managers kill after 90 or 30; a reply in work has had its chance by then

_log = get_logger(__name__)


@dataclass(frozen=True)
class Wire(Generic[T]):
    """One bounded stream of one type between two actors."""

    carries: object
    source: tuple[str, ...]
    to: str
    size: int

    def open(self) -> tuple[MemoryObjectSendStream[T], MemoryObjectReceiveStream[T]]:
        """A fresh stream."""
        return create_memory_object_stream[T](self.size)


# A burst: the gateway cannot wait. At 1 KB a message this is a megabyte.
EVENTS = Wire[MessageEvent](MessageEvent, ("listener",), "batcher", 1000)
# The router works on several at once; whatever waits here would wait in a quiet window otherwise.
BATCHES = Wire[Batch](Batch, ("batcher",), "router", 16)
# A late answer helps nobody: questions beyond this are shed, named and counted.
ANSWERS = Wire[AnswerRequest](AnswerRequest, ("router",), "responder", 16)
# An append takes a millisecond; the router waits when the disk is slower.
CAPTURES = Wire[CaptureRequest](CaptureRequest, ("router",), "capturer", 16)
# A nudge: the archive holds the rest.
ARCHIVED = Wire[Archived](Archived, ("capturer", "clerk"), "classifier", 1)
# None ahead: a pair is classified knowing the topics that those before it opened.
FILINGS = Wire[Filing](Filing, ("classifier",), "integrator", 0)
# A nudge: files, topics and the index cache hold the rest.
CHANGES = Wire[SourceChanged](SourceChanged, ("integrator", "scout", "clerk"), "indexer", 1)
# Replies are few and small; one that waits for Discord must not hold up a model call that is done.
REPLIES = Wire[Reply](Reply, ("responder",), "poster", 16)

WIRES: tuple[Wire[MessageEvent] | Wire[Batch] | Wire[AnswerRequest] | Wire[CaptureRequest] | Wire[Archived]
             | Wire[Filing] | Wire[SourceChanged] | Wire[Reply], ...] = (
    EVENTS, BATCHES, ANSWERS, CAPTURES, ARCHIVED, FILINGS, CHANGES, REPLIES,
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Parts:
    """All that the actors work with."""

    gateway: Gateway
    open_batches: Batches
    dispatch: Dispatch
    keeper: Keeper
    archive: Log[CapturedPair, QAId]
    archived_until: QAId | None
    """The newest pair that was decided; the classifier begins behind it."""
    chooser: TopicChooser
    filer: Filer
    indices: Indices
    answers: Answers
    posts: Posts
    jobs: JobQueue
    do_job: Callable[[Job, Callable[[], None]], Awaitable[bytes]]
    """Does a job; calls what it is given after it changed the archive or a topic."""
    settle_seconds: float
    scan_interval_seconds: float
    witness: Witness


async def office(parts: Parts, *, stop: Event, drain: bool = False) -> None:
    """Everybody at work, until `stop` is set or the gateway ends by itself.

    Then calmly, from the source: the listener stops taking, open batches are flushed, captures reach the archive and
    replies Discord, within SHUTDOWN_SECONDS. Those who follow a log are cancelled, for they take up where they were;
    with `drain` (where no start follows: `intern try`, tests) they read to its end first.
    """
    events, to_batch = EVENTS.open()
    batches, to_route = BATCHES.open()
    requests, to_answer = ANSWERS.open()
    captures, to_capture = CAPTURES.open()
    archived, to_classify = ARCHIVED.open()
    filings, to_file = FILINGS.open()
    changed, to_index = CHANGES.open()
    replies, to_post = REPLIES.open()
    witness = parts.witness

    async def listen() -> None:
        await listener(parts.gateway, events)
        stop.set()

    async with create_task_group() as followers:
        job_archived, job_changed, scouted = archived.clone(), changed.clone(), changed.clone()
        followers.start_soon(
            partial(
                classifier,
                parts.archive,
                to_classify,
                filings,
                after=parts.archived_until,
                chooser=parts.chooser,
                witness=witness,
            )
        )
        followers.start_soon(partial(integrator, to_file, changed, filer=parts.filer, witness=witness))
        followers.start_soon(
            partial(indexer, to_index, indices=parts.indices, settle_seconds=parts.settle_seconds, witness=witness)
        )
        async with create_task_group() as desk:
            desk.start_soon(partial(batcher, to_batch, batches, open_batches=parts.open_batches))
            desk.start_soon(partial(router, to_route, requests, captures, dispatch=parts.dispatch, witness=witness))
            desk.start_soon(partial(capturer, to_capture, archived, keeper=parts.keeper, witness=witness))
            desk.start_soon(partial(responder, to_answer, replies, answers=parts.answers, witness=witness))
            desk.start_soon(partial(poster, to_post, posts=parts.posts, witness=witness))
            async with create_task_group() as takers:
                takers.start_soon(listen)
                takers.start_soon(partial(scout, scouted, interval_seconds=parts.scan_interval_seconds))
                takers.start_soon(_clerk, parts, job_archived, job_changed)
                await stop.wait()
                _log.info("shutdown_started")
                takers.cancel_scope.cancel()
            desk.cancel_scope.deadline = current_time() + SHUTDOWN_SECONDS
        if desk.cancel_scope.cancelled_caught:
            _log.warning("shutdown_deadline_passed", seconds=SHUTDOWN_SECONDS)
        if not drain:
            followers.cancel_scope.cancel()
    _log.info("shutdown_finished")


async def _clerk(
    parts: Parts, archived: MemoryObjectSendStream[Archived], changed: MemoryObjectSendStream[SourceChanged]
) -> None:
    def look() -> None:
        nudge(archived, Archived())
        nudge(changed, SourceChanged())

    async with archived, changed:
        await clerk(parts.jobs, do=lambda job: parts.do_job(job, look))
