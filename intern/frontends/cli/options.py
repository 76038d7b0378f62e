"""What several commands share: reading the settings, and where data and talk go."""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, cast

import click

from intern.core.errors import ConfigError
from intern.core.ids import UserId
from intern.core.text.masking import encoded
from intern.frontends.cli.progress import make_way
from intern.service.settings import NO_PRICE, DiscordOptions, Settings, load_settings

# What a terminal could take for a command of its own, and what UTF-8 cannot carry. Line breaks and tabs may stay.
_UNPRINTABLE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")

_SILENCES = {
    "not_a_question": "that is no question",
    "not_answerable": "that is nothing that it answers",
    "no_sources": "nothing in its knowledge is about that",
    "sources_unreadable": "no source that fits could be read",
    "no_answer": "its sources do not answer that",
    "no_citations": "the answer cited no source that it was shown",
    "ungrounded": "the answer gave a command, a version or an address that stands in no source that it cites",
    "too_long": "the answer was longer than ai.max_answer_chars",
    "rejected": "the answer did not pass the check by the model",
    "images_unavailable": "its images could not be fetched",
    "timeout": "it took longer than ai.request_timeout_seconds",
    "over_budget": "today's budget is spent",
    "model_unavailable": "the model cannot be asked now",
    "model_failed": "the model gave no usable reply",
    "knowledge_failed": "the index could not be read",
}


def settings_of(
    ctx: click.Context,
    overrides: Mapping[str, Any] | None = None,
    *,
    tells_itself: bool = False,
    needs_folder: bool = False,
) -> Settings:
    """The settings that `--config` and the environment give. Raises ConfigError.

    A command that `tells_itself` what went wrong logs errors only, or the same would be said twice, unless log.level
    says how much. One that `needs_folder` raises ConfigError where there is no data folder, and makes none.
    """
    chosen: str | None = ctx.find_root().obj
    settings = load_settings(Path(chosen) if chosen else None, overrides=overrides)
    from intern.core.log import configure, get_logger

    brief = tells_itself and settings.log.level == "auto"
    configure(
        log_format=settings.log.format, level="warning" if brief else settings.log.level, secrets=settings.secrets
    )
    if brief:
        for handler in logging.getLogger().handlers:
            handler.addFilter(_Brief())
    for table in () if brief else settings.without_price:
        get_logger(__name__).warning("model_without_price", table=table, hint=NO_PRICE.format(table))
    if needs_folder:
        check_folder(settings)
    return settings


def check_folder(settings: Settings) -> None:
    """Raise ConfigError where there is no data folder."""
    if not settings.paths.is_made():
        raise ConfigError(
            f"there is no data folder here: {settings.data.dir.absolute()} is not there, or holds nothing of intern's; "
            "go to where it is, name it in data.dir, or let `intern init` make one"
        )


class _Brief(logging.Filter):
    """A filter that passes only errors. It prints warnings of damage and failed searches in plain words, once each."""

    _TOLD: Mapping[str, str] = {
        "archive_block_damaged": "{file}, line {line}: {reason}; this piece is passed over",
        "archive_id_repeated": "{file}: a second pair has the id {qa_id}; it is passed over",
        "topic_block_damaged": "{file}, line {line}: {reason}; this piece is passed over",
        "decision_damaged": "{file}, line {line}: {reason}; this decision is passed over",
        "state_damaged": "{file}: {reason}; the decisions tell instead",
        "search_failed": "the texts could not be searched, so descriptions alone decide: {reason}",
        "learned_search_failed": "nuggets and facts could not be searched: {reason}",
    }

    def __init__(self) -> None:
        super().__init__()
        self._said: set[str] = set()

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno > logging.WARNING:
            return True
        said: object = record.msg
        event = cast("Mapping[str, Any]", said if isinstance(said, dict) else {})
        if (words := self._TOLD.get(str(event.get("event")))) is not None:
            from intern.core.log import redacted

            line = redacted(words.format_map(event))
            if line not in self._said:  # several stores read the same files
                say(f"intern: {line}")
            self._said.add(line)
        return False


def _discord_ids(_ctx: click.Context, option: click.Parameter, values: tuple[str, ...]) -> tuple[str, ...]:
    """A callback for an option that takes ids, as the settings do. Raises ConfigError."""
    try:
        DiscordOptions(team_member_ids=tuple(map(UserId, values)))
    except ValueError as error:
        said = str(error).removeprefix("team_member_ids ")
        raise ConfigError(f"{option.opts[0]} {said}; Discord's Developer Mode copies them by a right click") from None
    return values


def team_options(command: Callable[..., None]) -> Callable[..., None]:
    """Who is of the team in an export: `team_ids` and `team_role_ids`."""
    ids = partial(click.option, multiple=True, metavar="ID", callback=_discord_ids)
    role = ids("--team-role-id", "team_role_ids", help="A role of the team's, likewise.")
    return ids("--team-id", "team_ids", help="A team member, beside those of the settings.")(role(command))


def say(text: str) -> None:
    """Talk: to stderr, so that stdout holds data only."""
    make_way()
    print(printable(text), file=sys.stderr, flush=True)


def show(text: str) -> None:
    """Data for people."""
    _write(printable(text).encode(sys.stdout.encoding, "backslashreplace"))


def show_json(value: object) -> None:
    """Data for scripts: one JSON object on a line, always UTF-8."""
    _write(encoded(value))


def printable(text: str) -> str:
    """The text, with what a terminal would act on written out as an escape: answers may quote anybody."""
    return _UNPRINTABLE.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def in_words(reason: str) -> str:
    """Why there is no answer, for people."""
    return f"{_SILENCES[reason]} ({reason})" if reason in _SILENCES else reason


def _write(data: bytes) -> None:
    make_way()
    sys.stdout.flush()
    sys.stdout.buffer.write(data + b"\n")
    sys.stdout.buffer.flush()
