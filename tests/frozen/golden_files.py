"""The golden files: a folder for each story, and a text for each thing that it tells."""

from __future__ import annotations

import difflib
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Final

GOLDEN: Final = Path(__file__).with_name("golden")


def record(story: str, texts: Mapping[str, str]) -> None:
    """Write the story's golden files, and remove those that it has no more."""
    folder = GOLDEN / story
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for name, text in texts.items():
        (folder / f"{name}.txt").write_text(text, encoding="utf-8", newline="\n")


def recorded(story: str) -> dict[str, str]:
    """Return the story's golden texts by name."""
    return {file.stem: file.read_bytes().decode() for file in sorted((GOLDEN / story).glob("*.txt"))}


def differences(story: str, texts: Mapping[str, str]) -> str:
    """Return how the texts differ from those recorded, as unified diffs; empty where they do not."""
    golden = recorded(story)
    return "".join(
        line
        for name in sorted(golden.keys() | texts.keys())
        for line in difflib.unified_diff(
            golden.get(name, "").splitlines(keepends=True),
            texts.get(name, "").splitlines(keepends=True),
            f"recorded/{story}/{name}.txt",
            f"now/{story}/{name}.txt",
        )
    )
