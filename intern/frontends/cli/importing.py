"""`intern import` and `intern import-notes`."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from intern.frontends.cli import options
from intern.frontends.cli.output import say, show_result

if TYPE_CHECKING:
    from intern.service.history_import import ImportResult
    from intern.service.notes_import import NotesImportResult
from intern.frontends.cli.indexing import VECTORS_WITHIN, missing_vectors_hint

_FILES = click.Path(exists=True, path_type=Path)


@click.command("import")
@click.argument("files", nargs=-1, required=True, metavar="EXPORT…", type=_FILES)
@options.team_options
@click.option("--since", type=options.UTC_DATES, help="Leave out older answers (UTC).")
@click.option("--dry-run", is_flag=True, help="Say what would be captured and what it would cost; change nothing.")
@click.option("--data", type=click.Path(file_okay=False), help="Another data folder, with the database in it.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
def import_(*, files: tuple[Path, ...], dry_run: bool, data: str | None, as_json: bool, **wanted: Any) -> None:
    """Learn from exported history (DiscordChatExporter, JSON).

    An EXPORT is a file, or a folder whose *.json files are read, those of its subfolders too. Name the exports of all
    channels and threads together, so that each thread finds the question that it hangs on. They go through the same
    rules as live messages, by the time at which they were written; nothing is answered, nothing is posted, and an
    answer from history never makes a newer one obsolete. Importing the same again changes nothing.

    Export only what everybody may read: what a file holds is taken to be public. While `intern run` works on the same
    data folder, it files what this command brings. A damaged file, or one in another format, is left out, and named at
    the end. Exit code 0: done. 2: no file is such an export. 3: a file was left out, or a pair is parked.
    """
    settings = options.read_settings(options.folder_overrides(data) if data else None)
    from intern.service.history_import import ImportRequest, import_history

    asked = ImportRequest(files=files, **wanted)
    work = partial(import_history, settings, asked, dry_run=dry_run, vectors_within=VECTORS_WITHIN, tell=say)
    done = options.run_work(work)
    show_result(done, partial(_report_import, dry_run=dry_run), as_json=as_json)
    sys.exit(3 if done.refused or (done.filed and done.filed.parked) else 0)


def _report_import(done: ImportResult, *, dry_run: bool) -> None:
    say(
        f"{done.messages} messages, {done.team_replies} team replies, {done.captured} conversations: "
        f"{done.archived} new, {done.joined} fuller than before, {done.known} known already"
    )
    for reason, number in done.skipped.items():
        say(f"left out: {number} {reason}")
    if done.masked:
        say("masked: " + ", ".join(f"{number} {kind}" for kind, number in sorted(done.masked.items())))
    if dry_run:
        say(f"nothing was changed; filing these would take at most {done.model_calls} model calls")
    elif done.filed is not None:
        tally = done.filed
        say(
            f"{tally.filed} filed, {tally.skipped} skipped, {tally.replaced} replaced by fuller ones, "
            f"{tally.parked} parked; describe the topics with: intern index"
        )
        if done.without_vectors:
            say(missing_vectors_hint(done.without_vectors))
    elif done.archived or done.joined:
        say("the running intern files them")
    for reason in done.refused:
        say(f"left out: {reason}")


@click.command("import-notes")
@click.argument("folder", metavar="DIR", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--dry-run", is_flag=True, help="Say what would be read and what it would cost; change nothing.")
@click.option("--data", type=click.Path(file_okay=False), help="Another data folder, with the database in it.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
def import_notes(*, folder: Path, dry_run: bool, data: str | None, as_json: bool) -> None:
    """Learn nuggets and facts from a folder of notes (*.md).

    Each file counts as a conversation in which the team speaks. Importing the same again costs nothing; a file that
    changed takes the place of what it said before, and what a deleted one taught is withdrawn. Exit code 0: done.
    3: a file could not be read, or taught nothing for a failure.
    """
    settings = options.read_settings(options.folder_overrides(data) if data else None)
    from intern.service.notes_import import import_notes

    done = options.run_work(partial(import_notes, settings, folder, dry_run=dry_run))
    show_result(done, partial(_report_notes, dry_run=dry_run), as_json=as_json)
    sys.exit(3 if done.skipped or (done.read is not None and done.read.failed) else 0)


def _report_notes(done: NotesImportResult, *, dry_run: bool) -> None:
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
        read = done.read
        say(f"{read.extracted} taught something, {read.nothing} nothing, {read.failed} could not be read")
