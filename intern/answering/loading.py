"""Loaded sources, cut to what fits the question and the prompt. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import PurePosixPath
from typing import NamedTuple

from intern.answering.citable import is_team
from intern.answering.prompts import ShownSource
from intern.domain import SourceText
from intern.text.passages import best_passages
from intern.text.words import word_set

# Of a page in two formats (`git-add.txt`, `git-add.html`) three in four share 85% of their words or more; of two
# different pages of one manual none shares 40%. In one format, two versions of a page share as many.
_SAME_PAGE = 0.6
_COMPARED = 8000  # characters
_SPOKEN = ("team:", "nugget:", "fact:")


def distinct(sources: Iterable[SourceText]) -> tuple[SourceText, ...]:
    """Those documents that say something else than all before them: no copy, and no page in a second format.

    What was said in conversations is always kept.
    """
    kept: list[SourceText] = []
    seen: list[_Page] = []
    for source in sources:
        if not source.source_id.startswith(_SPOKEN) and source.text.strip():
            page = _page(source)
            if any(map(page.repeats, seen)):
                continue
            seen.append(page)
        kept.append(source)
    return tuple(kept)


def shown_sources(sources: Sequence[SourceText], query: str, max_chars: int) -> tuple[ShownSource, ...]:
    """The sources that say anything, team knowledge first, in at most `max_chars` characters in total.

    Each gets an equal share; what a short one leaves, the longer ones share.
    """
    telling = [source for source in sources if source.text.strip()]
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


class _Page(NamedTuple):
    """What tells whether two documents are one page."""

    format: str
    text: str
    words: frozenset[str]

    def repeats(self, other: _Page) -> bool:
        if self.format == other.format:
            return self.text == other.text
        return len(self.words & other.words) >= _SAME_PAGE * len(self.words | other.words)


def _page(source: SourceText) -> _Page:
    ending = PurePosixPath(source.source_id).suffix.lower()
    return _Page(ending, " ".join(source.text.split()), frozenset(word_set(source.text[:_COMPARED])))


def _shares(sizes: Sequence[int], room: int) -> list[int]:
    shares = [0] * len(sizes)
    waiting = sorted(range(len(sizes)), key=lambda n: sizes[n])
    for at, n in enumerate(waiting):
        shares[n] = min(sizes[n], room // (len(waiting) - at))
        room -= shares[n]
    return shares
