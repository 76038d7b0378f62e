"""The clerk does what commands ask for while this process holds the data folder, so that there is one writer only."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol

from anyio import sleep

from intern.actors.guard import surviving
from intern.errors import InternError
from intern.knowledge.jobs import Job
from intern.observe.log import get_logger

POLL_SECONDS = 0.5  # a person waits at the other end; one indexed SELECT each time costs nothing

_log = get_logger(__name__)


class JobQueue(Protocol):
    """The waiting jobs."""

    async def claim(self) -> Job | None:
        """The oldest waiting job, now ours."""
        ...

    async def finish(
        self, job_id: int, *, result: bytes | None = None, error: str | None = None, exit_code: int = 0
    ) -> None:
        """Say how it ended."""
        ...


async def clerk(jobs: JobQueue, *, do: Callable[[Job], Awaitable[bytes]]) -> None:
    """Do each waiting job, one after the other, until cancelled; a job cut short is done again at the next start."""
    while True:
        with surviving("clerk"):
            await do_all(jobs, do)
        await sleep(POLL_SECONDS)


async def do_all(jobs: JobQueue, do: Callable[[Job], Awaitable[bytes]]) -> None:
    """Do each job that waits now. Raises KnowledgeError where the queue cannot be used."""
    while (job := await jobs.claim()) is not None:
        await _do(job, jobs, do)


async def _do(job: Job, jobs: JobQueue, do: Callable[[Job], Awaitable[bytes]]) -> None:
    _log.info("job_started", job_id=job.id, job_kind=job.kind)
    try:
        result = await do(job)
    except InternError as error:
        await jobs.finish(job.id, error=str(error), exit_code=error.exit_code)
        _log.warning("job_failed", job_id=job.id, job_kind=job.kind, reason=str(error))
    else:
        await jobs.finish(job.id, result=result)
        _log.info("job_finished", job_id=job.id, job_kind=job.kind)
