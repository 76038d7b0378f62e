"""Commands for the operator of a process that hosts many communities: `intern community`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import click
import msgspec

from intern.core.errors import ConfigError
from intern.frontends.cli.options import Listing, asked, json_option, settings_of_folder
from intern.frontends.cli.output import say, show, show_each, show_json, show_result
from intern.frontends.words import minute

if TYPE_CHECKING:
    from intern.service.communities import Registered, Registry, Shown

T = TypeVar("T")
_name = click.argument("name")


@click.group("community", cls=Listing)
def community() -> None:
    """Read and change the communities of a process that hosts many.

    With hosting.enabled, each server that invites the bot is a community by itself. The commands work beside the
    running process, which follows within seconds. For other commands on one community: intern --community NAME.

    Exit code 0: done. 2: there is no such community, or a setting is wrong. 3: something cannot be read or written.
    """


def _ask(ask: Callable[[Registry], Awaitable[T]]) -> T:
    settings = settings_of_folder()
    from intern.service.communities import open_registry

    return asked(open_registry(settings), ask)


@community.command("list")
@json_option
def list_communities(*, as_json: bool) -> None:
    """List all communities by name."""
    show_each(_ask(lambda registry: registry.all()), _line, "no server has invited the bot", as_json=as_json)


def _line(known: Registered) -> str:
    titled = f"{known.title!r}, server {', '.join(known.guild_ids)}"
    return f"{known.name}  {known.state}  {titled}  since {minute(known.joined_at)}"


@community.command("show")
@_name
@json_option
def show_community(*, name: str, as_json: bool) -> None:
    """Show a community, its settings, and what it used of its limits today (UTC)."""
    found = _ask(lambda registry: registry.show(name))
    show_result(found, lambda found: show("\n".join(_lines(found))), as_json=as_json)


def _lines(found: Shown) -> Iterator[str]:
    yield _line(found.community)
    if found.erased_at:
        yield f"its server removed the bot; all its data is erased at {minute(found.erased_at)} UTC"
    if found.problem:
        yield f"cannot be served: {found.problem}"
    yield f"questions today: {found.questions_today}{_of(found.questions_per_day)}"
    yield f"addresses of documents: {found.sources}{_of(found.most_sources)}"
    yield f"spent today: {found.tokens_today} tokens, {found.cost_today:.4f}{_of(found.cost_per_day)}"
    for section, values in found.community.chosen.items():
        yield from (f"{section}.{key} = {msgspec.json.encode(value).decode()}" for key, value in values.items())


def _of(limit: float) -> str:
    return f" of {limit:g}" if limit else ""


@community.command("set")
@_name
@click.argument("key")
@click.argument("value", required=False)
@json_option
def set_one(*, name: str, key: str, value: str | None, as_json: bool) -> None:
    """Set a setting or a limit of a community.

    As in: intern community set NAME hosting.questions_per_day 200. Without a value, the one of the process holds again.
    Lists are written as in intern.toml: '["1", "2"]'.
    """
    changed = _ask(lambda registry: registry.set(name, key, value))
    _told(changed, f"{key} is {'set' if value is not None else 'as in intern.toml again'}", as_json=as_json)


@community.command("suspend")
@_name
@json_option
def suspend(*, name: str, as_json: bool) -> None:
    """Serve a community no more. It keeps all that it has."""
    changed = _ask(lambda registry: registry.suspend(name))
    _told(changed, "it is suspended; `intern community resume` serves it again", as_json=as_json)


@community.command("resume")
@_name
@json_option
def resume(*, name: str, as_json: bool) -> None:
    """Serve a suspended community again."""
    changed = _ask(lambda registry: registry.resume(name))
    _told(changed, f"it is {changed.state} again", as_json=as_json)


def _told(changed: Registered, done: str, *, as_json: bool) -> None:
    show_result(changed, lambda changed: say(f"{changed.name}: {done}"), as_json=as_json)


@community.command("export")
@_name
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path))
@json_option
def export_one(*, name: str, folder: Path, as_json: bool) -> None:
    """Write a community's knowledge and settings as text files into an empty folder.

    As `intern export` does for a bot of one community; community.json has what it chose, with its documents' addresses.
    """
    names = _ask(lambda registry: registry.export(name, folder))
    show_result(names, lambda names: say(f"wrote {len(names)} files to {folder}"), as_json=as_json)


@community.command("delete")
@_name
@click.option("--yes", is_flag=True, help="Needed: nothing of it is kept.")
@json_option
def delete(*, name: str, yes: bool, as_json: bool) -> None:
    """Erase all data of a community: its rows, its folder, its vectors. Exports and backups are not touched.

    A server that still has the bot begins anew at the next start; to serve it no more, suspend it instead.
    """
    if not yes:
        raise ConfigError(f"this erases all data of community {name}; make an export first, then repeat it with --yes")
    _ask(lambda registry: registry.delete(name))
    if as_json:
        show_json({"deleted": name})
    else:
        say(f"{name}: all its data is erased")
