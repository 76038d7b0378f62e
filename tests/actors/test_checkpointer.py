from __future__ import annotations

from functools import partial

import pytest
import trio
from anyio import wait_all_tasks_blocked
from structlog.testing import capture_logs

from intern.actors.checkpointer import checkpointer
from intern.chat.checkpoints import Checkpoints
from intern.core.errors import KnowledgeError
from intern.core.ids import MessageId
from intern.stores.tables.checkpoints import Checkpoint, StoredCheckpoints
from tests.worlds.actors import running
from tests.worlds.samples import CHANNEL, GUILD, message


class Keeper:
    """Remembers the given marks; fails as often as a test wants."""

    def __init__(self, failures: int = 0) -> None:
        self.kept: list[StoredCheckpoints] = []
        self.failures = failures

    async def keep(self, moved: StoredCheckpoints, /) -> None:
        if self.failures:
            self.failures -= 1
            raise KnowledgeError("no space is left")
        self.kept.append(moved)


def marks(n: int) -> StoredCheckpoints:
    return StoredCheckpoints(channels={CHANNEL: Checkpoint(guild_id=GUILD, settled_to=message(n=n).id)})


def settled(checkpoints: Checkpoints, n: int) -> None:
    checkpoints.begin(message(n=n))
    checkpoints.settle(CHANNEL, [message(n=n).id])


async def test_what_was_settled_last_is_kept_at_the_end_also_when_the_end_comes_at_once() -> None:
    keeper, checkpoints = Keeper(), Checkpoints(StoredCheckpoints(), baseline=MessageId("0"))
    async with running(partial(checkpointer, keeper.keep, checkpoints=checkpoints)):
        await wait_all_tasks_blocked()
        settled(checkpoints, 1)
    assert keeper.kept == [marks(1)]


@pytest.mark.jumps
async def test_marks_are_kept_once_a_second_and_those_that_a_disk_refused_with_the_next() -> None:
    keeper, checkpoints = Keeper(failures=1), Checkpoints(StoredCheckpoints(), baseline=MessageId("0"))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(partial(checkpointer, keeper.keep, checkpoints=checkpoints))
        settled(checkpoints, 1)
        with capture_logs() as logs:
            await trio.sleep(2.5)
        assert [(log["event"], log["log_level"]) for log in logs] == [("checkpoints_delayed", "warning")]
        assert keeper.kept == []
        await trio.sleep(1)
        assert keeper.kept == [marks(1)]
        await trio.sleep(1)
        assert keeper.kept == [marks(1), StoredCheckpoints()]
        nursery.cancel_scope.cancel()


@pytest.mark.jumps
async def test_a_disk_that_takes_nothing_is_asked_less_and_less_often_and_each_second_again_once_it_does() -> None:
    keeper, checkpoints = Keeper(failures=10), Checkpoints(StoredCheckpoints(), baseline=MessageId("0"))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(partial(checkpointer, keeper.keep, checkpoints=checkpoints))
        await trio.sleep(300)
        assert keeper.failures == 1
        await trio.sleep(62.5)
        assert keeper.kept == []
        await trio.sleep(4)
        assert len(keeper.kept) == 4
        nursery.cancel_scope.cancel()
