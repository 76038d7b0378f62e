"""The difference between two texts, by words."""

from __future__ import annotations

import re
from collections.abc import Sequence
from difflib import SequenceMatcher
from typing import Literal, NamedTuple

_AROUND = 200  # characters of an equal part that are kept at each end
_VERSIONS = 0.4  # lines that share less are not versions of each other
_COMPARED = 1_500  # lines, or words, of two texts: the time grows with their square
_WORDS = re.compile(r"\s+|\w+|[^\w\s]")
PieceKind = Literal["same", "added", "removed"]


class DiffPiece(NamedTuple):
    """A part of a text that was compared with another one."""

    kind: PieceKind
    text: str


def diff_texts(before: str, after: str) -> tuple[DiffPiece, ...]:
    """Return how one text became another: by lines, and by words where a line changed. Long equal parts are cut."""
    old, new = before.splitlines(keepends=True), after.splitlines(keepends=True)
    pieces: list[DiffPiece] = []
    for same, a, b in _diff_sequences(old, new):
        if same:
            pieces.append(DiffPiece("same", _shorten_equal_part(a)))
            continue
        words = _diff_sequences(_WORDS.findall(a), _WORDS.findall(b)) if a and b else ()
        alike = sum(len(part) for equal, part, _ in words if equal)
        changed = words if 2 * alike >= _VERSIONS * len(a + b) else ((False, a, b),)
        for equal, gone, come in changed:
            pieces += [DiffPiece("same", gone)] if equal else [DiffPiece("removed", gone), DiffPiece("added", come)]
    return tuple(each for each in pieces if each.text)


def _diff_sequences(old: Sequence[str], new: Sequence[str]) -> Sequence[tuple[bool, str, str]]:
    """Return the parts of two sequences in order, each with whether it is in both. Very long ones are not compared."""
    if len(old) + len(new) > _COMPARED:
        return ((False, "".join(old), "".join(new)),)
    steps = SequenceMatcher(None, old, new, autojunk=False).get_opcodes()
    return [(tag == "equal", "".join(old[a:b]), "".join(new[c:d])) for tag, a, b, c, d in steps]


def _shorten_equal_part(text: str) -> str:
    return text if len(text) <= 2 * _AROUND else f"{text[:_AROUND]} … {text[-_AROUND:]}"
