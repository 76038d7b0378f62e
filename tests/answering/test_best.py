"""If the index is too long, the texts of the sources decide which entries a model sees."""

from __future__ import annotations

import pytest
from anyio import fail_after

from intern.answering.answerer import Answerer
from intern.answering.prompts import ANSWER, GATE, SELECT, VERIFY, AnsweringOptions, GateDecision, Selection
from intern.answering.source_index import build_source_index
from intern.core.ids import SourceId
from intern.core.knowledge import IndexEntry
from intern.core.messages import Conversation, Message, RequestContext
from tests.answering.shelf import Shelf
from tests.worlds.model import ScriptedModel

pytestmark = pytest.mark.anyio

ENTRIES = [IndexEntry(SourceId(f"kb:{n}.md"), f"part {n} about nothing much") for n in range(500)]


async def shown_to_the_model(shelf: Shelf, max_index_chars: int = 12_000) -> list[str]:
    model = ScriptedModel()
    model.always(GATE, GateDecision(kind="question"))
    model.always(SELECT, Selection(selected_source_ids=()))
    answerer = Answerer(model, shelf, AnsweringOptions(steps="separate", max_index_chars=max_index_chars))
    with fail_after(5):
        await answerer.answer(
            Conversation((Message(role="user", text="How do I purge it?"),)), RequestContext(platform="test")
        )
    assert not model.calls(ANSWER)
    assert not model.calls(VERIFY)
    [given] = model.calls(SELECT)
    return [str(entry.source_id) for entry in given.entries]


async def test_an_index_that_fits_is_shown_without_a_search() -> None:
    shelf = Shelf({"kb:a.md": "A", "kb:b.md": "B"})
    assert await shown_to_the_model(shelf) == ["kb:a.md", "kb:b.md"]
    assert shelf.ranked == []


async def test_a_long_index_is_cut_to_what_the_search_finds_in_the_texts() -> None:
    shelf = Shelf({f"kb:{n}.md": f"Part {n}" for n in range(100)})
    shelf.order = [SourceId("kb:77.md"), SourceId("kb:gone.md"), SourceId("kb:5.md")]
    shown = await shown_to_the_model(shelf, max_index_chars=60)
    assert {"kb:77.md", "kb:5.md"} <= set(shown)
    assert "kb:gone.md" not in shown
    assert shelf.ranked == ["How do I purge it?"]


async def test_a_search_that_cannot_look_leaves_the_descriptions() -> None:
    shelf = Shelf({f"kb:{n}.md": f"Part {n}" for n in range(100)} | {"kb:purge.md": "How to purge"})
    assert "kb:purge.md" in await shown_to_the_model(shelf, max_index_chars=60)


def test_the_search_in_the_texts_decides_the_order_and_descriptions_what_comes_after() -> None:
    keys = IndexEntry(SourceId("kb:keys.md"), "how signing keys are rotated")
    entries = (*ENTRIES, keys, IndexEntry(SourceId("kb:key.md"), "a key"))
    order = [SourceId("kb:3.md"), SourceId("kb:7.md"), keys.source_id, SourceId("kb:gone.md")]
    index = build_source_index(entries)
    ranked = [index.entries[n].source_id for n in index.rank_entries("rotate a key", order)]
    assert ranked[:4] == ["kb:3.md", "kb:7.md", "kb:keys.md", "kb:key.md"]
    assert sorted(ranked) == sorted(entry.source_id for entry in entries)
    shown = {entry.source_id for entry in build_source_index(tuple(entries)).select_entries("rotate a key", 80, order)}
    assert shown == {"kb:3.md", "kb:7.md"}
