"""The page of faults names tests that exist, in a comment below each table, and one for each row."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "faults.md"
NAMED = re.compile(r"`(tests/[\w/]+\.py)::(test_\w+)`")


def rows() -> list[str]:
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    return [line for line in lines if line.startswith("| ") and not line.startswith("| Fault ")]


def test_every_fault_names_a_test_that_shows_it() -> None:
    page = PAGE.read_text(encoding="utf-8")
    shown = [line for line in page.splitlines() if NAMED.search(line)]
    assert len(rows()) > 15
    faults = [row.split("|")[1].strip() for row in rows()]
    assert [fault for fault in faults if not any(line.startswith(f"{fault}: `tests/") for line in shown)] == []
    assert [row for row in rows() if row.count("|") != 4] == []


def test_every_test_that_is_named_is_there() -> None:
    named = set(NAMED.findall(PAGE.read_text(encoding="utf-8")))
    missing = [
        f"{path}::{name}"
        for path, name in named
        if not (ROOT / path).exists() or f"def {name}(" not in (ROOT / path).read_text(encoding="utf-8")
    ]
    assert missing == []
