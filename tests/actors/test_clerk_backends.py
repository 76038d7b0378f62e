"""The clerk on both backends, with the queue that it has at work."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from anyio import Event, create_task_group, fail_after, sleep_forever, wait_all_tasks_blocked

from intern.actors.clerk import POLL_SECONDS, clerk
from intern.errors import ConfigError, KnowledgeError
from intern.knowledge.database import Database
from intern.knowledge.jobs import Job, Jobs
from tests.leaping import leap, leaping

pytestmark = pytest.mark.anyio


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, Any]]:
    return leaping(request.param)


class Queue(Jobs):
    """The real queue, which says when it was looked into in vain and when a job has ended."""

    def __init__(self, db: Database) -> None:
        super().__init__(db)
        self.found_empty = Event()
        self.ended = Event()
        self.trouble: list[Exception] = []

    async def claim(self) -> Job | None:
        if self.trouble:
            self.found_empty.set()
            raise self.trouble.pop()
        job = await super().claim()
        if job is None:
            self.found_empty.set()
        return job

    async def finish(
        self, job_id: int, *, result: bytes | None = None, error: str | None = None, exit_code: int = 0
    ) -> None:
        await super().finish(job_id, result=result, error=error, exit_code=exit_code)
        self.ended.set()

    async def outcome(self, job_id: int) -> tuple[bytes | None, str | None, int] | None:
        found = await self.result(job_id)
        return None if found is None else (found.result, found.error, found.exit_code)


@asynccontextmanager
async def queue_in(folder: Path) -> AsyncGenerator[Queue]:
    async with await Database.open(folder / "intern.db") as db:
        yield Queue(db)


@asynccontextmanager
async def at_work(queue: Queue, do: Callable[[Job], Awaitable[bytes]]) -> AsyncGenerator[None]:
    with fail_after(10):
        async with create_task_group() as tg:
            tg.start_soon(partial(clerk, queue, do=do))
            yield
            tg.cancel_scope.cancel()


async def echo(job: Job) -> bytes:
    if job.kind == "hopeless":
        raise ConfigError("set this first")
    return job.payload


async def test_jobs_are_done_in_order_whatever_became_of_the_one_before(tmp_path: Path) -> None:
    async with queue_in(tmp_path) as queue:
        ids = [await queue.submit(kind, kind.encode(), key="") for kind in ("index", "hopeless", "regenerate")]
        async with at_work(queue, echo):
            await queue.found_empty.wait()
        assert [await queue.outcome(each) for each in ids] == [
            (b"index", None, 0),
            (None, "set this first", 2),
            (b"regenerate", None, 0),
        ]


@pytest.mark.parametrize("trouble", [[], [KnowledgeError("busy")]], ids=["after an empty look", "after a failed one"])
async def test_a_job_that_comes_later_is_found_at_the_next_look(tmp_path: Path, trouble: list[Exception]) -> None:
    async with queue_in(tmp_path) as queue:
        queue.trouble = trouble[:]
        async with at_work(queue, echo):
            await queue.found_empty.wait()
            job_id = await queue.submit("index", b"later", key="")
            await wait_all_tasks_blocked()
            await leap(POLL_SECONDS)
            await queue.ended.wait()
            assert await queue.outcome(job_id) == (b"later", None, 0)


async def test_a_job_that_is_cut_short_is_done_again_at_the_next_start(tmp_path: Path) -> None:
    begun = Event()

    async def hang(job: Job) -> bytes:
        begun.set()
        await sleep_forever()
        return job.payload

    async with queue_in(tmp_path) as queue:
        job_id = await queue.submit("index", b"again", key="")
        async with at_work(queue, hang):
            await begun.wait()
        assert await queue.outcome(job_id) is None

        assert await queue.reclaim() == 1
        async with at_work(queue, echo):
            await queue.ended.wait()
        assert await queue.outcome(job_id) == (b"again", None, 0)


async def test_a_bug_in_a_job_ends_the_clerk_and_leaves_the_job_unfinished(tmp_path: Path) -> None:
    async def stumble(job: Job) -> bytes:
        raise ZeroDivisionError

    async with queue_in(tmp_path) as queue:
        job_id = await queue.submit("index", b"", key="")
        with pytest.raises(ExceptionGroup) as raised:
            async with at_work(queue, stumble):
                await sleep_forever()
        assert raised.group_contains(ZeroDivisionError)
        assert await queue.outcome(job_id) is None
