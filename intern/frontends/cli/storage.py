"""Copies of the data: backup, export, restore, move."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from intern.frontends.cli.options import ask_folder, read_folder_settings, read_settings, run_work
from intern.frontends.cli.output import say, show, show_result

if TYPE_CHECKING:
    from intern.service.backups import BackupResult
    from intern.service.databases import DatabaseMove
    from intern.service.restoring import RestoreResult


@click.command("backup")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--force", is_flag=True, help="Write over a file that is there.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
def backup(file: Path, *, force: bool, as_json: bool) -> None:
    """Copy the database to a file, whether or not the bot runs.

    The copy is of one moment, is checked, and appears under its name only when it is whole. It says what else belongs
    to a backup. Exit code 0: done. 2: it must not be written there. 3: it could not be made.
    """
    settings = read_folder_settings()
    from intern.service.backups import back_up

    show_result(back_up(settings, file, force=force), _report_backup, as_json=as_json)


def _report_backup(done: BackupResult) -> None:
    show(done.path)
    say(f"{done.bytes:,} bytes, checked; it holds what is secret, too: keep it where only you can read")
    if done.beside:
        say(f"also copy, as they are: {', '.join(done.beside)}")


@click.command("export")
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
def export(folder: Path, *, as_json: bool) -> None:
    """Write archive, decisions, topics and indices as text files.

    Into a folder that is empty or not there yet; `intern restore` reads it. Works beside a running bot. Your documents,
    nuggets, facts, votes and traces are not in it. Exit code 0: done. 2: the folder holds something. 3: it could not be
    read or written.
    """
    names = ask_folder(lambda intern: intern.export(folder))
    show_result(names, lambda names: say(f"wrote {len(names)} files to {folder}"), as_json=as_json)


@click.command("restore")
@click.argument("folder", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
def restore(folder: Path, *, as_json: bool) -> None:
    """Make a lost database anew from the text files of a folder.

    FOLDER is a data folder or what `intern export` wrote. Archive, decisions, topics and the descriptions of the
    indices are taken from it, and no model is asked. Nuggets, facts, votes and traces are not in text files: a backup
    has them. Exit code 0: done. 2: the database holds something already. 3: something cannot be read or written.
    """
    done = ask_folder(lambda intern: intern.restore(folder), read_settings())  # there may be no data folder yet
    show_result(done, _report_restore, as_json=as_json)


def _report_restore(done: RestoreResult) -> None:
    say(
        f"{done.pairs} captures, {done.decisions} decisions, {done.topics} topics, {done.sources} descriptions;"
        " no model was asked"
    )
    for each in done.damaged[:_TOLD]:
        say(f"passed over: {each}")
    if len(done.damaged) > _TOLD:
        say(f"passed over: {len(done.damaged) - _TOLD} more pieces")
    say("nuggets, facts and the search are not in text files; make them anew with: intern index --extract")


@click.command("move")
@click.argument("source", metavar="FROM")
@click.argument("target", metavar="TO")
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
def move(source: str, target: str, *, as_json: bool) -> None:
    """Copy the database to another engine.

    FROM and TO are a file, such as data/intern.db, or postgresql://USER@HOST/DATABASE. A password is better in
    ~/.pgpass than in a command. The bot must be stopped. FROM stays as it is, and TO must hold nothing. Exit code 0:
    done. 2: there is nothing to move, or TO holds something. 3: one of them cannot be read or written.
    """
    settings = read_folder_settings()
    from intern.service.databases import move_database

    show_result(run_work(move_database, settings, source, target), _report_move, as_json=as_json)


def _report_move(done: DatabaseMove) -> None:
    say(f"{done.rows:,} rows are in {done.target} now; {done.source} is as it was")
    say("name the new one before the next start: a server as data.url, a file as intern.db in the data folder")


_TOLD = 5
