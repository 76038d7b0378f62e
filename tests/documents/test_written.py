"""Written blocks are read as the same blocks again: no text of theirs becomes a heading or ends a part."""

from __future__ import annotations

from hypothesis import given, strategies as st

from intern.core.text.passages import split_passages
from intern.documents.blocks import Block, BlockKind, Heading, write_blocks

_TEXTS = st.lists(
    st.sampled_from(["word", "# sharp", "```", "~~~~", "---", "--- QA ---", "id: qa_1", "a | b", "- item", "> said"]),
    min_size=1,
    max_size=4,
).map("\n".join)
_KINDS: st.SearchStrategy[BlockKind] = st.sampled_from(["paragraph", "item", "row", "code", "admonition"])


@given(st.lists(st.tuples(_KINDS, _TEXTS), min_size=1, max_size=6))
def test_each_block_stands_below_its_heading_whatever_it_says(parts: list[tuple[BlockKind, str]]) -> None:
    title = Heading(1, "Title")
    blocks = [
        Block(kind=kind, text=f"n{n} {text}", path=(title,), marker="-" if kind == "item" else "")
        for n, (kind, text) in enumerate(parts)
    ]
    written = write_blocks([Block(kind="heading", text="Title", level=1), *blocks])
    found = split_passages(written, 10_000)
    assert {piece.heading for piece in found} == {"Title"}
    held = "\n".join(piece.text for piece in found)
    for n, (_, text) in enumerate(parts):
        assert f"n{n} " in held
        assert all(line.strip("\\ ") in held for line in text.split("\n"))
