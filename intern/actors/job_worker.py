"""The job worker does what commands ask for while this process holds the data folder: there is one writer only."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable

import msgspec
from anyio import Event, create_task_group, move_on_after
from anyio.abc import TaskGroup

from intern.actors.loops import surviving
from intern.core.errors import ConfigError, InternError
from intern.core.log import get_logger, redacted
from intern.stores.sqlite.work import Job, Jobs

POLL_SECONDS = 0.5  # a person waits at the other end; one indexed SELECT each time costs nothing

# A tombstone must stand at once, though the one before still waits for its topics. More than these need not.
_AT_ONCE = {"forget": 8}

_log = get_logger(__name__)


async def job_worker(jobs: Jobs, *, do: Callable[[Job], Awaitable[bytes]]) -> None:
    """Do each waiting job until cancelled; a job cut short is done again at the next start.

    Jobs of one kind come one after the other. One of another kind does not wait for them: whoever asks to be forgotten
    must not wait until a regeneration has ended. What they may not do at once, the jobs themselves keep apart.
    """
    desk = _Desk(jobs, do)
    async with create_task_group() as tg:
        while True:
            with surviving("job_worker"):
                await desk.begin_all(tg)
            with move_on_after(POLL_SECONDS):
                await desk.ended.wait()


async def do_all(jobs: Jobs, do: Callable[[Job], Awaitable[bytes]]) -> None:
    """Do each job that waits now, as the job worker does. Raises KnowledgeError where the queue cannot be used."""
    desk, trouble = _Desk(jobs, do), list[InternError]()
    async with create_task_group() as tg:
        try:
            while await desk.begin_all(tg) or desk.busy or desk.ended.is_set():
                await desk.ended.wait()
        except InternError as error:
            # What is in work comes to its end.
            trouble.append(error)
    if failed := [*trouble, *desk.failed]:
        raise failed[0]


class _Desk:
    """Jobs in work, of most kinds one at a time."""

    def __init__(self, jobs: Jobs, do: Callable[[Job], Awaitable[bytes]]) -> None:
        self._jobs = jobs
        self._do = do
        self._busy = Counter[str]()
        self.ended = Event()
        """Some job has, since jobs were begun last."""
        self.failed: list[InternError] = []
        """Of ends that could not be written down, the first: such a job waits for the next start."""

    @property
    def busy(self) -> bool:
        """Whether any job is in work."""
        return self._busy.total() > 0

    async def begin_all(self, tg: TaskGroup) -> bool:
        """Begin what waits and may begin, and say whether there was any. Raises KnowledgeError."""
        self.ended, begun = Event(), False
        # What may not begin stays unclaimed: nobody has tried it, and who asks for the same again may join.
        while (job := await self._jobs.claim(but=self._full())) is not None:
            self._busy[job.kind] += 1
            tg.start_soon(self._work, job)
            begun = True
        return begun

    def _full(self) -> frozenset[str]:
        return frozenset(kind for kind, number in self._busy.items() if number >= _AT_ONCE.get(kind, 1))

    async def _work(self, job: Job) -> None:
        try:
            with surviving("job_worker", job_kind=job.kind):
                await self._to_its_end(job)
        finally:
            self._busy[job.kind] -= 1
            self.ended.set()

    async def _to_its_end(self, job: Job) -> None:
        try:
            await _do(job, self._jobs, self._do)
        except InternError as error:
            self.failed = [*self.failed, error][:1]
            raise


async def _do(job: Job, jobs: Jobs, do: Callable[[Job], Awaitable[bytes]]) -> None:
    _log.info("job_started", job_id=job.id, job_kind=job.kind)
    try:
        result = await do(job)
    except InternError as error:
        await _fail(job, jobs, str(error), error.exit_code)
    except msgspec.DecodeError as error:
        # Stores say themselves when they cannot read; so this is the payload, and anybody may have written it.
        await _fail(job, jobs, f"this {job.kind} job cannot be understood: {error}", ConfigError.exit_code)
    else:
        await jobs.finish(job.id, result=result)
        _log.info("job_finished", job_id=job.id, job_kind=job.kind)


async def _fail(job: Job, jobs: Jobs, reason: str, exit_code: int) -> None:
    await jobs.finish(job.id, error=redacted(reason), exit_code=exit_code)
    _log.warning("job_failed", job_id=job.id, job_kind=job.kind, reason=reason)
