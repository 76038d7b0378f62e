"""`intern init` and `intern models`: a new data folder, and the models that an endpoint offers."""

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
    from collections.abc import Sequence

    from intern.service.model_servers import ModelServer

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


@click.command("models")
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
def models(*, as_json: bool) -> None:
    """List the models that the endpoint offers.

    Each with its context, where the server tells it. Costs no tokens. Exit code 0: there are some. 1: it lists none. 2:
    no endpoint is set. 3: it could not be asked.
    """
    settings = read_settings()
    from intern.service.model_servers import list_configured

    servers = run_work(list_configured, settings)
    if not servers:
        raise click.UsageError("no endpoint is set: set llm.base_url, or look for one with `intern doctor --find`")
    show_result(servers, _show_models, as_json=as_json)
    sys.exit(0 if any(server.models for server in servers) else 1)


def _show_models(servers: Sequence[ModelServer]) -> None:
    for server in servers:
        say(f"{server.base_url}{f' ({server.name})' if server.name else ''}: {len(server.models)} models")
        for model in server.models:
            show(f"{model.id or model.name}{f'  {model.context:,} tokens of context' if model.context else ''}")
