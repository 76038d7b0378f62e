"""Texts that ask the same, found by their words: which of many questions come up again and again.

A text as it looks: so a name is found in full-width or look-alike letters, too.

Pure. It is for search only, with the place of each character in the text; the result is never shown.

Whether two facts are about the same subject, by their words alone. Pure.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping, Sequence
from functools import cache
from itertools import pairwise
from typing import NamedTuple

from intern.core.text.words import Rarity, words

ALIKE = 0.5
"""The share of two texts' weight that has to be in common. Half of it: "start a node" and "start the node twice" are
one question, "start a node" and "stop a node" are two."""

_MOST_WORDS = 60  # of a text: what is pasted below a question says little of what it asks


def grouped(texts: Sequence[str]) -> list[list[int]]:
    """Group the places of similar texts; the largest groups first, each in the given order.

    A text joins the group whose first text it is most like, so the same texts in the same order give the same groups.
    What has no words of its own (`???`) stands with texts that read the same.
    """
    held = [frozenset(words(text)[:_MOST_WORDS]) for text in texts]
    rarity = Rarity(held)
    weights = {word: rarity.weight(word) for word in frozenset[str]().union(*held)}
    groups = _Groups(weights)
    wordless: dict[str, int] = {}
    for place, own in enumerate(held):
        if own:
            groups.take(place, own)
        elif (text := texts[place].strip()) in wordless:
            groups.members[wordless[text]].append(place)
        else:
            wordless[text] = groups.open(place, own)
    return sorted(groups.members, key=len, reverse=True)


class _Groups:
    def __init__(self, weights: Mapping[str, float]) -> None:
        self._weights = weights
        self.members: list[list[int]] = []
        self._totals: list[float] = []
        """What the words of each group's first text weigh."""
        self._holding: dict[str, list[int]] = {}
        """By word, the groups whose first text holds it: only they can be alike."""

    def take(self, place: int, own: frozenset[str]) -> None:
        """Put a text into the group that it is most like, or into one of its own."""
        # Sorted, here and below: floating point sums depend on the order.
        shared: dict[int, float] = {}
        for word in sorted(own):
            weight = self._weights[word]
            for group in self._holding.get(word, ()):
                shared[group] = shared.get(group, 0.0) + weight
        mine = self._weight(own)
        likeness = {group: common / (mine + self._totals[group] - common) for group, common in sorted(shared.items())}
        nearest = max(likeness, key=likeness.__getitem__, default=None)
        if nearest is None or likeness[nearest] < ALIKE:
            self.open(place, own)
        else:
            self.members[nearest].append(place)

    def open(self, place: int, own: frozenset[str]) -> int:
        """Begin a group with a text."""
        group = len(self.members)
        self.members.append([place])
        self._totals.append(self._weight(own))
        for word in sorted(own):
            self._holding.setdefault(word, []).append(group)
        return group

    def _weight(self, own: frozenset[str]) -> float:
        return sum(self._weights[word] for word in sorted(own))


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


class Look(NamedTuple):
    """A text as it looks."""

    text: str
    starts: tuple[int, ...] | None
    """Where each of its signs, and its end, stand in the text that was given; None: in the same place."""

    def span(self, start: int, end: int) -> tuple[int, int]:
        """Where a part of it stands in the text that was given, with all that is drawn as nothing behind it."""
        if self.starts is None:
            return start, end
        # One sign may look like several, and is taken whole.
        whole = end
        while whole < len(self.starts) - 1 and self.starts[whole] == self.starts[end - 1]:
            whole += 1
        return self.starts[start], self.starts[whole]


def look_of(text: str, without: str = "") -> Look:
    """Return a text without accents, invisible characters and the characters in `without`; digits as 0 to 9."""
    if text.isascii() and not any(each in text for each in without):
        return Look(text, None)
    signs: list[str] = []
    starts: list[int] = []
    before = ""
    for at, char in enumerate(text):
        if char in without:
            continue
        for sign in _signs(char):
            if unicodedata.category(sign) == "Mn" and (_is_accent(sign) or (before and ord(before) < _WESTERN)):
                continue
            before = sign
            signs.append(sign)
            starts.append(at)
    return Look("".join(signs), (*starts, len(text)))


def likeness_key(name: str) -> str:
    """Return a key that is equal for names that look alike, in any case, with or without dots and spaces."""
    return "".join(char for char in look_of(name).text.casefold() if not char.isspace() and char != ".")


@cache
def _signs(char: str) -> tuple[str, ...]:
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


SAME_SUBJECT = 0.37
"""The least similarity of two facts if one may replace the other.

Measured on 77 real updates of a support channel's and a tutorial's entries, with a model that always names the most
alike older entry: 87% of the updates take the place of the right one, and none of 137 entries takes that of another
subject's; the most similar of those reach 0.26 (at 0.27: 90%, at 0.33: 87%, at 0.45: 83% of the updates). By the words'
Jaccard index alone, addresses and all, 87% of the updates cost 1.5% of the others. Single sentences about the same few
people are similar sooner: 17% of 353 such reach it with the most similar other, and most of these are about the same.
"""

# Whose server an address names says nothing about the subject: half of a channel's answers point to the same wiki.
_HOST = re.compile(r"(?:\b[a-z][a-z0-9+.-]{1,20}://|\bwww\.)[^\s/]+", re.IGNORECASE)


def likeness(one: str, other: str) -> float:
    """From 0 to 1: what the texts share of their words, and of the pairs of words that follow each other.

    The mean of the stems' Jaccard index, and of the share of the shorter text's pairs that the longer has: what was
    rewritten keeps runs of words, what is of another subject has a word here and there.
    """
    first, second = words(_HOST.sub(" ", one)), words(_HOST.sub(" ", other))
    stems, others = set(first), set(second)
    if not stems or not others:
        return 0.0
    jaccard = len(stems & others) / len(stems | others)
    pairs, other_pairs = set(pairwise(first)), set(pairwise(second))
    if not pairs or not other_pairs:
        return jaccard
    return (jaccard + len(pairs & other_pairs) / min(len(pairs), len(other_pairs))) / 2


def same_subject(one: str, other: str) -> bool:
    """Whether a fact may take another's place."""
    return likeness(one, other) >= SAME_SUBJECT
