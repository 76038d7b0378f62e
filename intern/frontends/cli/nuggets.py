"""`intern nuggets`."""

from __future__ import annotations

from typing import get_args

import click

from intern.core.records import Nugget, NuggetStatus
from intern.frontends.cli.options import show, show_json
from intern.frontends.cli.telling import ask_folder, json_option, show_each
from intern.frontends.words import minute


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
    found = ask_folder(ctx, lambda intern: intern.known.nuggets(status, limit=top))
    show_each(found, _line, "no nugget was distilled yet", as_json=as_json)


@command.command("show")
@click.argument("nugget_id", metavar="ID")
@json_option
@click.pass_context
def show_nugget(ctx: click.Context, *, nugget_id: str, as_json: bool) -> None:
    """Show a nugget whole."""
    nugget = ask_folder(ctx, lambda intern: intern.known.nugget(nugget_id))
    if as_json:
        show_json(nugget)
    else:
        show("\n".join(_whole(nugget)))


def _line(nugget: Nugget) -> str:
    return f"{nugget.id}  {minute(nugget.timestamp)}  ({nugget.status})  {nugget.topic}: {nugget.topic_summary}"


def _whole(nugget: Nugget) -> list[str]:
    lines = [_line(nugget), *(f"  {line}" for line in nugget.detailed_analysis.splitlines())]
    if nugget.keywords:
        lines.append(f"  keywords: {', '.join(nugget.keywords)}")
    if nugget.user_ids_involved:
        lines.append(f"  said by: {', '.join(nugget.user_ids_involved)}")
    return [*lines, f"  from {nugget.conversation_id}, messages {', '.join(nugget.source_message_ids)}"]
