"""`intern nuggets`: what was distilled from conversations."""

from __future__ import annotations

from typing import TYPE_CHECKING, get_args

import click

from intern.core.knowledge import Nugget, NuggetStatus
from intern.frontends.cli.options import DefaultListGroup, ask_folder, json_option
from intern.frontends.cli.output import show, show_list, show_result
from intern.frontends.wording import minute

if TYPE_CHECKING:
    pass
from intern.frontends.cli.facts import top_option


@click.group("nuggets", cls=DefaultListGroup)
def nuggets() -> None:
    """Read what was distilled from conversations.

    Without a command: the list, with its options. The beginning of an id is enough. Exit code 0; 2 for an id that
    is unknown, or the beginning of several; 3 where something cannot be read.
    """


@nuggets.command("list")
@click.option("--status", type=click.Choice(get_args(NuggetStatus)))
@top_option
@json_option
def list_nuggets(*, status: NuggetStatus | None, top: int, as_json: bool) -> None:
    """List nuggets, newest first."""
    found = ask_folder(lambda intern: intern.learned_knowledge.nuggets(status, top))
    show_list(found, _nugget_line, "no nugget was distilled yet", as_json=as_json)


@nuggets.command("show")
@click.argument("nugget_id", metavar="ID")
@json_option
def show_nugget(*, nugget_id: str, as_json: bool) -> None:
    """Show a nugget whole."""
    show_result(ask_folder(lambda intern: intern.learned_knowledge.nugget(nugget_id)), _show_nugget, as_json=as_json)


def _nugget_line(nugget: Nugget) -> str:
    return f"{nugget.id}  {minute(nugget.timestamp)}  ({nugget.status})  {nugget.topic}: {nugget.topic_summary}"


def _show_nugget(nugget: Nugget) -> None:
    lines = [_nugget_line(nugget), *(f"  {line}" for line in nugget.detailed_analysis.splitlines())]
    if nugget.keywords:
        lines.append(f"  keywords: {', '.join(nugget.keywords)}")
    if nugget.user_ids_involved:
        lines.append(f"  said by: {', '.join(nugget.user_ids_involved)}")
    show("\n".join([*lines, f"  from {nugget.conversation_id}, messages {', '.join(nugget.source_message_ids)}"]))
