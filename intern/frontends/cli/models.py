"""The command models: the models that the endpoint offers."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from intern.frontends.cli.options import read_settings, run_work
from intern.frontends.cli.output import say, show, show_result

if TYPE_CHECKING:
    from collections.abc import Sequence

    from intern.service.model_servers import ModelServer


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


def show_local_servers(servers: Sequence[ModelServer]) -> None:
    """Show the servers of this machine with the lines that choose each."""
    if not servers:
        say("no model server answers on this machine at the default ports of Ollama, LM Studio, llama.cpp and vLLM")
    for server in servers:
        say(f"{server.name} answers at {server.base_url}. To use it, put into intern.toml:")
        show(server.settings_for(server.models[0].id or server.models[0].name))
        if others := [model.id or model.name for model in server.models[1:]]:
            say(f"It also offers {', '.join(others)}.")
