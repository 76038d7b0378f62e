"""Texts that say nearly the same."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise

from intern.core.text.words import WordRarity, stem_words

ALIKE = 0.5
"""The share of two texts' weight that has to be in common. Half of it: "start a node" and "start the node twice" are
one question, "start a node" and "stop a node" are two."""

_MOST_WORDS = 60  # of a text: a paste below a question says little about it


def group_similar_texts(texts: Sequence[str]) -> list[list[int]]:
    """Group the places of similar texts; the largest groups first, each in the given order.

    A text joins the group whose first text it is most like, so the same texts in the same order give the same groups.
    Texts without words (`???`) share a group only if they are equal.
    """
    held = [frozenset(stem_words(text)[:_MOST_WORDS]) for text in texts]
    rarity = WordRarity(held)
    weights = {word: rarity.weight(word) for word in frozenset[str]().union(*held)}
    # Sorted, here and below: floating point sums depend on the order.
    totals = [sum(weights[word] for word in sorted(own)) for own in held]
    groups: dict[int, list[int]] = {}  # by the place of their first text
    holding: dict[str, list[int]] = {}  # by word, the first texts that hold it: only they can be alike
    wordless: dict[str, int] = {}
    for place, own in enumerate(held):
        shared: defaultdict[int, float] = defaultdict(float)
        for word in sorted(own):
            for first in holding.get(word, ()):
                shared[first] += weights[word]
        alike = {first: common / (totals[place] + totals[first] - common) for first, common in sorted(shared.items())}
        nearest = max(alike, key=alike.__getitem__, default=place)
        if alike.get(nearest, 0.0) < ALIKE:
            nearest = place
        if not own:
            nearest = wordless.setdefault(texts[place].strip(), place)
        elif nearest == place:
            for word in own:
                holding.setdefault(word, []).append(place)
        groups.setdefault(nearest, []).append(place)
    return sorted(groups.values(), key=len, reverse=True)


SAME_SUBJECT = 0.37
"""The least similarity of two facts if one may replace the other.

Measured on 77 real updates of a support channel's and a tutorial's entries, with a model that always names the most
alike older entry: 87% of the updates take the place of the right one, and none of 137 entries takes that of another
subject's; the most similar of those reach 0.26 (at 0.27: 90%, at 0.33: 87%, at 0.45: 83% of the updates). By the words'
Jaccard index alone, addresses and all, 87% of the updates cost 1.5% of the others. Single sentences about the same few
people are similar sooner: 17% of 353 such reach it with the most similar other, and most of these are about the same.
"""

# The server in an address says nothing about the subject: half of a channel's answers point to the same wiki.
_HOST = re.compile(r"(?:\b[a-z][a-z0-9+.-]{1,20}://|\bwww\.)[^\s/]+", re.IGNORECASE)


def text_similarity(one: str, other: str) -> float:
    """Return the similarity of two texts, from 0 to 1, by their words and the pairs of words that follow each other.

    It is the mean of the stems' Jaccard index, and of the share of the shorter text's pairs that the longer has: a
    rewritten text keeps runs of words, and one on another subject shares single words.
    """
    first, second = stem_words(_HOST.sub(" ", one)), stem_words(_HOST.sub(" ", other))
    stems, others = set(first), set(second)
    if not stems or not others:
        return 0.0
    jaccard = len(stems & others) / len(stems | others)
    pairs, other_pairs = set(pairwise(first)), set(pairwise(second))
    if not pairs or not other_pairs:
        return jaccard
    return (jaccard + len(pairs & other_pairs) / min(len(pairs), len(other_pairs))) / 2


def is_same_subject(one: str, other: str) -> bool:
    """Return whether a fact may replace another."""
    return text_similarity(one, other) >= SAME_SUBJECT
