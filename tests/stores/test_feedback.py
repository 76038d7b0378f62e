"""One vote for each person and question; the latest counts."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest

from intern.core.ids import MessageId, UserId
from intern.stores.tables.feedback import FeedbackStore, Votes
from tests.engines import open_database
from tests.worlds.clock import HandClock

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("engine")]

ALICE, BOB = UserId("1"), UserId("2")
FIRST, SECOND = MessageId("10"), MessageId("11")


async def test_each_person_has_one_vote_on_each_answer_and_the_latest_counts(tmp_path: Path) -> None:
    path, clock = tmp_path / "intern.db", HandClock()
    with anyio.fail_after(5):
        async with await open_database(path) as db:
            store = FeedbackStore(db, clock=clock)
            await store.vote(FIRST, ALICE, up=True)
            await store.vote(FIRST, ALICE, up=True)
            await store.vote(FIRST, BOB, up=True)
            assert await store.read_votes(FIRST) == Votes(up=2)
            await store.vote(FIRST, BOB, up=False)
            await store.vote(SECOND, BOB, up=False)
        async with await open_database(path) as db:
            store = FeedbackStore(db, clock=clock)
            assert await store.read_votes(FIRST) == Votes(up=1, down=1)
            assert await store.read_votes(MessageId("12")) == Votes()
            assert await store.read_votes() == Votes(up=1, down=2)


async def test_when_somebody_made_up_their_mind_is_kept(tmp_path: Path) -> None:
    clock = HandClock()
    with anyio.fail_after(5):
        async with await open_database(tmp_path / "intern.db") as db:
            store, began = FeedbackStore(db, clock=clock), clock.now()
            await store.vote(FIRST, ALICE, up=True)
            clock.turn(minutes=1)
            await store.vote(FIRST, ALICE, up=True)
            assert await db.read(lambda tx: tx.rows("select at from feedback")) == [(began.isoformat(),)]
            await store.vote(FIRST, ALICE, up=False)
            assert await db.read(lambda tx: tx.rows("select at from feedback")) == [(clock.now().isoformat(),)]
