"""Replacements in the golden files for texts that differ between two runs of the same program.

An id becomes a number, in the order in which ids appear, so that the golden files still say which id is which. What
comes from the fixed history or from fixed files (its ids, and times of March 2024) is the same in every run, and stays.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Final

from tests.frozen.running import SOURCE_TREE

# The day of a run. The history's own month stays, and so does the day that the program gives as an example.
_DATE: Final = r"(?!2024-03-|2026-02-01)2\d{3}-[01]\d-[0-3]\d"

WRITTEN_AT: Final = 1_709_251_200
"""2024-03-01, in seconds: when all files that are given were written."""

# Each with its reason. They are tried in this order.
_SUBSTITUTIONS: Final[tuple[tuple[str, str, str], ...]] = (
    ("the time of a run, as in JSON and in the archive", rf"{_DATE}T\d\d:\d\d:\d\d(\.\d+)?(Z|\+00:00)", "<time>"),
    ("the time of a run, for people", rf"{_DATE} \d\d:\d\d(:\d\d)?", "<time>"),
    ("the day of a run", rf"{_DATE}", "<day>"),
    ("the week of a run, which names the archive's file", r"(?!2024-)2\d{3}-W\d\d", "<week>"),
    ("when a file was written; what is given has a fixed time", rf'("mtime_ns": ?)(?!{WRITTEN_AT}0)\d+', r"\1<time>"),
    ("how long ago something was", r"\d+ (seconds|minutes|hours|days) ago", "<some time> ago"),
    (
        "how long something took, or is ago, in JSON",
        r'("(?:seconds|age_seconds|median_seconds|longest_seconds)": ?)\d[\d.e-]*',
        r"\1<seconds>",
    ),
    ("how long something took, for people", r" *(?<![\d.])\d+\.\d\d s\b", " <seconds> s"),
    ("how long questions took", r"\d+\.\d\d \(median\), \d+\.\d\d at most", "<seconds> (median), <seconds> at most"),
    ("how long questions took, compared", r"(?<=\(median\): )\d+\.\d\d → \d+\.\d\d", "<seconds> → <seconds>"),
    ("a score's last digits, which count how old a source is", r'("score": ?\d\.\d\d)\d+', r"\1"),
    ("how large the database is", r"[\d,]+ bytes, checked", "<size> bytes, checked"),
    ("how large it is, in JSON", r'("bytes": ?)\d+', r"\1<size>"),
    ("the process that runs", r"(?<=process )\d+", "<process>"),
    ("the program's version", r"(?<=intern, version )\S+", "<version>"),
    ("progress, which is shown by the clock and by the size of the database", r"(?m)^.+ … \d+(, .*)?\n", ""),
)

# A prompt that the program brings, wherever it keeps them.
_SHIPPED: Final = re.compile(rf"{re.escape(str(SOURCE_TREE))}/(?:[\w.-]+/)*?((?:messages/(?:\w\w/)?)?[\w-]+\.md\.j2)")
_DIGEST: Final = r"\b[0-9a-f]{64}\b"
_IDS: Final[tuple[tuple[str, str], ...]] = (
    ("qa", r"qa_(?!2024)\d{8}_\d{6}\.\d{6}"),
    ("uuid", r"\b[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}\b"),  # 4: made at random
    ("digest", _DIGEST),
    ("snowflake", r"\b\d{17,20}\b"),
)
_DERIVED_UUID: Final = r"\b[0-9a-f]{8}-[0-9a-f]{4}-5[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}\b"


class Normaliser:
    """Replaces what differs between runs. It remembers the ids that it met."""

    def __init__(self, folder: Path, kept: frozenset[str], *, derived_ids_differ: bool = False) -> None:
        """`kept` are ids that no run changes.

        An id that is derived from a conversation's stays, unless `derived_ids_differ`: paths name some conversations.
        """
        self._folder = re.compile("|".join(re.escape(str(each)) for each in {folder.resolve(), folder.absolute()}))
        self._kept = kept
        self._numbers: dict[str, str] = {}
        self._counts: dict[str, int] = {}
        self._ids = [(kind, re.compile(pattern)) for kind, pattern in _IDS]
        if derived_ids_differ:
            self._ids.append(("uuid", re.compile(_DERIVED_UUID)))

    def normal(self, text: str) -> str:
        """Return the text as it is in every run."""
        text = self._folder.sub("<folder>", text)
        text = _SHIPPED.sub(r"<shipped>/\1", text)
        for _reason, pattern, stand_in in _SUBSTITUTIONS:
            text = re.sub(pattern, stand_in, text)
        for kind, ids in self._ids:
            text = ids.sub(self._numbered(kind), text)
        return _visible(text)

    def keep_digests(self, text: str) -> None:
        """Keep the digests that stand in the text as they are: no run changes them."""
        self._kept |= set(re.findall(_DIGEST, text))

    def _numbered(self, kind: str) -> Callable[[re.Match[str]], str]:
        def number(found: re.Match[str]) -> str:
            this = found[0]
            if this in self._kept:
                return this
            if this not in self._numbers:
                self._counts[kind] = self._counts.get(kind, 0) + 1
                self._numbers[this] = f"<{kind} {self._counts[kind]}>"
            return self._numbers[this]

        return number


def readable(text: str) -> str:
    """Return JSON that stands on one line as many lines, so that differences show; other text as it is."""
    if text.count("\n") > 1 or not text.startswith(("{", "[")):
        return text
    try:
        return f"(JSON on one line)\n{json.dumps(json.loads(text), indent=1, ensure_ascii=False)}\n"
    except ValueError:
        return text


def _visible(text: str) -> str:
    """Return the text with a picture for each control character, so that golden files are plain text."""
    return re.sub(r"[\x00-\x08\x0b-\x1f]", lambda found: chr(0x2400 + ord(found[0])), text)
