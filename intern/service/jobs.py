"""The client of jobs: does a job in this process if it can hold the folder, or posts it for the one that does."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Literal, Protocol

from anyio import move_on_after, sleep
from anyio.lowlevel import checkpoint

from intern.actors.job_worker import do_all_jobs
from intern.core.errors import InternError
from intern.service.writer import Writer
from intern.stores.tables.jobs import GivesT, JobKind, JobQueue, TakesT

_POLL_SECONDS = 0.1  # a person waits


class RunJob(Protocol):
    """The client of jobs as others call it."""

    async def __call__(self, kind: JobKind[TakesT, GivesT], given: TakesT, /) -> GivesT | Literal["waiting"]:
        """Have a job done; return its result, or "waiting" if that takes too long."""
        ...


@asynccontextmanager
async def _hold_nothing() -> AsyncGenerator[None]:
    yield None


class JobClient:
    """Has jobs done, by this process or by the one that holds the folder. Raises the error that ended a job."""

    def __init__(
        self,
        queue: JobQueue,
        *,
        hold: Callable[[], AbstractAsyncContextManager[Writer | None]] = _hold_nothing,
        renew: Callable[[], Awaitable[object]] = checkpoint,
    ) -> None:
        """`hold` holds the folder, or gives None; `renew` reads what another process wrote."""
        self._queue, self._hold, self._renew = queue, hold, renew

    async def run(
        self,
        kind: JobKind[TakesT, GivesT],
        given: TakesT,
        *,
        here: Callable[[Writer], Awaitable[GivesT]] | None = None,
        meanwhile: Callable[[], Awaitable[object]] = checkpoint,
    ) -> GivesT:
        """Do a job, with `here` if that is given, or wait until another process did it, with calls of `meanwhile`."""
        async with self._hold() as writer:
            if writer is not None:
                return await (here(writer) if here else writer.handlers.run(kind, given))
        return await self._wait(kind, await self._queue.submit(kind, given), meanwhile)

    async def run_within(
        self, seconds: float, kind: JobKind[TakesT, GivesT], given: TakesT
    ) -> GivesT | Literal["waiting"]:
        """Post a job, and wait for its result; return "waiting" if it takes longer."""
        job_id = await self._queue.submit(kind, given)
        with move_on_after(seconds):
            return await self._wait(kind, job_id, checkpoint)
        return "waiting"

    async def do_waiting(self) -> bool:
        """Do the waiting jobs and return True; False where another process holds the folder. Raises KnowledgeError."""
        async with self._hold() as writer:
            if writer is not None:
                await self._queue.reclaim()
                await do_all_jobs(self._queue, writer.handlers)
        return writer is not None

    async def _wait(
        self, kind: JobKind[TakesT, GivesT], job_id: int, meanwhile: Callable[[], Awaitable[object]]
    ) -> GivesT:
        while (outcome := await self._queue.result(job_id)) is None:
            # Where the process that held the folder is gone, its jobs are ours now.
            if not await self.do_waiting():
                await meanwhile()
            await sleep(_POLL_SECONDS)
        await self._renew()
        if isinstance(outcome, InternError):
            raise outcome
        return kind.decode_result(outcome)
