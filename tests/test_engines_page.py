"""The figures of docs/engines.md are the bars of `make bench`."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
BENCHMARKS = "\n".join(path.read_text(encoding="utf-8") for path in sorted((ROOT / "benchmarks").glob("*.py")))
ROWS = re.findall(
    r"^\| .* \| ([\d.]+) (?:MB|ms|s|times) \| `(.+)` \|$",
    (ROOT / "docs/engines.md").read_text(encoding="utf-8"),
    re.MULTILINE,
)
PUT_TOGETHER = {
    "search among 100,000 documents by both, p95": r"bar = ([\d.]+) if most and way == \"both\"",
    "embedding model, memory after the first question": r'"embedding model": \(ENGLISH, (\d+)\)',
    "multilingual embedding model, memory after the first question": r'"multilingual embedding model": .*, (\d+)\)',
}


@pytest.mark.parametrize(("bar", "name"), ROWS)
def test_each_is_the_bar_of_its_benchmark(bar: str, name: str) -> None:
    line = PUT_TOGETHER.get(name, rf'Figure\("{re.escape(name)}", .*, ([\d.]+)\)$')
    assert re.findall(line, BENCHMARKS, re.MULTILINE) == [bar]


def test_there_are_some() -> None:
    assert len(ROWS) == 6
