"""The hidden files of a data folder: kept edits of a person, and unfinished files of a killed process."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Literal

from intern.settings.settings import Paths
from intern.stores.archive import WEEK_FILE


def find_edited_files(paths: Paths) -> list[Path]:
    """List the kept files that a person edited. Raises OSError."""
    return hidden_files(paths, "edited")


def hidden_files(paths: Paths, ending: Literal["edited", "tmp"]) -> list[Path]:
    """List hidden files named like our own; other programs may use these folders, too. Raises OSError."""
    names = {paths.raw: [WEEK_FILE.pattern], paths.topics: [r"[a-z0-9-]{1,64}\.txt"]}
    written = (paths.state, paths.decisions, paths.index, paths.index_cache, paths.team_index, paths.team_index_cache)
    for path in written:
        names.setdefault(path.parent, []).append(re.escape(path.name))
    found: list[Path] = []
    for folder in filter(Path.is_dir, names):
        ours = rf"\.{{1,2}}(?:{'|'.join(names[folder])})(?:(?:\.[0-9]+)?\.edited)?(?:\.tmp)?"
        found += [each for each in folder.glob(f".*.{ending}") if re.fullmatch(ours, each.name)]
    return sorted(found)
