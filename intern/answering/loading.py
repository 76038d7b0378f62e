"""Loaded sources, cut to what fits the question and the prompt. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from intern.answering.citable import is_team
from intern.answering.prompts import ShownSource
from intern.domain import SourceText
from intern.text.passages import best_passages
from intern.text.words import word_set

# Of a page in two formats (`git-add.txt`, `git-add.html`) three in four share 85% of their words or more; of two
# different pages of one manual none shares 40%.
_SAME_PAGE = 0.6
_COMPARED = 8000  # characters


def shown_sources(sources: Sequence[SourceText], query: str, max_chars: int) -> tuple[ShownSource, ...]:
    """The sources that say anything, team knowledge first, in at most `max_chars` characters in total.

    Each gets an equal share; what a short one leaves, the longer ones share. A page that is there in two formats is
    shown once.
    """
    telling = list(_once(source for source in sources if source.text.strip()))
    shares = _shares([len(source.text) for source in telling], max_chars)
    shown = [
        ShownSource(
            source_id=source.source_id,
            title=" ".join(source.title.split()),
            text=best_passages(source.text, query, share),
            said=source.said,
        )
        for source, share in zip(telling, shares, strict=True)
    ]
    # A stable sort: within a kind, the model's order stays.
    return tuple(sorted((source for source in shown if source.text.strip()), key=lambda s: not is_team(s.source_id)))


def _once(sources: Iterable[SourceText]) -> Iterator[SourceText]:
    seen: dict[str, list[frozenset[str]]] = {}
    for source in sources:
        page, dot, ending = source.source_id.rpartition(".")
        if is_team(source.source_id) or not dot or "/" in ending:
            yield source
            continue
        held, others = frozenset(word_set(source.text[:_COMPARED])), seen.setdefault(page, [])
        if all(len(held & other) < _SAME_PAGE * len(held | other) for other in others):
            yield source
        others.append(held)


def _shares(sizes: Sequence[int], room: int) -> list[int]:
    shares = [0] * len(sizes)
    waiting = sorted(range(len(sizes)), key=lambda n: sizes[n])
    for at, n in enumerate(waiting):
        shares[n] = min(sizes[n], room // (len(waiting) - at))
        room -= shares[n]
    return shares
