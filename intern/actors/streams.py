"""The streams between the actors: their types, their ends, and how many items each may hold.

Streams are hints, the disk is the truth: items that a crash loses are read again from a log, the outbox or Discord's
history. A test checks that there is no cycle, and that `intern.actors.pipeline` hands the ends to the actors
that are named here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar, get_args

from anyio import create_memory_object_stream
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream, MemoryObjectStreamStatistics

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

T = TypeVar("T")
Taking = Literal["waits", "busy", "gone"]


class Fill:
    """How full each stream is; nothing before the pipeline was opened."""

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
    """How many items wait between two actors."""

    name: str
    kinds: tuple[str, ...]
    waiting: int
    size: int
    to: str
    taking: Taking
    """Its receiver waits for more, is busy with an item, or has left."""


@dataclass(frozen=True)
class Wire(Generic[T]):
    """One bounded stream of one type between two actors."""

    carries: object
    source: tuple[str, ...]
    to: str
    size: int
    reason: str = ""
    """Why it has this size."""

    @property
    def name(self) -> str:
        """The names of its actors, as in `batcher to router`; unique."""
        return f"{' and '.join(self.source)} to {self.to}"

    @property
    def kinds(self) -> tuple[str, ...]:
        """The names of the types that it carries."""
        kinds: tuple[Any, ...] = get_args(self.carries) or (self.carries,)
        return tuple(each.__name__ for each in kinds)

    def open(self, fill: Fill | None = None) -> tuple[MemoryObjectSendStream[T], MemoryObjectReceiveStream[T]]:
        """Open a stream, and let `fill` watch it."""
        sends, receives = create_memory_object_stream[T](self.size)
        if fill is not None:
            fill.watch(self, sends)
        return sends, receives


EVENTS = Wire[Heard](
    Heard,
    source=("listener", "backfill"),
    to="batcher",
    size=1000,
    reason="A burst: the gateway cannot wait. At 1 KB a message this is a megabyte; beyond it, channels fall behind.",
)
BEHIND = Wire[FellBehind](
    FellBehind, ("listener",), "backfill", 1, reason="A wakeup: checkpoints holds which channels are behind."
)
INTERACTIONS = Wire[Interaction](
    Interaction,
    source=("listener",),
    to="interactions",
    size=64,
    reason="Discord waits 3 s for a sign; as many as are in work may queue, more could not be served in time.",
)
APPROVED = Wire[Approval](
    Approval, ("listener",), "reviewer", 1, reason="A wakeup: `Approvals` holds what was approved."
)
BATCHES = Wire[Batch | LateChange](
    Batch | LateChange,
    source=("batcher",),
    to="router",
    size=16,
    reason="The router works on several at once; batches here would otherwise wait in a quiet window.",
)
ANSWERS = Wire[AnswerRequest | Withdrawal](
    AnswerRequest | Withdrawal,
    source=("router",),
    to="responder",
    size=16,
    reason="A late answer is useless: questions beyond this are shed, named and counted.",
)
CAPTURES = Wire[CaptureRequest](
    CaptureRequest,
    source=("router", "interactions"),
    to="capturer",
    size=16,
    reason="An append takes a millisecond; the router waits when the disk is slower.",
)
PENDING = Wire[CapturePending](
    CapturePending, ("capturer",), "captioner", 1, reason="A wakeup: the table of pending captures holds the rest."
)
WITHDRAWALS = Wire[Withdrawal](
    Withdrawal, ("router",), "integrator", 16, reason="Written down at once, even while a model is busy."
)
ARCHIVED = Wire[Archived](
    Archived,
    source=("capturer", "captioner", "reviewer", "job_worker"),
    to="classifier",
    size=1,
    reason="A wakeup: the archive holds the rest.",
)
FILINGS = Wire[Filing](
    Filing,
    source=("classifier",),
    to="integrator",
    size=0,
    reason="None ahead: a pair is classified knowing the topics that those before it opened.",
)
CHANGES = Wire[SourceChanged](
    SourceChanged,
    source=("integrator", "scout", "job_worker"),
    to="indexer",
    size=1,
    reason="A wakeup: files, topics and the index cache hold the rest.",
)
DECIDED = Wire[Decided](
    Decided, ("integrator", "job_worker"), "extractor", 1, reason="A wakeup: the decisions hold the rest."
)
REPLIES = Wire[Reply](
    Reply,
    source=("responder", "router"),
    to="poster",
    size=16,
    reason="Replies are few and small; one that waits for Discord must not hold up a model call that is done.",
)

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
