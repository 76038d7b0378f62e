"""The texts for members besides answers and `prompts/messages`: labels, footers, replies to commands.

Each language of `detect_language` has all of them, in `phrases.toml`; all other languages get English.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Final, TypeVar

import msgspec
import tomli
from msgspec import Struct

from intern.core.flow import AnswerRequest
from intern.core.text.language import detect_language

ENGLISH: Final = "en"


class Phrases(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The phrases in one language, with the names of their values in braces."""

    # Commands, as Discord lists them.
    ask_command: str
    ask_question: str
    ask_file: str
    answer_this: str

    # Under an answer.
    why: str
    share: str
    sources: str

    # "Why?": the sources of an answer, and the checks of it.
    made_from: str
    made_and_checked: str
    comma: str
    and_: str
    more: str
    docs: str
    page: str
    pages: str
    team_answer: str
    team_answers: str
    of_days: str
    conversation: str
    fact: str
    quote_checked: str
    quotes_checked: str
    all_checked: str
    links_checked: str
    unfounded: str
    found_safe: str
    confirmed: str
    why_unknown: str

    # Instead of an answer to a command, a button or a private message.
    private_note: str
    in_private: str
    foreign_server: str
    not_speaking: str
    not_public: str
    team_only: str
    managers_only: str
    unknown_command: str
    no_text: str
    from_bot: str
    not_known: str
    gone: str
    shared_already: str
    shared: str
    not_yours: str
    cannot_speak: str
    thanks: str
    busy: str
    failed: str
    restarting: str


_TextT = TypeVar("_TextT")


def select_language(texts: Mapping[str, _TextT], language: str | None) -> _TextT:
    """Return the text in a language, or in English."""
    return texts.get(language or ENGLISH) or texts[ENGLISH]


def get_phrases(language: str = ENGLISH) -> Phrases:
    """Return the phrases in a language, or in English."""
    return select_language(_load_phrases(), language)


@cache
def _load_phrases() -> Mapping[str, Phrases]:
    text = Path(__file__).with_name("phrases.toml").read_text(encoding="utf-8")
    return MappingProxyType(msgspec.convert(tomli.loads(text), dict[str, Phrases]))


def detect_reply_language(request: AnswerRequest) -> str:
    """Return the reply's language: the question's, else that of its asker's earlier messages, else the server's."""
    asker = request.batch.author.id
    earlier = (said.text for said in request.conversation.messages if said.author_id == asker)
    return detect_language(request.batch.text) or detect_language("\n".join(earlier)) or request.language
