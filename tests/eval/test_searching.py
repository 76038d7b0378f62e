"""Search on real questions: the right source is among those that a model is shown."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.eval import searching
from tests.eval.chats import EVAL

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.rest,
    pytest.mark.skipif(not EVAL.is_dir(), reason="needs the real questions, which are not part of the project"),
]


@pytest.mark.parametrize("anyio_backend", ["trio"])
async def test_the_right_source_is_nearly_always_among_the_fifty_that_are_shown(tmp_path: Path) -> None:
    found = await searching.measure(tmp_path)
    assert found.shown >= searching.SHOWN_BAR
    assert found.shown >= found.shown_by_descriptions
    assert found.ours[searching.SHOWN] >= searching.SHOWN_BAR
    # At ten, two questions of 120 less than plain FTS5, which weighs whole texts; the places are better all the same.
    for depth in (1, 5, 50):
        assert found.ours[depth] >= found.plain[depth], depth
