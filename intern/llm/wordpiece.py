"""Text to the numbers that a BERT model reads: WordPiece, lower case, without accents. Pure.

Gives what Hugging Face's `tokenizers` gives for `bert-base-uncased` (without its marks for special tokens: whatever
somebody writes is text, also "[SEP]").
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache

_UNKNOWN, _START, _END = "[UNK]", "[CLS]", "[SEP]"
_LONGEST_WORD = 100  # characters; the model was never shown longer ones
_ASCII = re.compile(r"[a-z0-9]+|[^\sa-z0-9]")  # all else in ASCII counts as punctuation, `$` and `+` too
# Code points, first and last: ideographs stand for themselves; kana, Hangul and Thai are written in words to the model.
_IDEOGRAPHS = (
    (0x4E00, 0x9FFF),
    (0x3400, 0x4DBF),
    (0x20000, 0x2A6DF),
    (0x2A700, 0x2B73F),
    (0x2B740, 0x2B81F),
    (0x2B820, 0x2CEAF),
    (0xF900, 0xFAFF),
    (0x2F800, 0x2FA1F),
)
_UNSEEN = frozenset({"Cc", "Cf", "Co"})
_REMEMBERED = 20_000  # words; a few megabytes


class WordPiece:
    """A vocabulary, and how texts are taken apart by it."""

    def __init__(self, tokens: Sequence[str]) -> None:
        """Takes the tokens in order of their ids."""
        self._ids: Mapping[str, int] = {token: n for n, token in enumerate(tokens)}
        self._unknown = self._ids[_UNKNOWN]
        self._start, self._end = self._ids[_START], self._ids[_END]
        self._pieces = lru_cache(_REMEMBERED)(self._taken_apart)

    def ids(self, text: str, most: int) -> list[int]:
        """The ids of a text between those of its start and its end; at most `most` with both, from its beginning."""
        room = most - 2
        ids = [self._start]
        for word in _words(text):
            ids += self._pieces(word)
            if len(ids) > room:
                break
        return [*ids[: room + 1], self._end]

    def knows_any(self, text: str) -> bool:
        """Whether one of the words is in the vocabulary whole, and not only in pieces."""
        return any(word in self._ids for word in _words(text))

    def _taken_apart(self, word: str) -> tuple[int, ...]:
        """The longest pieces from the left; a word that does not come out even is unknown as a whole."""
        if len(word) > _LONGEST_WORD:
            return (self._unknown,)
        pieces: list[int] = []
        start = 0
        while start < len(word):
            mark = "##" if start else ""
            for end in range(len(word), start, -1):
                piece = self._ids.get(mark + word[start:end])
                if piece is not None:
                    pieces.append(piece)
                    start = end
                    break
            else:
                return (self._unknown,)
        return tuple(pieces)


def _words(text: str) -> Iterator[str]:
    """Words and signs of punctuation, one by one."""
    for run in _cleaned(text).split():
        if run.isascii():
            yield from _ASCII.findall(run)
        else:
            yield from _apart(run)


def _cleaned(text: str) -> str:
    """Lower case without accents, without what nobody sees, ideographs standing alone."""
    if text.isascii():
        return text.lower() if text.isprintable() else "".join(map(_seen, text)).lower()
    seen = "".join(map(_seen, text))
    plain = "".join(char for char in unicodedata.normalize("NFD", seen) if unicodedata.category(char) != "Mn")
    return plain.lower()


def _seen(char: str) -> str:
    if char in "\t\n\r":
        return " "
    if char == "\ufffd" or unicodedata.category(char) in _UNSEEN:
        return ""
    if char.isspace():
        return " "
    code = ord(char)
    return f" {char} " if code >= _IDEOGRAPHS[1][0] and any(a <= code <= b for a, b in _IDEOGRAPHS) else char


def _apart(run: str) -> Iterator[str]:
    word = ""
    for char in run:
        if _ends_words(char):
            if word:
                yield word
            yield char
            word = ""
        else:
            word += char
    if word:
        yield word


def _ends_words(char: str) -> bool:
    if char.isascii():
        return not char.isalnum()
    return unicodedata.category(char).startswith("P")
