"""Same subject, or not: small cases here, real ones in tests/eval."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from intern.core.text.similarity import is_same_subject, text_similarity


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("The relay listens on port 7480.", "The relay listens on port 7481 now."),
        ("Deploys happen on Fridays.", "Deploys happen on Mondays."),
        ("Nadia looks after the invoices.", "Nadia and Omar look after the invoices since May."),
        ("安装中继需要端口七千", "安装中继需要端口八千"),
    ],
)
def test_a_sentence_that_was_changed_is_about_the_same(old: str, new: str) -> None:
    assert is_same_subject(old, new)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("The relay listens on port 7480.", "Nadia looks after the invoices."),
        (
            "For sound, see https://wiki.example.org/community/Sound",
            "Printers: https://wiki.example.org/community/Cups",
        ),
        ("The relay listens on port 7480.", "Agents of the relay keep their keys in a folder of their own."),
        ("", ""),
        ("the and of", "the and of"),
    ],
)
def test_a_shared_word_or_the_same_site_makes_no_subject(one: str, other: str) -> None:
    assert not is_same_subject(one, other)


@given(st.text(max_size=60), st.text(max_size=60))
def test_likeness_is_a_share_and_the_same_both_ways(one: str, other: str) -> None:
    assert 0.0 <= text_similarity(one, other) <= 1.0
    assert text_similarity(one, other) == text_similarity(other, one)
    assert text_similarity(one, one) in {0.0, 1.0}
