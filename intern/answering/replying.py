"""Build replies to the asker: an answer with its buttons, or the reason for silence if the asker called the bot.

Also explain an answer in one line, and decline questions before any work. Declined questions are recorded. The bot
gives a member the same reason only once in a while, so that it is no nuisance. No reply here needs a model.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from importlib.resources.abc import Traversable
from pathlib import Path
from traceback import walk_tb
from types import MappingProxyType
from typing import Any, Final, cast

import jinja2
from jinja2.sandbox import ImmutableSandboxedEnvironment
from msgspec import Struct, structs

from intern.chat.options import ConversationOptions
from intern.chat.phrases import ENGLISH, Phrases, detect_reply_language, get_phrases, select_language
from intern.chat.reply_text import clean_name, plain_line
from intern.core.clock import Clock
from intern.core.errors import ConfigError
from intern.core.flow import AnswerRequest, DeclineReason, QuestionDeclined, Reply
from intern.core.ids import MessageId, RoleId, UserId
from intern.core.messages import COULD_NOT_LOOK, AnswerResult, Button, SilenceReason, is_distilled, is_team_source
from intern.core.text.language import SPOKEN
from intern.core.text.patterns import regex
from intern.models.templates import MISTAKES, find_shipped_folders
from intern.stores.sqlite.store import save_record
from intern.stores.sqlite.traces import TraceStore

_FOLDER = "messages"
_SUFFIX = ".md.j2"
_JINJA: Final = ImmutableSandboxedEnvironment(undefined=jinja2.StrictUndefined, autoescape=False)
_MAX_CHARS = 1900  # with the mention of a role, this fits one Discord message

_VOTES = {"up": "👍", "down": "👎"}


class Wording(Struct, frozen=True, kw_only=True):
    """The texts for missing answers in one language. Each field has the text of the template of its name."""

    unknown: str
    """Nothing was found."""
    handoff: str
    """Nothing was found; the mention of the team's role follows."""
    refused: str
    """The question is out of scope."""
    cannot_look: str
    """The search or the model is unavailable."""
    over_budget: str
    """The budget of the day is used up."""
    greeting: str
    """The message asked nothing."""
    limit: str
    """The member has asked too much."""
    links: str
    """The bot is not sure of an answer; sources that may contain it follow."""
    busy: str
    """There was no room for the question."""
    late: str
    """The question was too old when it was read, or when Discord came back."""
    voice: str
    """The question is a voice message only."""
    unposted: str
    """The platform refuses the reply, or a thread for it."""
    retracted: str
    """Replaces an answer that its sources no longer support."""
    welcome: str
    """The greeting to a server that invited the bot, if each server is a community of its own."""

    def get_decline_text(self, reason: DeclineReason) -> str:
        """Return the text for a declined question."""
        texts: Mapping[DeclineReason, str] = {
            "asked too much": self.limit,
            "day used up": self.over_budget,
            "too old": self.late,
            "shed": self.busy,
            "voice": self.voice,
        }
        return texts[reason]

    def get_silence_text(self, reason: SilenceReason, unknown: str) -> str:
        """Return the text for a silence; `unknown` if a search found nothing."""
        if reason in COULD_NOT_LOOK:
            return self.over_budget if reason == "over_budget" else self.cannot_look
        if reason == "not_answerable":
            return self.refused
        return self.greeting if reason == "not_a_question" else unknown


Wordings = Mapping[str, Wording]
"""The wordings by language; English is always present."""


def load_wordings(
    prompts_dir: Path | None = None, constants: Mapping[str, str] = MappingProxyType({"project_introduction": ""})
) -> Wordings:
    """Load every text in every language, from the template that `wording_file` finds.

    The templates may use the `constants`. Raises ConfigError for one that is missing, broken, blank or too long.
    """
    names = [each.name for each in structs.fields(Wording)]
    return {
        language: Wording(
            **{name: render_wording(template_name(name, language), prompts_dir, constants) for name in names}
        )
        for language in sorted(SPOKEN)
    }


def template_name(name: str, language: str) -> str:
    """Return the template name of a text in a language: `busy` in English, `de/busy` in German."""
    return name if language == ENGLISH else f"{language}/{name}"


def render_wording(name: str, prompts_dir: Path | None, constants: Mapping[str, str]) -> str:
    """Render one of the texts. Raises ConfigError as `load_wordings` does, with file and line."""
    file = wording_file(name, prompts_dir)
    try:
        text = file.read_text(encoding="utf-8")
        # Most have no variables, and compiling one takes 3 ms.
        text = (_JINJA.from_string(text).render(constants) if "{" in text else text).strip()
    except (OSError, UnicodeError, *MISTAKES) as error:
        raise ConfigError(f"{file}{_format_line_number(error)}: {error}") from error
    if not text or len(text) > _MAX_CHARS:
        raise ConfigError(f"{file}: the text has {len(text)} characters; it must have 1 to {_MAX_CHARS}")
    return text


def wording_file(name: str, prompts_dir: Path | None) -> Traversable:
    """Find the template of one of the texts: the operator's own, else the shipped one.

    The operator's English template also serves languages without their own. Raises ConfigError if there is none.
    """
    folders: tuple[Traversable, ...] = (*((prompts_dir,) if prompts_dir else ()), *find_shipped_folders())
    names = dict.fromkeys((name, name.rpartition("/")[2]))
    places = (folder / _FOLDER / (each + _SUFFIX) for folder in folders for each in names)
    file = next((place for place in places if place.is_file()), None)
    if file is None:
        raise ConfigError(f"there is no template {_FOLDER}/{name}{_SUFFIX}: this installation is incomplete")
    return file


@dataclass(frozen=True)
class ReplyBuilder:
    """Builds replies from questions and results, by the operator's settings."""

    wordings: Wordings
    options: ConversationOptions
    handoff_role_id: RoleId | None = None

    def build_reply(self, request: AnswerRequest, result: AnswerResult) -> Reply | None:
        """Return the reply to post, or None for silence.

        A member who mentions the bot or replies to it always gets a reply. In its own thread, and in a new forum post,
        people also talk to each other: there, only a message that led to a search, or should have, gets one.
        """
        if result.should_reply and result.reply_text:
            buttons = answer_buttons(request.batch.last.id, detect_reply_language(request))
            return _make_reply(request, result.reply_text, citations=result.citations, buttons=buttons)
        nothing_to_look_for = result.reason in {"not_a_question", "not_answerable"}
        if not request.called and (nothing_to_look_for or not request.addressed):
            return None
        wording = select_language(self.wordings, detect_reply_language(request))
        links = wording.links if result.citations else ""
        if result.reason in COULD_NOT_LOOK or nothing_to_look_for or self.handoff_role_id is None:
            text = links or wording.get_silence_text(result.reason, wording.unknown)
            return _make_reply(request, text, notice=True, citations=result.citations)
        # This message itself has called the team, or the team is not called.
        text = f"{links}\n{wording.handoff} <@&{self.handoff_role_id}>".lstrip()
        return _make_reply(request, text, notice=True, citations=result.citations, mention_role=self.handoff_role_id)


def answer_buttons(question_id: MessageId, language: str = ENGLISH) -> tuple[Button, ...]:
    """Make the buttons under an answer: two votes, and "Why?". Their ids contain the question's id."""
    votes = [Button(custom_id=button_id(vote, question_id, language), emoji=emoji) for vote, emoji in _VOTES.items()]
    return (*votes, Button(custom_id=button_id("why", question_id, language), label=get_phrases(language).why))


def button_id(act: str, of: str, language: str) -> str:
    """Make the id of a button. It contains the language for the reply to a press, unless that is English."""
    return f"intern:{act}:{of}" + ("" if language == ENGLISH else f":{language}")


def make_notice(request: AnswerRequest, text: str) -> Reply:
    """Make a reply that gives the reason for a missing answer."""
    return _make_reply(request, text, notice=True)


def _make_reply(request: AnswerRequest, text: str, **more: Any) -> Reply:
    return Reply(
        question=request.batch.last,
        target="in_place" if request.channel.is_thread else "new_thread",
        text=text,
        called=request.called,
        settles=tuple(message.id for message in request.batch.messages),
        asked=request.batch.text,
        language=detect_reply_language(request),
        **more,
    )


def _format_line_number(error: Exception) -> str:
    if isinstance(error, jinja2.TemplateSyntaxError):
        return f", line {error.lineno}"
    # In Jinja's tracebacks, the frames of a template have the lines of its source.
    lines = [line for frame, line in walk_tb(error.__traceback__) if frame.f_code.co_filename == "<template>"]
    return f", line {lines[-1]}" if lines else ""


_MOST_NAMED = 4
_QA_DATE = regex(r"#qa_(\d{4})(\d\d)(\d\d)_")


def why_line(debug: Mapping[str, Any], words: Phrases | None = None) -> str:
    """Explain in one line how an answer was made and checked, by its trace; empty if the trace has no sources.

    Missing steps and fields are left out, so the line never claims a check that the trace does not show.
    """
    generation, verification = _get_step(debug, "generation"), _get_step(debug, "verification")
    words = words or get_phrases()
    sources = _format_sources(_read_texts(generation.get("citations")), words)
    if not sources:
        return ""
    checks = words.comma.join(_list_checks(generation, verification, words))
    form = words.made_and_checked if checks else words.made_from
    return form.format(sources=sources, checks=checks)


def _format_sources(source_ids: Sequence[str], words: Phrases) -> str:
    team = [each for each in source_ids if is_team_source(each)]
    days = sorted({"-".join(date.groups()) for each in team if (date := _QA_DATE.search(each))})
    learned = {"nugget": words.conversation, "fact": words.fact}
    others = dict.fromkeys(learned[kind] for each in source_ids if (kind := each.partition(":")[0]) in learned)
    unsaid = (each for each in source_ids if not (is_team_source(each) or is_distilled(each)))
    names = [each.partition(":")[2] or each for each in unsaid]
    pages = [plain_line(name) for name in names if re.match(r"https?://", name)]
    documents = [clean_name(name) for name in names if not re.match(r"https?://", name)]
    parts = [
        *_format_list(words.docs, documents, words),
        *_format_list(words.page if len(pages) == 1 else words.pages, pages, words),
        *_format_team_answers(len(team), days, words),
        *others,
    ]
    return _join_parts(parts, words)


def _format_team_answers(count: int, days: Sequence[str], words: Phrases) -> list[str]:
    answers = words.team_answer if count == 1 else words.team_answers.format(count=count)
    dated = (
        words.of_days.format(answers=answers, days=_join_parts(_shorten_list(days, words), words)) if days else answers
    )
    return [dated] if count else []


def _format_list(form: str, names: Sequence[str], words: Phrases) -> list[str]:
    shown = _shorten_list([f"`{name}`" for name in names], words)
    return [form.format(names=_join_parts(shown, words))] if names else []


def _shorten_list(names: Sequence[str], words: Phrases) -> list[str]:
    rest = len(names) - _MOST_NAMED
    return [*names[:_MOST_NAMED], *([words.more.format(count=rest)] if rest > 0 else [])]


def _list_checks(generation: Mapping[str, object], verification: Mapping[str, object], words: Phrases) -> list[str]:
    checks: list[str] = []
    quotes = _read_number(generation.get("quotes_count"))
    if quotes:
        checks.append(words.quote_checked if quotes == 1 else words.quotes_checked.format(count=quotes))
    strange = _read_number(generation.get("strange_count"))
    suspicions = _read_number(generation.get("suspicions_count")) if strange is None else strange
    if suspicions == 0:
        checks.append(words.all_checked)
    elif quotes or _read_number(generation.get("strange_urls_count")) == 0:
        # With `ai.strict_grounding` off, an answer may contain commands that no source has.
        checks += [words.links_checked, *([words.unfounded.format(count=strange)] if strange else [])]
    if verification.get("is_good_enough") is True:
        by_code = verification.get("by") == "code"
        checks.append(words.found_safe if by_code else words.confirmed)
    return checks


def _get_step(debug: Mapping[str, Any], name: str) -> Mapping[str, object]:
    step = debug.get(name)
    return cast("Mapping[str, object]", step) if isinstance(step, Mapping) else {}


def _read_texts(value: object) -> list[str]:
    if not isinstance(value, list | tuple):
        return []
    return list(dict.fromkeys(each for each in cast("Sequence[object]", value) if isinstance(each, str) and each))


def _read_number(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _join_parts(parts: Sequence[str], words: Phrases) -> str:
    return words.and_.join([*([words.comma.join(parts[:-1])] if parts[1:] else []), *parts[-1:]])


# The time during which a member does not get the same reason again. A full queue empties soon, so a member who asks
# again then gets a new notice.
_TOLD_FOR: Final[Mapping[DeclineReason, timedelta]] = MappingProxyType(
    {
        "asked too much": timedelta(hours=1),
        "day used up": timedelta(days=1),
        "too old": timedelta(hours=1),
        "shed": timedelta(minutes=1),
        "voice": timedelta(minutes=10),
    }
)


class Decliner:
    """Declines questions. Remembers for a while which member got which reason."""

    def __init__(self, wordings: Wordings, *, traces: TraceStore, clock: Clock) -> None:
        self._wordings = wordings
        self._traces = traces
        self._clock = clock
        self._told: dict[DeclineReason, OrderedDict[UserId, datetime]] = {each: OrderedDict() for each in _TOLD_FOR}

    async def record_decline(self, declined: QuestionDeclined) -> None:
        """Record the reason for a declined question."""
        batch = declined.request.batch
        ids, outcome = [each.id for each in batch.messages], "shed" if declined.reason == "shed" else "passed over"
        keep = partial(self._traces.save, ids, batch.channel_id, outcome=outcome, reason=declined.reason)
        await save_record(keep, message_id=batch.last.id)

    def build_reply(self, declined: QuestionDeclined) -> Reply | None:
        """Return the reply, and remember it; None if the bot was not called, or gave this reason lately."""
        if not declined.request.called or self._has_told(declined.reason, declined.request.batch.author.id):
            return None
        wording = select_language(self._wordings, detect_reply_language(declined.request))
        return make_notice(declined.request, wording.get_decline_text(declined.reason))

    def _has_told(self, reason: DeclineReason, user_id: UserId) -> bool:
        told, now = self._told[reason], self._clock.now()
        # In the order of the notices, so expired entries come first. The clock may have been put back.
        while told and not abs(now - next(iter(told.values()))) < _TOLD_FOR[reason]:
            told.popitem(last=False)
        if user_id in told:
            return True
        told[user_id] = now
        return False
