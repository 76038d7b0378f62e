"""Questions in a file: asked of the application, judged by the file's expectations, compared with an older run."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import anyio
import msgspec
import pytest
from hypothesis import given, strategies as st

from intern.core.errors import ConfigError
from intern.core.ids import SourceId
from intern.core.knowledge import IndexEntry
from intern.core.messages import LOOKUP_FAILURES, AnswerResult, Citation, Conversation, RequestContext, SilenceReason
from intern.lab.evaluation import (
    VERDICTS,
    Evaluation,
    EvaluationOutcome,
    EvaluationQuestion,
    Verdict,
    ask_questions,
    compare_outcomes,
    find_change,
    find_unknown_sources,
    find_verdict,
    judge_result,
    read_evaluation,
    read_questions,
    sum_outcomes,
)
from tests.worlds.actors import finishing

TLS = EvaluationQuestion(
    id="tls", question="How do I renew the certificate?", expected_sources=("kb:tls.md",), should_reply=True
)


def answered(*sources: str, **debug: Any) -> AnswerResult:
    citations = tuple(Citation(source_id=SourceId(each), title="") for each in sources)
    return AnswerResult(should_reply=True, reply_text="Like this.", citations=citations, debug=debug)


def silent(reason: SilenceReason = "no_sources", **debug: Any) -> AnswerResult:
    return AnswerResult(should_reply=False, reason=reason, debug=debug)


def asked(*expected: str, should_reply: bool | None = None) -> EvaluationQuestion:
    return EvaluationQuestion(id="1", question="Why?", expected_sources=expected, should_reply=should_reply)


# The verdict.

TEAM = "team:tls.txt#qa_20260201_031056.228000"


@pytest.mark.parametrize(
    ("question", "result", "verdict"),
    [
        (asked("kb:tls.md", should_reply=True), answered("kb:tls.md"), "right_source"),
        (asked("kb:guides/", should_reply=True), answered("kb:a.md", "kb:guides/tls.md"), "right_source"),
        (asked("kb:no.md", "team:tls.txt", should_reply=True), answered(TEAM), "right_source"),
        (asked("kb:tls.md", should_reply=True), answered("kb:a.md"), "wrong_source"),
        (asked("kb:tls.md", should_reply=True), answered(), "wrong_source"),
        (asked("kb:tls.md", should_reply=True), silent(), "silent_wrong"),
        (asked(should_reply=True), answered("kb:a.md"), "answered"),
        (asked(should_reply=True), silent("rejected"), "silent_wrong"),
        (asked(should_reply=False), answered("kb:a.md"), "unwanted"),
        (asked(should_reply=False), silent(), "silent_right"),
        (asked(), answered("kb:a.md"), "answered"),
        (asked(), silent(), "silent"),
        *((asked(should_reply=False), silent(reason), "could_not_look") for reason in sorted(LOOKUP_FAILURES)),
    ],
)
def test_an_answer_is_judged_by_what_was_expected(
    question: EvaluationQuestion, result: AnswerResult, verdict: Verdict
) -> None:
    assert find_verdict(question, result) == verdict


def test_an_outcome_says_what_it_cost_and_what_was_read() -> None:
    result = answered(
        "kb:tls.md",
        gate={"prompt": "gate", "tokens": 100, "seconds": 0.2},
        selection={"prompt": "select", "tokens": 300, "source_ids": ["kb:tls.md", "kb:a.md"]},
        loading={"seconds": 0.1},
        generation={"prompt": "answer", "tokens": 200, "cached_tokens": 128},
        verification={"prompt": "verify", "tokens": 50},
        seconds=1.23456,
    )
    outcome = judge_result(TLS, result)
    assert outcome.tokens_by_prompt == {"gate": 100, "select": 300, "answer": 200, "verify": 50}
    assert (outcome.tokens, outcome.cached_tokens, outcome.seconds) == (650, 128, 1.235)
    assert sum_outcomes([outcome, outcome]).cached_tokens == 256
    assert (outcome.citations, outcome.selected) == (("kb:tls.md",), ("kb:tls.md", "kb:a.md"))
    assert (outcome.reply_text, outcome.expected_sources, outcome.error) == ("Like this.", ("kb:tls.md",), "")


def test_who_could_not_look_says_why_and_without_a_trace_nothing_is_made_up() -> None:
    outcome = judge_result(TLS, silent("model_unavailable", error="nobody is there"))
    assert (outcome.verdict, outcome.reason, outcome.error) == (
        "could_not_look",
        "model_unavailable",
        "nobody is there",
    )
    bare = judge_result(TLS, AnswerResult(should_reply=False, reason="no_sources"))
    assert (bare.tokens, bare.seconds, bare.selected) == (0, 0.0, ())


def test_totals_count_verdicts_tokens_and_seconds() -> None:
    totals = sum_outcomes(
        [
            EvaluationOutcome(
                id="1", question="", verdict="right_source", seconds=1, tokens=30, tokens_by_prompt={"gate": 30}
            ),
            EvaluationOutcome(
                id="2",
                question="",
                verdict="right_source",
                seconds=5,
                tokens=12,
                tokens_by_prompt={"gate": 2, "verify": 10},
            ),
            EvaluationOutcome(id="3", question="", verdict="silent", seconds=2),
        ]
    )
    assert totals.verdicts == {"right_source": 2, "silent": 1}
    assert (totals.tokens, totals.tokens_by_prompt) == (42, {"gate": 32, "verify": 10})
    assert (totals.seconds, totals.median_seconds, totals.longest_seconds) == (8, 2, 5)
    assert sum_outcomes([]).questions == 0


# The file.


def file_of(folder: Path, *lines: str) -> Path:
    file = folder / "questions.jsonl"
    file.write_text("\n".join(lines), encoding="utf-8")
    return file


def test_a_line_is_a_question_with_what_is_expected(tmp_path: Path) -> None:
    file = file_of(
        tmp_path,
        '\ufeff{"question": "Why?"}\r',
        "",
        '{"question": "How?", "expected_sources": ["kb:a.md", "team:"], "id": 7}',
        '{"question": "Hello", "should_reply": false, "id": "greeting"}',
        '{"question": "Where?", "expected_sources": null, "should_reply": null, "id": null}',
    )
    assert read_questions(file) == (
        EvaluationQuestion(id="Why?", question="Why?"),
        EvaluationQuestion(id="7", question="How?", expected_sources=("kb:a.md", "team:"), should_reply=True),
        EvaluationQuestion(id="greeting", question="Hello", should_reply=False),
        EvaluationQuestion(id="Where?", question="Where?"),
    )


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{", "this is no JSON: "),
        ("[]", "expected `object`, got `array`"),
        ("{}", "missing required field `question`"),
        ('{"question": " "}', "the question is empty"),
        ('{"question": 1}', "expected `str`, got `int` at `question`"),
        ('{"question": "?", "expected_source": []}', "unknown field `expected_source`"),
        ('{"question": "?", "expected_sources": "kb:a.md"}', "expected `array | null`, got `str`"),
        ('{"question": "?", "expected_sources": ["docs/a.md"]}', "'docs/a.md' is no source id"),
        ('{"question": "?", "expected_sources": [""]}', "'' is no source id"),
        ('{"question": "?", "expected_sources": ["kb:a.md"], "should_reply": false}', "silence"),
        ('{"question": "Why?"}', "the same id or question as in line 1"),
    ],
)
def test_a_bad_line_is_named_by_file_and_line(tmp_path: Path, line: str, said: str) -> None:
    file = file_of(tmp_path, '{"question": "Why?"}', "", line)
    with pytest.raises(ConfigError) as error:
        read_questions(file)
    assert str(error.value).startswith(f"{file}, line 3: ")
    assert said in str(error.value)
    assert "\n" not in str(error.value)


def test_several_bad_lines_are_told_at_once_but_not_hundreds(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as error:
        read_questions(file_of(tmp_path, *["{"] * 100))
    told = str(error.value).splitlines()
    assert len(told) == 11
    assert told[-1] == "and 90 lines more"


def test_a_file_without_questions_or_that_cannot_be_read_says_so(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="holds no questions; expected lines like"):
        read_questions(file_of(tmp_path, "", ""))
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    for file in (tmp_path / "binary", tmp_path, tmp_path / "nowhere"):
        with pytest.raises(ConfigError, match="cannot be read"):
            read_questions(file)


def test_a_line_that_is_no_text_is_named(tmp_path: Path) -> None:
    file = tmp_path / "questions.jsonl"
    file.write_bytes('{"question": "Wozu?"}\r\n\n{"question": "W\xfcrde es?"}\n'.encode("latin-1"))
    with pytest.raises(ConfigError) as error:
        read_questions(file)
    assert str(error.value).startswith(f"{file}, line 3: this is no UTF-8")


@given(st.lists(st.text(alphabet=st.characters(codec="utf-8"), min_size=1).filter(str.strip), min_size=1, unique=True))
def test_whatever_is_asked_is_read_as_it_was_written(questions: list[str]) -> None:
    with TemporaryDirectory() as folder:
        lines = [msgspec.json.encode({"question": question}).decode() for question in questions]
        assert [each.question for each in read_questions(file_of(Path(folder), *lines))] == questions


def test_expected_sources_that_no_index_lists_are_found() -> None:
    entries = [IndexEntry(SourceId("kb:guides/tls.md"), ""), IndexEntry(SourceId("team:tls.txt"), "")]
    questions = [asked("kb:guides/", "kb:gudies/tls.md"), asked("team:tls.txt#qa_1", "team:tsl.txt", "kb:")]
    assert find_unknown_sources(questions, entries) == ("kb:gudies/tls.md", "team:tsl.txt")


# Asking.


class Desk:
    """An answerer whose answers wait until they are released; it counts the waiting ones."""

    def __init__(self, *, held: bool = False) -> None:
        self.open = anyio.Event()
        self.asked: list[str] = []
        self.contexts: list[RequestContext | None] = []
        self.most = self._now = 0
        if not held:
            self.open.set()

    async def answer(self, conversation: Conversation, context: RequestContext | None = None) -> AnswerResult:
        text = conversation.messages[-1].text
        self.asked.append(text)
        self.contexts.append(context)
        self._now += 1
        self.most = max(self.most, self._now)
        await self.open.wait()
        self._now -= 1
        return silent() if "silent" in text else answered("kb:tls.md")


def many(number: int) -> list[EvaluationQuestion]:
    return [EvaluationQuestion(id=str(n), question=f"Question {n}{' silent' * (n % 2)}?") for n in range(number)]


async def test_all_are_asked_and_come_back_in_their_order() -> None:
    told: list[str] = []
    outcomes = await ask_questions(Desk().answer, many(7), concurrency=3, tell=lambda outcome: told.append(outcome.id))
    assert [outcome.id for outcome in outcomes] == [str(n) for n in range(7)]
    assert [outcome.verdict for outcome in outcomes] == ["answered", "silent"] * 3 + ["answered"]
    assert sorted(told) == [str(n) for n in range(7)]


@pytest.mark.parametrize(("concurrency", "most"), [(1, 1), (3, 3), (50, 7)])
async def test_no_more_are_asked_at_a_time_than_was_said(concurrency: int, most: int) -> None:
    desk = Desk(held=True)
    async with finishing(lambda: ask_questions(desk.answer, many(7), concurrency=concurrency)):
        await anyio.wait_all_tasks_blocked()
        assert len(desk.asked) == most
        desk.open.set()
    assert desk.most == most
    assert {context.platform for context in desk.contexts if context} == {"eval"}


# Comparing.


def outcome(verdict: Verdict, name: str = "1", *, reason: SilenceReason = "", cites: str = "") -> EvaluationOutcome:
    return EvaluationOutcome(id=name, question="?", verdict=verdict, reason=reason, citations=(cites,) if cites else ())


@pytest.mark.parametrize(
    ("before", "after", "way"),
    [
        (outcome("right_source"), outcome("silent_wrong"), "worse"),
        (outcome("right_source"), outcome("wrong_source"), "worse"),
        (outcome("silent_right"), outcome("unwanted"), "worse"),
        (outcome("right_source"), outcome("could_not_look"), "worse"),
        (outcome("wrong_source"), outcome("right_source"), "better"),
        (outcome("answered"), outcome("silent_wrong"), "worse"),
        (outcome("answered"), outcome("silent"), "other"),
        (outcome("silent_wrong", reason="no_sources"), outcome("silent_wrong", reason="rejected"), "other"),
        (outcome("answered", cites="kb:a.md"), outcome("answered", cites="kb:b.md"), "other"),
    ],
)
def test_a_change_is_for_better_or_for_worse(before: EvaluationOutcome, after: EvaluationOutcome, way: str) -> None:
    change = find_change(before, after)
    assert change is not None
    assert change.way == way


def test_what_went_the_same_is_no_change_whatever_it_cost() -> None:
    assert find_change(outcome("silent"), msgspec.structs.replace(outcome("silent"), tokens=5, seconds=9)) is None


@given(st.sampled_from(sorted(VERDICTS)), st.sampled_from(sorted(VERDICTS)))
def test_the_way_back_from_better_is_worse(one: Verdict, other: Verdict) -> None:
    there, back = find_change(outcome(one), outcome(other)), find_change(outcome(other), outcome(one))
    ways = {(change.way if change else "same") for change in (there, back)}
    assert ways in ({"better", "worse"}, {"other"}, {"same"})


def test_a_comparison_tells_worse_ones_first_and_sums_what_both_asked() -> None:
    before = [outcome("silent_wrong", "a"), outcome("right_source", "b"), outcome("silent", "gone")]
    after = [outcome("right_source", "a"), outcome("wrong_source", "b"), outcome("silent", "new")]
    comparison = compare_outcomes(before, after)
    assert [(change.id, change.way) for change in comparison.changes] == [("b", "worse"), ("a", "better")]
    assert (comparison.added, comparison.missing) == (("new",), ("gone",))
    assert comparison.totals.verdicts == {"right_source": 1, "silent_wrong": 1}
    assert comparison.totals_now.verdicts == {"right_source": 1, "wrong_source": 1}
    assert compare_outcomes(after, after).changes == ()


def test_an_evaluation_is_read_back_as_it_was_written(tmp_path: Path) -> None:
    outcomes = (outcome("right_source", cites="kb:a.md"),)
    at = datetime(2026, 2, 1, tzinfo=UTC)
    done = Evaluation(at=at, model="offline", outcomes=outcomes, totals=sum_outcomes(outcomes))
    done = msgspec.structs.replace(done, comparison=compare_outcomes(outcomes, ()))
    (tmp_path / "old.json").write_bytes(msgspec.json.encode(done) + b"\n")
    assert read_evaluation(tmp_path / "old.json") == done


@pytest.mark.parametrize("text", ["", "{}", "[1]", '{"outcomes": 1}'])
def test_what_is_no_evaluation_is_told_so(tmp_path: Path, text: str) -> None:
    (tmp_path / "old.json").write_text(text)
    with pytest.raises(ConfigError, match=r"old\.json is not what `intern eval --json` writes"):
        read_evaluation(tmp_path / "old.json")
