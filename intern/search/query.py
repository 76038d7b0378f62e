"""From what somebody typed to what the search engine is asked. Pure.

Every term stands in quotes: `"`, `*`, `NEAR`, `:`, `-` and `^` are words or nothing, whatever they mean to the engine.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct

from intern.domain import Match
from intern.text.words import STOP_WORDS, plain_words, unspaced_runs

MOST_TERMS = 64
"""A question has ten; whatever is longer is a paste, and each term costs."""

TOO_COMMON = 0.02
"""Share of the documents: a term that more of them hold tells little, and finding them all costs most of a search."""

ENOUGH_DOCUMENTS = 10_000
"""Below that nothing is too common: the search is cheap, and what stands in every fiftieth of 600 documents tells (with
them left out, the right one of 596 was among the best 50 for 68% of 120 real questions, else for 84%)."""

_GRAM = 3
"""Characters that the trigram table needs."""


class Terms(Struct, frozen=True):
    """What a text asks for."""

    words: tuple[str, ...] = ()
    grams: tuple[str, ...] = ()
    """To be found inside of words: pieces of scripts without spaces, and what may stand among them."""
    short: tuple[str, ...] = ()
    """Runs of such scripts that are too short for that."""

    def __bool__(self) -> bool:
        return bool(self.words or self.grams or self.short)


def terms_of(text: str) -> Terms:
    """The terms of a text, each once, in its order, stop words left out unless there is nothing else."""
    said = list(dict.fromkeys(word.lower() for word in plain_words(text)))
    telling = [word for word in said if word not in STOP_WORDS] or said
    spaced = [word for word in telling if not unspaced_runs(word)]
    runs = list(dict.fromkeys(run for word in telling for run in unspaced_runs(word)))
    grams = [word for word in spaced if len(word) >= _GRAM]
    grams += [run[n : n + _GRAM] for run in runs for n in range(len(run) - _GRAM + 1)]
    return Terms(
        words=tuple(spaced[:MOST_TERMS]),
        grams=tuple(dict.fromkeys(grams))[:MOST_TERMS],
        short=tuple(run for run in runs if len(run) < _GRAM)[:MOST_TERMS],
    )


def quoted(term: str) -> Match:
    """One term, to be found as it stands."""
    return Match('"' + term.replace("\0", " ").replace('"', '""') + '"')


def any_of(terms: Iterable[str]) -> Match | None:
    """Whatever holds one of the terms; None where there is none, for the engine has no word for nothing."""
    wanted = [quoted(term) for term in terms]
    return Match(" OR ".join(wanted)) if wanted else None


def all_of(terms: Iterable[str]) -> Match | None:
    """Whatever holds each of the terms; None where there is none."""
    wanted = [quoted(term) for term in terms]
    return Match(" AND ".join(wanted)) if wanted else None


def telling(terms: Sequence[str], counts: Sequence[int], documents: int) -> tuple[str, ...]:
    """The terms without those that stand in too many of the documents; all, where nothing else is left."""
    if documents < ENOUGH_DOCUMENTS:
        return tuple(terms)
    kept = tuple(term for term, count in zip(terms, counts, strict=True) if count <= documents * TOO_COMMON)
    found = {term for term, count in zip(terms, counts, strict=True) if count}
    return kept if found.intersection(kept) else tuple(terms)


def by_term(terms: Iterable[str]) -> Mapping[str, Match]:
    """Each term and what finds it."""
    return {term: quoted(term) for term in terms}
