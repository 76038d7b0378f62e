"""`intern regenerate`."""

from __future__ import annotations

import sys

import anyio
import click

from intern.cli.options import say, settings_of, show_json


@click.command("regenerate")
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
@click.pass_context
def command(ctx: click.Context, *, as_json: bool) -> None:
    """Rebuild the topic files from the archive.

    Useful after the prompts changed, or when topic files were damaged. The old library stays in use until the new one
    is complete. While `intern run` works on the same data folder, it does the work, and this command waits for it.
    """
    settings = settings_of(ctx, tells_itself=True)
    from intern.app import open_intern

    async def work() -> int:
        async with open_intern(settings) as intern:
            done = await intern.regenerate()
        if as_json:
            show_json(done)
        else:
            tally = done.tally
            say(
                f"{done.pairs} captures: {tally.filed} filed under {done.topics} topics, {tally.skipped} skipped, "
                f"{tally.replaced} replaced by fuller ones, {tally.parked} parked"
            )
        return 3 if done.parked else 0

    sys.exit(anyio.run(work))
