"""Characters that look like others, and are read as those."""

from __future__ import annotations

import unicodedata
from functools import cache
from typing import NamedTuple

# Letters that most fonts draw alike, of the scripts in which people write over Latin names. No list is complete.
_LOOK_ALIKE = dict(
    zip(
        "АВЕЅІЈКМНОРСТУХԚԜаеѕіјкмотрсухԁһԛԝвн" + "ΑΒΕΖΗΙΚΜΝΟΡΤΥΧαοινρκυετχ" + "ıɑɡłŁøØđĐ",
        "ABESIJKMHOPCTYXQWaesijkmotpcyxdhqwbh" + "ABEZHIKMNOPTYXaoivpkuetx" + "iaglLoOdD",
        strict=True,
    )
)
# Drawn as nothing, though they count as letters or signs.
_BLANK = frozenset("\u115f\u1160\u3164\uffa0\u2800")
# Marks that change no letter into another, of scripts where others do.
_MARKS = ((0x0300, 0x036F), (0x0483, 0x0487), (0x0591, 0x05C7), (0x0610, 0x061A), (0x064B, 0x065F), (0x1AB0, 0x1AFF))
_MARKS_BESIDE = ((0x1DC0, 0x1DFF), (0x20D0, 0x20FF), (0xFE00, 0xFE0F), (0xFE20, 0xFE2F), (0xE0100, 0xE01EF))
_WESTERN = 0x0590  # below it, a mark is never more than an accent


class LookalikeText(NamedTuple):
    """A text as it looks."""

    text: str
    starts: tuple[int, ...] | None
    """The positions of its signs, and of its end, in the given text; None: the same positions."""

    def find_original_span(self, start: int, end: int) -> tuple[int, int]:
        """Return the span of a part of it in the given text, with the invisible characters behind it."""
        if self.starts is None:
            return start, end
        # One sign may look like several, and is taken whole.
        whole = end
        while whole < len(self.starts) - 1 and self.starts[whole] == self.starts[end - 1]:
            whole += 1
        return self.starts[start], self.starts[whole]


def normalise_lookalikes(text: str, without: str = "") -> LookalikeText:
    """Return a text without accents, invisible characters and the characters in `without`; digits as 0 to 9."""
    if text.isascii() and not any(each in text for each in without):
        return LookalikeText(text, None)
    signs: list[str] = []
    starts: list[int] = []
    before = ""
    for at, char in enumerate(text):
        if char in without:
            continue
        for sign in _normalise_character(char):
            if unicodedata.category(sign) == "Mn" and (_is_accent(sign) or (before and ord(before) < _WESTERN)):
                continue
            before = sign
            signs.append(sign)
            starts.append(at)
    return LookalikeText("".join(signs), (*starts, len(text)))


def lookalike_key(name: str) -> str:
    """Return a key that is equal for names that look alike, in any case, with or without dots and spaces."""
    return "".join(char for char in normalise_lookalikes(name).text.casefold() if not char.isspace() and char != ".")


@cache
def _normalise_character(char: str) -> tuple[str, ...]:
    if char.isascii():
        return (char,)
    found: list[str] = []
    for sign in unicodedata.normalize("NFKD", char):
        if unicodedata.category(sign) == "Cf" or sign in _BLANK:
            continue
        digit = unicodedata.decimal(sign, None)
        found.append(_LOOK_ALIKE.get(sign, sign) if digit is None else str(digit))
    return tuple(found)


def _is_accent(mark: str) -> bool:
    return any(first <= ord(mark) <= last for first, last in (*_MARKS, *_MARKS_BESIDE))
