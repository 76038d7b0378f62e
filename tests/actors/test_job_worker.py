from __future__ import annotations

from collections import deque
from collections.abc import Collection
from functools import partial

import pytest
import trio
import trio.testing

from intern.actors.job_worker import JobHandler, JobHandlers, do_jobs_forever
from intern.core.captures import Capture
from intern.core.errors import ConfigError, KnowledgeError
from intern.stores.tables.jobs import Job, JobKind, JobOutcome, JobQueue
from tests.worlds.actors import running


class Queue(JobQueue):
    """A queue in memory; claiming may fail first."""

    def __init__(self, *kinds: str, trouble: list[Exception] | None = None) -> None:
        self.waiting = deque(Job(id=n, kind=kind, payload=b"null") for n, kind in enumerate(kinds))
        self.ended: list[tuple[int, JobOutcome]] = []
        self._trouble = trouble or []

    async def claim(self, *, but: Collection[str] = ()) -> Job | None:
        if self._trouble:
            raise self._trouble.pop(0)
        job = next((job for job in self.waiting if job.kind not in but), None)
        if job is not None:
            self.waiting.remove(job)
        return job

    async def finish(self, job_id: int, outcome: JobOutcome) -> None:
        self.ended.append((job_id, outcome))


async def index(_: None) -> str:
    return "indexed"


async def give_up(_: None) -> None:
    raise ConfigError("set this first")


async def stumble(_: None) -> None:
    raise ZeroDivisionError


async def keep(_: Capture) -> None: ...


HANDLERS = JobHandlers(
    JobHandler(JobKind(name="index", takes=None, gives=str), index),
    JobHandler(JobKind(name="hopeless", takes=None, gives=None), give_up),
    JobHandler(JobKind(name="bug", takes=None, gives=None), stumble),
    JobHandler(JobKind(name="garbled", takes=Capture, gives=None), keep),
)


def run(queue: Queue, *later: str) -> None:
    """Let the job worker work for ten seconds of trio's own clock."""

    async def story() -> None:
        async with running(partial(do_jobs_forever, queue, HANDLERS)):
            await trio.sleep(5)
            queue.waiting.extend(Job(id=10 + n, kind=kind, payload=b"null") for n, kind in enumerate(later))
            await trio.sleep(5)

    trio.run(story, clock=trio.testing.MockClock(autojump_threshold=0))


def test_jobs_are_done_in_order_and_new_ones_are_found() -> None:
    queue = Queue("index", "index")
    run(queue, "index")
    assert queue.ended == [(0, b'"indexed"'), (1, b'"indexed"'), (10, b'"indexed"')]


def test_a_job_that_fails_tells_the_one_who_waits_what_to_do() -> None:
    queue = Queue("hopeless", "index")
    run(queue)
    (_, failed), (_, indexed) = sorted(queue.ended, key=lambda each: each[0])
    assert (type(failed), str(failed)) == (ConfigError, "set this first")
    assert indexed == b'"indexed"'


@pytest.mark.parametrize("payload", [b"{", b'{"turns": 1}', b"null"])
def test_a_job_that_nobody_can_understand_fails_and_the_clerk_goes_on(payload: bytes) -> None:
    queue = Queue("garbled", "index")
    queue.waiting[0] = Job(id=0, kind="garbled", payload=payload)
    run(queue)
    (_, failed), (_, indexed) = sorted(queue.ended, key=lambda each: each[0])
    assert isinstance(failed, ConfigError)
    assert str(failed).startswith("this garbled job cannot be understood: ")
    assert indexed == b'"indexed"'


def test_a_job_of_a_kind_that_this_version_does_not_know_fails_and_says_so() -> None:
    queue = Queue("dance", "index")
    run(queue)
    (_, failed), (_, indexed) = sorted(queue.ended, key=lambda each: each[0])
    assert isinstance(failed, KnowledgeError)
    assert "no job 'dance'" in str(failed)
    assert indexed == b'"indexed"'


def test_a_database_that_hiccups_is_asked_again() -> None:
    queue = Queue("index", trouble=[KnowledgeError("busy")])
    run(queue)
    assert queue.ended == [(0, b'"indexed"')]


def test_a_bug_in_a_job_ends_the_process_and_leaves_the_job_unfinished() -> None:
    queue = Queue("bug")
    with pytest.raises(ExceptionGroup) as raised:
        run(queue)
    assert raised.group_contains(ZeroDivisionError)
    assert queue.ended == []
