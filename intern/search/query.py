"""From what somebody typed to what the search engine is asked. Pure.

Every term stands in quotes: `"`, `*`, `NEAR`, `:`, `-` and `^` are words or nothing, whatever they mean to the engine.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from msgspec import Struct

from intern.domain import Match
from intern.text.words import STOP_WORDS, plain_words, unspaced_runs

MOST_TERMS = 64
"""A question has ten; whatever is longer is a paste, and each term costs."""

_GRAM = 3
"""Characters that the trigram table needs."""

# Time, number and purpose say something about a document, and bm25 weighs a common word little anyway. Without them
# plain FTS5 with a short list of stop words finds more on chat turns (.491 against .479) and on titles of questions.
_SEARCHED = """
after before until first once again now still help use used uses using try trying someone anyone somebody anybody
any many all other same few only one
"""
_LEFT_OUT = STOP_WORDS - set(_SEARCHED.split())


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
    telling = [word for word in said if word not in _LEFT_OUT] or said
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


def each_of(terms: Iterable[str]) -> tuple[Match, ...]:
    """Each of the terms, to be found as it stands."""
    return tuple(map(quoted, terms))


def any_of(terms: Iterable[str]) -> Match | None:
    """Whatever holds one of the terms; None where there is none, for the engine has no word for nothing."""
    wanted = each_of(terms)
    return Match(" OR ".join(wanted)) if wanted else None


def by_term(terms: Iterable[str]) -> Mapping[str, Match]:
    """Each term and what finds it."""
    return {term: quoted(term) for term in terms}
