"""`intern nuggets`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeVar, get_args

import anyio
import click

from intern.core.errors import ConfigError
from intern.core.records import Nugget, NuggetStatus
from intern.frontends.cli.options import say, settings_of, show, show_json
from intern.frontends.cli.telling import json_option, minute

if TYPE_CHECKING:
    from intern.stores.sqlite.extractions import NuggetStore

T = TypeVar("T")


@click.group("nuggets", invoke_without_command=True)
@click.pass_context
def command(ctx: click.Context) -> None:
    """Read what was distilled from conversations.

    Without a command: the list. The beginning of an id is enough. Exit code 0; 2 for an id that is unknown, or the
    beginning of several; 3 where something cannot be read.
    """
    if ctx.invoked_subcommand is None:
        ctx.invoke(list_nuggets)


@command.command("list")
@click.option("--status", type=click.Choice(get_args(NuggetStatus)))
@click.option("--top", metavar="N", type=click.IntRange(1), default=100, show_default=True, help="At most so many.")
@json_option
@click.pass_context
def list_nuggets(
    ctx: click.Context, *, status: NuggetStatus | None = None, top: int = 100, as_json: bool = False
) -> None:
    """List nuggets, newest first."""
    found = _read(ctx, lambda nuggets: nuggets.all(status, limit=top))
    if as_json:
        show_json(found)
    elif found:
        show("\n".join(map(_line, found)))
    else:
        say("no nugget was distilled yet")


@command.command("show")
@click.argument("nugget_id", metavar="ID")
@json_option
@click.pass_context
def show_nugget(ctx: click.Context, *, nugget_id: str, as_json: bool) -> None:
    """Show a nugget whole."""

    async def one(nuggets: NuggetStore) -> Nugget:
        prefix = nugget_id.strip().removeprefix("nugget:")
        found = await nuggets.beginning(prefix) if prefix else ()
        if len(found) == 1:
            return found[0]
        if found:
            raise ConfigError(f"{nugget_id} is the beginning of {len(found)} nuggets' ids; name more of it")
        raise ConfigError(f"there is no nugget {nugget_id}; `intern nuggets list` tells their ids")

    nugget = _read(ctx, one)
    if as_json:
        show_json(nugget)
    else:
        show("\n".join(_whole(nugget)))


def _read(ctx: click.Context, ask: Callable[[NuggetStore], Awaitable[T]]) -> T:
    settings = settings_of(ctx, tells_itself=True, needs_folder=True)
    from intern.service.intern import open_intern

    async def work() -> T:
        async with open_intern(settings) as intern:
            return await ask(intern.nuggets)

    return anyio.run(work)


def _line(nugget: Nugget) -> str:
    return f"{nugget.id}  {minute(nugget.timestamp)}  ({nugget.status})  {nugget.topic}: {nugget.topic_summary}"


def _whole(nugget: Nugget) -> list[str]:
    lines = [_line(nugget), *(f"  {line}" for line in nugget.detailed_analysis.splitlines())]
    if nugget.keywords:
        lines.append(f"  keywords: {', '.join(nugget.keywords)}")
    if nugget.user_ids_involved:
        lines.append(f"  said by: {', '.join(nugget.user_ids_involved)}")
    return [*lines, f"  from {nugget.conversation_id}, messages {', '.join(nugget.source_message_ids)}"]
