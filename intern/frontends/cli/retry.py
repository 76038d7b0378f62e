"""`intern retry`."""

from __future__ import annotations

import sys

import click

from intern.frontends.cli.telling import ask_folder, json_option, show_each, told


@click.command("retry")
@click.argument("qa_ids", metavar="QA_ID…", nargs=-1)
@json_option
@click.pass_context
def command(ctx: click.Context, *, qa_ids: tuple[str, ...], as_json: bool) -> None:
    """File parked pairs now: all of them, or those that you name.

    `intern status` lists them. While `intern run` works on the same data folder, it does the work, and this command
    waits for it. Exit code 2 for a pair that is unknown or not parked; 3 where one is parked again, for the model gave
    nothing usable, or where model or disk failed altogether: what was filed by then stays so.
    """
    from intern.core.ids import QAId
    from intern.core.records import Parked

    decisions = ask_folder(ctx, lambda intern: intern.retry(tuple(map(QAId, qa_ids))))
    show_each(decisions, told, "nothing is parked", as_json=as_json)
    sys.exit(3 if any(isinstance(each, Parked) for each in decisions) else 0)
