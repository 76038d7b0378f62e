"""Processes that learn and are killed: at random moments, one after the other, each in the folder that it is left.

`python -m tests.process.dying MOMENTS SEED [SERVER]` names lost, doubled or half written data; exit code 1 if
there is any. The database is a file, or on a server of PostgreSQL. This process has no thread and no event loop of its
own, so its children are forks that have everything loaded: a life costs milliseconds to begin.
"""

from __future__ import annotations

import gc
import logging
import math
import os
import select
import shutil
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from pathlib import Path
from random import Random
from time import clock_gettime, monotonic
from typing import NamedTuple

import anyio
from anyio import Event, sleep, sleep_forever
from anyio.to_thread import run_sync

from intern.actors.activity import ActivityReporter
from intern.core.captures import Capture
from intern.core.decisions import Decision, MessagesWithdrawn, PairParked, PairReviewRequested
from intern.core.flow import MessageWithdrawal
from intern.core.ids import MessageId, QAId
from intern.core.messages import Image
from intern.learning.forgetting import ForgetRequest
from intern.learning.review import Review
from intern.models.prompt import InT, Model, OfflineModel, OutT, Prompt
from intern.service.job_kinds import IMPORT, REGENERATE, RETRY, REVIEW
from intern.service.models import collect_offline_rules
from intern.service.writer import Writer
from intern.settings.settings import Settings
from intern.stores.archive import Archive
from intern.stores.tables.jobs import JobOutcome
from intern.stores.tables.knowledge import KnowledgeStore
from tests.engines import Schemas
from tests.worlds.history import Act, Asked, Community, Deleted, Forgotten, Taught, Told, faults, faults_in_the_end
from tests.worlds.learners import Learners, learners
from tests.worlds.settings import OFFLINE, make_settings

DEATHS = 8  # in one folder: enough that it has a past, few enough that looking at all of it stays cheap
ACTS = 12  # as many as a life has time for, mostly
JOBS = ("regenerate", "retry", "retry", "review", "review", "import", "import")
LOOK_AGAIN = 0.002  # seconds, until a job is done
LIFE = 0.12  # seconds of work, on average
NOTHING = 0.002  # seconds of work
IDLE = 1.0  # seconds of waiting for a model that never answers
PATIENCE = 60.0  # seconds; how long a life that is not killed may wait
ACKNOWLEDGED = b"."


class Stalled:
    """A model that takes a question and never answers."""

    async def ask(self, prompt: Prompt[InT, OutT], given: InT, *, images: Sequence[Image] = ()) -> OutT:
        del prompt, given, images
        await sleep_forever()
        raise AssertionError("for ever is over")


def fast() -> Model:
    return OfflineModel(collect_offline_rules())


class Tally(NamedTuple):
    """The counts of a run, for a person who watches it."""

    moments: int = 0
    acknowledged: int = 0
    most_under_stalled: int = 0
    """Acts that one life acknowledged while its model never answered."""


# In the child.


class _Ears(ActivityReporter):
    """Hears when an act is done."""

    def __init__(self) -> None:
        super().__init__()
        self._done = Event()

    async def wait(self) -> None:
        await self._done.wait()
        self._done = Event()

    def settled(self, message_ids: Sequence[MessageId]) -> None:
        del message_ids
        self._done.set()

    def report_decision(self, decision: Decision) -> None:
        if isinstance(decision, MessagesWithdrawn):
            self._done.set()


async def _live(settings: Settings, model: Model, acts: Sequence[Act], acknowledge: Callable[[], None]) -> None:
    """Do one act after the other, and acknowledge each once it is safe; then work on until killed."""
    ears = _Ears()
    async with learners(settings, model, settled=ears.settled, events=ears) as at_work:
        for act in acts:
            await _done(act, at_work, ears)
            acknowledge()
        await sleep_forever()


async def _recover(settings: Settings, maybe: Act | None, acknowledge: Callable[[], None]) -> None:
    """Do what was not acknowledged again, as Discord's history would have it, and catch up with everything."""
    ears = _Ears()
    async with learners(settings, fast(), settled=ears.settled, events=ears) as at_work:
        if maybe is not None:
            await _done(maybe, at_work, ears)
    left = True
    while left:  # before giving up: a pair that died three times waits for a review or a new library
        async with learners(settings, fast()) as at_work:
            left = await _seen_to(at_work.writer, settings)
    acknowledge()


async def _seen_to(writer: Writer, settings: Settings) -> bool:
    """Do a team's part for waiting captures; return whether there was anything."""
    asked = False
    if await run_sync(writer.stores.knowledge.read_journal):
        await _ask("regenerate", writer)
        asked = True
    for kind, end in (("review", PairReviewRequested), ("retry", PairParked)):
        if await run_sync(_undecided, writer.stores.archive, writer.stores.knowledge, end):
            await _ask(kind, writer)
            asked = True
    return asked


async def _done(act: Act, at_work: Learners, ears: _Ears) -> None:
    match act:
        case Taught(imported=True):
            await _imported([act.capture()], at_work.writer)
        case Taught():
            await at_work.captures.send(act.request())
            await ears.wait()
        case Deleted(message_ids=ids):
            if not all(map(at_work.writer.stores.knowledge.is_withdrawn, ids)):
                await at_work.withdrawals.send(MessageWithdrawal(message_ids=ids))
                await ears.wait()
        case Forgotten(message_ids=ids):
            await at_work.writer.forget(ForgetRequest(message_ids=ids))
        case Asked(kind=kind):
            await _ask(kind, at_work.writer)


async def _imported(captures: Sequence[Capture], writer: Writer) -> None:
    """Have a job archive them, and wait for it as a command does: by looking again and again."""
    outcome: JobOutcome | None = None
    while not isinstance(outcome, bytes):  # three deaths may have ended the one before
        job = await writer.stores.jobs.submit(IMPORT, captures)
        while (outcome := await writer.stores.jobs.result(job)) is None:  # noqa: ASYNC110 - a command hears no event either
            await sleep(LOOK_AGAIN)


async def _ask(kind: str, writer: Writer) -> None:
    jobs = writer.stores.jobs
    match kind:
        case "regenerate":
            await jobs.submit(REGENERATE, None)
        case "retry":
            await jobs.submit(RETRY, ())
        case _:
            waiting = await run_sync(_undecided, writer.stores.archive, writer.stores.knowledge, PairReviewRequested)
            await jobs.submit(REVIEW, Review(action="approve", qa_ids=tuple(waiting)))


def _undecided(archive: Archive, knowledge: KnowledgeStore, end: type[Decision]) -> list[QAId]:
    """Return the pairs with that last decision."""
    return [pair.qa_id for pair in archive.pairs_after(None) if isinstance(knowledge.last_decision(pair.qa_id), end)]


# In the process that kills.


class _Child(NamedTuple):
    pid: int
    acknowledged: int
    """The end of a pipe to read from."""


Acknowledge = Callable[[], None]


def _forked(work: Callable[[Acknowledge], object]) -> _Child:
    to_read, to_write = os.pipe()
    pid = os.fork()
    if pid:
        os.close(to_write)
        return _Child(pid, to_read)
    code = 70
    try:
        os.close(to_read)

        def acknowledge() -> None:
            os.write(to_write, ACKNOWLEDGED)

        work(acknowledge)
        code = 0
    except BaseException:  # noqa: BLE001 a fork must never go on where its parent does
        traceback.print_exc()
    finally:
        os._exit(code)


def _watched(child: _Child, idle: float, work: float = math.inf) -> tuple[int, int]:
    """Kill the child once it did nothing for some seconds, or worked for some: a busy machine lets it live longer.

    Return how much it acknowledged and how it ended.
    """
    began = busy = monotonic()
    told, before = 0, 0.0
    while (now := monotonic()) - busy < idle and (worked := _worked(child.pid, now - began)) < work:
        if worked - before > NOTHING:
            busy, before = now, worked
        if select.select([child.acknowledged], [], [], LOOK_AGAIN)[0]:
            said = os.read(child.acknowledged, 4096)
            told += len(said)
            if not said:
                break
    with suppress(ProcessLookupError):
        os.kill(child.pid, signal.SIGKILL)
    _, status = os.waitpid(child.pid, 0)
    while said := os.read(child.acknowledged, 4096):
        told += len(said)  # written before it died
    os.close(child.acknowledged)
    return told, os.waitstatus_to_exitcode(status)


def _worked(pid: int, lived: float) -> float:
    """Return the CPU seconds of a process; where the system does not say, those that it lived."""
    return clock_gettime(~pid << 3 | 2) if sys.platform == "linux" else lived  # as clock_getcpuclockid(3) has it


class _Place(NamedTuple):
    """The folder and database of a story."""

    folder: Path
    review: bool
    server: Schemas | None
    schema: str

    def settings(self) -> Settings:
        (self.folder / "knowledge-base" / "sources").mkdir(parents=True, exist_ok=True)
        return make_settings(
            data={"dir": str(self.folder), "url": self.server.url(self.schema) if self.server else ""},
            llm=OFFLINE,
            kb={"settle_seconds": 0.01, "review": self.review},
        )

    def until_ended(self) -> None:
        """Wait until the server is through with all lives that ended. Blocks."""
        if self.server:
            self.server.until_ended(f"process {os.getpid()}")  # forks have the name of this process

    @contextmanager
    def copied(self) -> Generator[_Place]:
        """Copy what a life left."""
        copy = self.folder.with_name("recovered")
        shutil.copytree(self.folder, copy)
        try:
            with self.server.filled(self.server.rows(self.schema)) if self.server else nullcontext("") as schema:
                yield self._replace(folder=copy, schema=schema)
                self.until_ended()
        finally:
            shutil.rmtree(copy)


def _story(random: Random, place: _Place, deaths: int) -> tuple[list[str], Tally]:
    """Lives and deaths in one place, until there is a fault or the deaths are over."""
    settings = place.settings()
    told, tally = Told(), Tally()
    maybe: Act | None = None
    community = Community(random, JOBS)
    for _ in range(deaths):
        stalled = random.random() < 0.4
        acts = [*([maybe] if maybe else []), *community.acts_after(told.also(maybe), ACTS)]
        model: Model = Stalled() if stalled else fast()
        child = _forked(partial(_run_life, settings, model, acts))
        count, code = _watched(child, IDLE, random.expovariate(1 / LIFE))
        for act in acts[:count]:
            told.hear(act)
        maybe = acts[count] if count < len(acts) else None
        tally = Tally(
            tally.moments + 1, tally.acknowledged + count, max(tally.most_under_stalled, count if stalled else 0)
        )
        place.until_ended()
        found = faults(settings, told, maybe) if code == -signal.SIGKILL else [f"it ended by itself, with {code}"]
        found = found or _faults_after_recovery(place, told, maybe)
        if found:
            return [f"after life {tally.moments}, {'stalled' if stalled else 'fast'}: {each}" for each in found], tally
    return [], tally


def _run_life(settings: Settings, model: Model, acts: Sequence[Act], acknowledge: Acknowledge) -> None:
    anyio.run(_live, settings, model, acts, acknowledge)


def _faults_after_recovery(left: _Place, told: Told, maybe: Act | None) -> list[str]:
    """Return the faults after a further life caught up; in a copy, so that the next one finds the dead one's data."""
    with left.copied() as copy:
        settings = copy.settings()
        count, code = _watched(_forked(lambda said: anyio.run(_recover, settings, maybe, said)), PATIENCE)
        if (count, code) != (1, 0):
            return [f"the life that should catch up ended with {code}"]
        return faults_in_the_end(settings, told.also(maybe))


def main(moments: int, seed: str, address: str = "") -> int:
    """Kill that often; return 1 where a promise was broken."""
    logging.disable()  # the faulty data stays on disk
    gc.collect()
    gc.freeze()  # or each child would copy all pages as soon as it collects
    total, began, story = Tally(), monotonic(), 0
    server = Schemas(address) if address else None
    while total.moments < moments:
        story += 1
        with (
            tempfile.TemporaryDirectory(prefix="intern-dying-") as folder,
            server.emptied() if server else nullcontext("") as schema,
        ):
            random = Random(f"{seed}/{story}")
            place = _Place(Path(folder) / "data", random.random() < 0.25, server, schema)
            found, tally = _story(random, place, min(DEATHS, moments - total.moments))
        total = Tally(
            total.moments + tally.moments,
            total.acknowledged + tally.acknowledged,
            max(total.most_under_stalled, tally.most_under_stalled),
        )
        if found:
            print(f"seed {seed}, story {story}:", *found, sep="\n")
            return 1
    print(*total, f"{monotonic() - began:.1f}")
    return 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), *sys.argv[2:]))
