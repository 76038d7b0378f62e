"""`intern retry`."""

from __future__ import annotations

import sys

import anyio
import click

from intern.frontends.cli.options import say, settings_of, show, show_json
from intern.frontends.cli.telling import json_option, told


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
    settings = settings_of(ctx, tells_itself=True, needs_folder=True)
    from intern.core.ids import QAId
    from intern.core.records import Parked
    from intern.service.intern import open_intern

    async def work() -> int:
        async with open_intern(settings) as intern:
            decisions = await intern.retry(tuple(map(QAId, qa_ids)))
        if as_json:
            show_json(decisions)
        elif decisions:
            show("\n".join(map(told, decisions)))
        else:
            say("nothing is parked")
        return 3 if any(isinstance(each, Parked) for each in decisions) else 0

    sys.exit(anyio.run(work))
