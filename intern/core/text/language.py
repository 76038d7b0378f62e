"""The language of a short text, by its script, its commonest words, endings and letters.

Made for messages in a chat: a few words, often without capitals or accents, with commands and error texts of programs
between them. It knows the languages that the bot speaks. It would rather say nothing than take Italian for Spanish.
"""

from __future__ import annotations

import re
from collections import defaultdict
from functools import cache
from pathlib import Path
from string import ascii_lowercase
from typing import Final

from intern.core.text.words import STOP_WORDS

SPOKEN: Final = frozenset(("en", "de", "fr", "es", "pt", "ja"))

OTHER_SCRIPT: Final = "another script"
"""Stands for all languages that are not written in Latin letters, but for Japanese."""

_SIGNS: Final = Path(__file__).with_name("languages.txt")
_NOT_ENGLISH_ALONE: Final = frozenset(("ok", "okay", "hi", *"dmst"))
"""All chats say the first; the letters are "d'un", "m'a", "s'il", "t'es", too."""
_LEAST: Final = 0.5
_LEAST_OF_OTHERS: Final = 1.0
"""A multiple of the weight of a word of one language alone, 1. An ending or a letter weighs half.

Names, commands and formulas look like half a word of another language; the bot's words are English then.
"""
_AHEAD: Final = 1.1
"""The least ratio of the best score to the second."""
_LOOKED_AT: Final = 4_000
"""Characters of a text; the beginning of a document tells its language."""
# A single letter is a word before an apostrophe ("d'un"), or with an accent; else it is an option or a variable.
_WORD: Final = re.compile(r"[^\W\d_]{2,}|[^\W\d_](?=['\u2019])|[^\W\d_a-z]")
# Backticks enclose commands, angle brackets mentions.
_MARKED: Final = re.compile(r"```.*?(?:```|\Z)|`[^`\n]*`|<[^<>\s]*>", re.DOTALL)
_NO_PROSE: Final = frozenset("/\\@=_")
"""Characters of paths, addresses and settings."""
_KANA: Final = re.compile("[\u3041-\u3096\u30a1-\u30fa]")
_LATIN: Final = re.compile("[a-z\u00df-\u00f6\u00f8-\u00ff\u0153]+")
_ASCII: Final = frozenset(ascii_lowercase)


def detect_language(text: str) -> str | None:
    """Return the ISO 639-1 code, one of `SPOKEN`; None where unsure: too short, another language, or only commands."""
    found = detect_any_language(text)
    return found if found in SPOKEN else None


def detect_any_language(text: str) -> str | None:
    """Return the language, also one near to those of `SPOKEN`, or OTHER_SCRIPT; None where unsure."""
    tokens = _MARKED.sub(" ", text[:_LOOKED_AT]).lower().split()
    words = _WORD.findall(" ".join(each for each in tokens if _NO_PROSE.isdisjoint(each) and each[0] != "-"))
    # Japanese about programs is full of Latin words; other scripts have kana in a "¯\\_(ツ)_/¯" at most.
    if sum(len(_KANA.findall(word)) for word in words) * 8 > sum(map(len, words)):
        return "ja"
    scores = _score_languages(set(words))
    best = max(scores, key=scores.__getitem__, default="")
    second = max((score for language, score in scores.items() if language != best), default=0.0)
    least = _LEAST if best == "en" else _LEAST_OF_OTHERS
    return best if scores[best] >= least and scores[best] > second * _AHEAD else None


def _score_languages(words: set[str]) -> dict[str, float]:
    scores: dict[str, float] = defaultdict(float)
    for word in words:
        for sign in _find_language_signs(word):
            for language, worth in _load_sign_weights().get(sign, {}).items():
                scores[language] += worth if sign == word else worth / 2
        if not _LATIN.fullmatch(word):
            scores[OTHER_SCRIPT] += 1
    return scores


def _find_language_signs(word: str) -> set[str]:
    endings = {f"-{word[-length:]}" for length in range(2, 6)} if len(word) > 4 else set[str]()
    return {word} | endings | (set(word) - _ASCII)


@cache
def _load_sign_weights() -> dict[str, dict[str, float]]:
    """Return the weight of each sign of `languages.txt` for each language that has it."""
    having: dict[str, set[str]] = defaultdict(set)
    for word in STOP_WORDS - _NOT_ENGLISH_ALONE:
        having[word].add("en")
    language = ""
    for line in _SIGNS.read_text(encoding="utf-8").splitlines():
        if line.startswith(" "):
            for sign in line.split():
                having[sign].add(language)
        else:
            language = line
    # The neighbours share nearly all their words: counted fully, they would make those of Spanish worth nothing.
    return {
        sign: {each: 1 / len(languages & SPOKEN if each in SPOKEN else languages) for each in languages}
        for sign, languages in having.items()
    }
