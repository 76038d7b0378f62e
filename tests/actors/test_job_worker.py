from __future__ import annotations

from collections import deque
from collections.abc import Collection
from functools import partial

import msgspec
import pytest
import trio
import trio.testing
from anyio import create_task_group

from intern.actors.job_worker import do_jobs_forever
from intern.core.captures import Capture
from intern.core.errors import ConfigError, KnowledgeError
from intern.stores.tables.jobs import Job, JobQueue


class Queue(JobQueue):
    """A queue in memory; claiming may fail first."""

    def __init__(self, *kinds: str, trouble: list[Exception] | None = None) -> None:
        self.waiting = deque(Job(id=n, kind=kind, key="", payload=b"") for n, kind in enumerate(kinds))
        self.ended: list[tuple[int, bytes | None, str | None, int]] = []
        self._trouble = trouble or []

    async def claim(self, *, but: Collection[str] = ()) -> Job | None:
        if self._trouble:
            raise self._trouble.pop(0)
        job = next((job for job in self.waiting if job.kind not in but), None)
        if job is not None:
            self.waiting.remove(job)
        return job

    async def finish(
        self, job_id: int, *, result: bytes | None = None, error: str | None = None, exit_code: int = 0
    ) -> None:
        self.ended.append((job_id, result, error, exit_code))


async def do(job: Job) -> bytes:
    if job.kind == "hopeless":
        raise ConfigError("set this first: redis://:hunter2@cache")
    if job.kind == "bug":
        raise ZeroDivisionError
    if job.kind == "garbled":
        msgspec.json.decode(b'{"turns": 1}' if job.id else b"{", type=Capture)
    return job.kind.encode()


def run(queue: Queue, *later: str) -> None:
    """Let the job worker work for ten seconds of trio's own clock."""

    async def story() -> None:
        async with create_task_group() as tg:
            tg.start_soon(partial(do_jobs_forever, queue, do=do))
            await trio.sleep(5)
            queue.waiting.extend(Job(id=10 + n, kind=kind, key="", payload=b"") for n, kind in enumerate(later))
            await trio.sleep(5)
            tg.cancel_scope.cancel()

    trio.run(story, clock=trio.testing.MockClock(autojump_threshold=0))


def test_jobs_are_done_in_order_and_new_ones_are_found() -> None:
    queue = Queue("index", "index")
    run(queue, "index")
    assert queue.ended == [(0, b"index", None, 0), (1, b"index", None, 0), (10, b"index", None, 0)]


def test_a_job_that_fails_tells_the_one_who_waits_what_to_do_and_no_password() -> None:
    queue = Queue("hopeless", "index")
    run(queue)
    assert sorted(queue.ended) == [
        (0, None, "set this first: redis://:[masked password]@cache", 2),
        (1, b"index", None, 0),
    ]


def test_a_job_that_nobody_can_understand_fails_and_the_clerk_goes_on() -> None:
    queue = Queue("garbled", "garbled", "index")
    run(queue)
    ended = sorted(queue.ended)
    for n in (0, 1):
        _, result, error, exit_code = ended[n]
        assert (result, exit_code) == (None, 2)
        assert error is not None
        assert error.startswith("this garbled job cannot be understood: ")
    assert ended[2] == (2, b"index", None, 0)


def test_a_database_that_hiccups_is_asked_again() -> None:
    queue = Queue("index", trouble=[KnowledgeError("busy")])
    run(queue)
    assert queue.ended == [(0, b"index", None, 0)]


def test_a_bug_in_a_job_ends_the_process_and_leaves_the_job_unfinished() -> None:
    queue = Queue("bug")
    with pytest.raises(ExceptionGroup) as raised:
        run(queue)
    assert raised.group_contains(ZeroDivisionError)
    assert queue.ended == []
