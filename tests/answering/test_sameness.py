"""Texts that read the same, and texts that do not."""

from __future__ import annotations

import re
from typing import Final

import pytest
from hypothesis import assume, given, strategies as st

from intern.answering.quotes import digest_text, normalise_text


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("The port is 7480. Set `listen`.", "The  port\nis **7480**.\r\n\r\nSet listen."),
        ("- Run `purge`\n- Wait", "* Run purge\n* Wait"),
        ("1. Run it", "> Run it"),
        (
            "Run it\n– but not on Tuesdays,\n>5 times a day\n• ever.",
            "Run it – but not on Tuesdays, >5 times a day • ever.",
        ),
        ('## Ports\n\nSay "yes" – it\'s fine', "Ports\n=====\n\nSay “yes” - it’s fine".replace("=====", "")),
        ("see [the page](a.md)", "see the page(a.md)"),
        ("full-width ７４８０", "full-width 7480"),
    ],
)
def test_white_space_typography_and_markup_are_no_change(one: str, other: str) -> None:
    assert digest_text(normalise_text(one)) == digest_text(normalise_text(other))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("The port is 7480.", "The port is 7481."),
        ("Run it with -f", "Run it with f"),
        ("Do it", "Do not do it"),
        ("see [x](a.md)", "see [x](b.md)"),
        ("timeout 1.5", "timeout 15"),
    ],
)
def test_another_word_number_option_or_link_is_a_change(one: str, other: str) -> None:
    assert normalise_text(one) != normalise_text(other)


MARKS_ALONE: Final = re.compile(r"(?:[-+*]|\d{1,3}[.)]|>|\s)+")


@given(
    st.lists(st.text(alphabet="ab1.-*_`>#[]( )\t\u2019é中ﬁ", min_size=1, max_size=8), min_size=1, max_size=12),
    st.data(),
)
def test_what_is_cut_from_a_line_reads_as_a_part_of_it(words: list[str], data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(words) - 1))
    end = data.draw(st.integers(start + 1, len(words)))
    part = " ".join(words[start:end])
    assume(not MARKS_ALONE.fullmatch(part))  # the text after them decides whether they begin a list
    assert normalise_text(part) in normalise_text(" ".join(words))
