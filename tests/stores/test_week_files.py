"""A week file gives the same pairs whether its blocks are recognised or parsed."""

from __future__ import annotations

from io import BytesIO

from hypothesis import given, settings, strategies as st

from intern.stores.block_format import BlockWarning, format_pair_block, scan_archive
from intern.stores.week_files import find_tail, locate_pair, scan_week
from tests.examples import examples
from tests.stores.test_block_format import HOSTILE, pairs
from tests.worlds import samples

_MARK = b"--- QA ---\n"
_PIECES = (*(each.encode("utf-8", "surrogatepass") for each in HOSTILE), b"\xff", b"\r\n", b"\xef\xbb\xbf", b"31")

_EDITS = (
    (b"\n\n", b"\n\nstray\n"),
    (b"\n\n", b"\n"),
    (b"answered_at: 2026-02-0", b"answered_at: 2026-02-3"),
    (b"timestamp: 2026-", b"timestamp: 2025-"),
    (b"User: ", b"user: "),
    (b"length: ", b"guild_id: 1\nlength: "),
)


@st.composite
def weeks(draw: st.DrawFn) -> bytes:
    """Return blocks as intern writes them, some with an edit by hand."""
    ours = st.integers(0, 9).map(lambda n: samples.pair(f"How {n}?", "ä\nlike this", n=1440 * n))
    data = b"".join(format_pair_block(each).encode() for each in draw(st.lists(ours | pairs(), max_size=6)))
    for old, new in draw(st.lists(st.sampled_from(_EDITS), max_size=2)):
        data = data.replace(old, new, 1)
    for _ in range(draw(st.integers(0, 2))):
        at, gone = draw(st.integers(0, len(data))), draw(st.integers(0, 20))
        data = data[:at] + draw(st.sampled_from(_PIECES)) + data[at + gone :]
    return data


# Finding G3.
@given(weeks(), st.sampled_from([1, 7, 12, 500, 1 << 14]))
@settings(max_examples=examples(100))
def test_recognising_gives_what_parsing_gives(data: bytes, window: int) -> None:
    parsed = [
        each if isinstance(each, BlockWarning) else locate_pair(each.pair, each.start, each.length)
        for each in scan_archive(BytesIO(data), file="week")
    ]
    assert list(scan_week(BytesIO(data), name="week", window=window)) == parsed


# Finding G3.
@given(weeks(), st.integers(0, 8), st.sampled_from([1, 7, 12, 500, 1 << 14]))
@settings(max_examples=examples(100))
def test_a_tail_begins_with_a_block_and_holds_enough(data: bytes, most: int, window: int) -> None:
    start = find_tail(BytesIO(data), most, window=window)
    assert not start or data[start - 1 :].startswith(b"\n" + _MARK)
    whole = data.count(b"\n" + _MARK) + data.startswith(_MARK)
    assert data.count(b"\n" + _MARK, max(start - 1, 0)) + (not start and data.startswith(_MARK)) >= min(most, whole)
