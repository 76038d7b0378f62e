"""The text of a question: its mentions, unknown names and language."""

from __future__ import annotations

import re
from collections.abc import Iterable

from intern.answering.prompts import ShownPassage
from intern.core.text.words import STOP_WORDS, split_words, stem_set

# Mentions say nothing about the question.
_MENTION = re.compile(r"(?<!\w)@\w[\w.-]*")
# A capitalised word that does not begin a sentence.
_NAME = re.compile(r"(?<![.!?:]\s)(?<!^)(?<![¿¡])\b[^\W\d_]\w+")


def without_mentions(question: str) -> str:
    """Remove the names that a question mentions with @."""
    return _MENTION.sub(" ", question).strip()


def find_unknown_names(question: str, shown: Iterable[ShownPassage]) -> list[str]:
    """Return the names in a question that no passage contains.

    For English questions only: other languages have other words for the things that passages name, and German
    capitalises all nouns.
    """
    if not is_english(question):
        return []
    known = "\n".join(f"{passage.title}\n{passage.heading}\n{passage.text}" for passage in shown)
    held, lower = stem_set(known), known.lower()
    names = dict.fromkeys(name for name in _NAME.findall(without_mentions(question)) if name != name.lower())
    return [name for name in names if name.lower() not in lower and not stem_set(name) <= held]


_FEW_WORDS = 4
_LEAST_ENGLISH = 0.15  # the least share of stop words in an English text; chat has about half


def is_english(text: str) -> bool:
    """Whether a text seems to be in English, the only language of the bundled embedder."""
    said = [word.lower() for word in split_words(text) if word.isalpha()]
    if not all(word.isascii() for word in said):
        return False
    return len(said) < _FEW_WORDS or sum(word in STOP_WORDS for word in said) >= _LEAST_ENGLISH * len(said)
