"""Chatter is distinguished from questions without a model, and a possible question never counts as chatter."""

from __future__ import annotations

import pytest

from intern.answering.triage import WORTH_A_CALL, has_question_sign, is_chatter, score_message
from intern.core.ids import SourceId
from intern.core.search_documents import PassageHit
from tests.sample.cases import CASES


@pytest.mark.parametrize(
    "said",
    [
        "thanks!",
        "ah brilliant, thank you so much, all green again",
        "Danke dir, hat geklappt!",
        "merci beaucoup",
        "спасибо, всё работает",
        "谢谢",
        "ありがとうございます！",
        "👍 !!",
        "good morning everyone",
        "lol",
        "it works now",
    ],
)
def test_thanks_and_greetings_are_chatter(said: str) -> None:
    assert is_chatter(said)


@pytest.mark.parametrize(
    "said",
    [
        "",
        "thanks in advance, the relay says 403",
        "thanks, but now it says permission denied",
        "hi, moving a relay to another host",
        "thank you! where is that documented?",
        "Danke, aber jetzt geht es nicht mehr",
        "gracias, pero no funciona",
        "it works now on one host, the other one shows an error",
        "спасибо, но не работает",
        "спасибо, а можно на windows",
        "ok?",
        "ok？",
        "Thanks. Is there a way to export to CSV",
        "cheers, can I do the same on windows",
        "danke, kann man das auch per API",
        "merci, est-ce possible sur windows",
        "gracias, se puede en windows",
        "obrigado, dá para usar no windows",
        "grazie, si può fare su windows",
        "bedankt, kan dat ook op windows",
        "Dziękuję, ale nadal nie działa",
        "kiitos, mutta ei toimi",
        "teşekkürler ama hala çalışmıyor",
        "谢谢，但是还是不行",
        "ありがとう、でもまだ動きません",
        "감사합니다 근데 안 돼요",
    ],
)
def test_what_may_be_a_question_is_not(said: str) -> None:
    assert not is_chatter(said)


def test_no_question_of_the_sixty_cases_is_chatter() -> None:
    assert [case.name for case in CASES if case.kind != "chatter" and is_chatter(case.text)] == []


PASSAGES = (
    "Rotate the signing keys with `relay keys rotate`. Each agent takes the new one within a minute.",
    "The relay listens on port 7480. Another port is set in relay.toml.",
    "A backup holds the spool and the keys, but not the log of the relay.",
    "An agent that is gone for a week is forgotten by the relay.",
)


def is_worth_a_call(said: str, *, likeness: float | None = None, passages: tuple[str, ...] = PASSAGES) -> bool | None:
    hits = [
        PassageHit(source_id=SourceId(f"kb:{n}.md"), title="", text=text, score=1.0, likeness=likeness)
        for n, text in enumerate(passages)
    ]
    score = score_message(said, said, hits)
    return None if score is None else score >= WORTH_A_CALL


def test_a_question_that_the_sources_answer_in_other_words_is_worth_a_call() -> None:
    assert is_worth_a_call("can I make it use fresh secrets now and then", likeness=0.45)
    assert not is_worth_a_call("can I bring my dog to the office party", likeness=0.2)


def test_a_remark_must_be_nearer_to_what_is_known_than_a_question() -> None:
    assert is_worth_a_call("did anyone bring fresh secrets", likeness=0.4)
    assert not is_worth_a_call("somebody brought fresh secrets", likeness=0.4)


@pytest.mark.parametrize(
    "said", ["does the relay like pizza with pineapple and anchovies?", "my cat walked over the keyboard again"]
)
def test_without_vectors_it_takes_the_rare_words_of_a_message(said: str) -> None:
    assert is_worth_a_call("how do I rotate the keys?")
    assert not is_worth_a_call(said)


def test_a_word_is_not_taken_for_common_because_the_only_source_holds_it() -> None:
    assert is_worth_a_call("Which port does the relay listen on behind the proxy?", passages=("Set the relay port.",))


@pytest.mark.parametrize("said", ["Wie oft gibt es ein neues Release?", "¿Cómo cambio el puerto?", "如何更改端口？"])
def test_what_is_asked_in_another_language_is_for_a_model_to_judge(said: str) -> None:
    assert is_worth_a_call(said, likeness=0.0) is None


def test_cosines_that_nobody_measured_are_held_against_nothing() -> None:
    hit = PassageHit(source_id=SourceId("kb:1.md"), title="", text="Ports", score=1.0, likeness=0.01, is_measured=False)
    assert score_message("nice weather today", "nice weather today", [hit]) is None


@pytest.mark.parametrize(
    "said",
    ["is it down?", "the relay crashes at start", "<@17> thanks\nbut how do I start it", "<@&17> how do I start it"],
)
def test_a_question_has_a_sign(said: str) -> None:
    assert has_question_sign(said)


@pytest.mark.parametrize(
    "said", ["<@17> did you try to restart it?", "see https://relay.example/search?q=port", "we run three of them"]
)
def test_what_is_asked_of_a_member_and_an_address_have_none(said: str) -> None:
    assert not has_question_sign(said)


def test_one_of_several_parts_of_a_question_is_near_to_something_by_chance() -> None:
    hit, said = PassageHit(source_id=SourceId("kb:a.md"), text="the relay", likeness=0.5), "the weather " * 10
    several = score_message(f"{said}\n{said}", f"{said}\n{said}", [hit])
    single = score_message(f"{said} {said}", f"{said} {said}", [hit])
    assert several is not None
    assert single is not None
    assert several < single
