"""Real updates of real entries: the right fact is retired, and hardly ever another."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.eval import superseding

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.rest,
    pytest.mark.skipif(not superseding.PAIRS.is_file(), reason="needs real entries, which are not part of the project"),
]


@pytest.mark.parametrize("anyio_backend", ["trio"])
async def test_an_update_retires_what_it_replaces_and_nothing_of_another_subject(tmp_path: Path) -> None:
    found = await superseding.measure(tmp_path)
    assert found.right / found.updates >= superseding.RIGHT_BAR
    assert found.wrong / found.proposed <= superseding.WRONG_BAR
    assert found.retired / found.unrelated <= superseding.WRONG_BAR
