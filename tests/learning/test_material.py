from __future__ import annotations

from datetime import UTC, datetime

from hypothesis import given, strategies as st

from intern.domain import ConversationId, QAId, TopicBlock, Turn
from intern.knowledge.blocks import parse_blocks
from intern.learning.material import block_material, blocks_material, question_of

_TURNS = st.lists(
    st.builds(Turn, st.sampled_from(["User", "Team"]), st.text(st.characters(codec="utf-8"), max_size=400)),
    min_size=1,
    max_size=30,
).map(tuple)


def block(*turns: Turn, n: int = 0) -> TopicBlock:
    return TopicBlock(
        qa_id=QAId(f"qa_20260201_0310{n:02}"),
        timestamp=datetime(2026, 2, 1, 3, 10, n, tzinfo=UTC),
        turns=turns,
        conversation_id=ConversationId("thread_1"),
    )


@given(_TURNS, st.integers(600, 2000))
def test_a_block_keeps_its_bound_its_id_and_its_structure(turns: tuple[Turn, ...], max_chars: int) -> None:
    material = block_material(block(*turns), max_chars)
    assert len(material) <= max_chars
    [shown] = parse_blocks(f"{material}\n\n".encode(), file="x").blocks
    assert shown.qa_id == block(*turns).qa_id
    assert shown.turns[0].speaker == turns[0].speaker
    assert shown.turns[-1].speaker == turns[-1].speaker


@given(st.lists(_TURNS, min_size=1, max_size=9), st.integers(1800, 6000))
def test_blocks_keep_their_bound(all_turns: list[tuple[Turn, ...]], max_chars: int) -> None:
    blocks = [block(*turns, n=n) for n, turns in enumerate(all_turns)]
    material = blocks_material(blocks, "anything", max_chars)
    assert len(material) <= max_chars
    assert parse_blocks(f"{material}\n\n".encode(), file="x").warnings == ()


def test_a_long_answer_gives_way_before_a_short_question_does() -> None:
    material = block_material(block(Turn("User", "Which port?"), Turn("Team", "It depends. " * 500)), 800)
    assert "User: Which port?\n" in material
    assert material.endswith("…")
    assert len(material) > 700


def test_the_question_is_what_users_said_before_the_team() -> None:
    asked, added, told, more = Turn("User", "a"), Turn("User", "b"), Turn("Team", "c"), Turn("User", "d")
    assert question_of([asked, added, told, more]) == "a\nb"
    assert question_of([told, asked, added]) == "a\nb"
    assert question_of([told]) == ""
