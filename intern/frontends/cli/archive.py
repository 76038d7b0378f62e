"""`intern archive`."""

from __future__ import annotations

import click

from intern.frontends.cli.options import show, show_json
from intern.frontends.cli.telling import json_option, reading, said, told
from intern.frontends.words import minute

_LISTED = 50  # a screen or two; --all has the rest


@click.group("archive", invoke_without_command=True)
@click.pass_context
def command(ctx: click.Context) -> None:
    """Read the captured pairs: list them, show one.

    Reads only, and works beside a running bot. Without a command: the list. Exit code 0; 2 for a pair that there is
    not; 3 where something cannot be read.
    """
    if ctx.invoked_subcommand is None:
        ctx.invoke(list_pairs)


@command.command("list")
@click.option("--all", "everything", is_flag=True, help=f"All pairs; else the newest {_LISTED}.")
@json_option
@click.pass_context
def list_pairs(ctx: click.Context, *, everything: bool = False, as_json: bool = False) -> None:
    """List archived pairs, oldest first, each with what became of it."""
    pairs = reading(ctx).pairs(newest=None if everything else _LISTED)
    if as_json:
        show_json(pairs)
        return
    for each in pairs:
        became = each.decision.replace("_", " ") + (f" {each.topic}" if each.topic else "")
        show(f"{each.qa_id}  answered {minute(each.answered_at)}  {became}: {each.question[:200]}")


@command.command("show")
@click.argument("qa_id")
@json_option
@click.pass_context
def show_pair(ctx: click.Context, qa_id: str, *, as_json: bool) -> None:
    """Show one pair, word for word, and all that was decided about it."""
    found = reading(ctx).pair(qa_id)
    if as_json:
        show_json(found)
        return
    pair = found.pair
    lines = [
        f"{pair.qa_id}, answered {minute(pair.answered_at)}, archived {minute(pair.timestamp)}",
        f"conversation {pair.conversation_id}, messages {', '.join(pair.message_ids)}",
        *said(pair.turns),
    ]
    show("\n".join([*lines, *(["", *map(told, found.decisions)] if found.decisions else [])]))
