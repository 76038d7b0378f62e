"""`intern init`."""

from __future__ import annotations

import os
from functools import partial
from importlib.resources import files
from pathlib import Path

import click

from intern.core.errors import ConfigError, KnowledgeError
from intern.frontends.cli.options import say
from intern.service.settings import CONFIG_FILE

_FOLDERS = ("knowledge-base/sources", "team-knowledge/raw", "team-knowledge/topics")


@click.command("init")
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path), default=Path())
def command(folder: Path) -> None:
    """Write a commented intern.toml and the data folders.

    Overwrites nothing: what is there already stays as it is.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name in _FOLDERS:
            (folder / "data" / name).mkdir(parents=True, exist_ok=True)
        config = folder / CONFIG_FILE
        try:
            # Readable by its owner only: people put tokens into it.
            with open(config, "x", encoding="utf-8", opener=partial(os.open, mode=0o600)) as file:
                file.write(_example())
            say(f"wrote {config}")
        except FileExistsError:
            say(f"{config} is there already; left as it is")
    except OSError as error:
        raise KnowledgeError(f"{error.filename or folder}: cannot be written ({error.strerror})") from None
    say(f"put documents into {folder / 'data' / 'knowledge-base' / 'sources'}, then: intern index")


def _example() -> str:
    packaged = files("intern") / "_example.toml"
    if packaged.is_file():
        return packaged.read_text(encoding="utf-8")
    in_tree = Path(__file__).parents[3] / "intern.toml.example"
    if in_tree.is_file():
        return in_tree.read_text(encoding="utf-8")
    raise ConfigError("the example configuration is missing from this installation; install intern again")
