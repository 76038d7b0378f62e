"""`intern index`."""

from __future__ import annotations

import sys

import anyio
import click

from intern.cli.options import check_folder, say, settings_of, show_json


@click.command("index")
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
@click.pass_context
def command(ctx: click.Context, *, as_json: bool) -> None:
    """Bring the index of the knowledge base up to date.

    Reads the sources folder, describes what is new or changed, and forgets what is gone. What did not change costs
    nothing. While `intern run` works on the same data folder, it does the work, and this command waits for it.
    """
    settings = settings_of(ctx, tells_itself=True)
    if not settings.paths.sources.exists():
        check_folder(settings)
    from intern.app import open_intern

    async def work() -> int:
        async with open_intern(settings) as intern:
            refreshed = await intern.index()
        if as_json:
            show_json(refreshed)
        else:
            for path, reason in refreshed.skipped:
                say(f"left out {path}: {reason}")
            if refreshed.changed or refreshed.removed or not refreshed.pending:
                say(f"{len(refreshed.changed)} described, {len(refreshed.removed)} removed")
        if refreshed.pending:
            owed = refreshed.pending
            say(f"intern: not described yet: {len(owed)}; mend this and run it again: {owed[0].reason}")
            return 3
        return 0

    sys.exit(anyio.run(work))
