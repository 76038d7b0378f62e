"""Several orders made one. Pure."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import TypeVar

T = TypeVar("T", bound=Hashable)

_K = 60
"""Cormack et al. (2009): large enough that the first places of one order do not outweigh a good place in both."""


def fused(*rankings: Sequence[T]) -> list[T]:
    """By reciprocal rank: what stands high in several orders comes first, equals in the order of the first ranking."""
    scores: dict[T, float] = {}
    for ranking in rankings:
        for n, item in enumerate(dict.fromkeys(ranking)):
            scores[item] = scores.get(item, 0.0) + 1 / (_K + n + 1)
    return sorted(scores, key=lambda item: -scores[item])
