"""Shared parts of commands: options, the settings, and opening the data folder."""

from __future__ import annotations

import logging
import signal
import sys
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from threading import current_thread, main_thread
from typing import TYPE_CHECKING, Any, TypeVar, cast

import anyio
import click

from intern.core.errors import ConfigError
from intern.core.ids import UserId
from intern.frontends.cli import OF_NONE
from intern.frontends.cli.output import say
from intern.service import DiscordOptions, Settings, load_settings

if TYPE_CHECKING:
    from intern.service.intern import Intern

S = TypeVar("S")
T = TypeVar("T")

json_option = click.option("--json", "as_json", is_flag=True, help="One JSON value on stdout.")


class UtcTime(click.DateTime):
    """A time, taken as UTC."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> datetime:
        """Read the time."""
        return super().convert(value, param, ctx).replace(tzinfo=UTC)


UTC_DATES = UtcTime(["%Y-%m-%d", "%Y-%m-%dT%H:%M:%S"])


class DefaultListGroup(click.Group):
    """A group that runs `list`, with its options, if no command is named."""

    def add_command(self, cmd: click.Command, name: str | None = None) -> None:
        """Add a command, whose exit codes are those of the group."""
        cmd.epilog = "".join((self.help or "").partition("Exit code")[1:])
        super().add_command(cmd, name)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Read the arguments; an option in the first place is the list's."""
        names_none = not args or (args[0].startswith("-") and args[0] not in ctx.help_option_names)
        # A shell that completes a name has none yet.
        return super().parse_args(ctx, ["list", *args] if names_none and not ctx.resilient_parsing else args)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options, those of the list first."""
        with formatter.section("Options of the list"):
            records = (option.get_help_record(ctx) for option in self.commands["list"].params)
            formatter.write_dl([record for record in records if record])
        super().format_options(ctx, formatter)


def read_settings(overrides: Mapping[str, Any] | None = None, *, logs: bool = False) -> Settings:
    """Read the settings that `--config` and the environment give. Raises ConfigError.

    Most commands print by themselves what went wrong. Unless log.level is set, they log errors only, or users would
    read the same twice. A command that `logs` does not do so.
    """
    chosen: str | None = click.get_current_context().obj
    settings = load_settings(Path(chosen) if chosen else None, overrides=overrides)
    if name := _community_option():
        from intern.service.community_registry import open_registry

        check_folder(settings)
        settings = ask_service(open_registry(settings), lambda registry: registry.settings(name))
    elif settings.hosting.enabled and (command := _root().invoked_subcommand) not in OF_NONE:
        raise ConfigError(
            f"this process hosts many communities: name one, as in `intern --community NAME {command}`; "
            "`intern community list` names all"
        )
    from intern.core.log import configure_logging, get_logger

    brief = not logs and settings.log.level == "auto"
    level = "warning" if brief else settings.log.level
    configure_logging(log_format=settings.log.format, level=level, secrets=settings.secrets)
    if brief:
        for handler in logging.getLogger().handlers:
            handler.addFilter(_BriefLogFilter())
    for hint in () if brief else settings.warnings:
        get_logger(__name__).warning("setting_without_effect", hint=hint)
    return settings


def _community_option() -> str | None:
    """Return the community that `--community` names."""
    name: str | None = _root().params.get("community")
    return name


def _root() -> click.Context:
    return click.get_current_context().find_root()


def folder_overrides(folder: str) -> dict[str, dict[str, object]]:
    """Return the overrides for another data folder, so that no part of the settings' own folder is touched."""
    return {"data": {"dir": folder, "url": ""}, "search": {"vectors": "local"}, "hosting": {"enabled": False}}


def read_folder_settings() -> Settings:
    """Read the settings. Raises ConfigError if there is no data folder, and makes none."""
    settings = read_settings()
    if not _community_option():  # one that was never opened has no folder
        check_folder(settings)
    return settings


def check_folder(settings: Settings) -> None:
    """Raise ConfigError if there is no data folder."""
    if not settings.paths.is_made():
        raise ConfigError(
            f"there is no data folder here: {settings.data.dir.absolute()} is not there, or holds nothing of intern's; "
            "go to where it is, name it in data.dir, or let `intern init` make one"
        )


class _BriefLogFilter(logging.Filter):
    """A filter that passes only errors. It prints warnings of damage and failed searches in plain words, once each."""

    _TOLD: Mapping[str, str] = {
        "archive_block_damaged": "{file}, line {line}: {reason}; this piece is passed over",
        "archive_id_repeated": "{file}: a second pair has the id {qa_id}; it is passed over",
        "document_odd": "{path}: {reason}",
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
            from intern.core.log import redact_text

            line = redact_text(words.format_map(event))
            if line not in self._said:  # several stores read the same files
                say(f"intern: {line}")
            self._said.add(line)
        return False


def _discord_ids(_ctx: click.Context, option: click.Parameter, values: tuple[str, ...]) -> tuple[str, ...]:
    """Check the ids of an option, as the settings do. Raises ConfigError."""
    try:
        DiscordOptions(team_member_ids=tuple(map(UserId, values)))
    except ValueError as error:
        said = str(error).removeprefix("team_member_ids ")
        raise ConfigError(f"{option.opts[0]} {said}; Discord's Developer Mode copies them by a right click") from None
    return values


def team_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options that name the team in an export: `team_ids` and `team_role_ids`."""
    ids = partial(click.option, multiple=True, metavar="ID", callback=_discord_ids)
    role = ids("--team-role-id", "team_role_ids", help="A role of the team's, likewise.")
    return ids("--team-id", "team_ids", help="A team member, beside those of the settings.")(role(command))


def run_work(work: Callable[..., Awaitable[T]], *arguments: Any) -> T:
    """Run `work` on an event loop, which Ctrl-C ends at once.

    At a terminal that holds even if the process inherited an ignored SIGINT, as a background job of a script does.
    """
    if current_thread() is not main_thread():
        return anyio.run(work, *arguments)
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN and sys.stdin.isatty():
        signal.signal(signal.SIGINT, signal.default_int_handler)

    async def run_interruptibly() -> T:
        # The kernel may give SIGINT to a worker thread, and asyncio would not notice it until its next event. While it
        # receives signals, no matter which, each signal wakes it.
        with anyio.open_signal_receiver(signal.SIGCONT):
            return await work(*arguments)

    return anyio.run(run_interruptibly)


def ask_folder(ask: Callable[[Intern], Awaitable[T]], settings: Settings | None = None) -> T:
    """Ask the service over the data folder. Raises ConfigError if there is none."""
    settings = settings or read_folder_settings()
    from intern.service.opening import open_intern

    return ask_service(open_intern(settings), ask)


def ask_service(opened: AbstractAsyncContextManager[S], ask: Callable[[S], Awaitable[T]]) -> T:
    """Open a service, ask it, and close it."""

    async def work() -> T:
        async with opened as service:
            return await ask(service)

    return run_work(work)
