"""The output of commands and the content of files stay as recorded, however the program is built inside.

Where behaviour is meant to change, `python -m tests.frozen --record` records it anew. The commit shows what changed.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.frozen.golden_files import GOLDEN, differences
from tests.frozen.stories import STORIES, tell


@pytest.mark.rest
@pytest.mark.parametrize("story", STORIES)
def test_what_commands_print_and_files_hold_is_as_recorded(story: str, tmp_path: Path) -> None:
    found = differences(story, tell(story, tmp_path))
    assert not found, f"\n{found}\nIf this is meant: python -m tests.frozen --record {story}"


def test_each_recorded_story_is_still_told() -> None:
    assert {folder.name for folder in GOLDEN.iterdir()} == set(STORIES)
