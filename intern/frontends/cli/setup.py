"""`intern init` and `intern doctor`."""

from __future__ import annotations

import os
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from intern.core.errors import ConfigError, KnowledgeError
from intern.frontends.cli.options import read_settings, run_work
from intern.frontends.cli.output import say, show, show_result
from intern.service import CONFIG_FILE

if TYPE_CHECKING:
    from intern.service.doctor import DoctorReport

_FOLDERS = ("knowledge-base/sources", "team-knowledge/raw", "team-knowledge/topics")


@click.command("init")
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path), default=Path())
def init(folder: Path) -> None:
    """Write a commented intern.toml and the data folders.

    Overwrites nothing: what is there already stays as it is. Exit code 0: done. 3: the folder cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name in _FOLDERS:
            (folder / "data" / name).mkdir(parents=True, exist_ok=True)
        config = folder / CONFIG_FILE
        try:
            # Readable by its owner only: people put tokens into it.
            with open(config, "x", encoding="utf-8", opener=partial(os.open, mode=0o600)) as file:
                file.write(_read_example_config())
            say(f"wrote {config}")
        except FileExistsError:
            say(f"{config} is there already; left as it is")
    except OSError as error:
        raise KnowledgeError(f"{error.filename or folder}: cannot be written ({error.strerror})") from None
    say(f"put documents into {folder / 'data' / 'knowledge-base' / 'sources'}, then: intern index")


def _read_example_config() -> str:
    from importlib.resources import files

    packaged = files("intern") / "_example.toml"
    if packaged.is_file():
        return packaged.read_text(encoding="utf-8")
    in_tree = Path(__file__).parents[3] / "intern.toml.example"
    if in_tree.is_file():
        return in_tree.read_text(encoding="utf-8")
    raise ConfigError("the example configuration is missing from this installation; install intern again")


_MARKS = {"ok": "ok  ", "note": "note", "todo": "TODO"}


@click.command("doctor")
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
@click.option("--find", is_flag=True, help="Only look for model servers on this machine, and print the lines to set.")
def doctor(*, as_json: bool, find: bool) -> None:
    """Check model, data folder, and rights and roles on Discord.

    Says the one next thing to do, and prints the link that invites the bot with no more permissions than it needs.
    Asks each model endpoint one short question of some 1,300 tokens; says what that took, and what it does not take. A
    database that is there gets the count of tokens and what the endpoint takes; nothing else changes. May run beside
    the bot. Without a token, Discord is left out. Exit code 0: all is well. 1: there is something to do. 3: could not
    look.
    """
    if find:
        from intern.frontends.cli.models import show_local_servers
        from intern.service.model_servers import find_local_servers

        servers = run_work(find_local_servers)
        show_result(servers, show_local_servers, as_json=as_json)
        sys.exit(0 if servers else 1)
    settings = read_settings()
    from intern.service.doctor import examine

    report = run_work(examine, settings)
    show_result(report, _show_report, as_json=as_json)
    sys.exit(0 if report.ok else 1)


def _show_report(report: DoctorReport) -> None:
    for finding in report.findings:
        say(f"{_MARKS[finding.level]}  {finding.what}")
    if report.invite:
        show(f"invite link: {report.invite}")
    show(f"next: {report.next}")
