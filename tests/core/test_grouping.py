"""Questions that ask the same are found by their words."""

from __future__ import annotations

from hypothesis import given, strategies as st

from intern.core.text.similarity import group_similar_texts

ASKED = [
    "How do I start a node?",
    "Is there a dark mode?",
    "how to start the node twice",
    "How do I stop a node",
    "Where is the config file?",
    "the config file where??",
    "where's the config file",
]


def test_questions_that_ask_the_same_are_one_group_and_the_largest_comes_first() -> None:
    assert group_similar_texts(ASKED) == [[4, 5, 6], [0, 2], [1], [3]]


def test_what_has_no_words_stands_with_what_reads_the_same() -> None:
    assert group_similar_texts(["???", "?", " ??? ", "how?", "node"]) == [[0, 2], [1], [3], [4]]


def test_scripts_without_spaces_are_grouped_too() -> None:
    assert group_similar_texts(["如何启动节点", "如何启动节点呢", "证书在哪里"]) == [[0, 1], [2]]


texts = st.lists(st.sampled_from([*ASKED, "", "?", "relay " * 90]) | st.text(max_size=30), max_size=30)


@given(texts)
def test_every_text_is_in_exactly_one_group(asked: list[str]) -> None:
    groups = group_similar_texts(asked)
    assert sorted(place for group in groups for place in group) == list(range(len(asked)))
    assert [len(group) for group in groups] == sorted(map(len, groups), reverse=True)
    assert all(group == sorted(group) for group in groups)


@given(texts.filter(bool))
def test_a_text_that_comes_again_joins_its_own_group(asked: list[str]) -> None:
    again = [*asked, asked[0]]
    (group,) = [group for group in group_similar_texts(again) if 0 in group]
    assert len(asked) in group
