"""Members' roles are known over all starts, for a day, until they are forgotten, and there is a bound to it."""

from __future__ import annotations

from pathlib import Path

import pytest

from intern.core.ids import GuildId, RoleId, UserId
from intern.core.messages import MemberRoles
from intern.stores.tables.members import RoleStore
from tests.engines import open_database
from tests.worlds.clock import HandClock

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("engine")]

TEAM, OTHER = RoleId("71"), RoleId("72")


def seen(user: int, *roles: RoleId, guild: str = "1") -> MemberRoles:
    return MemberRoles(GuildId(guild), UserId(str(user)), roles)


async def test_roles_are_known_over_all_starts_as_they_were_seen_last(tmp_path: Path) -> None:
    for start in range(2):
        async with await open_database(tmp_path / "intern.db") as db:
            roles = RoleStore(db, clock=HandClock())
            if not start:
                await roles.save([seen(1, TEAM, OTHER), seen(2), seen(1, guild="2")])
                await roles.save([seen(2, TEAM)])
                await roles.save([])
            assert set(await roles.read_recent()) == {seen(1, TEAM, OTHER), seen(2, TEAM), seen(1, guild="2")}


async def test_roles_are_believed_for_a_day_after_they_were_seen(tmp_path: Path) -> None:
    clock = HandClock()
    async with await open_database(tmp_path / "intern.db") as db:
        roles = RoleStore(db, clock=clock)
        await roles.save([seen(1, TEAM), seen(2, TEAM)])
        clock.turn(hours=20)
        await roles.save([seen(2, TEAM)])
        clock.turn(hours=5)
        assert await roles.read_recent() == (seen(2, TEAM),)
        await roles.save([seen(3)])
        assert await db.read(lambda tx: tx.rows("select user_id from member_roles order by 1")) == [("2",), ("3",)]


async def test_who_goes_on_writing_costs_a_write_an_hour(tmp_path: Path) -> None:
    clock = HandClock()
    async with await open_database(tmp_path / "intern.db") as db:
        roles = RoleStore(db, clock=clock)

        async def seen_at() -> object:
            return await db.read(lambda tx: tx.row("select seen_at from member_roles"))

        await roles.save([seen(1, TEAM)])
        first = await seen_at()
        clock.turn(minutes=59)
        await roles.save([seen(1, TEAM)])
        assert await seen_at() == first
        clock.turn(minutes=2)
        await roles.save([seen(1, TEAM)])
        assert await seen_at() != first


async def test_of_many_members_those_are_known_that_were_seen_last(tmp_path: Path) -> None:
    clock = HandClock()
    async with await open_database(tmp_path / "intern.db") as db:
        roles = RoleStore(db, clock=clock)
        roles.most = 3
        for n in range(5):
            await roles.save([seen(n)])
            clock.turn(seconds=1)
        assert await roles.read_recent() == (seen(2), seen(3), seen(4))


async def test_who_is_forgotten_has_no_roles_left(tmp_path: Path) -> None:
    async with await open_database(tmp_path / "intern.db") as db:
        roles = RoleStore(db, clock=HandClock())
        await roles.save([seen(1, TEAM), seen(1, guild="2"), seen(2)])
        await roles.forget_author(UserId("1"))
        assert await roles.read_recent() == (seen(2),)
