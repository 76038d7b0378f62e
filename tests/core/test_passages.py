"""Passages are slices of their text, cut where a reader would."""

from __future__ import annotations

import re
from time import process_time

import pytest
from hypothesis import given, strategies as st

from intern.core.text.passages import (
    GAP,
    PART_ENDS,
    find_blocks,
    read_following_blocks,
    select_best_passages,
    split_passages,
)

_FENCE = "```"
_FENCE_LINE = re.compile(r"\s*(?:[-*+]\s+)?(`{3,}|~{3,})")
GUIDE = """\
# Keys

Signing keys prove who sent an event.

## Rotation

Rotate a key with one command:

```sh
relay keys rotate

# this is a comment, not a heading
relay reload
```

The old key stays valid for a day.

## Retention

Events are kept for thirty days.
"""

TOPIC = """\
--- QA ---
id: qa_20260201_031056.228000
timestamp: 2026-02-01T03:10:56.228000Z
User: How do I rotate keys?

  Really.
Team: Run relay keys rotate.

--- QA ---
id: qa_20260201_031057.000000
timestamp: 2026-02-01T03:10:57.000000Z
User: Where are the logs?
Team: In /var/log/relay.
"""

_pieces = st.sampled_from(
    [
        "# A\n",
        "- b\n",
        "a | b\n",
        "---\n",
        "lead:\n",
        "\n",
        "\n\n",
        "```\n",
        "--- QA ---\n",
        "id: qa_1\n",
        "word ",
        "lorem ipsum. ",
        "  ",
        "\r\n",
        "x" * 40,
    ]
)
_texts = st.one_of(st.text(max_size=400), st.lists(_pieces, max_size=40).map("".join))


@given(_texts, st.integers(1, 120))
def test_passages_are_slices_in_order_and_lose_only_headings_and_white_space(text: str, max_chars: int) -> None:
    end = 0
    lost = ""
    for passage in split_passages(text, max_chars):
        piece = text[passage.start : passage.end]
        assert passage.text == piece or (_FENCE in passage.text and piece in passage.text)
        assert piece.strip()
        assert len(piece) <= max_chars
        assert passage.start >= end
        lost += text[end : passage.start]
        end = passage.end
    lost += text[end:]
    headings = [text[span.start : span.end] for span in find_blocks(text) if span.kind == "heading"]
    for heading in headings:
        assert heading in lost
        lost = lost.replace(heading, "", 1)
    assert not [
        line for line in lost.split("\n") if line.strip() not in {"", PART_ENDS} and not _FENCE_LINE.match(line)
    ]


@given(_texts, st.text(max_size=30), st.integers(0, 300))
def test_the_best_passages_never_exceed_their_room(text: str, query: str, max_chars: int) -> None:
    best = select_best_passages(text, query, max_chars)
    assert len(best) <= max_chars
    assert select_best_passages(text, query, max_chars) == best
    if len(text) <= max_chars:
        assert best == text


def test_sections_know_their_headings() -> None:
    assert [(p.heading, p.text.splitlines()[0]) for p in split_passages(GUIDE, 1000)] == [
        ("Keys", "Signing keys prove who sent an event."),
        ("Keys > Rotation", "Rotate a key with one command:"),
        ("Keys > Retention", "Events are kept for thirty days."),
    ]


def test_a_code_block_stays_whole_while_it_fits() -> None:
    block = next(p for p in split_passages(GUIDE, 90) if "relay reload" in p.text)
    assert block.text.startswith("```sh\n")
    assert block.text.endswith("```")


def test_each_qa_block_is_a_passage_of_its_own() -> None:
    first, second = split_passages(TOPIC, 1000)
    assert first.heading == "qa_20260201_031056.228000"
    assert first.text.endswith("Team: Run relay keys rotate.")
    assert second.heading == "qa_20260201_031057.000000"


def test_the_query_decides_what_is_kept() -> None:
    text = "\n\n".join(f"# Part {n}\n\n" + f"filler{n} " * 90 for n in range(8)) + "\n\n# Logs\n\nRead /var/log/relay."
    best = select_best_passages(text, "where is the log?", 1200)
    assert "/var/log/relay" in best


def test_gaps_are_marked_and_order_is_kept() -> None:
    text = "\n\n".join(f"# Part {n}\n\n" + f"word{n} " * 120 for n in range(6))
    best = select_best_passages(text, "word4 word1", 2000)
    assert best.index("Part 1") < best.index(GAP) < best.index("Part 4")


def test_a_query_that_matches_nothing_gets_the_beginning() -> None:
    text = "\n\n".join(f"Part {n}. " + "filler " * 100 for n in range(6))
    assert select_best_passages(text, "quux", 800).startswith("Part 0.")


def test_a_cut_block_keeps_its_id() -> None:
    long = TOPIC.replace("Team: Run", "\n".join(f"Team: noise {n} " + "blah " * 30 for n in range(20)) + "\nTeam: Run")
    best = select_best_passages(long, "run rotate", 600)
    assert "Run relay keys rotate" in best
    assert "id: qa_20260201_031056.228000\n" in best


def test_a_passage_needs_room() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        split_passages("x", 0)


@pytest.mark.parametrize(
    "text",
    [
        "# a" + " " * 50_000 + "b",
        "#" * 50_000,
        "=\n" * 50_000,
        "x" * 100_000,
        "--- QA ---\nid: qa_1\nUser: " + "word\n  " * 30_000,
        "```\n" * 30_000,
        "a\n\n" * 30_000,
    ],
    ids=lambda text: repr(text[:12]),
)
def test_no_text_takes_more_than_its_length_in_work(text: str) -> None:
    began = process_time()
    select_best_passages(text, "word b x", 12_000)
    # About 0.1 s; what grows with the square of the length takes minutes.
    assert process_time() - began < 5


def test_the_anchor_of_a_heading_is_told() -> None:
    [passage] = split_passages("## Rotate keys {#rotate}\n\nSo.", 100)
    assert (passage.heading, passage.anchor) == ("Rotate keys", "rotate")


def test_what_leads_to_a_block_stays_with_it() -> None:
    text = f"{'word ' * 18}\n\nRun this:\n\n```sh\nrelay keys rotate\n```"
    assert [piece.text.split("\n")[0][:9] for piece in split_passages(text, 120)] == ["word word", "Run this:"]


def test_code_that_is_cut_stays_code() -> None:
    code = "\n".join(f"relay step {n}" for n in range(20))
    pieces = split_passages(f"```sh\n{code}\n```", 100)
    assert len(pieces) > 2
    assert all(piece.text.startswith("```sh\n") and piece.text.endswith("\n```") for piece in pieces)
    assert "\n".join(piece.text[6:-4] for piece in pieces) == code


def test_a_question_stands_above_its_answer_until_the_part_ends() -> None:
    text = "# A\n\n###### How?\n\nSo.\n\n---\n\nAfter."
    assert [(piece.heading, piece.text) for piece in split_passages(text, 100)] == [
        ("A > How?", "So."),
        ("A", "After."),
    ]


PROBLEM = """\
# Errors

## It is slow

### What happens

It is slow.

### What helps

Make it fast.

## Another

Nothing.
"""


def test_what_is_read_on_goes_below_further_headings_of_the_same_part() -> None:
    read = read_following_blocks(PROBLEM, PROBLEM.index("It is slow.\n"), 700)
    assert read == "It is slow.\n\n**What helps**\n\nMake it fast."
    assert read_following_blocks(PROBLEM, PROBLEM.index("Make it"), 700) == "Make it fast."


@pytest.mark.parametrize(
    ("begin", "reads_on"), [("- Loading\n- Others", True), ("Read this.", False), ("- Loading\n\nRead this.", False)]
)
def test_below_the_title_it_reads_on_into_the_parts_only_after_a_list(begin: str, reads_on: bool) -> None:  # noqa: FBT001
    text = f"# Plugins\n\n{begin}\n\n## Loading\n\nType `load`.\n\n# Others\n\nNothing."
    read = f"{begin}\n\n**Loading**\n\nType `load`." if reads_on else begin
    assert read_following_blocks(text, text.index(begin), 700) == read


@given(_texts, st.integers(0, 60), st.integers(1, 120))
def test_what_is_read_on_has_room_and_stands_in_the_text(text: str, start: int, most: int) -> None:
    read = read_following_blocks(text, start, most)
    assert len(read) <= most
    flat = "".join(text[start:].split())
    assert all("".join(line.split()) in flat for line in read.split("\n") if not line.startswith("**"))


def test_two_sections_of_one_name_are_two_passages() -> None:
    assert [piece.text for piece in split_passages("# A\n\nOne.\n\n# A\n\nTwo.", 100)] == ["One.", "Two."]


def test_nothing_is_read_on_from_within_a_block() -> None:
    assert read_following_blocks("One two three.\n\nFour.", 4, 100) == ""
