from __future__ import annotations

from datetime import timedelta

import pytest

from intern.core.captures import CapturedPair
from intern.core.ids import SourceId
from intern.core.knowledge import IndexEntry
from intern.core.text.topic_names import make_topic_name
from intern.facts.prompts import EXTRACT
from intern.learning.offline_rules import RULES, classify, integrate
from intern.learning.prompts import (
    CLASSIFY,
    INTEGRATE,
    SPLIT_TOPIC,
    SUMMARIZE_IMAGES,
    ClassifyIn,
    ClassifyOut,
    IntegrateIn,
    IntegrateOut,
    build_block,
    render_block,
    render_blocks,
    render_index,
)
from intern.stores.qa_ids import make_qa_id
from tests.worlds.team import NOON, capture


def pair(question: str, answer: str, *, day: int = 0) -> CapturedPair:
    at = NOON + timedelta(days=day)
    told = capture(question, answer, answered_at=at)
    return CapturedPair(
        qa_id=make_qa_id(at),
        timestamp=at,
        conversation_id=told.conversation_id,
        turns=told.turns,
        message_ids=told.message_ids,
        answered_at=at,
    )


def classified(question: str, answer: str, **index: str) -> ClassifyOut:
    entries = [IndexEntry(SourceId(f"team:{name.replace('_', '-')}.txt"), text) for name, text in index.items()]
    text = render_index(entries, question, 4000)
    return classify(ClassifyIn(index=text, pair=render_block(build_block(pair(question, answer)), 6000)))


def integrated(new: CapturedPair, *old: CapturedPair) -> IntegrateOut:
    blocks = render_blocks([build_block(each) for each in old], "", 4000)
    return integrate(IntegrateIn(topic="t", blocks=blocks, pair=render_block(build_block(new), 6000)))


def test_what_was_masked_names_no_topic() -> None:
    asked = "[file latest.log: [masked ip_address] refused [masked user_name], [masked email]: spool is full]"
    assert "masked" not in classified(asked, "Drain it.").topic_name


@pytest.mark.parametrize(
    ("question", "answer"),
    [("hello", "hi there"), ("Good morning everyone!", "morning :)"), ("", "?"), ("thanks!", "you're welcome")],
)
def test_greetings_and_empty_talk_are_skipped(question: str, answer: str) -> None:
    assert classified(question, answer).skip


@pytest.mark.parametrize(
    ("question", "answer"),
    [
        ("Which port?", "7480"),
        ("it doesn't work", "restart the daemon"),
        ("Как установить ноду?", "Запустите контейнер."),
        ("如何启动节点?", "运行容器。"),
        ("[image: error.png]", "Your disk is full."),
    ],
)
def test_short_and_foreign_pairs_are_kept_under_a_name_that_can_be_a_file(question: str, answer: str) -> None:
    out = classified(question, answer)
    assert not out.skip
    assert make_topic_name(out.topic_name) == out.topic_name
    assert classified(question, answer) == out


def test_a_question_joins_the_topic_that_holds_its_words_and_opens_one_otherwise() -> None:
    index = {
        "gpu_detection": "Questions about a GPU that is not detected by the node, NVIDIA drivers.",
        "fees": "Fees.",
    }
    assert make_topic_name(classified("Why is my GPU not detected?", "Update the driver.", **index).topic_name) == (
        "gpu-detection"
    )
    assert classified("How do I back up my wallet?", "Copy the key.", **index).topic_name == "back-wallet"


def test_one_common_word_does_not_gather_everything_under_one_topic() -> None:
    assert classified("install?", "apt install x", installing="How do I install the relay?").topic_name == "install"


def test_the_same_question_with_the_same_answer_is_covered_already() -> None:
    old = pair("How do I start a Crynux node on Windows?", "Run the Docker container with port 7412 open.")
    new = pair("how do i start a crynux node on windows", "Run the docker container, with port 7412 open!", day=1)
    assert integrated(new, old) == IntegrateOut(skip=True, remove_ids=())


def test_a_newer_answer_to_the_same_question_removes_the_older_and_never_the_other_way_round() -> None:
    old = pair("What is the withdrawal fee on the relay account?", "It is 1%.")
    new = pair("What's the withdrawal fee on the relay account now?", "Since May it is 2%.", day=9)
    assert integrated(new, old) == IntegrateOut(skip=False, remove_ids=(old.qa_id,))
    assert integrated(old, new) == IntegrateOut(skip=False, remove_ids=())


def test_other_questions_and_vague_questions_remove_nothing() -> None:
    fee = pair("What is the withdrawal fee on the relay account?", "It is 1%.")
    deposit = pair("What is the deposit fee on the Portal?", "There is none.", day=1)
    assert integrated(deposit, fee) == IntegrateOut(skip=False, remove_ids=())
    vague, again = pair("does it work now?", "Restart it."), pair("does it work now?", "Update first.", day=1)
    assert integrated(again, vague) == IntegrateOut(skip=False, remove_ids=())


def test_there_is_a_rule_for_each_prompt() -> None:
    assert set(RULES) == {CLASSIFY.name, EXTRACT.name, INTEGRATE.name, SPLIT_TOPIC.name, SUMMARIZE_IMAGES.name}
