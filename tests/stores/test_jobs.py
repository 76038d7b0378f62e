"""Jobs: asked for once, claimed once, and done in the end, also if processes die meanwhile."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import pytest

from intern.core.errors import (
    ConfigError,
    FolderBusyError,
    InternError,
    KnowledgeError,
    ModelBudgetError,
    ModelReplyError,
)
from intern.stores.database import Database
from intern.stores.tables.jobs import Job, JobKind, JobQueue
from tests.engines import open_database

INDEX = JobKind(name="index", takes=str, gives=str)
REGENERATE = JobKind(name="regenerate", takes=str, gives=str)

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
            asked = await asker.submit(INDEX, "this \x00\xff")
            assert await asker.result(asked) is None
            claimed = await jobs.claim()
            assert claimed == Job(id=asked, kind="index", payload='"this \\u0000\xff"'.encode())
            assert claimed is not None
            assert INDEX.decode_given(claimed.payload) == "this \x00\xff"
            assert await asker.result(asked) is None
            await jobs.finish(asked, b"\x00\xff")
            assert await asker.result(asked) == b"\x00\xff"


async def test_an_equal_job_that_waits_is_not_asked_for_twice(jobs: JobQueue) -> None:
    with anyio.fail_after(5):
        first = await jobs.submit(INDEX, "all")
        assert await jobs.submit(INDEX, "all") == first
        assert await jobs.submit(INDEX, "other") != first
        assert await jobs.submit(REGENERATE, "all") != first
        claimed = await jobs.claim()
        assert claimed is not None
        assert claimed.id == first
        assert await jobs.submit(INDEX, "all") != first, "work that has begun may have missed what changed since"


async def test_jobs_are_claimed_in_order_and_each_but_once(jobs: JobQueue) -> None:
    claimed: list[str] = []

    async def claim() -> None:
        while (job := await jobs.claim()) is not None:
            claimed.append(INDEX.decode_given(job.payload))

    with anyio.fail_after(5):
        for n in range(20):
            await jobs.submit(INDEX, f"{n:02}")
        for expected in ("00", "01"):
            job = await jobs.claim()
            assert job is not None
            assert INDEX.decode_given(job.payload) == expected
        async with anyio.create_task_group() as tg:
            for _ in range(4):
                tg.start_soon(claim)
    assert sorted(claimed) == [f"{n:02}" for n in range(2, 20)]


@pytest.mark.parametrize(
    ("error", "crosses"),
    [
        (ConfigError, ConfigError),
        (ModelBudgetError, KnowledgeError),
        (ModelReplyError, KnowledgeError),
        (FolderBusyError, KnowledgeError),
    ],
)
async def test_a_failure_tells_its_error_and_exit_code(
    jobs: JobQueue, error: type[InternError], crosses: type[InternError]
) -> None:
    with anyio.fail_after(5):
        asked = await jobs.submit(INDEX, "all")
        await jobs.claim()
        await jobs.finish(asked, error("redis://:hunter2@cache is gone"))
        await jobs.finish(asked, b"too late")
        outcome = await jobs.result(asked)
    assert isinstance(outcome, InternError)
    assert (type(outcome), str(outcome)) == (crosses, "redis://:[masked password]@cache is gone")
    assert outcome.exit_code == error.exit_code


async def test_what_a_dead_process_claimed_is_done_by_the_next(jobs: JobQueue) -> None:
    with anyio.fail_after(5):
        asked = await jobs.submit(INDEX, "all")
        again = await jobs.submit(REGENERATE, "all")
        await jobs.claim()
        assert await jobs.submit(INDEX, "all") > asked, "an equal one may wait beside the claimed one"
        assert await jobs.reclaim() == 1
        assert [await claimed_id(jobs), await claimed_id(jobs)] == [asked, again]


async def test_a_job_that_ends_its_process_three_times_fails(jobs: JobQueue) -> None:
    with anyio.fail_after(5):
        asked = await jobs.submit(INDEX, "all")
        for reclaimed in (1, 1, 0):
            assert await claimed_id(jobs) == asked
            assert await jobs.reclaim() == reclaimed
        assert await jobs.claim() is None
        outcome = await jobs.result(asked)
    assert isinstance(outcome, KnowledgeError)
    assert "3 times" in str(outcome)


async def test_messages_are_not_kept_once_their_job_has_ended(jobs: JobQueue, db: Database) -> None:
    with anyio.fail_after(5):
        done, failed = await jobs.submit(INDEX, "a secret"), await jobs.submit(INDEX, "another")
        await jobs.claim()
        await jobs.finish(done, b"archived")
        for _ in range(3):
            assert await payloads(db) == [b"", b'"another"']
            assert await claimed_id(jobs) == failed
            await jobs.reclaim()
        assert await payloads(db) == [b"", b""]


async def payloads(db: Database) -> list[object]:
    return [payload for (payload,) in await db.read(lambda tx: tx.rows("select payload from jobs order by id"))]


async def test_only_the_latest_outcomes_are_kept(jobs: JobQueue, db: Database) -> None:
    with anyio.fail_after(10):
        waiting = await jobs.submit(INDEX, "waits for ever")
        await db.write(
            lambda tx: tx.run_each(
                "insert into jobs (community, kind, key, payload, state)"
                " values (:community, 'index', ?, cast('' as blob), 'finished')",
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
