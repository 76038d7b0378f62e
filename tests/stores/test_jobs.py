"""Jobs: asked for once, claimed once, and done in the end, also if processes die meanwhile."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import pytest

from intern.stores.database import Database
from intern.stores.tables.jobs import Job, JobOutcome, JobQueue
from tests.engines import open_database

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("engine")]


@pytest.fixture
async def db(tmp_path: Path, anyio_backend: str) -> AsyncIterator[Database]:
    async with await open_database(tmp_path / "intern.db") as opened:
        yield opened


@pytest.fixture
def jobs(db: Database) -> JobQueue:
    return JobQueue(db)


async def test_a_job_goes_from_one_process_to_another_and_its_result_back(jobs: JobQueue, tmp_path: Path) -> None:
    with anyio.fail_after(5):
        async with await open_database(tmp_path / "intern.db") as other:
            asker = JobQueue(other)
            asked = await asker.submit("capture", b"\x00\xff", "k")
            assert await asker.result(asked) is None
            assert await jobs.claim() == Job(id=asked, kind="capture", key="k", payload=b"\x00\xff")
            assert await asker.result(asked) is None
            await jobs.finish(asked, result=b"done")
            assert await asker.result(asked) == JobOutcome(result=b"done", error=None, exit_code=0)


async def test_an_equal_job_that_waits_is_not_asked_for_twice(jobs: JobQueue) -> None:
    with anyio.fail_after(5):
        first = await jobs.submit("index", b"", "all")
        assert await jobs.submit("index", b"", "all") == first
        assert await jobs.submit("index", b"", "other") != first
        assert await jobs.submit("regenerate", b"", "all") != first
        claimed = await jobs.claim()
        assert claimed is not None
        assert claimed.id == first
        assert await jobs.submit("index", b"", "all") != first, "work that has begun may have missed what changed since"


async def test_jobs_are_claimed_in_order_and_each_but_once(jobs: JobQueue) -> None:
    claimed: list[str] = []

    async def claim() -> None:
        while (job := await jobs.claim()) is not None:
            claimed.append(job.key)

    with anyio.fail_after(5):
        for n in range(20):
            await jobs.submit("index", b"", f"{n:02}")
        for expected in ("00", "01"):
            job = await jobs.claim()
            assert job is not None
            assert job.key == expected
        async with anyio.create_task_group() as tg:
            for _ in range(4):
                tg.start_soon(claim)
    assert sorted(claimed) == [f"{n:02}" for n in range(2, 20)]


async def test_a_failure_tells_its_error_and_exit_code(jobs: JobQueue) -> None:
    with anyio.fail_after(5):
        asked = await jobs.submit("index", b"", "all")
        await jobs.claim()
        await jobs.finish(asked, error="the folder is gone", exit_code=2)
        await jobs.finish(asked, result=b"too late")
        assert await jobs.result(asked) == JobOutcome(result=None, error="the folder is gone", exit_code=2)


async def test_what_a_dead_process_claimed_is_done_by_the_next(jobs: JobQueue) -> None:
    with anyio.fail_after(5):
        asked = await jobs.submit("index", b"", "all")
        again = await jobs.submit("regenerate", b"", "all")
        await jobs.claim()
        assert await jobs.submit("index", b"", "all") > asked, "an equal one may wait beside the claimed one"
        assert await jobs.reclaim() == 1
        assert [await claimed_id(jobs), await claimed_id(jobs)] == [asked, again]


async def test_a_job_that_ends_its_process_three_times_fails(jobs: JobQueue) -> None:
    with anyio.fail_after(5):
        asked = await jobs.submit("index", b"", "all")
        for reclaimed in (1, 1, 0):
            assert await claimed_id(jobs) == asked
            assert await jobs.reclaim() == reclaimed
        assert await jobs.claim() is None
        outcome = await jobs.result(asked)
    assert outcome is not None
    assert outcome.exit_code == 3
    assert outcome.error is not None
    assert "3 times" in outcome.error


@pytest.mark.parametrize("kind", ["capture", "import"])
async def test_messages_are_not_kept_once_their_job_has_ended(jobs: JobQueue, db: Database, kind: str) -> None:
    with anyio.fail_after(5):
        done, failed = await jobs.submit(kind, b"a secret", "1"), await jobs.submit(kind, b"a secret", "2")
        await jobs.claim()
        await jobs.finish(done, result=b"archived")
        for _ in range(3):
            assert await payloads(db) == [b"", b"a secret"]
            assert await claimed_id(jobs) == failed
            await jobs.reclaim()
        assert await payloads(db) == [b"", b""]


async def payloads(db: Database) -> list[object]:
    return [payload for (payload,) in await db.read(lambda tx: tx.rows("select payload from jobs order by id"))]


async def test_only_the_latest_outcomes_are_kept(jobs: JobQueue, db: Database) -> None:
    with anyio.fail_after(10):
        waiting = await jobs.submit("index", b"", "waits for ever")
        await db.write(
            lambda tx: tx.run_each(
                "insert into jobs (community, kind, key, payload, state, exit_code)"
                " values (:community, 'index', ?, cast('' as blob), 'finished', 0)",
                [(str(n),) for n in range(1500)],
            )
        )
        await jobs.reclaim()
        assert await db.read(lambda tx: tx.row("select count(*) from jobs")) == (1001,)
        assert await jobs.result(waiting) is None


async def test_an_id_that_was_never_given_is_a_bug(jobs: JobQueue) -> None:
    with anyio.fail_after(5), pytest.raises(LookupError):
        await jobs.result(1)


async def claimed_id(jobs: JobQueue) -> int:
    job = await jobs.claim()
    assert job is not None
    return job.id
