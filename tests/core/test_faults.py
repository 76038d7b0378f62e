"""The table of faults names tests that exist, and each of its rows names one."""

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
    assert len(rows()) > 15
    assert [row for row in rows() if not NAMED.search(row)] == []
    assert [row for row in rows() if row.count("|") != 5] == []


def test_every_test_that_is_named_is_there() -> None:
    named = {found for row in rows() for found in NAMED.findall(row)}
    missing = [
        f"{path}::{name}"
        for path, name in named
        if not (ROOT / path).exists() or f"def {name}(" not in (ROOT / path).read_text(encoding="utf-8")
    ]
    assert missing == []
