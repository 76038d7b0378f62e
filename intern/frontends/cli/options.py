"""What several commands share: options, the settings, and opening the data folder."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

import anyio
import click

from intern.core.errors import ConfigError
from intern.core.ids import UserId
from intern.frontends.cli.output import say
from intern.service import NO_PRICE, DiscordOptions, Settings, load_settings

if TYPE_CHECKING:
    from intern.service.intern import Intern
    from intern.service.reading import Reading

T = TypeVar("T")

json_option = click.option("--json", "as_json", is_flag=True, help="One JSON value on stdout.")


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


def reading(ctx: click.Context) -> Reading:
    """The data folder that the settings name, opened to be read. Raises ConfigError and KnowledgeError."""
    settings = settings_of(ctx, tells_itself=True, needs_folder=True)
    from intern.service.reading import Reading

    return Reading(settings)


def ask_folder(ctx: click.Context, ask: Callable[[Intern], Awaitable[T]]) -> T:
    """What the data folder that the settings name says. Raises ConfigError where there is none."""
    settings = settings_of(ctx, tells_itself=True, needs_folder=True)
    from intern.service.intern import open_intern

    async def work() -> T:
        async with open_intern(settings) as intern:
            return await ask(intern)

    return anyio.run(work)
