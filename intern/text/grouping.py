"""Texts that ask the same, found by their words: which of many questions come up again and again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from intern.text.words import Rarity, words

ALIKE = 0.5
"""The share of two texts' weight that has to be in common. Half of it: "start a node" and "start the node twice" are
one question, "start a node" and "stop a node" are two."""

_MOST_WORDS = 60  # of a text: what is pasted below a question says little of what it asks


def grouped(texts: Sequence[str]) -> list[list[int]]:
    """The places of the texts, those that are alike together; the largest groups first, each in the given order.

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
