"""The sentences that people read, all in `wording.txt` beside this file: tests assert facts, and hand their words over.

`pytest -n 0 --record-wording PATHS` writes down the words of these tests; the difference is to be read as a text.
"""

from __future__ import annotations

from collections.abc import Sequence
from difflib import unified_diff
from pathlib import Path
from typing import TypeVar

import pytest

FILE = Path(__file__).with_suffix(".txt")
_HEAD = "=== "
_NEXT = "\n~~~\n"
T = TypeVar("T", bound=str | Sequence[object])


class Wording:
    """The recorded words of one test, compared in the order in which it hands them over."""

    def __init__(self, test: str, hidden: dict[str, str], *, records: bool) -> None:
        """`hidden`: what differs in each run, with the name that stands for it."""
        self._test = test
        self._hidden = hidden
        self._records = records
        self._said: list[str] = []

    def __call__(self, said: T) -> T:
        """Compare all texts in it with the recorded ones, and return it."""
        self._said += [said] if isinstance(said, str) else [each for each in said if isinstance(each, str)]
        if not self._records:
            now, before = self._text().split(_NEXT), read_sections().get(self._test, "").split(_NEXT)
            if before[: len(now)] != now:
                self._said = []  # one failure is enough
                old, new = _NEXT.join(before).splitlines(), _NEXT.join(now).splitlines()
                pytest.fail("\n".join(unified_diff(old, new, "recorded", "said", lineterm="")))
        return said

    def end(self) -> None:
        """Check that nothing recorded was left unsaid, or record what was said."""
        sections = read_sections()
        if self._records:
            sections[self._test] = self._text()
            FILE.write_text("".join(f"{_HEAD}{test}\n{text}\n" for test, text in sorted(sections.items())), "utf-8")
        elif self._said:
            assert sections[self._test] == self._text(), "the test ended before it said all that is recorded"

    def _text(self) -> str:
        text = _NEXT.join(self._said)
        for value, name in self._hidden.items():
            text = text.replace(value, f"<{name}>")
        assert not any(line.startswith(_HEAD) for line in text.splitlines())
        return text


def read_sections() -> dict[str, str]:
    """Read the recorded words of all tests."""
    text = FILE.read_text("utf-8").removesuffix("\n") if FILE.exists() else ""
    named = (part.partition("\n") for part in text.removeprefix(_HEAD).split(f"\n{_HEAD}") if part)
    return {test: words for test, _, words in named}
