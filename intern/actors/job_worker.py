"""The job worker runs the jobs of commands while this process holds the data folder, because only it may write."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from math import inf
from typing import Any, Generic

import msgspec
from anyio import Event, move_on_after
from anyio.abc import TaskGroup
from anyio.streams.memory import MemoryObjectSendStream as Sender

from intern.actors.loops import surviving, wake
from intern.core.clock import Wakeup
from intern.core.errors import ConfigError, InternError, KnowledgeError
from intern.core.flow import CaptureArchived, DecisionRecorded, SourceChanged
from intern.core.log import get_logger, redact_text
from intern.core.tasks import open_task_group
from intern.core.text.encoding import encode_json
from intern.stores.tables.jobs import GivesT, Job, JobKind, JobOutcome, JobQueue, TakesT

POLL_SECONDS = 0.5  # a person waits at the other end; one indexed SELECT each time costs nothing

_log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class JobHandler(Generic[TakesT, GivesT]):
    """The work for the jobs of a kind."""

    kind: JobKind[TakesT, GivesT]
    work: Callable[[TakesT], Awaitable[GivesT]]

    async def run(self, payload: bytes) -> bytes:
        """Do a job. Raises ConfigError for a payload that cannot be decoded: it may come from any program."""
        try:
            given = self.kind.decode_given(payload)
        except msgspec.DecodeError as error:
            raise ConfigError(f"this {self.kind.name} job cannot be understood: {error}") from error
        return encode_json(await self.work(given))


class JobHandlers:
    """The work of this process for each kind of job."""

    def __init__(self, *handlers: JobHandler[Any, Any]) -> None:
        self._by_kind = {each.kind.name: each for each in handlers}

    @property
    def kinds(self) -> tuple[JobKind[Any, Any], ...]:
        """All kinds of jobs that can be done."""
        return tuple(each.kind for each in self._by_kind.values())

    def find(self, kind: str) -> JobHandler[Any, Any]:
        """Return the handler of a kind. Raises KnowledgeError for an unknown one: another version may have asked."""
        if (handler := self._by_kind.get(kind)) is None:
            raise KnowledgeError(f"this version of intern knows no job {kind!r}; update the one that is running")
        return handler

    async def run(self, kind: JobKind[TakesT, GivesT], given: TakesT) -> GivesT:
        """Do a job of this process, with what another process would read and write."""
        return kind.decode_result(await self.find(kind.name).run(encode_json(given)))


async def job_worker(
    archived: Sender[CaptureArchived],
    decided: Sender[DecisionRecorded],
    changed: Sender[SourceChanged],
    *,
    jobs: JobQueue,
    handlers: JobHandlers,
    came: Wakeup | None = None,
) -> None:
    """Do jobs until cancelled, and wake the actors that follow what a job changed."""

    def wake_followers() -> None:
        wake(archived, CaptureArchived())
        wake(decided, DecisionRecorded())
        wake(changed, SourceChanged())

    async with archived, decided, changed:
        await do_jobs_forever(jobs, handlers, came, wake_followers)


async def do_jobs_forever(
    jobs: JobQueue, handlers: JobHandlers, came: Wakeup | None = None, wakes: Callable[[], None] = lambda: None
) -> None:
    """Do each waiting job until cancelled; a job cut short is done again at the next start.

    Look for jobs twice a second. With `came`, look whenever it is set: a process with many communities polls for all.
    `wakes` is called at the end of jobs whose kind wakes others.

    Jobs of one kind run one after the other. Jobs of different kinds run side by side, so that a forget job does not
    wait for a regeneration; the jobs themselves lock where they must.
    """
    work = _RunningJobs(jobs, handlers, wakes)

    async def watch_for_jobs(came: Wakeup) -> None:
        while True:
            await came.wait()
            work.ended.set()

    async with open_task_group() as tg:
        if came is not None:
            tg.start_soon(watch_for_jobs, came)
        while True:
            with surviving("job_worker"):
                await work.begin_all(tg)
            with move_on_after(POLL_SECONDS if came is None else inf):
                await work.ended.wait()


async def do_all_jobs(jobs: JobQueue, handlers: JobHandlers) -> None:
    """Do each job that waits now, as the job worker does. Raises KnowledgeError where the queue cannot be used."""
    work, trouble = _RunningJobs(jobs, handlers), list[InternError]()
    async with open_task_group() as tg:
        try:
            while await work.begin_all(tg) or work.busy.total() or work.ended.is_set():
                await work.ended.wait()
        except InternError as error:
            # Let running jobs finish.
            trouble.append(error)
    if failed := [*trouble, *work.failed]:
        raise failed[0]


@dataclass
class _RunningJobs:
    """Running jobs; most kinds run one at a time."""

    jobs: JobQueue
    handlers: JobHandlers
    wakes: Callable[[], None] = lambda: None
    busy: Counter[str] = field(default_factory=Counter[str])
    ended: Event = field(default_factory=Event)
    """Set when a job ended or arrived since jobs were last begun."""
    failed: list[InternError] = field(default_factory=list[InternError])
    """The first failure to save how a job ended: such a job waits for the next start."""

    async def begin_all(self, tg: TaskGroup) -> bool:
        """Begin the waiting jobs that may begin, and return whether there were any. Raises KnowledgeError."""
        self.ended, begun = Event(), False
        # Jobs that may not begin stay unclaimed: no attempt is counted, and the same request may still join them.
        while (job := await self.jobs.claim(but=self._busy_kinds())) is not None:
            self.busy[job.kind] += 1
            tg.start_soon(self._run_job, job)
            begun = True
        return begun

    def _busy_kinds(self) -> frozenset[str]:
        at_once = {kind.name: kind.at_once for kind in self.handlers.kinds}
        return frozenset(kind for kind, number in self.busy.items() if number >= at_once.get(kind, 1))

    async def _run_job(self, job: Job) -> None:
        try:
            with surviving("job_worker", job_kind=job.kind):
                await self._finish_job(job)
        finally:
            self.busy[job.kind] -= 1
            self.ended.set()

    async def _finish_job(self, job: Job) -> None:
        _log.info("job_started", job_id=job.id, job_kind=job.kind)
        outcome = await self._do_job(job)
        try:
            await self.jobs.finish(job.id, outcome)
        except InternError as error:
            self.failed = [*self.failed, error][:1]
            raise
        if isinstance(outcome, InternError):
            _log.warning("job_failed", job_id=job.id, job_kind=job.kind, reason=redact_text(str(outcome)))
        else:
            _log.info("job_finished", job_id=job.id, job_kind=job.kind)

    async def _do_job(self, job: Job) -> JobOutcome:
        try:
            handler = self.handlers.find(job.kind)
            try:
                return await handler.run(job.payload)
            finally:
                if handler.kind.wakes:
                    self.wakes()
        except InternError as error:
            return error
