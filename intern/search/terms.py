"""The words of a question that a search looks for."""

from __future__ import annotations

from msgspec import Struct

from intern.core.text.language import detect_language
from intern.core.text.words import STOP_WORDS, find_unspaced_runs, split_words, stem_foreign_words

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


class SearchTerms(Struct, frozen=True):
    """The terms of a text."""

    words: tuple[str, ...] = ()
    grams: tuple[str, ...] = ()
    """Trigrams: pieces of scripts without spaces, and words that may be among them."""
    short: tuple[str, ...] = ()
    """Runs of such scripts that are too short for trigrams."""
    stems: tuple[str, ...] = ()
    """Stems of words in German, French, Spanish or Portuguese, where they differ from the words."""


def split_search_terms(text: str) -> SearchTerms:
    """Return the terms of a text, each once and in order, without stop words unless there are only such."""
    said = list(dict.fromkeys(word.lower() for word in split_words(text)))
    telling = [word for word in said if word not in _LEFT_OUT] or said
    spaced = [word for word in telling if not find_unspaced_runs(word)]
    runs = list(dict.fromkeys(run for word in telling for run in find_unspaced_runs(word)))
    grams = [word for word in spaced if len(word) >= _GRAM]
    grams += [run[n : n + _GRAM] for run in runs for n in range(len(run) - _GRAM + 1)]
    stems = dict.fromkeys(stem_foreign_words(" ".join(spaced[:MOST_TERMS]), detect_language(text)))
    return SearchTerms(
        words=tuple(spaced[:MOST_TERMS]),
        grams=tuple(dict.fromkeys(grams))[:MOST_TERMS],
        short=tuple(run for run in runs if len(run) < _GRAM)[:MOST_TERMS],
        stems=tuple(stem for stem in stems if stem not in spaced),
    )
