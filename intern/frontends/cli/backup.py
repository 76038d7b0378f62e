"""`intern backup`."""

from __future__ import annotations

from pathlib import Path

import anyio
import click
from anyio.to_thread import run_sync

from intern.frontends.cli.options import say, settings_of, show, show_json


@click.command("backup")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--force", is_flag=True, help="Write over a file that is there.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
@click.pass_context
def command(ctx: click.Context, file: Path, *, force: bool, as_json: bool) -> None:
    """Copy the database to a file, whether or not the bot runs.

    The copy is of one moment, is checked, and appears under its name only when it is whole. It says what else belongs
    to a backup. Exit code 0: done. 2: it must not be written there. 3: it could not be made.
    """
    settings = settings_of(ctx, tells_itself=True, needs_folder=True)
    from intern.service.stores import back_up

    async def work() -> None:
        done = await run_sync(lambda: back_up(settings, file, force=force))
        if as_json:
            show_json(done)
            return
        show(done.path)
        say(f"{done.bytes:,} bytes, checked; it holds what is secret, too: keep it where only you can read")
        if done.beside:
            say(f"also copy, as they are: {', '.join(done.beside)}")

    anyio.run(work)
