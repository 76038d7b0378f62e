"""Search on real questions: the right source is among those that a model is shown."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.eval import searching
from tests.eval.chats import EVAL

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(not EVAL.is_dir(), reason="needs the real questions, which are not part of the project"),
]


@pytest.mark.parametrize("anyio_backend", ["trio"])
async def test_the_right_source_is_nearly_always_among_the_fifty_that_are_shown(tmp_path: Path) -> None:
    found = await searching.measure(tmp_path)
    assert found.shown >= searching.SHOWN_BAR
    assert found.shown >= found.shown_by_descriptions
    assert found.ours[searching.SHOWN] >= searching.SHOWN_BAR
    # Not the best five: one question of 120 less than plain FTS5, which knows no descriptions.
    for depth in (1, 10, 50):
        assert found.ours[depth] >= found.plain[depth], depth
