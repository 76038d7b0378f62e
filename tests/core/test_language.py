from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from hypothesis import given, strategies as st

from intern.core.text.language import OTHER_SCRIPT, SPOKEN, detect_any_language, detect_language

SAMPLE = Path(__file__).parents[2] / "sample"
LANGUAGES = Path(__file__).parents[2] / "benchmarks" / "languages"


class Said(msgspec.Struct):
    language: str | None
    text: str = msgspec.field(name="question")
    sources: list[str] = msgspec.field()


class Chatted(msgspec.Struct):
    language: str | None
    text: str


QUESTIONS = msgspec.json.Decoder(Said).decode_lines((LANGUAGES / "questions.jsonl").read_bytes())
CHAT = msgspec.json.Decoder(Chatted).decode_lines((LANGUAGES / "chat.jsonl").read_bytes())


@pytest.mark.parametrize("language", sorted(SPOKEN))
@pytest.mark.parametrize(("texts", "least"), [(QUESTIONS, 0.95), (CHAT, 0.9)], ids=["questions", "chat"])
def test_short_messages_are_told_apart(texts: list[Said] | list[Chatted], least: float, language: str) -> None:
    own = [detect_language(each.text) for each in texts if each.language == language]
    assert own.count(language) / len(own) >= least


def test_another_language_is_not_taken_for_one_of_ours() -> None:
    assert [each for each in CHAT if each.language is None and detect_language(each.text) not in {None, "en"}] == []


@pytest.mark.parametrize(
    "text",
    [
        "warum kommt `the file could not be opened` bei mir",
        "warum kommt das:\n```\nthe file could not be opened\nwe are not able to do this\n```",
        "<@123456789> was mach ich mit /the/file/was/not/found.txt und --what-is-this?",
    ],
)
def test_commands_and_error_texts_do_not_decide(text: str) -> None:
    assert detect_language(text) == "de"


@pytest.mark.parametrize("text", ["", " \n", "`", "```", "-", "1234 5678", "¯\\_(ツ)_/¯ lol", "設定方法", "как это"])
def test_a_text_without_a_known_language_has_none(text: str) -> None:
    assert detect_language(text) is None


@pytest.mark.parametrize(
    "text",
    ["Recurrence of T(n) = 2T(n/3) + n", "s/old/new?", ":D", "ps aux | grep d", "ssh -l root", "er, sudo su", "Big-Oh"],
)
def test_formulas_commands_and_names_are_no_other_language(text: str) -> None:
    assert detect_language(text) in {"en", None}


def test_other_languages_have_a_name_for_who_asks_for_any() -> None:
    texts = ["как изменить порт сервера?", "如何更改端口", "come posso cambiare la porta del server?", "0x80070057"]
    assert [detect_any_language(each) for each in texts] == [OTHER_SCRIPT, OTHER_SCRIPT, "it", None]


@given(st.text() | st.text("`<>/-@ aé\nツ"))
def test_any_text_has_a_spoken_language_or_none(text: str) -> None:
    assert detect_language(text) in SPOKEN | {None}


@pytest.mark.parametrize("language", sorted(SPOKEN))
def test_each_language_has_its_questions_and_the_documents_that_answer_them(language: str) -> None:
    documents = SAMPLE if language == "en" else LANGUAGES / language
    texts = {f"kb:{path.relative_to(documents).as_posix()}": path for path in documents.rglob("*.md")}
    asked = [each for each in QUESTIONS if each.language == language]
    assert len(asked) == len({each.text for each in asked}) == 40
    assert {source for each in asked for source in each.sources} == texts.keys()
    assert {detect_language(path.read_text(encoding="utf-8")) for path in texts.values()} == {language}
