"""Commands for the operator of a process that hosts many communities: `intern community`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import click
import msgspec

from intern.core.errors import ConfigError
from intern.frontends.cli.options import DefaultListGroup, ask_service, json_option, read_folder_settings
from intern.frontends.cli.output import say, show, show_json, show_list, show_result
from intern.frontends.wording import minute

if TYPE_CHECKING:
    from intern.service.community_registry import CommunityRegistry, CommunityUsage, RegisteredCommunity

T = TypeVar("T")
_name = click.argument("name")


@click.group("community", cls=DefaultListGroup)
def community() -> None:
    """Read and change the communities of a process that hosts many.

    With hosting.enabled, each server that invites the bot is a community by itself. The commands work beside the
    running process, which follows within seconds. For other commands on one community: intern --community NAME.

    Exit code 0: done. 2: there is no such community, or a setting is wrong. 3: something cannot be read or written.
    """


def _ask_registry(ask: Callable[[CommunityRegistry], Awaitable[T]]) -> T:
    settings = read_folder_settings()
    from intern.service.community_registry import open_registry

    return ask_service(open_registry(settings), ask)


@community.command("list")
@json_option
def list_communities(*, as_json: bool) -> None:
    """List all communities by name."""
    show_list(
        _ask_registry(lambda registry: registry.all()),
        _community_line,
        "no server has invited the bot",
        as_json=as_json,
    )


def _community_line(known: RegisteredCommunity) -> str:
    titled = f"{known.title!r}, server {', '.join(known.guild_ids)}"
    return f"{known.name}  {known.state}  {titled}  since {minute(known.joined_at)}"


@community.command("show")
@_name
@json_option
def show_community(*, name: str, as_json: bool) -> None:
    """Show a community, its settings, and what it used of its limits today (UTC)."""
    found = _ask_registry(lambda registry: registry.show(name))
    show_result(found, lambda found: show("\n".join(_community_lines(found))), as_json=as_json)


def _community_lines(found: CommunityUsage) -> Iterator[str]:
    yield _community_line(found.community)
    if found.erased_at:
        yield f"its server removed the bot; all its data is erased at {minute(found.erased_at)} UTC"
    if found.problem:
        yield f"cannot be served: {found.problem}"
    yield f"questions today: {found.questions_today}{_limit_suffix(found.questions_per_day)}"
    yield f"addresses of documents: {found.sources}{_limit_suffix(found.most_sources)}"
    yield f"spent today: {found.tokens_today} tokens, {found.cost_today:.4f}{_limit_suffix(found.cost_per_day)}"
    for section, values in found.community.chosen.items():
        yield from (f"{section}.{key} = {msgspec.json.encode(value).decode()}" for key, value in values.items())


def _limit_suffix(limit: float) -> str:
    return f" of {limit:g}" if limit else ""


@community.command("set")
@_name
@click.argument("key")
@click.argument("value", required=False)
@json_option
def set_setting(*, name: str, key: str, value: str | None, as_json: bool) -> None:
    """Set a setting or a limit of a community.

    As in: intern community set NAME hosting.questions_per_day 200. Without a value, the one of the process holds again.
    Lists are written as in intern.toml: '["1", "2"]'.
    """
    changed = _ask_registry(lambda registry: registry.set(name, key, value))
    _show_change(changed, f"{key} is {'set' if value is not None else 'as in intern.toml again'}", as_json=as_json)


@community.command("suspend")
@_name
@json_option
def suspend(*, name: str, as_json: bool) -> None:
    """Serve a community no more. It keeps all that it has."""
    changed = _ask_registry(lambda registry: registry.suspend(name))
    _show_change(changed, "it is suspended; `intern community resume` serves it again", as_json=as_json)


@community.command("resume")
@_name
@json_option
def resume(*, name: str, as_json: bool) -> None:
    """Serve a suspended community again."""
    changed = _ask_registry(lambda registry: registry.resume(name))
    _show_change(changed, f"it is {changed.state} again", as_json=as_json)


def _show_change(changed: RegisteredCommunity, done: str, *, as_json: bool) -> None:
    show_result(changed, lambda changed: say(f"{changed.name}: {done}"), as_json=as_json)


@community.command("export")
@_name
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path))
@json_option
def export_community(*, name: str, folder: Path, as_json: bool) -> None:
    """Write a community's knowledge and settings as text files into an empty folder.

    As `intern export` does for a bot of one community; community.json has what it chose, with its documents' addresses.
    """
    names = _ask_registry(lambda registry: registry.export(name, folder))
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
    _ask_registry(lambda registry: registry.delete(name))
    if as_json:
        show_json({"deleted": name})
    else:
        say(f"{name}: all its data is erased")
