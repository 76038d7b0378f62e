from __future__ import annotations

import re

import pytest
from hypothesis import assume, given, strategies as st

from intern.chat.reply_text import split_message

_PROSE = st.text(alphabet="ab é🙂\t\n", max_size=600)
_CODE = st.lists(st.text(alphabet="ab =\t", max_size=120), min_size=1, max_size=30)
_LIMITS = st.integers(min_value=64, max_value=300)


def _without_white_space(text: str) -> str:
    return "".join(text.split())


@given(_PROSE, _LIMITS)
def test_no_word_is_lost_and_every_part_fits_and_says_something(text: str, limit: int) -> None:
    parts = split_message(text, limit)

    assert _without_white_space("".join(parts)) == _without_white_space(text)
    assert all(part.strip() and len(part) <= limit for part in parts)


@given(st.lists(st.tuples(_PROSE, _CODE), min_size=1, max_size=4), _LIMITS)
def test_code_keeps_every_character_and_every_part_closes_its_fences(
    document: list[tuple[str, list[str]]], limit: int
) -> None:
    text = "\n".join("\n".join([prose, "```py", *code, "```"]) for prose, code in document)

    parts = split_message(text, limit)

    assert all(part.strip() and len(part) <= limit for part in parts)
    code_found = ""
    for part in parts:
        inside = False
        for line in part.split("\n"):
            if line in {"```py", "```"}:
                assert inside == (line == "```")
                inside = not inside
            elif inside:
                code_found += line
        assert not inside
    assert code_found == "".join(line for _, code in document for line in code)


def test_a_text_that_fits_comes_back_as_it_is() -> None:
    text = "  spaced \n\n\n```\nopen fence"
    assert split_message(text) == [text]
    assert split_message("x" * 2000) == ["x" * 2000]


@pytest.mark.parametrize("blank", ["", " \n\t\n", "\u2003\u3000"])
def test_a_blank_text_has_no_parts(blank: str) -> None:
    assert split_message(blank) == []
    assert split_message(blank + " " * 3000) == []


def test_cuts_fall_between_paragraphs_first() -> None:
    one, two, three = "one " * 10, "two " * 10, "three " * 10
    parts = split_message(f"{one}\n\n{two}\n\n\n{three}", 90)
    assert parts == [f"{one}\n\n{two}", three]


def test_a_long_paragraph_is_cut_between_lines_and_a_long_line_between_words() -> None:
    lines = [f"- item {n} of a list" for n in range(10)]
    assert all(part.startswith("- item") for part in split_message("\n".join(lines), 64))
    words = split_message("word " * 40, 64)
    assert all(set(part.split()) == {"word"} for part in words)


def test_a_word_longer_than_the_limit_is_cut_anywhere() -> None:
    assert split_message("x" * 150, 64) == ["x" * 64, "x" * 64, "x" * 22]


def test_characters_are_counted_as_code_points() -> None:
    assert split_message("🙂" * 65, 64) == ["🙂" * 64, "🙂"]


def test_a_fence_stays_whole_with_its_blank_lines() -> None:
    fence = "```toml\n[a]\n\nb = 1\n\n\n[c]\n```"
    assert split_message(f"{'intro ' * 10}\n{fence}\n{'outro ' * 10}", 66) == ["intro " * 10, fence, "outro " * 10]


def test_a_fence_that_is_too_long_is_closed_and_reopened_with_its_language() -> None:
    code = [f"    line {n} = {n}" for n in range(12)]
    parts = split_message("\n".join(["```python", *code, "```"]), 64)
    assert len(parts) > 1
    assert all(part.startswith("```python\n    line") and part.endswith("\n```") for part in parts)
    assert [line for part in parts for line in part.split("\n")[1:-1]] == code


def test_a_fence_that_nobody_closed_is_closed_in_each_part() -> None:
    parts = split_message("```\n" + "code\n" * 40, 64)
    assert all(part.startswith("```\n") and part.endswith("\n```") for part in parts)


def test_a_fence_ends_at_the_next_three_ticks_whatever_stands_around_them() -> None:
    assert split_message("x " * 30 + "\n```a = 1\n\nb = 2``` and more\n\n" + "y " * 30, 64) == [
        "x " * 30,
        "```a = 1\n\nb = 2``` and more",
        "y " * 30,
    ]
    parts = split_message("````md\n```\ninner\n```\n" + "x\n" * 40 + "```", 64)
    assert parts[0] == "````md\n```\ninner"
    assert all(part.startswith("```\nx\n") and part.endswith("\n```") for part in parts[1:])


def test_a_fence_that_says_more_in_its_closing_line_is_closed_there() -> None:
    code = "\n".join(f"line {n}" for n in range(20))
    parts = split_message(f"```\n{code}\n``` and then {'some more words ' * 4}", 64)
    assert all(part.startswith("```\nline") and part.endswith("\n```") for part in parts[:-2])
    assert "```" not in parts[-1]
    assert not any(left_open(part) for part in parts)


def test_ticks_in_a_code_span_open_no_fence() -> None:
    span = "`` a ``` b ``"
    assert split_message(f"{'x ' * 29}{span}{' y' * 29}", 64) == ["x " * 29, span, " y" * 29]


# A fence as Discord's clients read it, besides the parts that they read before it (escapes) and after it (code spans).
_READ_AS_CODE = re.compile(
    r"\\[^0-9A-Za-z\s]|```(?:[a-z0-9_+\-.#]+?\n)?\n*[^\n][\s\S]*?\n*```|(?P<ticks>`+)[\s\S]*?[^`](?P=ticks)(?!`)",
    re.IGNORECASE,
)


# Clients do not agree on where it ends: the next ticks close it, or are the first of its code.
_NAMED_AND_EMPTY = re.compile(rf"\\[^0-9A-Za-z\s]|(?P<empty>```[\w+#.-]+\n+```)|{_READ_AS_CODE.pattern}", re.IGNORECASE)


def left_open(text: str) -> bool:
    """Return whether a text has ticks that open a fence, and no closing ticks."""
    return "```" in _READ_AS_CODE.sub(".", text)


_SAID = st.text(alphabet="ab \n`\\", max_size=90)
_BLOCK = st.tuples(st.sampled_from(["", "py\n", "\n", "a "]), st.text(alphabet="ab =\n", max_size=200))


@given(st.lists(_SAID | _BLOCK, min_size=2, max_size=8), st.integers(min_value=64, max_value=120))
def test_no_part_leaves_a_fence_open_that_the_whole_closed(pieces: list[str | tuple[str, str]], limit: int) -> None:
    text = "".join(piece if isinstance(piece, str) else f"```{piece[0]}x{piece[1]}```" for piece in pieces)
    assume(not left_open(text) and not any(code["empty"] for code in _NAMED_AND_EMPTY.finditer(text)))
    assert not any(left_open(part) for part in split_message(text, limit))


def test_a_limit_too_small_for_a_fence_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 64"):
        split_message("x", 63)
