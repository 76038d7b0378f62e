"""What is said to the asker: an answer with its buttons, or, to who called the bot, a word on why there is none."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from traceback import walk_tb
from types import MappingProxyType

import jinja2
from jinja2.sandbox import ImmutableSandboxedEnvironment
from msgspec import Struct, structs

from intern.conversations.asking import joined, without
from intern.conversations.options import ConversationOptions
from intern.domain import COULD_NOT_LOOK, AIResult, AnswerRequest, Button, MessageId, Reply, RoleId
from intern.errors import ConfigError

_FOLDER = "messages"
_SUFFIX = ".md.j2"
_MAX_CHARS = 1900  # with the mention of a role, one message of Discord's
_MISTAKES = (jinja2.TemplateError, TypeError, ValueError, LookupError, ArithmeticError, AttributeError, RuntimeError)

_VOTES = {"up": "👍", "down": "👎"}


class Wording(Struct, frozen=True, kw_only=True):
    """What is said where there is no answer: of each field, the text of the template of its name."""

    unknown: str
    """Looked, and found nothing."""
    handoff: str
    """Looked, found nothing, and the mention of the team's role follows."""
    refused: str
    """Did not look, for the question is out of scope."""
    cannot_look: str
    """Could not look."""
    over_budget: str
    """Could not look, for what may be spent in a day is spent."""
    greeting: str
    """Nothing was asked."""
    limit: str
    """Asked too much."""
    busy: str
    """There was no room for the question."""
    late: str
    """Asked too long ago, when it was read, or when Discord could be reached again."""
    no_thread: str
    """There is an answer, but no thread to give it in."""
    retracted: str
    """In place of an answer whose sources do not back it any more."""


def load_wording(
    prompts_dir: Path | None = None, constants: Mapping[str, str] = MappingProxyType({"project_introduction": ""})
) -> Wording:
    """Every text, from `<prompts_dir>/messages` where there is a template of the name, else from those shipped.

    The templates may use the `constants`. Raises ConfigError for one that is missing, broken, blank or too long.
    """
    return Wording(**{each.name: worded(each.name, prompts_dir, constants) for each in structs.fields(Wording)})


def worded(name: str, prompts_dir: Path | None, constants: Mapping[str, str]) -> str:
    """One of the texts, as it is said. Raises ConfigError as `load_wording` does, naming file and line."""
    return _text(wording_file(name, prompts_dir), constants)


def wording_file(name: str, prompts_dir: Path | None) -> Traversable:
    """The template of one of the texts. Raises ConfigError where there is none."""
    folders: tuple[Traversable, ...] = (*((prompts_dir / _FOLDER,) if prompts_dir else ()), *_shipped())
    file = next((file for folder in folders if (file := folder / (name + _SUFFIX)).is_file()), None)
    if file is None:
        raise ConfigError(f"there is no template {_FOLDER}/{name}{_SUFFIX}: this installation is incomplete")
    return file


class Replying:
    """What is made of questions and results, as the operator wants it."""

    def __init__(
        self, wording: Wording, options: ConversationOptions, *, handoff_role_id: RoleId | None = None
    ) -> None:
        self._wording = wording
        self._options = options
        self._handoff_role_id = handoff_role_id

    def reply_of(self, request: AnswerRequest, result: AIResult) -> Reply | None:
        """What to post; None for silence."""
        return reply_of(request, result, self._wording, handoff_role_id=self._handoff_role_id)

    def joined(self, older: AnswerRequest, newer: AnswerRequest) -> AnswerRequest:
        """One question out of two of the same asker."""
        return joined(older, newer, self._options)

    def without(self, request: AnswerRequest, message_ids: Collection[MessageId]) -> AnswerRequest | None:
        """What is left of a question once some of its messages are gone; None where nothing is."""
        return without(request, message_ids, self._options)


def reply_of(
    request: AnswerRequest, result: AIResult, wording: Wording, *, handoff_role_id: RoleId | None = None
) -> Reply | None:
    """What to post; None for silence.

    Who mentions the bot or replies to it always gets a word. In its own thread, and in a new forum post, people also
    talk to each other: there, only what it looked for, or would have, is worth one.
    """
    if result.should_reply and result.reply_text:
        return structs.replace(
            _reply(request, result.reply_text),
            citations=result.citations,
            buttons=answer_buttons(request.batch.last.id),
        )
    nothing_to_look_for = result.reason in {"not_a_question", "not_answerable"}
    if not request.called and (nothing_to_look_for or not request.addressed):
        return None
    if result.reason in COULD_NOT_LOOK:
        return notice(request, wording.over_budget if result.reason == "over_budget" else wording.cannot_look)
    if nothing_to_look_for:
        return notice(request, wording.greeting if result.reason == "not_a_question" else wording.refused)
    if handoff_role_id is None:
        return notice(request, wording.unknown)
    # The team has been told by this very message, or not at all.
    told = notice(request, f"{wording.handoff} <@&{handoff_role_id}>")
    return structs.replace(told, mention_role=handoff_role_id)


def answer_buttons(question_id: MessageId) -> tuple[Button, ...]:
    """The buttons under the answer to a question: two votes, and why it was given. Their ids name the question."""
    votes = [Button(custom_id=f"intern:{vote}:{question_id}", emoji=emoji) for vote, emoji in _VOTES.items()]
    return (*votes, Button(custom_id=f"intern:why:{question_id}", label="Why?"))


def notice(request: AnswerRequest, text: str) -> Reply:
    """A word on why there is no answer."""
    return structs.replace(_reply(request, text), notice=True)


def _reply(request: AnswerRequest, text: str) -> Reply:
    return Reply(
        question=request.batch.last,
        target="in_place" if request.channel.is_thread else "new_thread",
        text=text,
        called=request.called,
        settles=tuple(message.id for message in request.batch.messages),
        asked="\n".join(message.text for message in request.batch.messages),
    )


def _text(file: Traversable, constants: Mapping[str, str]) -> str:
    jinja = ImmutableSandboxedEnvironment(undefined=jinja2.StrictUndefined, autoescape=False)
    try:
        text = jinja.from_string(file.read_text(encoding="utf-8")).render(constants).strip()
    except (OSError, UnicodeError, *_MISTAKES) as error:
        raise ConfigError(f"{file}{_line_of(error)}: {error}") from error
    if not text or len(text) > _MAX_CHARS:
        raise ConfigError(f"{file}: the text has {len(text)} characters; it must have 1 to {_MAX_CHARS}")
    return text


def _line_of(error: Exception) -> str:
    if isinstance(error, jinja2.TemplateSyntaxError):
        return f", line {error.lineno}"
    # Jinja gives the frames of a template the lines of its source.
    lines = [line for frame, line in walk_tb(error.__traceback__) if frame.f_code.co_filename == "<template>"]
    return f", line {lines[-1]}" if lines else ""


def _shipped() -> tuple[Traversable, ...]:
    """The folder of the wheel, or else that of the source tree."""
    package = files("intern")
    folders = (package / "_prompts" / _FOLDER, Path(str(package)).parent / "prompts" / _FOLDER)
    return tuple(folder for folder in folders if folder.is_dir())[:1]
