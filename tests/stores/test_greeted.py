from __future__ import annotations

from pathlib import Path

import pytest

from intern.core.ids import UserId
from intern.stores.tables.members import GreetedMembers
from tests.engines import open_database
from tests.worlds.clock import HandClock

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("engine")]

ALICE, BOB = UserId("1"), UserId("2")


async def test_a_member_is_new_once_over_all_starts_unless_it_was_not_said_after_all(tmp_path: Path) -> None:
    for start in range(2):
        async with await open_database(tmp_path / "intern.db") as db:
            greeted = GreetedMembers(db, clock=HandClock())
            assert await greeted.add(ALICE) == (start == 0)
            assert not await greeted.add(ALICE)
            assert await greeted.add(BOB)
            await greeted.drop(BOB)
