"""Tasks side by side give all of their results, or none."""

from __future__ import annotations

import pytest
from anyio import CancelScope, Event, sleep_forever, wait_all_tasks_blocked

from intern.core.errors import KnowledgeError
from intern.core.tasks import open_task_group, run_each
from tests.worlds.actors import finishing


async def test_results_come_in_order_though_the_work_ends_in_another_and_no_more_is_begun_than_may_be() -> None:
    gates = [Event() for _ in range(3)]
    begun: list[int] = []

    async def work(n: int) -> str:
        begun.append(n)
        await gates[n].wait()
        return str(n)

    found: list[str] = []

    async def run() -> None:
        found.extend(await run_each(work, range(3), 2))

    async with finishing(run):
        await wait_all_tasks_blocked()
        assert sorted(begun) == [0, 1]
        for gate in reversed(gates):
            gate.set()
    assert found == ["0", "1", "2"]
    assert await run_each(work, (), 2) == []


async def test_the_first_error_ends_the_others_and_is_raised_as_itself() -> None:
    ended: list[int] = []

    async def work(n: int) -> None:
        try:
            if n:
                raise KnowledgeError("full")
            await sleep_forever()
        finally:
            ended.append(n)

    with pytest.raises(KnowledgeError, match="full"):
        await run_each(work, range(2), 2)
    assert sorted(ended) == [0, 1]


# Finding A2.
async def test_a_cancellation_that_comes_while_the_host_is_shielded_is_raised_behind_the_group() -> None:
    passed: list[str] = []
    with CancelScope() as scope:
        async with open_task_group() as tasks:
            tasks.start_soon(sleep_forever)
            await wait_all_tasks_blocked()
            with CancelScope(shield=True):
                scope.cancel()
                await wait_all_tasks_blocked()  # the task has ended
        passed.append("went on without what the task had not done")
    assert passed == []
