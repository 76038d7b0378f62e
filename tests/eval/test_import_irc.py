"""The import on real chat: what belongs together stays together."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.eval import importing
from tests.eval.chats import EVAL
from tests.eval.irc_export import export

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.rest,
    pytest.mark.skipif(not EVAL.is_dir(), reason="needs the real chats, which are not part of the project"),
]


@pytest.mark.parametrize("anyio_backend", ["trio"])
@pytest.mark.timeout(300)
async def test_nearly_every_answered_question_stands_whole_in_one_block_of_its_own(tmp_path: Path) -> None:
    found = await importing.measure(tmp_path)
    assert found.whole >= importing.WHOLE_BAR * found.asked
    assert found.share >= importing.SHARE_BAR
    assert found.exchange_share >= importing.SHARE_BAR
    assert found.done.skipped.keys() <= {"team replies that answer no member"}

    again = await importing.imported(tmp_path, export(tmp_path))
    assert (again.captured, again.archived, again.joined) == (found.done.captured, 0, 0)
    assert len(importing.surviving(tmp_path)) == found.blocks
