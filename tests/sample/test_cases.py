"""The sixty cases are sound, as far as code can tell."""

from __future__ import annotations

from collections import Counter

import pytest

from intern.core.text.words import stem_set
from tests.sample.cases import (
    ANSWERABLE,
    CASES,
    CHATTER,
    NOT_COVERED,
    SAMPLE,
    Case,
    is_right,
    plain,
    source_text,
)

PROMPTS = SAMPLE.parent / "prompts"
EACH_ANSWERABLE = pytest.mark.parametrize("case", ANSWERABLE, ids=lambda case: case.name)


def test_there_are_sixty_cases_of_three_kinds_and_each_has_its_own_name() -> None:
    assert Counter(case.kind for case in CASES) == {"answerable": 30, "not covered": 15, "chatter": 15}
    assert len({case.name for case in CASES}) == len({plain(case.text) for case in CASES}) == 60


def test_every_document_answers_at_least_two_of_them() -> None:
    answering = Counter(source for case in ANSWERABLE for source in case.sources)
    assert {*answering} == {f"kb:{file.relative_to(SAMPLE).as_posix()}" for file in SAMPLE.rglob("*.md")}
    assert min(answering.values()) >= 2


@EACH_ANSWERABLE
def test_each_right_source_holds_what_a_right_answer_must_hold(case: Case) -> None:
    assert case.sources
    assert case.holds
    assert [source for source in case.sources if not is_right(case, source_text(source))] == []


@EACH_ANSWERABLE
def test_the_question_said_again_is_no_answer(case: Case) -> None:
    assert not is_right(case, case.text)


@EACH_ANSWERABLE
def test_the_question_uses_other_words_than_its_source(case: Case) -> None:
    asked = stem_set(case.text)
    for source in case.sources:
        assert len(asked & stem_set(source_text(source))) <= len(asked) * 2 / 3


@pytest.mark.parametrize("case", [*NOT_COVERED, *CHATTER], ids=lambda case: case.name)
def test_whatever_is_said_to_a_message_without_an_answer_is_wrong(case: Case) -> None:
    assert not any(is_right(case, file.read_text()) for file in SAMPLE.rglob("*.md"))
    assert (case.sources, case.holds) == ((), ())


@pytest.mark.parametrize("case", NOT_COVERED, ids=lambda case: case.name)
def test_no_document_holds_what_an_answer_to_an_uncovered_question_would_need(case: Case) -> None:
    documents = [plain(file.read_text()) for file in SAMPLE.rglob("*.md")]
    assert case.telling
    assert [word for word in case.telling if any(word in text for text in documents)] == []


def test_no_case_is_an_example_of_a_prompt() -> None:
    templates = [plain(file.read_text()) for file in PROMPTS.rglob("*.j2")]
    assert [case.name for case in CASES if any(plain(case.text) in text for text in templates)] == []
