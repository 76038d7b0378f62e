from __future__ import annotations

from cProfile import Profile
from datetime import UTC, datetime

from hypothesis import given, strategies as st

from intern.core.captures import TopicBlock, Turn, extract_question
from intern.core.ids import ConversationId, QAId, SourceId
from intern.core.knowledge import IndexEntry
from intern.core.text.words import WordRarity, stem_set
from intern.learning.prompts import render_block, render_blocks, render_index
from intern.stores.block_format import parse_topic_file
from intern.stores.source_cache import format_index

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
    material = render_block(block(*turns), max_chars)
    assert len(material) <= max_chars
    [shown] = parse_topic_file(f"{material}\n\n".encode(), file="x").blocks
    assert shown.qa_id == block(*turns).qa_id
    assert shown.turns[0].speaker == turns[0].speaker
    assert shown.turns[-1].speaker == turns[-1].speaker


@given(st.lists(_TURNS, min_size=1, max_size=9), st.integers(1800, 6000))
def test_blocks_keep_their_bound(all_turns: list[tuple[Turn, ...]], max_chars: int) -> None:
    blocks = [block(*turns, n=n) for n, turns in enumerate(all_turns)]
    material = render_blocks(blocks, "anything", max_chars)
    assert len(material) <= max_chars
    assert parse_topic_file(f"{material}\n\n".encode(), file="x").warnings == ()


_SAID = st.lists(
    st.sampled_from(["spool", "purge", "token", "rotate", "agent", "relay", "quota", "tenant"]), max_size=6
).map(" ".join)
_LISTED = st.dictionaries(st.sampled_from([f"team:topic-{n}.txt" for n in range(12)]), _SAID, min_size=1).map(
    lambda each: [IndexEntry(SourceId(name), said) for name, said in each.items()]
)


@given(st.lists(st.tuples(_LISTED, _SAID, st.booleans()), min_size=1, max_size=5), st.integers(20, 300))
def test_an_index_is_shown_as_if_it_were_seen_for_the_first_time(
    looks: list[tuple[list[IndexEntry], str, bool]], max_chars: int
) -> None:
    entries: list[IndexEntry] = []
    for listed, query, continues in looks:
        known = {entry.source_id for entry in entries}
        entries = [*entries, *(each for each in listed if each.source_id not in known)] if continues else listed
        assert render_index(entries, query, max_chars) == _shown(entries, query, max_chars)


def _shown(entries: list[IndexEntry], query: str, max_chars: int) -> str:
    """Return all that fit, the best first, by the definition."""
    held = {entry.source_id: stem_set(f"{entry.source_id}\n{entry.description}") for entry in entries}
    rarity = WordRarity(held.values())
    sizes = {entry.source_id: len(f"{entry.source_id}{entry.description}") + 3 for entry in entries}
    if sum(sizes.values()) <= max_chars:
        return format_index(entries).rstrip("\n")

    def score(entry: IndexEntry) -> float:
        return sum(rarity.weight(word) for word in sorted(stem_set(query) & held[entry.source_id]))

    kept, left = list[IndexEntry](), max_chars
    for entry in sorted(entries, key=lambda entry: (-score(entry), entry.source_id)):
        if sizes[entry.source_id] <= left or not kept:
            kept.append(entry)
            left -= sizes[entry.source_id]
    return format_index(kept).rstrip("\n")


def calls_for(topics: int) -> int:
    """Count the functions that run to show an index of so many topics; one of them is new."""
    told = [f"spool{n % (topics // 8)} relay{n}" for n in range(topics)]
    entries = [IndexEntry(SourceId(f"team:topic-{n:05}.txt"), each) for n, each in enumerate(told)]
    render_index(entries[1:], "which relay3 has a spool?", 1800)
    profile = Profile()
    profile.runcall(render_index, entries, "which relay3 has spool5?", 1800)
    return sum(each.callcount for each in profile.getstats())


# Finding G6.
def test_an_index_of_many_topics_costs_hardly_more_to_show_than_one_of_few() -> None:
    assert calls_for(4000) < 1.2 * calls_for(400)


def test_a_long_answer_gives_way_before_a_short_question_does() -> None:
    material = render_block(block(Turn("User", "Which port?"), Turn("Team", "It depends. " * 500)), 800)
    assert "User: Which port?\n" in material
    assert material.endswith("…")
    assert len(material) > 700


def test_the_question_is_what_users_said_before_the_team() -> None:
    asked, added, told, more = Turn("User", "a"), Turn("User", "b"), Turn("Team", "c"), Turn("User", "d")
    assert extract_question([asked, added, told, more]) == "a\nb"
    assert extract_question([told, asked, added]) == "a\nb"
    assert extract_question([told]) == ""
