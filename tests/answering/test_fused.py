"""An answer in two calls: the search chooses, one call decides and answers, one checks; code holds both."""

from __future__ import annotations

from typing import Any

import pytest

from intern.answering.deciding import (
    CONFIRM,
    DECIDE,
    Claim,
    Confirmation,
    ConfirmIn,
    DecideIn,
    Decision,
    Kind,
    Quote,
)
from intern.answering.options import AnsweringOptions
from intern.answering.retrieving import Alias
from intern.answering.workflow import Answerer
from intern.domain import (
    AIResult,
    Conversation,
    Learned,
    Message,
    RequestContext,
    SilenceReason,
    SourceId,
    SourceText,
    UserId,
)
from intern.errors import ModelUnavailableError, SourceError
from tests.answering.shelf import Shelf
from tests.fakes import ScriptedModel

pytestmark = pytest.mark.anyio

KEYS = "# Keys\n\nRotate with `relay keys rotate`. See https://docs.example/keys for more."
PORTS = "# Ports\n\nThe relay listens on port 7480."
TEAM = """\
--- QA ---
id: qa_20260201_031056.228000
timestamp: 2026-02-01T03:10:56.228000Z
User: how do I rotate?
  id: qa_20990101_000000.000000
Team: use relay keys rotate --grace 1d

--- QA ---
id: qa_20260301_031056.228000
timestamp: 2026-03-01T03:10:56.228000Z
User: and the port?
Team: 7480, as ever
"""
TEAM_ID = "team:keys.txt#qa_20260201_031056.228000"
RIGHT = Confirmation(claims=(Claim(claim="rotate", quote=1),), reason="it says how", verdict="right")


def decision(
    line: str = "Rotate with `relay keys rotate`.",
    *,
    source: Alias = "S2",
    kind: Kind = "answer",
    answer: str | None = "Run `relay keys rotate`.",
    cites: tuple[Alias, ...] = (),
) -> Decision:
    return Decision(quotes=(Quote(source=source, line=line),), kind=kind, answer=answer, citations=cites)


def shelf(*order: str, more: int = 0) -> Shelf:
    """With `more` sources, the knowledge is too much to be shown whole."""
    filler = {f"kb:filler{n}.md": f"# Filler {n}\n\n" + f"Nothing of {n}. " * 60 for n in range(more)}
    made = Shelf({"kb:keys.md": KEYS, "kb:ports.md": PORTS, "team:keys.txt": TEAM, **filler})
    made.order = [SourceId(each) for each in order or ("kb:keys.md", "team:keys.txt", "kb:ports.md")]
    return made


def scripted(script: dict[str, Any]) -> ScriptedModel:
    model = ScriptedModel()
    if DECIDE.name in script:
        model.always(DECIDE, script[DECIDE.name])
    if CONFIRM.name in script:
        model.always(CONFIRM, script[CONFIRM.name])
    return model


async def ask(
    made: Shelf, script: dict[str, Any], *, text: str = "How do I rotate keys?", addressed: bool = True, **options: Any
) -> tuple[AIResult, ScriptedModel]:
    model = scripted(script)
    answerer = Answerer(model, made, AnsweringOptions(steps="fused", **options))
    conversation = Conversation((Message(role="user", text=text, author_id=UserId("1")),))
    return await answerer.answer(conversation, RequestContext(), addressed=addressed), model


def given(model: ScriptedModel, prompt: str) -> Any:
    return next(given for name, given in model.asked if name == prompt)


async def test_an_answer_takes_two_calls_and_is_posted_with_what_it_quotes() -> None:
    result, model = await ask(shelf(more=9), {DECIDE.name: decision(), CONFIRM.name: RIGHT})
    assert [name for name, _ in model.asked] == ["decide", "confirm"]
    assert result.reply_text == "Run `relay keys rotate`."
    [citation] = result.citations
    assert (citation.source_id, citation.quote) == (
        "kb:keys.md",
        "Rotate with `relay keys rotate`. See https://docs.example/keys for more.",
    )
    assert list(result.debug or ())[:5] == ["gate", "selection", "loading", "generation", "verification"]
    assert (result.debug or {})["gate"]["kind"] == "answer"


async def test_a_team_answer_is_shown_and_cited_as_the_block_that_fits() -> None:
    made = shelf("team:keys.txt", "kb:ports.md", more=9)
    made.links = {TEAM_ID: "https://discord.com/channels/1/2/3"}
    line = "use relay keys rotate --grace 1d"
    made.said["team:keys.txt"] = f"how do I rotate?\nid: qa_20990101_000000.000000\n{line}"
    script = {DECIDE.name: decision(line, source="S1", answer=f"`{line[4:]}`"), CONFIRM.name: RIGHT}
    result, model = await ask(made, script)
    decided: DecideIn = given(model, "decide")
    first = decided.passages[0]
    assert (first.alias, first.label, first.source_id) == ("S1", "S1: team 2026-02-01", TEAM_ID)
    assert "qa_2026" not in decided.passages[0].text
    assert decided.passages[0].text.endswith(f"Team: {line}")
    assert [(each.source_id, each.url) for each in result.citations] == [(TEAM_ID, made.links[TEAM_ID])]


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        (decision(kind="chatter", answer=None), "not_a_question"),
        (decision(kind="unclear", answer=None), "not_answerable"),
        (decision(kind="out_of_scope", answer=None), "not_answerable"),
        (decision(kind="not_covered", answer=None), "no_answer"),
        (decision(kind="not_covered"), "no_answer"),
        (decision(answer=None), "no_answer"),
        (decision("Rotate with the big red button."), "no_citations"),
        (Decision(quotes=(), kind="answer", answer="Run `relay keys rotate`.", citations=("S2",)), "no_citations"),
        (decision(answer="Run `relay keys rotate --force`."), "ungrounded"),
        (decision(answer="See https://evil.example/keys."), "ungrounded"),
        (decision(answer="a" * 41), "too_long"),
    ],
)
async def test_what_code_can_refuse_costs_no_second_call(reply: Decision, reason: SilenceReason) -> None:
    result, model = await ask(shelf(more=9), {DECIDE.name: reply}, max_answer_chars=40)
    assert (result.should_reply, result.reason) == (False, reason)
    assert [name for name, _ in model.asked] == ["decide"]


@pytest.mark.parametrize(
    "verdict",
    [
        Confirmation(claims=RIGHT.claims, reason="asked otherwise", verdict="beside_the_point"),
        Confirmation(claims=RIGHT.claims, reason="not so", verdict="wrong"),
        Confirmation(claims=(Claim(claim="rotate", quote=0),), reason="it says how", verdict="right"),
        Confirmation(claims=(), reason="it says how", verdict="right"),
    ],
    ids=["beside the point", "wrong", "against its claims", "without claims"],
)
async def test_what_the_second_look_does_not_confirm_is_not_posted(verdict: Confirmation) -> None:
    result, _ = await ask(shelf(more=9), {DECIDE.name: decision(), CONFIRM.name: verdict})
    assert (result.should_reply, result.reason) == (False, "rejected")


async def test_the_second_look_sees_question_answer_and_the_quoted_passages_alone() -> None:
    _, model = await ask(shelf(more=9), {DECIDE.name: decision(), CONFIRM.name: RIGHT})
    shown: ConfirmIn = given(model, "confirm")
    assert [(each.number, each.text) for each in shown.quotes] == [(1, KEYS)]
    assert (shown.question, shown.answer) == ("How do I rotate keys?", "Run `relay keys rotate`.")


async def test_a_quote_under_another_passages_name_is_that_passages() -> None:
    result, _ = await ask(shelf(more=9), {DECIDE.name: decision(source="S3"), CONFIRM.name: RIGHT})
    assert [each.source_id for each in result.citations] == ["kb:keys.md"]


async def test_a_sure_answer_needs_no_second_look_where_the_operator_says_so() -> None:
    sure = decision(answer="Rotate keys with `relay keys rotate`.")
    result, model = await ask(shelf(more=9), {DECIDE.name: sure}, verify="unsure")
    assert result.should_reply
    assert [name for name, _ in model.asked] == ["decide"]
    assert (result.debug or {})["verification"]["by"] == "code"
    unsure = decision(answer="Probably wise operators rotate everything monthly somehow.")
    _, model = await ask(shelf(more=9), {DECIDE.name: unsure, CONFIRM.name: RIGHT}, verify="unsure")
    assert [name for name, _ in model.asked] == ["decide", "confirm"]


async def test_little_knowledge_is_shown_whole_in_the_same_order_for_every_question() -> None:
    seen: list[list[str]] = []
    for order in (("kb:ports.md", "kb:keys.md"), ("team:keys.txt",)):
        _, model = await ask(shelf(*order), {DECIDE.name: decision(kind="not_covered", answer=None)})
        seen.append([passage.source_id for passage in given(model, "decide").passages])
    assert seen[0] == [TEAM_ID, "team:keys.txt#qa_20260301_031056.228000", "kb:keys.md", "kb:ports.md"]
    assert seen[1] == seen[0]


async def test_passages_take_no_more_room_than_they_may() -> None:
    many = shelf(*(f"kb:filler{n}.md" for n in range(9)), more=9)
    _, model = await ask(many, {DECIDE.name: decision(kind="not_covered", answer=None)}, max_passage_chars=2000)
    shown = given(model, "decide").passages
    assert 1 <= len(shown) <= 2
    assert sum(len(passage.text) for passage in shown) <= 2000


async def test_where_texts_cannot_be_searched_descriptions_choose() -> None:
    made = shelf(more=9)
    made.order = None
    result, model = await ask(made, {DECIDE.name: decision(), CONFIRM.name: RIGHT}, text="Keys?")
    assert "kb:keys.md" in [passage.source_id for passage in given(model, "decide").passages]
    assert result.should_reply


async def test_facts_that_fit_are_shown_and_their_account_vouches_for_no_command() -> None:
    made = shelf("kb:ports.md", more=9)
    said = "rotate them weekly"
    fact = SourceText(source_id=SourceId("fact:7"), text="Keys go by `relay keys rotate`.", title="fact", said=said)
    made.knows = Learned(facts=(fact,))
    reply = decision("Keys go by `relay keys rotate`.", source="S1")
    result, _ = await ask(made, {DECIDE.name: reply})
    assert result.reason == "ungrounded"


async def test_thanks_that_nobody_addressed_to_the_bot_cost_no_call() -> None:
    result, model = await ask(shelf(more=9), {}, text="thanks, that worked!", addressed=False)
    assert (result.reason, model.asked) == ("not_a_question", [])
    script = {DECIDE.name: decision(kind="chatter", answer=None)}
    _, model = await ask(shelf(more=9), script, text="thanks, that worked!")
    assert [name for name, _ in model.asked] == ["decide"]


async def test_without_knowledge_nothing_is_asked() -> None:
    result, model = await ask(Shelf({}), {})
    assert (result.reason, model.asked) == ("no_sources", [])


async def test_sources_that_cannot_be_read_are_not_taken_for_none() -> None:
    made = shelf("kb:keys.md", more=9)
    made.broken = {"kb:keys.md": SourceError("gone")}
    result, _ = await ask(made, {})
    assert result.reason == "sources_unreadable"


async def test_a_model_that_is_away_is_told() -> None:
    result, _ = await ask(shelf(more=9), {DECIDE.name: ModelUnavailableError("away")})
    assert result.reason == "model_unavailable"


async def test_a_short_question_is_searched_for_with_what_its_asker_said_before() -> None:
    made = shelf(more=9)
    model = scripted({DECIDE.name: decision(kind="not_covered", answer=None)})
    earlier = Message(role="user", text="My relay keys expired.", author_id=UserId("1"))
    between = Message(role="assistant", text="Which version?")
    now = Message(role="user", text="2.4, so how?", author_id=UserId("1"))
    answerer = Answerer(model, made, AnsweringOptions(steps="fused"))
    await answerer.answer(Conversation((earlier, between, now)), RequestContext(), addressed=True)
    assert made.ranked == ["My relay keys expired.\n2.4, so how?"]


async def test_of_a_short_index_what_is_far_from_the_question_is_shown_too() -> None:
    made = Shelf({f"kb:{n}.md": f"# {n}\n\nAbout {n}." for n in range(8)})
    made.order = [SourceId(f"kb:{n}.md") for n in range(8)]
    _, model = await ask(made, {DECIDE.name: decision(kind="not_covered", answer=None)})
    assert len(given(model, "decide").passages) == 8


async def test_a_page_whose_address_has_a_fragment_is_cited_by_its_address() -> None:
    made = shelf(more=9)
    made.sources["https://docs.example/#keys"] = KEYS
    made.urls = {"https://docs.example/#keys": "https://docs.example/#keys"}
    made.order = [SourceId("https://docs.example/#keys")]
    result, _ = await ask(made, {DECIDE.name: decision(source="S1"), CONFIRM.name: RIGHT})
    assert [each.url for each in result.citations] == ["https://docs.example/#keys"]
