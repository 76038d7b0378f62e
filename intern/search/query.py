"""From a typed question to a query of the search engine, and several rankings joined to one. Pure.

Every term is quoted, so `"`, `*`, `NEAR`, `:`, `-` and `^` have no special meaning to the engine.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from typing import TypeVar

from msgspec import Struct

from intern.core.records import Match
from intern.core.text.words import STOP_WORDS, plain_words, unspaced_runs

MOST_TERMS = 64
"""Questions have about ten terms; longer texts are pasted, and each term costs time."""

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
    """The terms of a text."""

    words: tuple[str, ...] = ()
    grams: tuple[str, ...] = ()
    """Trigrams: pieces of scripts without spaces, and words that may stand among them."""
    short: tuple[str, ...] = ()
    """Runs of such scripts that are too short for trigrams."""

    def __bool__(self) -> bool:
        return bool(self.words or self.grams or self.short)


def terms_of(text: str) -> Terms:
    """Return the terms of a text, each once and in order, without stop words unless there are only such."""
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
    """Quote one term."""
    return Match('"' + term.replace("\0", " ").replace('"', '""') + '"')


def each_of(terms: Iterable[str]) -> tuple[Match, ...]:
    """Quote each term."""
    return tuple(map(quoted, terms))


def any_of(terms: Iterable[str]) -> Match | None:
    """Return a query for documents with at least one of the terms; None without terms, which FTS5 cannot express."""
    wanted = each_of(terms)
    return Match(" OR ".join(wanted)) if wanted else None


T = TypeVar("T", bound=Hashable)

_K = 60
"""Cormack et al. (2009): large enough that the first places of one order do not outweigh a good place in both."""

LIKENESS_WEIGHT = 0.6
"""The weight of vectors, against words, for texts from chats (topics, nuggets, facts): a turn is short, and its words
tell it apart. Chosen with MiniLM on chat turns: nDCG@10 is .495 to .498 at .5 to .6, .482 at .75, .442
at .85 (by words alone .489). Reciprocal ranks fell to .71 of plain FTS5."""

DOCUMENT_LIKENESS_WEIGHT = 0.78
"""The same for documents, pages and files: on five sets, .75 to .8 beats .6 by 2% (factoids) to 9% (titles)."""


class LeastLikeness(Struct, frozen=True, kw_only=True):
    """The cosines below which a text is not found by likeness. They belong to a model."""

    beside_words: float = 0.0
    """If a document contains a word of the question."""
    alone: float = 0.0
    """If none does."""
    of_unknown: float = 0.0
    """If none does, and the model knows none of the words either: its vector says little then."""


LEAST_LIKENESS: Mapping[str, LeastLikeness] = {
    "all-MiniLM-L6-v2-int8": LeastLikeness(beside_words=0.2, alone=0.3, of_unknown=0.45)
}
"""Without it, a search for a subject that no document has finds ten sources. A made-up word comes to .2 with one of 20
documents in 27% of cases, to .3 in 4%; with one of 3,000 to .45 in 5%. What a single word like "photo", "physician" or
"automobile" means came to .32 to .57 with it. Of 120 to 302 real questions a set, all but two hold a word of some
document, so that only `beside_words` concerns them."""


def fused(*rankings: Sequence[T]) -> list[T]:
    """Join rankings by reciprocal rank; equals keep the order of the first ranking."""
    scores: dict[T, float] = {}
    for ranking in rankings:
        for n, item in enumerate(dict.fromkeys(ranking), _K + 1):
            scores[item] = scores.get(item, 0.0) + 1 / n
    return sorted(scores, key=scores.__getitem__, reverse=True)  # equals keep their order


def of_best(scores: Mapping[T, float]) -> dict[T, float]:
    """Return each score as a share of the best one; 1 for all if the best is not above 0."""
    best = max(scores.values(), default=0.0)
    return {item: score / best if best > 0 else 1.0 for item, score in scores.items()}


def joined(words: Mapping[T, float], likeness: Mapping[T, float], documents: Collection[T] = ()) -> dict[T, float]:
    """Join the scores of words and vectors, best first.

    `words` are scores such as bm25, where more is better; an item without one contains no word. `likeness` are cosines;
    an item without one (its vector is not made yet) gets the lowest of the others. `documents` are the
    items for which vectors weigh more.
    """
    by_words = of_best(words)
    lowest = min(likeness.values(), default=0.0)
    scores: dict[T, float] = {}
    for item in dict.fromkeys((*words, *likeness)):
        weight = DOCUMENT_LIKENESS_WEIGHT if item in documents else LIKENESS_WEIGHT
        scores[item] = (1 - weight) * by_words.get(item, 0.0) + weight * likeness.get(item, lowest)
    return dict(sorted(scores.items(), key=lambda each: -each[1]))
