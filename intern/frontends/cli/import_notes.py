"""`intern import-notes`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import click

from intern.frontends.cli.options import say, settings_of, show_json

if TYPE_CHECKING:
    from intern.service.importing import ImportedNotes


@click.command("import-notes")
@click.argument("folder", metavar="DIR", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--dry-run", is_flag=True, help="Say what would be read and what it would cost; change nothing.")
@click.option("--data", type=click.Path(file_okay=False), help="The data folder, instead of that of the settings.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
@click.pass_context
def command(ctx: click.Context, *, folder: Path, dry_run: bool, data: str | None, as_json: bool) -> None:
    """Learn nuggets and facts from a folder of notes (*.md).

    Each file counts as a conversation in which the team speaks. Importing the same again costs nothing; a file that
    changed takes the place of what it said before, and what a deleted one taught is withdrawn. Exit code 3 where a file
    could not be read or taught nothing for a failure.
    """
    settings = settings_of(ctx, {"data": {"dir": data}} if data else None, tells_itself=True)
    from intern.service.importing import import_notes

    async def work() -> int:
        done = await import_notes(settings, folder, dry_run=dry_run)
        if as_json:
            show_json(done)
        else:
            _tell(done, dry_run=dry_run)
        return 3 if done.skipped or (done.read is not None and done.read.failed) else 0

    sys.exit(anyio.run(work))


def _tell(done: ImportedNotes, *, dry_run: bool) -> None:
    say(
        f"{done.files} files: {done.new} conversations new, {done.changed} changed, {done.unchanged} unchanged, "
        f"{done.withdrawn} gone"
    )
    for path, why in done.skipped.items():
        say(f"left out: {path}: {why}")
    if done.skipped:
        say("nothing was withdrawn, since not all files could be read")
    if dry_run:
        say(f"nothing was changed; it would take {done.model_calls} model calls, about {done.tokens} tokens")
    elif done.read is not None:
        say(
            f"{done.read.extracted} taught something, {done.read.nothing} nothing, {done.read.failed} could not be read"
        )
