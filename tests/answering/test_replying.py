"""What is said: an answer with its buttons, a word to who called the bot, and to nobody else."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import pytest
from msgspec import structs

from intern.answering.replying import Replying, Wording, answer_buttons, load_wording
from intern.chat.options import ConversationOptions
from intern.chat.reply_text import reply_parts
from intern.core.errors import ConfigError
from intern.core.flow import AnswerRequest, Reply
from intern.core.ids import ChannelId, MessageId, RoleId, SourceId
from intern.core.messages import COULD_NOT_LOOK, AIResult, Channel, Citation, SilenceReason
from tests.samples import GUILD, answer_request, message

TEAM = RoleId("42")
WORDING = Wording(
    unknown="unknown",
    handoff="handed off",
    refused="not mine",
    cannot_look="cannot look",
    over_budget="over budget",
    greeting="hi",
    limit="enough",
    busy="full",
    late="away",
    no_thread="no thread",
    retracted="taken back",
)
CALLED = structs.replace(answer_request(message("How?", n=1), message("Why?", n=2)), addressed=True, called=True)
IN_OUR_THREAD = structs.replace(CALLED, called=False)
UNADDRESSED = structs.replace(CALLED, called=False, addressed=False)
REASONS = [reason for reason in get_args(SilenceReason) if reason]


def silence(reason: SilenceReason) -> AIResult:
    return AIResult(should_reply=False, reason=reason)


def reply_of(
    request: AnswerRequest, result: AIResult, wording: Wording = WORDING, handoff_role_id: RoleId | None = None
) -> Reply | None:
    return Replying(wording, ConversationOptions(), handoff_role_id).reply_of(request, result)


def said(request: AnswerRequest, reason: SilenceReason, role: RoleId | None = None) -> str | None:
    reply = reply_of(request, silence(reason), WORDING, handoff_role_id=role)
    return reply.text if reply else None


def test_an_answer_goes_out_with_its_sources_and_buttons_and_settles_the_whole_batch() -> None:
    cited = (Citation(source_id=SourceId("kb:a.md"), title="A"),)
    result = AIResult(should_reply=True, reply_text="Like this.", citations=cited)
    reply = reply_of(UNADDRESSED, result, WORDING, handoff_role_id=TEAM)
    assert reply is not None
    first, last = UNADDRESSED.batch.messages
    assert (reply.text, reply.citations, reply.notice, reply.mention_role) == ("Like this.", cited, False, None)
    assert (reply.question, reply.settles, reply.target) == (last, (first.id, last.id), "new_thread")
    assert [button.custom_id for button in reply.buttons] == [
        f"intern:{what}:{last.id}" for what in ("up", "down", "why")
    ]
    assert [button.emoji or button.label for button in reply.buttons] == ["👍", "👎", "Why?"]


def test_in_a_thread_the_answer_stays_there() -> None:
    thread = Channel(id=ChannelId("9"), guild_id=GUILD, kind="post")
    reply = reply_of(structs.replace(CALLED, channel=thread), silence("no_sources"), WORDING)
    assert reply is not None
    assert reply.target == "in_place"


@pytest.mark.parametrize("reason", REASONS)
def test_who_calls_the_bot_always_gets_a_word_and_who_does_not_call_it_none(reason: SilenceReason) -> None:
    assert said(CALLED, reason)
    assert said(CALLED, reason, TEAM)
    assert said(UNADDRESSED, reason, TEAM) is None


def test_the_word_says_whether_it_looked() -> None:
    assert {said(CALLED, reason) for reason in COULD_NOT_LOOK - {"over_budget"}} == {"cannot look"}
    assert said(CALLED, "over_budget") == "over budget"
    assert {said(CALLED, reason, TEAM) for reason in COULD_NOT_LOOK - {"over_budget"}} == {"cannot look"}
    assert said(CALLED, "not_a_question", TEAM) == "hi"
    looked = {reason for reason in REASONS if reason not in {*COULD_NOT_LOOK, "not_a_question", "not_answerable"}}
    assert {said(CALLED, reason) for reason in looked} == {"unknown"}


@pytest.mark.parametrize("role", [None, TEAM])
def test_who_calls_the_bot_with_what_it_does_not_answer_is_told_so_and_nobody_else(role: RoleId | None) -> None:
    assert said(CALLED, "not_answerable", role) == "not mine"
    assert said(IN_OUR_THREAD, "not_answerable", role) is None
    assert said(UNADDRESSED, "not_answerable", role) is None
    refused = load_wording().refused
    assert "learn" not in refused
    assert "ask the team" in refused


def test_that_the_team_was_told_is_said_only_in_the_message_that_tells_it() -> None:
    for request in (CALLED, IN_OUR_THREAD, UNADDRESSED):
        for reason in REASONS:
            for role in (None, TEAM):
                reply = reply_of(request, silence(reason), WORDING, handoff_role_id=role)
                if reply is None:
                    continue
                told = reply.mention_role == TEAM and reply.text.endswith("<@&42>")
                assert told == reply.text.startswith("handed off")
                assert told == (
                    role is not None and reason not in {*COULD_NOT_LOOK, "not_a_question", "not_answerable"}
                )
                assert reply.notice
                assert reply.buttons == ()


def test_people_who_talk_in_its_thread_are_not_interrupted_but_an_open_question_gets_a_word() -> None:
    assert said(IN_OUR_THREAD, "not_a_question") is None
    assert said(IN_OUR_THREAD, "not_answerable") is None
    assert said(IN_OUR_THREAD, "no_sources") == "unknown"
    assert said(IN_OUR_THREAD, "timeout") == "cannot look"


def test_an_answer_without_words_is_none() -> None:
    blank = AIResult(should_reply=True, reply_text="", reason="no_answer")
    reply = reply_of(CALLED, blank, WORDING)
    assert reply is not None
    assert reply.notice


def test_the_shipped_wording_promises_nothing_that_did_not_happen() -> None:
    wording = load_wording()
    for name in structs.asdict(wording):
        text = getattr(wording, name)
        assert len(text) < 200
        assert ("has been told" in text) == (name == "handoff")


def test_an_operators_wording_wins_name_by_name(tmp_path: Path) -> None:
    (tmp_path / "messages").mkdir()
    (tmp_path / "messages" / "greeting.md.j2").write_text("{# mine #}\nHello from {{ project_introduction }}!\n")
    wording = load_wording(tmp_path, {"project_introduction": "Lumen"})
    assert wording.greeting == "Hello from Lumen!"
    assert wording.unknown == load_wording().unknown
    assert load_wording(tmp_path / "empty") == load_wording()


@pytest.mark.parametrize("text", ["{{ nobody }}", "{% if %}", " ", "x" * 1901, "{{ 1 // 0 }}"])
def test_a_broken_wording_ends_the_start_and_names_the_file(tmp_path: Path, text: str) -> None:
    (tmp_path / "messages").mkdir()
    (tmp_path / "messages" / "unknown.md.j2").write_text(text)
    with pytest.raises(ConfigError, match=r"unknown\.md\.j2"):
        load_wording(tmp_path)


def test_the_longest_hand_off_is_one_message() -> None:
    wording = structs.replace(WORDING, handoff="x" * 1900)
    reply = reply_of(CALLED, silence("no_sources"), wording, handoff_role_id=RoleId("9" * 20))
    assert reply is not None
    assert len(reply_parts(reply)) == 1


def test_a_hand_off_mentions_the_role_of_the_operators_settings() -> None:
    replying = Replying(WORDING, ConversationOptions(), handoff_role_id=TEAM)
    reply = replying.reply_of(CALLED, silence("no_sources"))
    assert reply is not None
    assert reply.mention_role == TEAM


def test_a_button_fits_discord() -> None:
    assert all(len(button.custom_id) <= 100 for button in answer_buttons(MessageId("9" * 20)))
