"""The checker: it checks at intervals, and survives errors."""

from __future__ import annotations

from functools import partial

import pytest
from anyio import create_task_group, fail_after, wait_all_tasks_blocked
from anyio.lowlevel import checkpoint

from intern.actors.upkeep import run_regularly
from intern.core.errors import ChatUnavailableError, InternError, KnowledgeError
from tests.worlds.clock import leap

pytestmark = pytest.mark.leaps


class Posted:
    """Notes the calls; fails as a test wants it."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self.fails: dict[str, InternError] = {}

    async def _do(self, what: str) -> None:
        await checkpoint()
        self.done.append(what)
        if what in self.fails:
            raise self.fails[what]

    async def check(self) -> None:
        await self._do("check")

    async def retract(self) -> None:
        await self._do("retract")


@pytest.mark.parametrize("retracts", [False, True])
async def test_it_looks_at_once_and_again_whatever_fails(retracts: bool) -> None:  # noqa: FBT001
    posted = Posted()
    once = ["check", "retract"] if retracts else ["check"]
    with fail_after(500):
        async with create_task_group() as tg:
            work = (posted.check, posted.retract) if retracts else (posted.check,)
            tg.start_soon(partial(run_regularly, "checker", *work, interval_seconds=60))
            await wait_all_tasks_blocked()
            assert posted.done == once
            posted.fails = {"retract": ChatUnavailableError("down")}
            await leap(60)
            await wait_all_tasks_blocked()
            assert posted.done == once * 2
            # Finding A7.
            posted.fails = {"check": KnowledgeError("the disk is gone")}
            await leap(60)
            await wait_all_tasks_blocked()
            assert posted.done == once * 3
            tg.cancel_scope.cancel()
