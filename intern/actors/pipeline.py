"""The pipeline: the streams between the actors, the table of actors, and the order in which they leave.

`intern.runtime.parts` gives each actor what it works with.

Streams are hints, the disk is the truth: items that a crash loses are read again from a log, the outbox or Discord's
history. A test checks that there is no cycle, and that each actor takes the streams that the table names.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Generic, Literal, NamedTuple, TypeVar, get_args

from anyio import Event, create_memory_object_stream, current_time
from anyio.abc import TaskGroup
from anyio.streams.memory import (
    MemoryObjectReceiveStream as Receiver,
    MemoryObjectSendStream as Sender,
    MemoryObjectStreamStatistics,
)

from intern.actors.checkpointer import checkpointer
from intern.chat.checkpoints import Checkpoints
from intern.core import flow
from intern.core.clock import Wakeup
from intern.core.log import get_logger
from intern.core.tasks import open_task_group
from intern.stores.tables.checkpoints import StoredCheckpoints

_log = get_logger(__name__)


T = TypeVar("T")
Taking = Literal["waits", "busy", "gone"]


class StreamMonitor:
    """The fill of each stream; empty before the pipeline is opened."""

    def __init__(self) -> None:
        self._streams: dict[str, tuple[Stream[Any], Sender[Any]]] = {}

    def watch(self, stream: Stream[Any], sends: Sender[Any]) -> None:
        """Remember the end of an opened stream."""
        # A clone would keep the stream open. Only the statistics of this end are read, even when it is closed.
        self._streams[stream.name] = (stream, sends)

    def read_fills(self) -> tuple[StreamFill, ...]:
        """Return every stream, in the order of `STREAMS`."""
        return tuple(_measure_stream(stream, sends.statistics()) for stream, sends in self._streams.values())


def _measure_stream(it: Stream[Any], seen: MemoryObjectStreamStatistics) -> StreamFill:
    taking: Taking = "waits" if seen.tasks_waiting_receive else "busy" if seen.open_receive_streams else "gone"
    waiting = seen.current_buffer_used
    return StreamFill(name=it.name, kinds=it.kinds, waiting=waiting, size=it.size, to=it.to, taking=taking)


@dataclass(frozen=True, kw_only=True)
class StreamFill:
    """The number of items that wait between two actors."""

    name: str
    kinds: tuple[str, ...]
    waiting: int
    size: int
    to: str
    taking: Taking
    """Whether its receiver waits for more, is busy with an item, or has left."""


@dataclass(frozen=True)
class Stream(Generic[T]):
    """One bounded stream of one type between two actors."""

    carries: object
    source: tuple[str, ...]
    to: str
    size: int
    """The text below each stream gives the reason for its capacity."""

    @property
    def name(self) -> str:
        """The names of its actors, as in `batcher to sequencer`; unique."""
        return f"{' and '.join(self.source)} to {self.to}"

    @property
    def kinds(self) -> tuple[str, ...]:
        """The names of the types that it carries."""
        kinds: tuple[Any, ...] = get_args(self.carries) or (self.carries,)
        return tuple(each.__name__ for each in kinds)

    def open(self, fill: StreamMonitor | None = None) -> tuple[Sender[T], Receiver[T]]:
        """Open a stream, and let `fill` watch it."""
        sends, receives = create_memory_object_stream[T](self.size)
        if fill is not None:
            fill.watch(self, sends)
        return sends, receives


EVENTS = Stream[flow.BatcherEvent](flow.BatcherEvent, ("listener", "backfill"), "batcher", 1000)
"""A burst: the gateway cannot wait. At 1 KB a message this is a megabyte; beyond it, channels fall behind."""
BEHIND = Stream[flow.BackfillNeeded](flow.BackfillNeeded, ("listener",), "backfill", 1)
"""A wakeup: the checkpoints know which channels are behind."""
INTERACTIONS = Stream[flow.Interaction](flow.Interaction, ("listener",), "interactions", 64)
"""Discord waits 3 s for a response; as many as are in work may queue, more could not be served in time."""
APPROVED = Stream[flow.ApprovalReaction](flow.ApprovalReaction, ("listener",), "reviewer", 1)
"""A wakeup: `ApprovalQueue` holds the approvals."""
BATCHES = Stream[flow.Batch | flow.LateChange](flow.Batch | flow.LateChange, ("batcher",), "sequencer", 16)
"""The sequencer works on several at once; batches here would otherwise wait in a quiet window."""
ANSWERS = Stream[flow.AnswerRequest | flow.MessageRevisions](
    flow.AnswerRequest | flow.MessageRevisions, ("sequencer",), "responder", 16
)
"""A late answer is useless: questions beyond this are shed, logged and counted."""
CAPTURES = Stream[flow.CaptureRequest](flow.CaptureRequest, ("sequencer", "interactions"), "capturer", 16)
"""An append takes a millisecond; the sequencer waits when the disk is slower."""
PENDING = Stream[flow.CapturePending](flow.CapturePending, ("capturer",), "captioner", 1)
"""A wakeup: the table of pending captures holds the rest."""
WITHDRAWALS = Stream[flow.MessageWithdrawal](flow.MessageWithdrawal, ("sequencer",), "integrator", 16)
"""They are saved at once, even while a model is busy."""
ARCHIVED = Stream[flow.CaptureArchived](
    flow.CaptureArchived, ("capturer", "captioner", "reviewer", "job_worker"), "classifier", 1
)
"""A wakeup: the archive holds the rest."""
FILINGS = Stream[flow.FilingDecision](flow.FilingDecision, ("classifier",), "integrator", 0)
"""None ahead: a pair is classified knowing the topics that those before it opened."""
CHANGES = Stream[flow.SourceChanged](flow.SourceChanged, ("integrator", "index_timer", "job_worker"), "indexer", 1)
"""A wakeup: files, topics and the index cache hold the rest."""
DECIDED = Stream[flow.DecisionRecorded](flow.DecisionRecorded, ("integrator", "job_worker"), "extractor", 1)
"""A wakeup: the decisions hold the rest."""
REPLIES = Stream[flow.Reply](flow.Reply, ("responder", "sequencer"), "poster", 16)
"""Replies are few and small; one that waits for Discord must not hold up a model call that is done."""

STREAMS: tuple[Stream[Any], ...] = (
    *(EVENTS, BEHIND, INTERACTIONS, APPROVED, BATCHES, ANSWERS, CAPTURES),
    *(PENDING, WITHDRAWALS, ARCHIVED, FILINGS, CHANGES, DECIDED, REPLIES),
)


# docs/server.md promises an end within 20 seconds. The rest is for the marks, the page and the connection.
SHUTDOWN_SECONDS = 12.0


Start = Callable[..., Coroutine[Any, Any, None]]
"""Runs an actor. It takes its ends of the streams in `ACTORS`, owns them, and closes them."""


class Actor(NamedTuple):
    """When an actor leaves, and its streams in the order of its parameters."""

    leaves: Literal["first", "when done", "last"]
    """`first`: it takes no more once the bot has to stop. `when done`: once its work is done, within SHUTDOWN_SECONDS.
    `last`: it follows a log, and may be stopped anywhere, because it continues where it was."""
    streams: tuple[Stream[Any], ...] = ()


ACTORS: Mapping[str, Actor] = {
    "classifier": Actor("last", (ARCHIVED, FILINGS)),
    "captioner": Actor("last", (PENDING, ARCHIVED)),
    "integrator": Actor("last", (FILINGS, WITHDRAWALS, CHANGES, DECIDED)),
    "indexer": Actor("last", (CHANGES,)),
    "extractor": Actor("last", (DECIDED,)),
    "batcher": Actor("when done", (EVENTS, BATCHES)),
    "sequencer": Actor("when done", (BATCHES, ANSWERS, CAPTURES, WITHDRAWALS, REPLIES)),
    "capturer": Actor("when done", (CAPTURES, ARCHIVED, PENDING)),
    "responder": Actor("when done", (ANSWERS, REPLIES)),
    "poster": Actor("when done", (REPLIES,)),
    "interactions": Actor("when done", (INTERACTIONS, CAPTURES)),
    "reviewer": Actor("when done", (APPROVED, ARCHIVED)),
    "listener": Actor("first", (EVENTS, INTERACTIONS, BEHIND, APPROVED)),
    "backfill": Actor("first", (BEHIND, EVENTS)),
    "index_timer": Actor("first", (CHANGES,)),
    "fetcher": Actor("first"),
    "embedder": Actor("first"),
    "checker": Actor("first"),
    "projector": Actor("first"),
    "vector_copier": Actor("first"),
    "explorer": Actor("first"),
    "job_worker": Actor("first", (ARCHIVED, DECIDED, CHANGES)),
}


@dataclass(frozen=True, kw_only=True)
class PipelineParts:
    """The actors with their parts, and the parts of the pipeline itself."""

    actors: Mapping[str, Start]
    """The actors by their names in `ACTORS`; some set-ups have no embedder, explorer or vector copier."""
    checkpoints: Checkpoints
    keep_checkpoints: Callable[[StoredCheckpoints], Coroutine[Any, Any, None]]
    count_jobs: Callable[[], Awaitable[int]]
    """Counts the jobs that are not done yet."""
    jobs_came: Wakeup | None = None
    """Makes the job worker look for jobs; None where it polls by itself."""
    wait_for_database: Callable[[Event], object] = lambda _: None
    """Makes work wait for a database that is away, until the event is set."""
    fill: StreamMonitor = field(default_factory=StreamMonitor)


async def run_pipeline(parts: PipelineParts, *, stop: Event, drain: bool = False) -> None:
    """Run all actors until `stop` is set or the gateway ends by itself.

    Then it shuts down from the source: the listener stops, captures reach the archive and replies reach Discord, within
    SHUTDOWN_SECONDS. Open batches stay unsettled, and come back from Discord's history. Actors that follow a log are
    cancelled, because they continue where they were. With `drain` (where no start follows: `intern try`, tests) open
    batches are flushed, and followers read to the end.
    """
    ends = _open_streams(parts.fill)
    parts.wait_for_database(stop)

    async def listener(*streams: object) -> None:
        await parts.actors["listener"](*streams)
        stop.set()

    batcher = partial(parts.actors["batcher"], flush=drain)
    actors: dict[str, Start] = {**parts.actors, "listener": listener, "batcher": batcher}

    def start(tg: TaskGroup, leaves: str) -> None:
        for name, actor in ACTORS.items():
            if actor.leaves == leaves and name in actors:
                tg.start_soon(actors[name], *(ends[name, each.name] for each in actor.streams), name=name)

    async with open_task_group() as books:
        books.start_soon(partial(checkpointer, parts.keep_checkpoints, checkpoints=parts.checkpoints))
        async with open_task_group() as followers:
            start(followers, "last")
            async with open_task_group() as at_work:
                start(at_work, "when done")
                async with open_task_group() as takers:
                    start(takers, "first")
                    await stop.wait()
                    _log.info("shutdown_started")
                    takers.cancel_scope.cancel()
                at_work.cancel_scope.deadline = current_time() + SHUTDOWN_SECONDS
            _warn_of_deadline(passed=at_work.cancel_scope.cancelled_caught)
            if not drain:
                followers.cancel_scope.cancel()
            # An absent model would hold them for ever.
            followers.cancel_scope.deadline = current_time() + SHUTDOWN_SECONDS
        _warn_of_deadline(passed=drain and followers.cancel_scope.cancelled_caught)
        books.cancel_scope.cancel()
    _log.info("shutdown_finished")


def _open_streams(fill: StreamMonitor) -> Mapping[tuple[str, str], Any]:
    """Return each end of each stream, by its actor's name and the stream's."""
    ends: dict[tuple[str, str], Any] = {}
    for stream in STREAMS:
        sends, ends[stream.to, stream.name] = stream.open(fill)
        with sends:
            ends |= {(name, stream.name): sends.clone() for name in stream.source}
    return ends


def _warn_of_deadline(*, passed: bool) -> None:
    if passed:
        _log.warning("shutdown_deadline_passed", seconds=SHUTDOWN_SECONDS)
