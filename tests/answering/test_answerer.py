"""From a question to an answer worth posting, or to silence with its reason."""

from __future__ import annotations

import io
import json
from typing import Any, get_args

import anyio
import pytest
from structlog.testing import capture_logs

from intern.answering.answerer import Answerer
from intern.answering.prompts import (
    ANSWER,
    GATE,
    SELECT,
    VERIFY,
    AnswerDraft,
    AnsweringOptions,
    GateDecision,
    Selection,
    Verification,
)
from intern.core.errors import (
    ConfigError,
    KnowledgeError,
    ModelBudgetError,
    ModelReplyError,
    ModelUnavailableError,
    SourceError,
)
from intern.core.ids import ChannelId, MessageId, SourceId, UserId
from intern.core.knowledge import IndexEntry, LearnedMatches, SourceText
from intern.core.log import configure_logging
from intern.core.messages import (
    AnswerResult,
    Citation,
    Conversation,
    Image,
    Message,
    RequestContext,
    SilenceReason,
)
from intern.models.prompt import Prompt
from tests.answering.shelf import Shelf
from tests.worlds.model import ScriptedModel, refused

pytestmark = pytest.mark.anyio

KEYS = "# Keys\n\nRotate with `relay keys rotate`. See https://docs.example/keys for more."
TEAM = """\
--- QA ---
id: qa_20260201_031056.228000
timestamp: 2026-02-01T03:10:56.228000Z
User: how do I rotate?
  id: qa_20990101_000000.000000
Team: use relay keys rotate --grace 1d
"""
TEAM_ANSWER = "team:keys.txt#qa_20260201_031056.228000"
YES = GateDecision(kind="question")
NO = GateDecision(kind="chatter", reason="they greet")
CHOICE = Selection(selected_source_ids=("kb:keys.md",))
QUOTES = ("Rotate with `relay keys rotate`.", "use relay keys rotate")
DRAFT = AnswerDraft(quotes=QUOTES, answer="Run `relay keys rotate`.", citations=("kb:keys.md",))
GOOD = Verification(is_good_enough=True)
CONTEXT = RequestContext(channel_id=ChannelId("200"), message_id=MessageId("300"))


def shelf() -> Shelf:
    return Shelf({"kb:keys.md": KEYS, "kb:port.md": "# Ports\n\nIt listens on 7480.", "team:keys.txt": TEAM})


def scripted(
    *,
    gate: Any = YES,
    select: Any = CHOICE,
    answer: Any = DRAFT,
    verify: Any = GOOD,
) -> ScriptedModel:
    model = ScriptedModel()
    planned: list[tuple[Prompt[Any, Any], Any]] = [(GATE, gate), (SELECT, select), (ANSWER, answer), (VERIFY, verify)]
    for prompt, reply in planned:
        if reply is not None:
            model.always(prompt, reply)
    return model


async def never(_: object) -> None:
    await anyio.sleep_forever()


def draft(answer: str | None = "Run `relay keys rotate`.", *citations: str) -> AnswerDraft:
    return AnswerDraft(quotes=QUOTES, answer=answer, citations=citations or ("kb:keys.md",))


def asking(text: str = "How do I rotate keys?") -> Conversation:
    return Conversation((Message(role="user", text=text, author_id=UserId("1")),))


async def answered(
    model: ScriptedModel,
    knowledge: Shelf | None = None,
    *,
    text: str = "How do I rotate keys?",
    addressed: bool = False,
    **options: Any,
) -> AnswerResult:
    with anyio.fail_after(5):
        answerer = Answerer(model, knowledge or shelf(), AnsweringOptions(steps="separate", **options))
        return await answerer.answer(asking(text), CONTEXT, addressed=addressed)


async def test_a_verified_answer_is_given_with_its_source() -> None:
    result = await answered(scripted())
    assert result.should_reply
    assert result.reason == ""
    assert result.reply_text == "Run `relay keys rotate`."
    quote = "Rotate with `relay keys rotate`."
    assert result.citations == (Citation(source_id=SourceId("kb:keys.md"), title="Keys", quote=quote),)


async def test_a_team_answer_is_cited_by_its_id_and_links_to_its_message() -> None:
    knowledge = shelf()
    knowledge.links[TEAM_ANSWER] = "https://discord.com/channels/1/2/3"
    model = scripted(
        select=Selection(selected_source_ids=("kb:keys.md", "team:keys.txt")),
        answer=draft("Use relay keys rotate.", TEAM_ANSWER, "kb:keys.md"),
    )
    result = await answered(model, knowledge)
    assert [(c.source_id, c.url) for c in result.citations] == [
        (TEAM_ANSWER, "https://discord.com/channels/1/2/3"),
        ("kb:keys.md", None),
    ]
    # Team knowledge comes first, regardless of its place in the selection.
    assert [source.source_id for source in model.calls(ANSWER)[0].sources] == ["team:keys.txt", "kb:keys.md"]


async def test_an_answer_stands_without_its_link() -> None:
    knowledge = shelf()
    knowledge.broken["links"] = KnowledgeError("the archive cannot be read")
    result = await answered(
        scripted(
            select=Selection(selected_source_ids=("team:keys.txt",)),
            answer=draft("Use relay keys rotate.", TEAM_ANSWER),
        ),
        knowledge,
    )
    assert result.should_reply
    assert result.citations[0].url is None


async def test_a_page_is_cited_with_its_address() -> None:
    page = "kb:https://docs.example/x"
    knowledge = Shelf({page: "# X\n\nSay xyzzy."}, urls={page: "https://docs.example/x"})
    said = AnswerDraft(quotes=("Say xyzzy.",), answer="Say xyzzy: https://docs.example/x", citations=(page,))
    model = scripted(select=Selection(selected_source_ids=(page,)), answer=said)
    result = await answered(model, knowledge)
    assert result.citations[0].url == "https://docs.example/x"


SILENCES: list[tuple[SilenceReason, dict[str, Any]]] = [
    ("not_a_question", {"gate": NO}),
    ("not_answerable", {"gate": GateDecision(kind="out_of_scope")}),
    ("not_answerable", {"gate": GateDecision(kind="unclear")}),
    ("no_sources", {"select": Selection(selected_source_ids=())}),
    ("no_sources", {"select": Selection(selected_source_ids=("kb:../../secret", "team:/etc/passwd"))}),
    ("no_answer", {"answer": draft(None)}),
    ("no_answer", {"answer": draft("")}),
    ("no_answer", {"answer": draft(" \n ")}),
    ("no_answer", {"answer": draft("Null")}),
    ("no_answer", {"answer": draft('"none"')}),
    ("no_answer", {"answer": draft("(null)")}),
    ("no_citations", {"answer": AnswerDraft(answer="Run it.", citations=())}),
    ("no_citations", {"answer": draft("Run it.", "kb:port.md", "https://evil.example", "kb:keys.md#qa_1")}),
    ("ungrounded", {"answer": draft("See https://evil.example/keys", "kb:keys.md")}),
    ("ungrounded", {"answer": draft("See https://docs.example/keys2", "kb:keys.md")}),
    ("too_long", {"answer": draft("x" * 3001)}),
    ("rejected", {"verify": Verification(is_good_enough=False, issues=("it is wrong",))}),
    ("model_unavailable", {"gate": ModelUnavailableError("down")}),
    ("over_budget", {"select": ModelBudgetError("spent")}),
    ("model_failed", {"answer": ModelReplyError("not JSON")}),
    ("model_failed", {"verify": refused()}),
    ("model_failed", {"gate": ConfigError("gate.md.j2, line 3: no such variable")}),
]


@pytest.mark.parametrize(("reason", "script"), SILENCES)
async def test_silence_has_its_reason(reason: SilenceReason, script: dict[str, Any]) -> None:
    result = await answered(scripted(**script))
    assert (result.should_reply, result.reply_text, result.citations) == (False, None, ())
    assert result.reason == reason


async def test_every_reason_is_reached_by_some_test() -> None:
    elsewhere = {"", "sources_unreadable", "images_unavailable", "timeout", "knowledge_failed", "unsure"}
    assert {reason for reason, _ in SILENCES} | elsewhere == set(get_args(SilenceReason))


async def test_an_answer_of_the_longest_length_is_given_whole() -> None:
    longest = "See keys rotate. ".ljust(3000, "x")
    result = await answered(scripted(answer=draft(longest)))
    assert result.reply_text == longest


async def test_without_the_need_for_citations_an_answer_may_have_none() -> None:
    result = await answered(scripted(answer=AnswerDraft(answer="Run it.")), require_citations=False)
    assert result.should_reply
    assert result.citations == ()


async def test_one_bad_citation_among_good_ones_is_dropped_and_counted() -> None:
    model = scripted(answer=draft("Run relay keys rotate.", "kb:nowhere.md", "kb:keys.md", "kb:keys.md"))
    result = await answered(model)
    assert [c.source_id for c in result.citations] == ["kb:keys.md"]
    assert result.debug is not None
    assert result.debug["generation"]["dropped_citations_count"] == 1


async def test_bad_and_repeated_ids_do_not_end_an_answer() -> None:
    model = scripted(
        select=Selection(
            selected_source_ids=("kb:../keys.md", "kb:keys.md", "kb:keys.md", "kb:port.md", "team:keys.txt")
        )
    )
    knowledge = shelf()
    result = await answered(model, knowledge, max_sources=2)
    assert result.should_reply
    assert sorted(knowledge.loaded) == ["kb:keys.md", "kb:port.md"]
    assert result.debug is not None
    assert result.debug["selection"]["unknown_ids_count"] == 1


async def test_an_unreadable_source_is_left_out() -> None:
    knowledge = shelf()
    knowledge.broken["kb:port.md"] = SourceError("kb:port.md is gone")
    model = scripted(select=Selection(selected_source_ids=("kb:port.md", "kb:keys.md")))
    with capture_logs() as logs:
        result = await answered(model, knowledge)
    assert result.should_reply
    assert [log["source_id"] for log in logs if log["event"] == "source_unreadable"] == ["kb:port.md"]


async def test_a_page_in_a_second_format_takes_no_place() -> None:
    knowledge = shelf()
    knowledge.sources["kb:html/keys.html"] = knowledge.sources["kb:keys.md"]
    model = scripted(select=Selection(selected_source_ids=("kb:keys.md", "kb:html/keys.html", "kb:port.md")))
    result = await answered(model, knowledge, max_sources=2)
    assert result.debug is not None
    assert result.debug["loading"]["loaded_sources_count"] == 2
    assert knowledge.loaded == ["kb:keys.md", "kb:html/keys.html", "kb:port.md"]


async def test_when_no_source_can_be_read_it_could_not_look() -> None:
    knowledge = shelf()
    knowledge.broken["kb:keys.md"] = SourceError("kb:keys.md is gone")
    result = await answered(scripted(answer=None), knowledge)
    assert result.reason == "sources_unreadable"


async def test_an_empty_source_is_nothing_to_answer_from() -> None:
    result = await answered(scripted(answer=None), Shelf({"kb:keys.md": " \n"}))
    assert result.reason == "no_sources"


@pytest.mark.parametrize("text", ["How do I rotate keys?", "rotating keys fails"])
async def test_an_unreadable_index_is_a_failure_of_knowledge(text: str) -> None:
    knowledge = shelf()
    knowledge.broken["index"] = KnowledgeError("index.txt cannot be read")
    result = await answered(scripted(select=None), knowledge, text=text)
    assert result.reason == "knowledge_failed"
    assert result.debug is not None
    assert result.debug["error"] == "index.txt cannot be read"


async def test_an_empty_index_costs_no_selection() -> None:
    result = await answered(scripted(select=None), Shelf({}))
    assert result.reason == "no_sources"


async def test_nothing_asked_costs_nothing() -> None:
    model = ScriptedModel()
    with anyio.fail_after(5):
        result = await Answerer(model, shelf(), AnsweringOptions(steps="separate")).answer(Conversation(()), CONTEXT)
    assert result.reason == "not_a_question"
    assert (await answered(model, text="  ")).reason == "not_a_question"
    assert model.asked == []


async def test_gate_and_selection_stand_side_by_side_when_it_looks_like_a_question() -> None:
    both = anyio.Event()
    waiting: list[str] = []

    def meeting(name: str, reply: Any) -> Any:
        async def ask(_: Any) -> Any:
            waiting.append(name)
            if len(waiting) == 2:
                both.set()
            await both.wait()  # neither answers before both are asked
            return reply

        return ask

    model = scripted(gate=meeting("gate", YES), select=meeting("select", CHOICE))
    assert (await answered(model)).should_reply
    assert (await answered(model, text="rotating keys fails", addressed=True)).should_reply


async def test_an_answer_waits_for_three_models_in_a_row() -> None:
    pending: dict[str, anyio.Event] = {}

    def held(name: str, reply: Any) -> Any:
        async def ask(_: Any) -> Any:
            pending[name] = anyio.Event()
            await pending[name].wait()
            return reply

        return ask

    model = scripted(
        gate=held("gate", YES), select=held("select", CHOICE), answer=held("answer", DRAFT), verify=held("verify", GOOD)
    )

    async def release() -> None:
        for together in {"gate", "select"}, {"answer"}, {"verify"}:
            while set(pending) != together:  # the search may still be in its thread
                await anyio.wait_all_tasks_blocked()
            for reply in pending.values():
                reply.set()
            pending.clear()

    with anyio.fail_after(5):
        async with anyio.create_task_group() as tg:
            tg.start_soon(release)
            assert (await answered(model)).should_reply


async def test_what_looks_like_chatter_is_gated_before_anything_else() -> None:
    model = scripted(gate=NO, select=None)
    result = await answered(model, text="good morning https://x.example/?q=1")
    assert result.reason == "not_a_question"
    assert [name for name, _ in model.asked] == ["gate"]


async def test_a_rewritten_question_guides_selection_and_reading() -> None:
    gate = GateDecision(kind="question", rewrite_query=" How are signing keys rotated? ")
    model = scripted(gate=gate)
    await answered(model, text="it fails again")
    assert model.calls(SELECT)[0].query == "How are signing keys rotated?"
    assert model.calls(ANSWER)[0].query == "How are signing keys rotated?"
    assert model.calls(ANSWER)[0].question == "it fails again"


async def test_nobody_waits_for_the_selection_when_the_gate_says_no() -> None:
    model = scripted(gate=NO, select=never)
    result = await answered(model)
    assert result.reason == "not_a_question"
    assert result.debug is not None
    assert result.debug["selection"]["unfinished"]


async def test_the_gates_no_counts_more_than_a_failed_selection() -> None:
    selection_failed = anyio.Event()

    def fail(_: Any) -> Exception:
        selection_failed.set()
        return ModelUnavailableError("down")

    async def no(_: Any) -> GateDecision:
        await selection_failed.wait()
        return NO

    result = await answered(scripted(gate=no, select=fail))
    assert result.reason == "not_a_question"


async def test_nobody_waits_for_the_selection_when_the_gate_fails() -> None:
    result = await answered(scripted(gate=refused(), select=never))
    assert result.reason == "model_failed"


@pytest.mark.parametrize("step", ["gate", "select"])
async def test_a_bug_comes_out_as_itself(step: str) -> None:
    with pytest.raises(ZeroDivisionError):
        await answered(scripted(**{step: ZeroDivisionError("a bug")}))


@pytest.mark.parametrize("step", ["gate", "select", "answer", "verify"])
async def test_time_runs_out_at_any_step(step: str) -> None:
    result = await answered(scripted(**{step: never}), request_timeout_seconds=0.01)
    assert result.reason == "timeout"
    assert result.reply_text is None


async def test_cancelling_an_answer_cancels_it() -> None:
    model = scripted(gate=never)
    with anyio.move_on_after(0.01) as scope:
        await answered(model)
    assert scope.cancelled_caught


@pytest.mark.parametrize(
    "invented",
    [
        "Run `relay keys rotate --force`.",
        "1. First:\n     ```sh\n     relay keys burn\n     ```",
        "Upgrade to 9.9.1 first.",
        "Install python3.99.",
        "See https://evil.example.",
        "See evil.com/keys.",
        "Write to help@evil.com.",
    ],
)
async def test_what_an_answer_invents_to_be_copied_is_not_posted(invented: str) -> None:
    model = scripted(answer=draft(invented))
    result = await answered(model)
    assert (result.should_reply, result.reason) == (False, "ungrounded")
    assert model.calls(VERIFY) == []


async def test_without_strict_grounding_the_verifier_is_told_what_was_not_found() -> None:
    model = scripted(answer=draft("Run `relay keys rotate --force` and wait 45 seconds."))
    result = await answered(model, strict_grounding=False)
    assert result.should_reply
    assert model.calls(VERIFY)[0].suspicions == ("relay keys rotate --force", "45")


async def test_numbers_and_code_that_no_source_holds_are_pointed_out_to_the_verifier() -> None:
    model = scripted(answer=draft("Set `grace_period` of relay keys to 45, or to 30 as you said."))
    await answered(model, text="How do I rotate keys within 30 days?")
    assert model.calls(VERIFY)[0].suspicions == ("grace_period", "45", "30")


async def test_the_verifier_sees_what_is_cited_and_what_the_team_said() -> None:
    select = Selection(selected_source_ids=("kb:keys.md", "kb:port.md", "team:keys.txt"))
    model = scripted(select=select)
    await answered(model)
    assert [source.source_id for source in model.calls(VERIFY)[0].sources] == ["team:keys.txt", "kb:keys.md"]


async def test_long_sources_are_cut_to_what_fits() -> None:
    filler = "\n\n".join(f"# Part {n}\n\n" + "lorem ipsum " * 60 for n in range(20))
    knowledge = Shelf({"kb:a.md": f"# A\n\n{filler}\n\n# Zebra\n\nThe zebra is striped.", "kb:b.md": "# B\n\nshort"})
    model = scripted(
        select=Selection(selected_source_ids=("kb:a.md", "kb:b.md")), answer=draft("It is striped.", "kb:a.md")
    )
    await answered(model, knowledge, text="what about the zebra?", max_source_chars=2000)
    shown = model.calls(ANSWER)[0].sources
    assert sum(len(source.text) for source in shown) <= 2000
    assert "zebra is striped" in shown[0].text
    assert shown[1].text == "# B\n\nshort"
    assert model.calls(VERIFY)[0].sources == shown[:1]


async def test_a_long_index_is_cut_to_what_fits() -> None:
    knowledge = Shelf({**{f"kb:{n}.md": f"# Part {n} on other things" for n in range(200)}, "kb:keys.md": KEYS})
    model = scripted()
    result = await answered(model, knowledge, text="how are keys rotated?", max_index_chars=500)
    assert result.should_reply
    shown = model.calls(SELECT)[0].entries
    assert sum(len(entry.source_id) + len(entry.description) for entry in shown) <= 500


async def test_images_reach_those_who_must_understand_the_question() -> None:
    picture = Image(media_type="image/png", data=b"png")
    model = scripted()
    conversation = Conversation((Message(role="user", text="", images=(picture,)),))
    with anyio.fail_after(5):
        await Answerer(model, shelf(), AnsweringOptions(steps="separate")).answer(conversation, CONTEXT, addressed=True)
    seen = dict(zip((name for name, _ in model.asked), model.images, strict=True))
    assert seen == {"gate": (picture,), "select": (picture,), "answer": (picture,), "verify": ()}


async def test_each_step_is_timed_and_told() -> None:
    with capture_logs() as logs:
        result = await answered(scripted())
    assert result.debug is not None
    steps = ["gate", "selection", "loading", "generation", "verification", "confidence"]
    assert sorted(step for step in result.debug if isinstance(result.debug[step], dict)) == sorted(steps)
    assert all(result.debug[step]["seconds"] >= 0 for step in steps)
    (line,) = [log for log in logs if log["event"] == "ai_request"]
    wanted = {
        "platform": "discord",
        "channel_id": "200",
        "thread_id": None,
        "message_id": "300",
        "result": "answered",
        "gate.kind": "question",
        "gate.reason": "",
        "selection.selected_sources_count": 1,
        "loading.loaded_sources_count": 1,
        "verification.is_good_enough": True,
        "verification.issues_count": 0,
    }
    assert {key: line[key] for key in wanted} == wanted
    assert {f"{step}.seconds" for step in steps} <= line.keys()


async def test_no_line_of_the_log_holds_a_key_that_a_model_repeats() -> None:
    key = "sk-live-4f9a8b7c6d5e4f3a2b1c0d9e"
    quoting = f"Somebody wrote {key}."
    out = io.StringIO()
    configure_logging(log_format="json", level="debug", stream=out)
    result = await answered(
        scripted(
            gate=GateDecision(kind="question", reason=quoting + " " * 240 + key),
            answer=draft(f"Run `relay --key {key}`."),
            verify=Verification(is_good_enough=False, issues=(quoting,), suggested_fix=f"Leave out {key}."),
        ),
        strict_grounding=False,
    )
    lines = [json.loads(line) for line in out.getvalue().splitlines()]
    assert key[:12] not in out.getvalue()
    (line,) = [line for line in lines if line["event"] == "ai_request"]
    assert line["gate.reason"].startswith("Somebody wrote [masked api_key].")
    fields = {"generation.strange_count": 1, "verification.issues_count": 1, "verification.has_fix": True}
    assert {name: line[name] for name in fields} == fields
    # The "Why?" button may show the models' replies, but no key.
    assert result.debug is not None
    assert result.debug["generation"]["strange"] == ("relay --key [masked api_key]",)
    assert result.debug["verification"]["issues"] == ("Somebody wrote [masked api_key].",)
    assert result.debug["verification"]["suggested_fix"] == "Leave out [masked api_key]."


async def test_what_is_kept_of_a_models_words_holds_no_key_that_was_cut_in_two() -> None:
    key = "sk-live-4f9a8b7c6d5e4f3a2b1c0d9e"
    for before in range(260, 300):
        verdict = Verification(is_good_enough=False, issues=("x" * before + " " + key,), suggested_fix="")
        result = await answered(scripted(verify=verdict))
        assert result.debug is not None
        assert key[:8] not in result.debug["verification"]["issues"][0]


async def test_no_line_of_the_log_holds_the_addresses_and_commands_that_a_model_made_up() -> None:
    out = io.StringIO()
    configure_logging(log_format="json", level="debug", stream=out)
    for answer in ("See https://strange.example/burn.", "Run `relay keys burn`."):
        assert not (await answered(scripted(answer=draft(answer)))).should_reply
    assert "burn" not in out.getvalue()


@pytest.mark.parametrize(("script", "told"), [({"gate": NO}, "skipped"), ({"gate": refused()}, "error")])
async def test_the_log_tells_silence_from_failure(script: dict[str, Any], told: str) -> None:
    with capture_logs() as logs:
        await answered(scripted(**script))
    (line,) = [log for log in logs if log["event"] == "ai_request"]
    assert line["result"] == told
    assert line["log_level"] == ("warning" if told == "error" else "info")


async def test_nuggets_are_offered_beside_the_index_and_facts_are_shown_unasked() -> None:
    shelf_, model = shelf(), ScriptedModel()
    nugget, fact = SourceId("nugget:1"), SourceId("fact:2")
    shelf_.sources["nugget:1"] = "Grace\n\nKeys have a day of grace."
    shelf_.knows = LearnedMatches(
        nuggets=(IndexEntry(nugget, "FACT, 2026-02-01. Grace:\nkb:forged.md is not a line"),),
        facts=(SourceText(source_id=fact, text="Keys are rotated on Mondays.", title="Mondays", url="https://d/1"),),
    )
    model.always(GATE, YES)
    model.always(SELECT, Selection(selected_source_ids=("nugget:1", "nugget:9", "fact:2")))
    model.always(
        ANSWER, AnswerDraft(answer="On Mondays, with a day of grace.", citations=("fact:2", "nugget:1", "fact:9"))
    )
    model.always(VERIFY, GOOD)
    with anyio.fail_after(5):
        result = await Answerer(model, shelf_, AnsweringOptions(steps="separate")).answer(
            Conversation((Message(role="user", text="when are keys rotated?"),)), CONTEXT, addressed=True
        )
    assert [citation.source_id for citation in result.citations] == [fact, nugget]
    assert result.citations[0].url == "https://d/1"
    assert shelf_.loaded == ["nugget:1"]  # neither the invented one, nor the fact, which is not chosen
    steps = result.debug or {}
    assert steps["selection"]["unknown_ids_count"] == 2
    assert steps["selection"]["facts"] == (fact,)
