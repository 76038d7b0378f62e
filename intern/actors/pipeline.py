"""The pipeline: every actor with its streams, and in which order they leave.

`intern.runtime.parts` gives each actor what it works with; `intern.actors.streams` says which streams join them.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, NamedTuple

from anyio import Event, create_task_group, current_time
from anyio.abc import TaskGroup

from intern.actors.checkpointer import checkpointer
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
from intern.chat.checkpoints import Checkpoints
from intern.core.log import get_logger
from intern.stores.sqlite.chat import Marks

# docs/server.md promises an end within 20 seconds. The others are for the marks, the page and the connection.
SHUTDOWN_SECONDS = 12.0

_log = get_logger(__name__)

Start = Callable[..., Coroutine[Any, Any, None]]
"""Runs an actor. It takes its ends of the streams in `ACTORS`, owns them, and closes them."""


class Actor(NamedTuple):
    """When an actor leaves, and its streams in the order of its parameters."""

    leaves: Literal["first", "when done", "last"]
    """`first`: it takes no more once the bot is to stop. `when done`: once its work is done, within SHUTDOWN_SECONDS.
    `last`: it follows a log, and may be stopped anywhere, for it continues where it was."""
    streams: tuple[Wire[Any], ...] = ()


ACTORS: Mapping[str, Actor] = {
    "classifier": Actor("last", (ARCHIVED, FILINGS)),
    "captioner": Actor("last", (PENDING, ARCHIVED)),
    "integrator": Actor("last", (FILINGS, WITHDRAWALS, CHANGES, DECIDED)),
    "indexer": Actor("last", (CHANGES,)),
    "extractor": Actor("last", (DECIDED,)),
    "batcher": Actor("when done", (EVENTS, BATCHES)),
    "router": Actor("when done", (BATCHES, ANSWERS, CAPTURES, WITHDRAWALS, REPLIES)),
    "capturer": Actor("when done", (CAPTURES, ARCHIVED, PENDING)),
    "responder": Actor("when done", (ANSWERS, REPLIES)),
    "poster": Actor("when done", (REPLIES,)),
    "interactions": Actor("when done", (INTERACTIONS, CAPTURES)),
    "reviewer": Actor("when done", (APPROVED, ARCHIVED)),
    "listener": Actor("first", (EVENTS, INTERACTIONS, BEHIND, APPROVED)),
    "backfill": Actor("first", (BEHIND, EVENTS)),
    "scout": Actor("first", (CHANGES,)),
    "fetcher": Actor("first"),
    "embedder": Actor("first"),
    "checker": Actor("first"),
    "explorer": Actor("first"),
    "job_worker": Actor("first", (ARCHIVED, DECIDED, CHANGES)),
}


@dataclass(frozen=True, kw_only=True)
class Parts:
    """The actors, each with what it works with, and what the pipeline itself needs."""

    actors: Mapping[str, Start]
    """By their names in `ACTORS`; some set-ups go without an embedder or an explorer."""
    checkpoints: Checkpoints
    keep_checkpoints: Callable[[Marks], Coroutine[Any, Any, None]]
    fill: Fill = field(default_factory=Fill)


async def run_pipeline(parts: Parts, *, stop: Event, drain: bool = False) -> None:
    """Run all actors until `stop` is set or the gateway ends by itself.

    Then calmly, from the source: the listener stops taking, captures reach the archive and replies Discord, within
    SHUTDOWN_SECONDS. Open batches stay unsettled, and come back from Discord's history. Actors that follow a log are
    cancelled, for they continue where they were. With `drain` (where no start follows: `intern try`, tests) open
    batches are flushed, and followers read to the end.
    """
    ends = _opened(parts.fill)

    async def listener(*streams: object) -> None:
        await parts.actors["listener"](*streams)
        stop.set()

    actors = {**parts.actors, "listener": listener, "batcher": partial(parts.actors["batcher"], flush=drain)}

    def start(tg: TaskGroup, leaves: str) -> None:
        for name, actor in ACTORS.items():
            if actor.leaves == leaves and name in actors:
                tg.start_soon(actors[name], *(ends[name, each.name] for each in actor.streams), name=name)

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
            # An absent model would hold them for ever.
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
