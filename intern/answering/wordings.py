"""The texts of replies, by language and reason."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.resources.abc import Traversable
from pathlib import Path
from traceback import walk_tb
from types import MappingProxyType
from typing import Final

import jinja2
from jinja2.sandbox import ImmutableSandboxedEnvironment
from msgspec import Struct, structs

from intern.chat.phrases import ENGLISH
from intern.core.errors import ConfigError
from intern.core.flow import DeclineReason
from intern.core.messages import SILENCES, SilenceReason
from intern.core.text.language import SPOKEN
from intern.models.templates import MISTAKES, find_shipped_folders

_FOLDER = "messages"
_SUFFIX = ".md.j2"
_JINJA: Final = ImmutableSandboxedEnvironment(undefined=jinja2.StrictUndefined, autoescape=False)
_MAX_CHARS = 1900  # with the mention of a role, this fits one Discord message


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

    def get_text(self, reason: SilenceReason | DeclineReason, unknown: str = "") -> str:
        """Return the text for a question without an answer; `unknown`: another one if the search found nothing."""
        name = SILENCES[reason].wording if reason else "unknown"
        return unknown if unknown and name == "unknown" else str(getattr(self, name))


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


def _format_line_number(error: Exception) -> str:
    if isinstance(error, jinja2.TemplateSyntaxError):
        return f", line {error.lineno}"
    # In Jinja's tracebacks, the frames of a template have the lines of its source.
    lines = [line for frame, line in walk_tb(error.__traceback__) if frame.f_code.co_filename == "<template>"]
    return f", line {lines[-1]}" if lines else ""
