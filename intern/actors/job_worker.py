"""The job worker runs the jobs of commands while this process holds the data folder, because only it may write."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from math import inf

import msgspec
from anyio import Event, move_on_after
from anyio.abc import TaskGroup
from anyio.streams.memory import MemoryObjectSendStream as Sender

from intern.actors.loops import surviving, wake
from intern.core.clock import Wakeup
from intern.core.errors import ConfigError, InternError
from intern.core.flow import CaptureArchived, DecisionRecorded, SourceChanged
from intern.core.log import get_logger, redact_text
from intern.core.tasks import open_task_group
from intern.stores.tables.jobs import Job, JobQueue

POLL_SECONDS = 0.5  # a person waits at the other end; one indexed SELECT each time costs nothing

# A tombstone must be saved at once, even while an earlier forget job waits for its topics. So up to this many run.
_AT_ONCE = {"forget": 8}

_log = get_logger(__name__)


async def job_worker(
    archived: Sender[CaptureArchived],
    decided: Sender[DecisionRecorded],
    changed: Sender[SourceChanged],
    *,
    jobs: JobQueue,
    do: Callable[[Job, Callable[[], None]], Awaitable[bytes]],
    came: Wakeup | None = None,
) -> None:
    """Do jobs until cancelled; `do` calls its second argument after it changed the archive or a topic."""

    def wake_followers() -> None:
        wake(archived, CaptureArchived())
        wake(decided, DecisionRecorded())
        wake(changed, SourceChanged())

    async with archived, decided, changed:
        await do_jobs_forever(jobs, lambda job: do(job, wake_followers), came)


async def do_jobs_forever(jobs: JobQueue, do: Callable[[Job], Awaitable[bytes]], came: Wakeup | None = None) -> None:
    """Do each waiting job until cancelled; a job cut short is done again at the next start.

    Look for jobs twice a second. With `came`, look whenever it is set: a process with many communities polls for all.

    Jobs of one kind run one after the other. Jobs of different kinds run side by side, so that a forget job does not
    wait for a regeneration; the jobs themselves lock where they must.
    """
    work = _RunningJobs(jobs, do)

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


async def do_all_jobs(jobs: JobQueue, do: Callable[[Job], Awaitable[bytes]]) -> None:
    """Do each job that waits now, as the job worker does. Raises KnowledgeError where the queue cannot be used."""
    work, trouble = _RunningJobs(jobs, do), list[InternError]()
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
    do: Callable[[Job], Awaitable[bytes]]
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
        return frozenset(kind for kind, number in self.busy.items() if number >= _AT_ONCE.get(kind, 1))

    async def _run_job(self, job: Job) -> None:
        try:
            with surviving("job_worker", job_kind=job.kind):
                await self._finish_job(job)
        finally:
            self.busy[job.kind] -= 1
            self.ended.set()

    async def _finish_job(self, job: Job) -> None:
        try:
            await _do_job(job, self.jobs, self.do)
        except InternError as error:
            self.failed = [*self.failed, error][:1]
            raise


async def _do_job(job: Job, jobs: JobQueue, do: Callable[[Job], Awaitable[bytes]]) -> None:
    _log.info("job_started", job_id=job.id, job_kind=job.kind)
    try:
        result = await do(job)
    except InternError as error:
        await _store_failure(job, jobs, str(error), error.exit_code)
    except msgspec.DecodeError as error:
        # Stores raise their own errors, so the payload is at fault. It may come from any program.
        await _store_failure(job, jobs, f"this {job.kind} job cannot be understood: {error}", ConfigError.exit_code)
    else:
        await jobs.finish(job.id, result=result)
        _log.info("job_finished", job_id=job.id, job_kind=job.kind)


async def _store_failure(job: Job, jobs: JobQueue, reason: str, exit_code: int) -> None:
    await jobs.finish(job.id, error=redact_text(reason), exit_code=exit_code)
    _log.warning("job_failed", job_id=job.id, job_kind=job.kind, reason=reason)
