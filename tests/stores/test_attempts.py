"""Attempts count up before work and are forgotten after it, over restarts; parked pairs come again, less and less."""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path

import anyio
import pytest

from intern.core.decisions import PairFiled, PairParked
from intern.core.ids import QAId, TopicName
from intern.stores.tables.attempts import AttemptStore, Retry, find_retry
from tests.engines import open_database
from tests.worlds.samples import START

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("engine")]

ONE = QAId("qa_20260201_031056.228000")
TWO = QAId("qa_20260201_031057.000000")


async def test_attempts_count_up_over_restarts_until_cleared(tmp_path: Path) -> None:
    path = tmp_path / "intern.db"
    with anyio.fail_after(5):
        for expected in (1, 2):
            async with await open_database(path) as db:
                assert await AttemptStore(db).begin(ONE) == expected
        async with await open_database(path) as db:
            attempts = AttemptStore(db)
            assert await attempts.begin(TWO) == 1
            await attempts.clear(ONE)
            await attempts.clear(ONE)
            assert await attempts.begin(ONE) == 1
            assert await attempts.begin(TWO) == 2


def parked(at: datetime, qa_id: QAId = ONE) -> PairParked:
    return PairParked(qa_id=qa_id, at=at, reason="gibberish")


async def test_a_parked_pair_is_tried_again_after_growing_pauses_then_waits_for_a_person(tmp_path: Path) -> None:
    path, at = tmp_path / "intern.db", START
    with anyio.fail_after(5):
        for tries, pause in enumerate((600, 3600, 21_600, None, None), 1):
            async with await open_database(path) as db:
                attempts = AttemptStore(db)
                await attempts.begin(ONE)
                await attempts.end(parked(at))
                next_at = None if pause is None else at + timedelta(seconds=pause)
                assert await attempts.read_retries() == {ONE: Retry(tries, next_at)}
                assert await attempts.begin(ONE) == 1
                await attempts.clear(ONE)
            at = next_at or at


async def test_a_decision_ends_the_counting_and_an_outage_counts_nothing(tmp_path: Path) -> None:
    with anyio.fail_after(5):
        async with await open_database(tmp_path / "intern.db") as db:
            attempts = AttemptStore(db)
            await attempts.end(parked(START))
            await attempts.end(parked(START, TWO), again=False)
            await attempts.begin(ONE)
            await attempts.clear(ONE)
            assert await attempts.read_retries() == {
                ONE: Retry(1, START + timedelta(minutes=10)),
                TWO: Retry(1, None),
            }
            await attempts.end(PairFiled(qa_id=ONE, topic=TopicName("gpu"), at=START))
            await attempts.end(PairFiled(qa_id=ONE, topic=TopicName("gpu"), at=START))
            assert set(await attempts.read_retries()) == {TWO}


def test_a_decision_that_was_not_counted_before_a_crash_still_makes_the_pair_wait() -> None:
    ten_minutes, hour = timedelta(minutes=10), timedelta(hours=1)
    assert find_retry(parked(START), {}) == Retry(1, START + ten_minutes)
    counted = {ONE: Retry(1, START + ten_minutes)}
    assert find_retry(parked(START), counted) == counted[ONE]
    again = START + ten_minutes
    assert find_retry(parked(again), counted) == Retry(2, again + hour)
    assert find_retry(parked(again), {ONE: Retry(4, None)}) == Retry(4, None)
