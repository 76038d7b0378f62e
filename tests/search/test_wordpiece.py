"""Texts as a BERT model reads them: pieces of words, for any text."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, strategies as st

import intern.search.embedding_local
from intern.search.embedding_local import WordPieceTokenizer

VOCABULARY = (
    Path(intern.search.embedding_local.__file__).with_name("vocabulary.txt").read_text(encoding="utf-8").splitlines()
)
WORDS = WordPieceTokenizer(VOCABULARY)


def pieces(text: str, most: int = 64) -> list[str]:
    return [VOCABULARY[n] for n in WORDS.tokenize(text, most)]


def test_the_vocabulary_is_the_one_that_the_model_was_made_with() -> None:
    assert len(VOCABULARY) == 30_522
    known = {"[PAD]": 0, "[UNK]": 100, "[CLS]": 101, "[SEP]": 102, "[MASK]": 103, "the": 1996, "hello": 7592}
    assert {token: VOCABULARY.index(token) for token in known} == known


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", []),
        ("Hello, WORLD!", ["hello", ",", "world", "!"]),
        ("unaffable", ["una", "##ffa", "##ble"]),
        ("Café naïve", ["cafe", "naive"]),
        ("a_b $5 c++", ["a", "_", "b", "$", "5", "c", "+", "+"]),
        ("tab\tand\nline", ["tab", "and", "line"]),
        ("ze\0ro hel\u200blo", ["zero", "hello"]),
        ("x" * 101, ["[UNK]"]),
        ("[SEP]", ["[", "sep", "]"]),
        ("中文", ["中", "文"]),
    ],
)
def test_a_text_becomes_the_pieces_that_the_model_knows(text: str, expected: list[str]) -> None:
    assert pieces(text) == ["[CLS]", *expected, "[SEP]"]


@given(st.text(), st.integers(3, 40))
def test_any_text_fits_and_stands_between_its_marks(text: str, most: int) -> None:
    ids = WORDS.tokenize(text, most)
    assert len(ids) <= most
    assert (ids[0], ids[-1]) == (101, 102)
    assert not {0, 101, 102, 103} & set(ids[1:-1])  # no words of a text are taken for marks
    assert ids[:-1] == WORDS.tokenize(text, 10_000)[: len(ids) - 1]
