"""`intern archive`: the captured pairs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from intern.frontends.cli.options import (
    DefaultListGroup,
    json_option,
    open_reader,
)
from intern.frontends.cli.output import show, show_list, show_result
from intern.frontends.wording import minute

if TYPE_CHECKING:
    from intern.service.archive_reader import PairDetails, PairLine
from intern.frontends.cli.review import format_decision, format_turns

_LISTED = 50  # a screen or two; --all has the rest


@click.group("archive", cls=DefaultListGroup)
def archive() -> None:
    """Read the captured pairs: list them, show one.

    Reads only, and works beside a running bot. Without a command: the list, with its options. Exit code 0; 2 for a
    pair that there is not; 3 where something cannot be read.
    """


@archive.command("list")
@click.option("--all", "everything", is_flag=True, help=f"All pairs; else the newest {_LISTED}.")
@json_option
def list_pairs(*, everything: bool, as_json: bool) -> None:
    """List archived pairs, oldest first, each with what became of it."""
    pairs = open_reader().pairs(newest=None if everything else _LISTED)
    show_list(pairs, _pair_line, "nothing was archived yet", as_json=as_json)


def _pair_line(pair: PairLine) -> str:
    what = pair.decision.replace("_", " ") + (f" {pair.topic}" if pair.topic else "")
    return f"{pair.qa_id}  answered {minute(pair.answered_at)}  {what}: {pair.question[:200]}"


@archive.command("show")
@click.argument("qa_id")
@json_option
def show_pair(qa_id: str, *, as_json: bool) -> None:
    """Show one pair, word for word, and all that was decided about it."""
    show_result(open_reader().pair(qa_id), _show_pair, as_json=as_json)


def _show_pair(found: PairDetails) -> None:
    pair = found.pair
    lines = [
        f"{pair.qa_id}, answered {minute(pair.answered_at)}, archived {minute(pair.timestamp)}",
        f"conversation {pair.conversation_id}, messages {', '.join(pair.message_ids)}",
        *format_turns(pair.turns),
    ]
    show("\n".join([*lines, *(["", *map(format_decision, found.decisions)] if found.decisions else [])]))
