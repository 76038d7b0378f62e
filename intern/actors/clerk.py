"""The clerk does what commands ask for while this process holds the data folder, so that there is one writer only."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol

import msgspec
from anyio import sleep

from intern.actors.guard import surviving
from intern.errors import ConfigError, InternError
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
        await _fail(job, jobs, str(error), error.exit_code)
    except msgspec.DecodeError as error:
        # Stores say themselves when they cannot read; so this is the payload, and anybody may have written it.
        await _fail(job, jobs, f"this {job.kind} job cannot be understood: {error}", ConfigError.exit_code)
    else:
        await jobs.finish(job.id, result=result)
        _log.info("job_finished", job_id=job.id, job_kind=job.kind)


async def _fail(job: Job, jobs: JobQueue, reason: str, exit_code: int) -> None:
    await jobs.finish(job.id, error=reason, exit_code=exit_code)
    _log.warning("job_failed", job_id=job.id, job_kind=job.kind, reason=reason)
