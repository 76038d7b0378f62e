"""Replies: an answer with its buttons, and a notice only to members who called the bot."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

import jinja2
import pytest
from jinja2 import meta
from msgspec import structs

from intern.answering.replies import ReplyBuilder, answer_buttons
from intern.answering.why_line import why_line
from intern.answering.wordings import Wording, load_wordings, template_name, wording_file
from intern.chat.options import ConversationOptions
from intern.chat.phrases import detect_reply_language, get_phrases
from intern.chat.reply_text import reply_parts
from intern.core.errors import ConfigError
from intern.core.flow import AnswerRequest, Reply
from intern.core.ids import ChannelId, MessageId, RoleId, SourceId, UserId
from intern.core.messages import (
    LOOKUP_FAILURES,
    AnswerResult,
    Channel,
    Citation,
    Conversation,
    Message,
    SilenceReason,
)
from intern.core.text.language import SPOKEN, detect_language
from tests.worlds.samples import GUILD, answer_request, message

TEAM = RoleId("42")
WORDING = Wording(
    unknown="unknown",
    links="perhaps",
    handoff="handed off",
    refused="not mine",
    cannot_look="cannot look",
    over_budget="over budget",
    greeting="hi",
    limit="enough",
    busy="full",
    late="away",
    voice="voice",
    unposted="unposted",
    retracted="taken back",
    welcome="hello",
)
CALLED = structs.replace(answer_request(message("How?", n=1), message("Why?", n=2)), addressed=True, called=True)
IN_OUR_THREAD = structs.replace(CALLED, called=False)
UNADDRESSED = structs.replace(CALLED, called=False, addressed=False)
CITED = Citation(source_id=SourceId("kb:ports.md"), title="Ports")
REASONS = [reason for reason in get_args(SilenceReason) if reason]


def silence(reason: SilenceReason) -> AnswerResult:
    return AnswerResult(should_reply=False, reason=reason)


def reply_of(
    request: AnswerRequest, result: AnswerResult, wording: Wording = WORDING, handoff_role_id: RoleId | None = None
) -> Reply | None:
    return ReplyBuilder({"en": wording}, ConversationOptions(), handoff_role_id).decide_reply(request, result)


def said(request: AnswerRequest, reason: SilenceReason, role: RoleId | None = None) -> str | None:
    reply = reply_of(request, silence(reason), WORDING, handoff_role_id=role)
    return reply.text if reply else None


def test_an_answer_goes_out_with_its_sources_and_buttons_and_settles_the_whole_batch() -> None:
    cited = (Citation(source_id=SourceId("kb:a.md"), title="A"),)
    result = AnswerResult(should_reply=True, reply_text="Like this.", citations=cited)
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
    assert {said(CALLED, reason) for reason in LOOKUP_FAILURES - {"over_budget"}} == {"cannot look"}
    assert said(CALLED, "over_budget") == "over budget"
    assert {said(CALLED, reason, TEAM) for reason in LOOKUP_FAILURES - {"over_budget"}} == {"cannot look"}
    assert said(CALLED, "not_a_question", TEAM) == "hi"
    looked = {reason for reason in REASONS if reason not in {*LOOKUP_FAILURES, "not_a_question", "not_answerable"}}
    assert {said(CALLED, reason) for reason in looked} == {"unknown"}


@pytest.mark.parametrize("role", [None, TEAM])
def test_who_calls_the_bot_with_what_it_does_not_answer_is_told_so_and_nobody_else(role: RoleId | None) -> None:
    assert said(CALLED, "not_answerable", role) == "not mine"
    assert said(IN_OUR_THREAD, "not_answerable", role) is None
    assert said(UNADDRESSED, "not_answerable", role) is None
    refused = load_wordings()["en"].refused
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
                    role is not None and reason not in {*LOOKUP_FAILURES, "not_a_question", "not_answerable"}
                )
                assert reply.notice
                assert reply.buttons == ()


def test_people_who_talk_in_its_thread_are_not_interrupted_but_an_open_question_gets_a_word() -> None:
    assert said(IN_OUR_THREAD, "not_a_question") is None
    assert said(IN_OUR_THREAD, "not_answerable") is None
    assert said(IN_OUR_THREAD, "no_sources") == "unknown"
    assert said(IN_OUR_THREAD, "timeout") == "cannot look"


def test_an_answer_without_words_is_none() -> None:
    blank = AnswerResult(should_reply=True, reply_text="", reason="no_answer")
    reply = reply_of(CALLED, blank, WORDING)
    assert reply is not None
    assert reply.notice


def test_the_shipped_wording_promises_nothing_that_did_not_happen() -> None:
    wordings = load_wordings()
    assert wordings.keys() == SPOKEN
    for wording in wordings.values():
        for name, text in structs.asdict(wording).items():
            assert 5 < len(text) < (600 if name == "welcome" else 200)
    english = structs.asdict(wordings["en"])
    assert [name for name, text in english.items() if "has been told" in text] == ["handoff"]


def test_the_shipped_wording_is_in_its_language_and_uses_no_other_variables_than_in_english() -> None:
    for language, wording in load_wordings().items():
        for name, text in structs.asdict(wording).items():
            assert detect_language(text) == language, (language, name)
            source = wording_file(template_name(name, language), None).read_text(encoding="utf-8")
            english = wording_file(name, None).read_text(encoding="utf-8")
            assert variables(source) == variables(english), (language, name)


def variables(template: str) -> set[str]:
    return meta.find_undeclared_variables(jinja2.Environment(autoescape=False).parse(template))


def test_an_operators_wording_wins_name_by_name(tmp_path: Path) -> None:
    (tmp_path / "messages").mkdir()
    (tmp_path / "messages" / "greeting.md.j2").write_text("{# mine #}\nHello from {{ project_introduction }}!\n")
    wording = load_wordings(tmp_path, {"project_introduction": "Lumen"})["en"]
    assert wording.greeting == "Hello from Lumen!"
    assert wording.unknown == load_wordings()["en"].unknown
    assert load_wordings(tmp_path / "empty") == load_wordings()


def test_an_operators_english_wording_is_for_all_languages_in_which_they_have_none(tmp_path: Path) -> None:
    (tmp_path / "messages" / "de").mkdir(parents=True)
    (tmp_path / "messages" / "greeting.md.j2").write_text("Ahoy!")
    (tmp_path / "messages" / "de" / "greeting.md.j2").write_text("Moin!")
    (tmp_path / "messages" / "de" / "late.md.j2").write_text("Zu spät.")
    wordings, shipped = load_wordings(tmp_path), load_wordings()
    greetings = {language: wording.greeting for language, wording in wordings.items()}
    assert greetings == {**dict.fromkeys(SPOKEN, "Ahoy!"), "de": "Moin!"}
    assert (wordings["de"].late, wordings["fr"].late) == ("Zu spät.", shipped["fr"].late)
    assert wordings["en"].late == shipped["en"].late


@pytest.mark.parametrize("text", ["{{ nobody }}", "{% if %}", " ", "x" * 1901, "{{ 1 // 0 }}"])
def test_a_broken_wording_ends_the_start_and_names_the_file(tmp_path: Path, text: str) -> None:
    (tmp_path / "messages").mkdir()
    (tmp_path / "messages" / "unknown.md.j2").write_text(text)
    with pytest.raises(ConfigError, match=r"unknown\.md\.j2"):
        load_wordings(tmp_path)


def test_the_longest_hand_off_is_one_message() -> None:
    wording = structs.replace(WORDING, handoff="x" * 1900)
    reply = reply_of(CALLED, silence("no_sources"), wording, handoff_role_id=RoleId("9" * 20))
    assert reply is not None
    assert len(reply_parts(reply)) == 1


def test_a_hand_off_mentions_the_role_of_the_operators_settings() -> None:
    replying = ReplyBuilder({"en": WORDING}, ConversationOptions(), handoff_role_id=TEAM)
    reply = replying.decide_reply(CALLED, silence("no_sources"))
    assert reply is not None
    assert reply.mention_role == TEAM


@pytest.mark.parametrize("language", sorted(SPOKEN))
def test_sources_without_an_answer_come_with_a_word_in_the_language_of_the_question(language: str) -> None:
    wordings = load_wordings()
    asked = {
        "de": "Wie kann ich den Port ändern, wenn das Relay schon läuft?",
        "en": "How can I change the port when the relay is already running?",
        "es": "¿Cómo puedo cambiar el puerto cuando el relé ya está en marcha?",
        "fr": "Comment puis-je changer le port quand le relais est déjà lancé ?",
        "ja": "リレーがすでに動いているとき、ポートをどうやって変更しますか？",
        "pt": "Como posso mudar a porta quando o relé já está em execução?",
    }[language]
    request = structs.replace(answer_request(message(asked)), addressed=True, called=True)
    result = structs.replace(silence("unsure"), citations=(CITED,))
    for role in (None, TEAM):
        reply = ReplyBuilder(wordings, ConversationOptions(), role).decide_reply(request, result)
        assert reply is not None
        assert (reply.notice, reply.citations, reply.buttons, reply.mention_role) == (True, (CITED,), (), role)
        assert reply.text.startswith(wordings[language].links)
        assert detect_language(wordings[language].links) == language
        assert "Ports" in reply_parts(reply)[-1]


def test_a_button_fits_discord() -> None:
    assert all(len(button.custom_id) <= 100 for button in answer_buttons(MessageId("9" * 20)))


@pytest.mark.parametrize(
    ("texts", "language"),
    [
        (["wo kann ich den Port ändern?"], "de"),
        (["wo kann ich den Port ändern?", "?"], "de"),
        (["hvordan skifter jeg porten?"], "en"),
        (["{{ 7 * 7 }} ../../de/greeting de/greeting"], "en"),
    ],
)
def test_the_language_of_the_question_decides_on_all_of_our_own_words(texts: list[str], language: str) -> None:
    request = answer_request(*(message(text, n=n) for n, text in enumerate(texts, 1)))
    request = structs.replace(request, addressed=True, called=True)
    replying = ReplyBuilder(load_wordings(), ConversationOptions(), TEAM)
    wording = load_wordings()[language]
    answer = replying.decide_reply(request, AnswerResult(should_reply=True, reply_text="7480.", citations=(CITED,)))
    assert answer is not None
    assert reply_parts(answer)[0].splitlines()[2] == get_phrases(language).sources
    assert answer.buttons[-1].label == get_phrases(language).why
    instead = replying.decide_reply(request, silence("not_a_question"))
    handoff = replying.decide_reply(request, silence("no_sources"))
    assert instead is not None
    assert handoff is not None
    assert (instead.text, handoff.text) == (wording.greeting, f"{wording.handoff} <@&42>")


def test_a_message_that_tells_no_language_takes_that_of_what_its_author_wrote_before() -> None:
    request = answer_request(message("ok?", n=2))
    author = request.batch.author.id
    earlier = Message(role="user", text="wie stelle ich den Port um?", author_id=author)
    other = Message(role="user", text="where can I find the logs?", author_id=UserId("99"))
    for said, language in (((earlier, other), "de"), ((other,), "en"), ((), "en")):
        conversation = Conversation((*said, *request.conversation.messages))
        assert detect_reply_language(structs.replace(request, conversation=conversation)) == language


def test_phrases_have_the_same_parts_in_each_language_and_fit_into_discord() -> None:
    english = structs.asdict(get_phrases())
    for language in SPOKEN:
        words = structs.asdict(get_phrases(language))
        assert (get_phrases(language) is get_phrases()) == (language == "en")
        for name, text in words.items():
            assert set(re.findall(r"{\w+}", text)) == set(re.findall(r"{\w+}", english[name])), (language, name)
            assert len(text) < 200, (language, name)
        assert len(words["why"]) <= 80
        assert len(words["share"]) <= 80
        assert max(len(words["ask_command"]), len(words["ask_question"])) <= 100
        assert len(words["answer_this"]) <= 32


GERMAN_WHY = (
    "Aus: Dokumentation `a.md` und eine Antwort des Teams vom 2026-02-01; "
    "2 Zitate Wort für Wort geprüft, Links geprüft."
)
JAPANESE_WHY = (
    "ドキュメント `a.md` とチームの回答（2026-02-01）"
    "をもとにした回答です（引用2件を一字一句確認済み、リンクを確認済み）。"
)


@pytest.mark.parametrize(("language", "line"), [("de", GERMAN_WHY), ("ja", JAPANESE_WHY)])
def test_why_is_told_in_the_language_of_the_answer(language: str, line: str) -> None:
    citations = ["kb:a.md", "team:ports.txt#qa_20260201_031056.228000"]
    debug = {"generation": {"citations": citations, "quotes_count": 2}}
    assert why_line(debug, get_phrases(language)) == line
