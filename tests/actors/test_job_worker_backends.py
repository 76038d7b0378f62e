"""The job worker on both backends, with the real queue."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Collection
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest
from anyio import Event, create_task_group, fail_after, move_on_after, sleep_forever, wait_all_tasks_blocked

from intern.actors.job_worker import POLL_SECONDS, JobHandler, JobHandlers, do_all_jobs, do_jobs_forever
from intern.core.clock import Wakeup
from intern.core.errors import ConfigError, KnowledgeError
from intern.stores.engines.sqlite.database import SqliteDatabase
from intern.stores.tables.jobs import Job, JobKind, JobOutcome, JobQueue
from tests.worlds.actors import running
from tests.worlds.clock import leap

pytestmark = pytest.mark.leaps


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

    async def finish(self, job_id: int, outcome: JobOutcome) -> None:
        await super().finish(job_id, outcome)
        self.ended.set()

    async def outcome(self, job_id: int) -> bytes | str | None:
        found = await self.result(job_id)
        return found if found is None or isinstance(found, bytes) else str(found)


Work = Callable[[str], Awaitable[str]]
INDEX, REGENERATE, CAPTURE, FORGET, HOPELESS = (
    JobKind(name=name, takes=str, gives=str, at_once=at_once)
    for name, at_once in [("index", 1), ("regenerate", 1), ("capture", 1), ("forget", 8), ("hopeless", 1)]
)


def doing(work: Work) -> JobHandlers:
    """Return handlers that do the same work for each kind; one is hopeless."""
    same = [JobHandler(kind, work) for kind in (INDEX, REGENERATE, CAPTURE, FORGET)]

    async def give_up(given: str) -> str:
        await work(given)
        raise ConfigError("set this first")

    return JobHandlers(*same, JobHandler(HOPELESS, give_up))


@asynccontextmanager
async def queue_in(folder: Path) -> AsyncGenerator[Queue]:
    async with await SqliteDatabase.open(folder / "intern.db") as db:
        yield Queue(db)


@asynccontextmanager
async def at_work(queue: Queue, work: Work) -> AsyncGenerator[None]:
    with fail_after(10):
        async with running(partial(do_jobs_forever, queue, doing(work))):
            yield


async def test_a_worker_that_is_woken_does_not_look_by_itself(tmp_path: Path) -> None:
    async with queue_in(tmp_path) as queue:
        came = Wakeup()
        with fail_after(10):
            async with running(partial(do_jobs_forever, queue, doing(echo), came=came)):
                await queue.found_empty.wait()
                queue.found_empty = Event()
                job_id = await queue.submit(FORGET, "this")
                with move_on_after(2 * POLL_SECONDS):
                    await queue.found_empty.wait()
                assert await queue.result(job_id) is None
                came.wake()
                await until_ended(queue, job_id)


async def until_ended(queue: Queue, *job_ids: int) -> None:
    while None in [await queue.outcome(each) for each in job_ids]:
        queue.ended = Event()
        if None in [await queue.outcome(each) for each in job_ids]:
            await queue.ended.wait()


async def echo(given: str) -> str:
    return given


async def test_jobs_of_a_kind_are_done_in_order_whatever_became_of_the_one_before(tmp_path: Path) -> None:
    begun: list[str] = []

    async def note(given: str) -> str:
        begun.append(given)
        return given

    async with queue_in(tmp_path) as queue:
        ids = [await queue.submit(HOPELESS, given) for given in "123"]
        async with at_work(queue, note):
            await until_ended(queue, *ids)
        assert begun == ["1", "2", "3"]
        assert [await queue.outcome(each) for each in ids] == ["set this first"] * 3


@pytest.mark.parametrize("all_at_once", [False, True], ids=["the job worker", "a command that has the folder"])
async def test_a_long_job_holds_up_its_own_kind_and_no_other(tmp_path: Path, *, all_at_once: bool) -> None:
    may_end, begun = Event(), list[str]()

    async def take_long(given: str) -> str:
        begun.append(given)
        if given in ("long", "first"):
            await may_end.wait()
        return given

    async with queue_in(tmp_path) as queue:
        kinds = [
            (REGENERATE, "long"),
            (REGENERATE, "again"),
            (CAPTURE, "1"),
            (FORGET, "first"),
            (FORGET, "second"),
        ]
        long, again, *others = [await queue.submit(kind, given) for kind, given in kinds]
        work = partial(do_all_jobs, queue) if all_at_once else partial(do_jobs_forever, queue)
        with fail_after(10):
            async with create_task_group() as tg:
                tg.start_soon(work, doing(take_long))
                # A second request to forget does not wait for the first.
                await until_ended(queue, others[0], others[2])
                assert "again" not in begun
                # It was not tried yet, so the same request joins it.
                assert await queue.submit(REGENERATE, "again") == again
                may_end.set()
                await until_ended(queue, long, again, *others)
                if not all_at_once:
                    tg.cancel_scope.cancel()
        assert set(begun) == {given for _, given in kinds}


@pytest.mark.parametrize("trouble", [[], [KnowledgeError("busy")]], ids=["after an empty look", "after a failed one"])
async def test_a_job_that_comes_later_is_found_at_the_next_look(tmp_path: Path, trouble: list[Exception]) -> None:
    async with queue_in(tmp_path) as queue:
        queue.trouble = trouble[:]
        async with at_work(queue, echo):
            await queue.found_empty.wait()
            job_id = await queue.submit(INDEX, "later")
            await wait_all_tasks_blocked()
            await leap(POLL_SECONDS)
            await queue.ended.wait()
            assert await queue.outcome(job_id) == b'"later"'


async def test_jobs_that_are_cut_short_are_done_again_at_the_next_start(tmp_path: Path) -> None:
    begun: dict[str, Event] = {"index": Event(), "regenerate": Event()}

    async def hang(given: str) -> str:
        begun[given].set()
        await sleep_forever()
        return given

    async with queue_in(tmp_path) as queue:
        ids = [await queue.submit(kind, kind.name) for kind in (INDEX, REGENERATE)]
        async with at_work(queue, hang):
            for each in begun.values():
                await each.wait()
        assert [await queue.outcome(each) for each in ids] == [None, None]

        assert await queue.reclaim() == 2
        async with at_work(queue, echo):
            await until_ended(queue, *ids)
        assert [await queue.outcome(each) for each in ids] == [b'"index"', b'"regenerate"']


async def test_what_ends_and_cannot_be_written_down_is_told_after_all_others_came_to_their_ends(tmp_path: Path) -> None:
    class Refusing(Queue):
        async def finish(self, job_id: int, outcome: JobOutcome) -> None:
            if outcome == b'"refused"':
                raise KnowledgeError("the disk is full")
            await super().finish(job_id, outcome)

    async with await SqliteDatabase.open(tmp_path / "intern.db") as db:
        queue = Refusing(db)
        refused, index, later = [
            await queue.submit(kind, given) for kind, given in ((CAPTURE, "refused"), (INDEX, "1"), (INDEX, "2"))
        ]
        with fail_after(10), pytest.raises(KnowledgeError, match="the disk is full"):
            await do_all_jobs(queue, doing(echo))
        assert [await queue.outcome(each) for each in (index, later)] == [b'"1"', b'"2"']
        assert await queue.outcome(refused) is None


async def test_a_bug_in_a_job_ends_the_clerk_and_leaves_the_job_unfinished(tmp_path: Path) -> None:
    async def stumble(given: str) -> str:
        raise ZeroDivisionError

    async with queue_in(tmp_path) as queue:
        job_id = await queue.submit(INDEX, "")
        with pytest.raises(ExceptionGroup) as raised:
            async with at_work(queue, stumble):
                await sleep_forever()
        assert raised.group_contains(ZeroDivisionError)
        assert await queue.outcome(job_id) is None
