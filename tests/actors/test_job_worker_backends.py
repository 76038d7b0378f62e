"""The job worker on both backends, with the real queue."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Collection
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from anyio import Event, create_task_group, fail_after, move_on_after, sleep_forever, wait_all_tasks_blocked

from intern.actors.job_worker import POLL_SECONDS, do_all_jobs, do_jobs_forever
from intern.core.clock import Wakeup
from intern.core.errors import ConfigError, KnowledgeError
from intern.stores.engines.sqlite.database import SqliteDatabase
from intern.stores.tables.jobs import Job, JobQueue
from tests.worlds.clock import leap, leaping

pytestmark = pytest.mark.anyio


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, Any]]:
    return leaping(request.param)


class Queue(JobQueue):
    """The real queue, which also signals an empty poll and the end of a job."""

    def __init__(self, db: SqliteDatabase) -> None:
        super().__init__(db)
        self.found_empty = Event()
        self.ended = Event()
        self.trouble: list[Exception] = []

    async def claim(self, *, but: Collection[str] = ()) -> Job | None:
        if self.trouble:
            self.found_empty.set()
            raise self.trouble.pop()
        job = await super().claim(but=but)
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
    async with await SqliteDatabase.open(folder / "intern.db") as db:
        yield Queue(db)


@asynccontextmanager
async def at_work(queue: Queue, do: Callable[[Job], Awaitable[bytes]]) -> AsyncGenerator[None]:
    with fail_after(10):
        async with create_task_group() as tg:
            tg.start_soon(partial(do_jobs_forever, queue, do=do))
            yield
            tg.cancel_scope.cancel()


async def test_a_worker_that_is_woken_does_not_look_by_itself(tmp_path: Path) -> None:
    async with queue_in(tmp_path) as queue:
        came = Wakeup()
        with fail_after(10):
            async with create_task_group() as tg:
                tg.start_soon(partial(do_jobs_forever, queue, do=nothing, came=came))
                await queue.found_empty.wait()
                queue.found_empty = Event()
                job_id = await queue.submit("forget", b"{}", "key")
                with move_on_after(2 * POLL_SECONDS):
                    await queue.found_empty.wait()
                assert await queue.result(job_id) is None
                came.wake()
                await until_ended(queue, job_id)
                tg.cancel_scope.cancel()


async def nothing(_: Job) -> bytes:
    return b""


async def until_ended(queue: Queue, *job_ids: int) -> None:
    while None in [await queue.outcome(each) for each in job_ids]:
        queue.ended = Event()
        if None in [await queue.outcome(each) for each in job_ids]:
            await queue.ended.wait()


async def echo(job: Job) -> bytes:
    if job.kind == "hopeless":
        raise ConfigError("set this first")
    return job.payload


async def test_jobs_of_a_kind_are_done_in_order_whatever_became_of_the_one_before(tmp_path: Path) -> None:
    begun: list[bytes] = []

    async def note(job: Job) -> bytes:
        begun.append(job.payload)
        return await echo(job)

    async with queue_in(tmp_path) as queue:
        ids = [await queue.submit("hopeless", payload, key=str(payload)) for payload in (b"1", b"2", b"3")]
        async with at_work(queue, note):
            await until_ended(queue, *ids)
        assert begun == [b"1", b"2", b"3"]
        assert [await queue.outcome(each) for each in ids] == [(None, "set this first", 2)] * 3


@pytest.mark.parametrize("all_at_once", [False, True], ids=["the job worker", "a command that has the folder"])
async def test_a_long_job_holds_up_its_own_kind_and_no_other(tmp_path: Path, *, all_at_once: bool) -> None:
    may_end, begun = Event(), list[bytes]()

    async def take_long(job: Job) -> bytes:
        begun.append(job.payload)
        if job.payload in (b"long", b"first"):
            await may_end.wait()
        return job.payload

    async with queue_in(tmp_path) as queue:
        kinds = [
            ("regenerate", b"long"),
            ("regenerate", b"again"),
            ("capture", b"1"),
            ("forget", b"first"),
            ("forget", b"second"),
        ]
        long, again, *others = [await queue.submit(kind, payload, key=str(payload)) for kind, payload in kinds]
        work = partial(do_all_jobs, queue) if all_at_once else partial(do_jobs_forever, queue)
        with fail_after(10):
            async with create_task_group() as tg:
                tg.start_soon(partial(work, do=take_long))
                # A second request to forget does not wait for the first.
                await until_ended(queue, others[0], others[2])
                assert b"again" not in begun
                # It was not tried yet, so the same request joins it.
                assert await queue.submit("regenerate", b"again", key=str(b"again")) == again
                may_end.set()
                await until_ended(queue, long, again, *others)
                if not all_at_once:
                    tg.cancel_scope.cancel()
        assert set(begun) == {payload for _, payload in kinds}


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


async def test_jobs_that_are_cut_short_are_done_again_at_the_next_start(tmp_path: Path) -> None:
    begun: dict[str, Event] = {"index": Event(), "regenerate": Event()}

    async def hang(job: Job) -> bytes:
        begun[job.kind].set()
        await sleep_forever()
        return job.payload

    async with queue_in(tmp_path) as queue:
        ids = [await queue.submit(kind, b"again", key="") for kind in begun]
        async with at_work(queue, hang):
            for each in begun.values():
                await each.wait()
        assert [await queue.outcome(each) for each in ids] == [None, None]

        assert await queue.reclaim() == 2
        async with at_work(queue, echo):
            await until_ended(queue, *ids)
        assert [await queue.outcome(each) for each in ids] == [(b"again", None, 0)] * 2


async def test_what_ends_and_cannot_be_written_down_is_told_after_all_others_came_to_their_ends(tmp_path: Path) -> None:
    class Refusing(Queue):
        async def finish(
            self, job_id: int, *, result: bytes | None = None, error: str | None = None, exit_code: int = 0
        ) -> None:
            if result == b"refused":
                raise KnowledgeError("the disk is full")
            await super().finish(job_id, result=result, error=error, exit_code=exit_code)

    async with await SqliteDatabase.open(tmp_path / "intern.db") as db:
        queue = Refusing(db)
        refused, index, later = [
            await queue.submit(kind, payload, key=str(payload))
            for kind, payload in (("capture", b"refused"), ("index", b"1"), ("index", b"2"))
        ]
        with fail_after(10), pytest.raises(KnowledgeError, match="the disk is full"):
            await do_all_jobs(queue, echo)
        assert [await queue.outcome(each) for each in (index, later)] == [(b"1", None, 0), (b"2", None, 0)]
        assert await queue.outcome(refused) is None


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
