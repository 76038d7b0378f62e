"""The similarity of two answers, by words and by vectors."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given, strategies as st

from intern.lab.outcomes import AgreementThresholds, AnswerSimilarity, cosine, measure_shared_words


def test_the_shorter_answers_words_decide() -> None:
    long = "Open the settings, set `listen` to another port, for example 9000, and restart the relay."
    assert measure_shared_words("Port 9000, then restart.", long) == 1.0
    assert measure_shared_words("Buy more memory.", long) == 0.0


def test_small_talk_cannot_be_compared() -> None:
    assert measure_shared_words("Yes, please do!", "Restart the relay.") is None
    assert AnswerSimilarity(words=None).agrees(AgreementThresholds()) is None
    assert AnswerSimilarity(words=None, vectors=0.9).agrees(AgreementThresholds()) is True


@pytest.mark.parametrize(
    ("words", "vectors", "agrees"), [(0.4, None, True), (0.39, None, False), (0.0, 0.5, True), (0.39, 0.49, False)]
)
def test_either_bar_is_enough(words: float, vectors: float | None, agrees: bool) -> None:  # noqa: FBT001
    assert AnswerSimilarity(words=words, vectors=vectors).agrees(AgreementThresholds(words=0.4, vectors=0.5)) is agrees


@given(st.text(), st.text())
def test_it_does_not_matter_who_said_what(one: str, other: str) -> None:
    shared = measure_shared_words(one, other)
    assert shared == measure_shared_words(other, one)
    assert shared is None or 0.0 <= shared <= 1.0


def test_vectors_are_compared_by_their_cosine() -> None:
    one, other = struct.pack("<2f", 1.0, 0.0), struct.pack("<2f", 0.6, 0.8)
    assert cosine(one, one) == 1.0
    assert cosine(one, other) == 0.6
