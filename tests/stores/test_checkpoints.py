"""Checkpoints on disk: a server's first one stays, channels that it caught up with need none."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import pytest

from intern.core.ids import ChannelId, GuildId, MessageId
from intern.stores.database import Database
from intern.stores.tables.checkpoints import Checkpoint, CheckpointStore, StoredCheckpoints
from tests.engines import open_database

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("engine")]

GUILD, OTHER = GuildId("5"), GuildId("6")
GENERAL, HELP = ChannelId("10"), ChannelId("11")
FIRST = MessageId("1467356555509760000")


@pytest.fixture
async def db(tmp_path: Path, anyio_backend: str) -> AsyncIterator[Database]:
    async with await open_database(tmp_path / "intern.db") as opened:
        yield opened


def after_first(n: int) -> MessageId:
    return MessageId(str(int(FIRST) + n))


def mark(n: int, guild: GuildId = GUILD) -> Checkpoint:
    return Checkpoint(guild_id=guild, settled_to=after_first(n))


async def test_a_server_stands_where_it_first_did_until_it_is_told_otherwise(db: Database) -> None:
    with anyio.fail_after(5):
        assert await CheckpointStore(db).load_or_create([GUILD], FIRST) == StoredCheckpoints(attended={GUILD: FIRST})
        assert await CheckpointStore(db).load_or_create([GUILD, OTHER], after_first(9)) == StoredCheckpoints(
            attended={GUILD: FIRST, OTHER: after_first(9)}
        )


async def test_marks_are_found_again_the_newest_of_each_also_when_it_went_back(db: Database) -> None:
    with anyio.fail_after(5):
        store = CheckpointStore(db)
        await store.load_or_create([GUILD], FIRST)
        await store.save(StoredCheckpoints(channels={GENERAL: mark(5), HELP: mark(7)}))
        await store.save(StoredCheckpoints(channels={GENERAL: mark(4)}))
        await store.save(StoredCheckpoints())
        assert await store.load_or_create([GUILD], FIRST) == StoredCheckpoints(
            attended={GUILD: FIRST}, channels={GENERAL: mark(4), HELP: mark(7)}
        )


async def test_channels_that_their_server_caught_up_with_are_forgotten(db: Database) -> None:
    with anyio.fail_after(5):
        store = CheckpointStore(db)
        await store.load_or_create([GUILD, OTHER], FIRST)
        await store.save(StoredCheckpoints(channels={GENERAL: mark(5), HELP: mark(8), ChannelId("12"): mark(1, OTHER)}))
        await store.save(StoredCheckpoints(attended={GUILD: after_first(5)}))
        await store.save(StoredCheckpoints(attended={GUILD: after_first(3)}))
        assert await store.load_or_create([], FIRST) == StoredCheckpoints(
            attended={GUILD: after_first(5), OTHER: FIRST}, channels={HELP: mark(8), ChannelId("12"): mark(1, OTHER)}
        )


def test_later_marks_win_over_earlier_ones() -> None:
    earlier = StoredCheckpoints(attended={GUILD: FIRST}, channels={GENERAL: mark(5), HELP: mark(6)})
    assert earlier.merge(StoredCheckpoints(channels={GENERAL: mark(4)})) == StoredCheckpoints(
        attended={GUILD: FIRST}, channels={GENERAL: mark(4), HELP: mark(6)}
    )
