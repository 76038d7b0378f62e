"""Attempts count up before work and are forgotten after it, over restarts."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest

from intern.domain import QAId
from intern.knowledge.attempts import Attempts
from intern.knowledge.database import Database

pytestmark = pytest.mark.anyio

ONE = QAId("qa_20260201_031056.228000")
TWO = QAId("qa_20260201_031057.000000")


async def test_attempts_count_up_over_restarts_until_cleared(tmp_path: Path) -> None:
    path = tmp_path / "intern.db"
    with anyio.fail_after(5):
        for expected in (1, 2):
            async with await Database.open(path) as db:
                assert await Attempts(db).begin(ONE) == expected
        async with await Database.open(path) as db:
            attempts = Attempts(db)
            assert await attempts.begin(TWO) == 1
            await attempts.clear(ONE)
            await attempts.clear(ONE)
            assert await attempts.begin(ONE) == 1
            assert await attempts.begin(TWO) == 2
