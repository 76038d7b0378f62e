"""Several orders made one. Pure."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import TypeVar

T = TypeVar("T", bound=Hashable)

_K = 60
"""Cormack et al. (2009): large enough that the first places of one order do not outweigh a good place in both."""

LIKENESS_WEIGHT = 0.6
"""What likeness counts for, against words. Chosen with MiniLM over the retrieval sets of the evaluation, each left out
in turn: .5 to .75 hold all of them; more suits documents better (at .75, 1.49 of plain FTS5 on a FAQ, at .6 1.39), but
turns of chats fall (.96, .99). Reciprocal ranks fell to .71 there."""

LEAST_LIKENESS: Mapping[str, float] = {"all-MiniLM-L6-v2-int8": 0.2}
"""By model, the cosine below which two texts have nothing to do with each other: without it, a search for what nobody
ever wrote of would find ten sources. A question and a text about something else come to 0.16 at most with this one."""


def fused(*rankings: Sequence[T]) -> list[T]:
    """By reciprocal rank: what stands high in several orders comes first, equals in the order of the first ranking."""
    scores: dict[T, float] = {}
    for ranking in rankings:
        for n, item in enumerate(dict.fromkeys(ranking), _K + 1):
            scores[item] = scores.get(item, 0.0) + 1 / n
    return sorted(scores, key=scores.__getitem__, reverse=True)  # equals keep their order


def of_best(scores: Mapping[T, float]) -> dict[T, float]:
    """Each score as its share of the best one; 1 for all where they tell nothing apart."""
    best = max(scores.values(), default=0.0)
    return {item: score / best if best > 0 else 1.0 for item, score in scores.items()}


def joined(words: Mapping[T, float], likeness: Mapping[T, float], weight: float = LIKENESS_WEIGHT) -> dict[T, float]:
    """What words and likeness together say of each item that either knows, best first.

    `words` are scores such as bm25, where more is better; whoever is not among them holds none. `likeness` are cosines;
    for an item that has none (its vector is not made yet), the lowest of the others stands in.
    """
    by_words = of_best(words)
    lowest = min(likeness.values(), default=0.0)
    scores = {
        item: (1 - weight) * by_words.get(item, 0.0) + weight * likeness.get(item, lowest)
        for item in dict.fromkeys((*words, *likeness))
    }
    return dict(sorted(scores.items(), key=lambda each: -each[1]))
