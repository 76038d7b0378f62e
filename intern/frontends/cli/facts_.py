"""`intern facts`."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, time
from typing import TYPE_CHECKING, TypeVar, get_args

import anyio
import click

from intern.core.errors import ConfigError
from intern.core.records import Fact, FactCategory
from intern.frontends.cli.options import say, settings_of, show, show_json
from intern.frontends.cli.telling import json_option, minute

if TYPE_CHECKING:
    from intern.facts.reconciling import Retirement
    from intern.service.intern import Intern
    from intern.stores.sqlite.facts import FactFilter, FactStore, Link

T = TypeVar("T")

_id = click.argument("fact_id", metavar="ID")
_secret = click.option("--secret", is_flag=True, help="Also what is secret.")


def _moment(ctx: click.Context, param: click.Parameter, value: str | None) -> datetime | None:
    """A time (UTC, unless it says otherwise); a day without an hour is its last moment."""
    if value is None:
        return None
    try:
        moment = datetime.fromisoformat(value)
    except ValueError:
        raise click.BadParameter(f"{value!r} is no date such as 2026-03-01 or 2026-03-01T12:00", ctx, param) from None
    if len(value) == len("2026-03-01"):
        moment = datetime.combine(moment.date(), time.max)
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def _filters(command_: Callable[..., None]) -> Callable[..., None]:
    for option in (
        json_option,
        _secret,
        click.option("--all", "everything", is_flag=True, help="Also what is retired."),
        click.option(
            "--as-of", metavar="DATE", callback=_moment, help="What was believed then (UTC); a day: at its end."
        ),
        click.option("--category", type=click.Choice(get_args(FactCategory))),
        click.option(
            "--top", metavar="N", type=click.IntRange(1), default=100, show_default=True, help="At most so many."
        ),
    ):
        command_ = option(command_)
    return command_


@click.group("facts", invoke_without_command=True)
@click.pass_context
def command(ctx: click.Context) -> None:
    """Read what is known as facts; retire what is no longer true.

    Secret ones are shown with --secret only. Without a command: the list. The beginning of an id is enough.

    Exit code 0; 1 where a search found nothing; 2 for an id that is unknown, or the beginning of several; 3 where
    something cannot be read or written.
    """
    if ctx.invoked_subcommand is None:
        ctx.invoke(list_facts)


@command.command("list")
@_filters
@click.pass_context
def list_facts(
    ctx: click.Context,
    *,
    category: FactCategory | None = None,
    as_of: datetime | None = None,
    everything: bool = False,
    secret: bool = False,
    top: int = 100,
    as_json: bool = False,
) -> None:
    """List facts, what was said last first."""
    wanted = _wanted(category, as_of, everything=everything, secret=secret)
    found = _read(ctx, lambda intern: intern.facts.all(wanted, top))
    _show(found, "no fact is known", as_json=as_json)


@command.command("search")
@click.argument("text", nargs=-1, required=True)
@_filters
@click.pass_context
def search(
    ctx: click.Context,
    *,
    text: tuple[str, ...],
    category: FactCategory | None,
    as_of: datetime | None,
    everything: bool,
    secret: bool,
    top: int,
    as_json: bool,
) -> None:
    """Find facts that hold words of TEXT, best first."""
    from intern.search.query import any_of, terms_of

    terms = terms_of(" ".join(text))
    unspaced = [each for each in (*terms.grams, *terms.short) if not each.isascii()]
    wanted = _wanted(category, as_of, everything=everything, secret=secret)
    found = _read(ctx, lambda intern: intern.facts.search_facts(any_of(terms.words), wanted, top, holding=unspaced))
    _show(found, "nothing was found", as_json=as_json)
    sys.exit(0 if found else 1)


@command.command("show")
@_id
@_secret
@json_option
@click.pass_context
def show_fact(ctx: click.Context, *, fact_id: str, secret: bool, as_json: bool) -> None:
    """Show a fact whole, and where it was said."""
    link = next(each for each, asked in _history(ctx, fact_id, secret=secret) if asked)
    if as_json:
        show_json(link)
    else:
        show("\n".join(_whole(link)))


@command.command("history")
@_id
@_secret
@json_option
@click.pass_context
def history(ctx: click.Context, *, fact_id: str, secret: bool, as_json: bool) -> None:
    """Show what a fact took the place of, and what took its place, oldest first."""
    links = [link for link, _ in _history(ctx, fact_id, secret=secret)]
    if as_json:
        show_json(links)
    else:
        show("\n\n".join("\n".join(_whole(link)) for link in links))


@command.command("retire")
@_id
@click.option("--why", required=True, help="Kept with the fact.")
@json_option
@click.pass_context
def retire(ctx: click.Context, *, fact_id: str, why: str, as_json: bool) -> None:
    """Have a fact believed no more. What it had taken the place of does not come back."""
    if not why.strip():
        raise click.BadParameter("say why", ctx, param_hint="--why")

    async def work(intern: Intern) -> Retirement:
        from intern.facts.reconciling import Retirement as Asked

        fact = await _one(intern.facts, fact_id, secret=True)
        if not fact.is_active:
            raise ConfigError(f"{fact.id} is retired already; `intern facts history` tells why")
        return await intern.retire_fact(Asked(fact_id=fact.id, why=why))

    retired = _read(ctx, work)
    if as_json:
        show_json(retired)
    else:
        show(f"{retired.fact_id}  retired: {retired.why}")


def _read(ctx: click.Context, ask: Callable[[Intern], Awaitable[T]]) -> T:
    settings = settings_of(ctx, tells_itself=True, needs_folder=True)
    from intern.service.intern import open_intern

    async def work() -> T:
        async with open_intern(settings) as intern:
            return await ask(intern)

    return anyio.run(work)


def _wanted(category: FactCategory | None, as_of: datetime | None, *, everything: bool, secret: bool) -> FactFilter:
    from intern.stores.sqlite.facts import FactFilter

    return FactFilter(category=category, as_of=as_of, active=None if everything else True, secret=secret)


async def _one(facts: FactStore, prefix: str, *, secret: bool) -> Fact:
    """The fact whose id begins like that. What is secret is not there for who does not ask for it."""
    found = await facts.beginning(prefix.strip().removeprefix("fact:"), secret=secret) if prefix.strip() else ()
    if len(found) == 1:
        return found[0]
    if found:
        raise ConfigError(f"{prefix} is the beginning of {len(found)} facts' ids; name more of it")
    raise ConfigError(f"there is no fact {prefix}; `intern facts list --all` tells their ids")


def _history(ctx: click.Context, fact_id: str, *, secret: bool) -> list[tuple[Link, bool]]:
    """The chain of a fact, and which link is the one that was asked for."""

    async def work(intern: Intern) -> list[tuple[Link, bool]]:
        fact = await _one(intern.facts, fact_id, secret=secret)
        links = await intern.facts.history(fact.id)
        return [(each, each.fact.id == fact.id) for each in links if secret or each.fact.visibility != "secret"]

    return _read(ctx, work)


def _show(facts: tuple[Fact, ...], nothing: str, *, as_json: bool) -> None:
    if as_json:
        show_json(facts)
    elif facts:
        show("\n".join(map(_line, facts)))
    else:
        say(nothing)


def _line(fact: Fact) -> str:
    notes = [fact.category, fact.visibility, f"said {fact.occurrence_count}×", *([] if fact.is_active else ["retired"])]
    return f"{fact.id}  {minute(fact.last_seen_at)}  ({', '.join(notes)})  {' '.join(fact.content.split())}"


def _whole(link: Link) -> list[str]:
    fact = link.fact
    lines = [_line(fact), f"  believed since {minute(fact.first_seen_at)}, confidence {fact.confidence:.2f}"]
    if fact.summary:
        lines.append(f"  in short: {' '.join(fact.summary.split())}")
    if fact.supersedes:
        lines.append(f"  took the place of {fact.supersedes}")
    if fact.retired_at is not None:
        lines.append(f"  retired {minute(fact.retired_at)}: {fact.retired_why or 'a newer fact took its place'}")
    for each in link.occurrences:
        gone = " (withdrawn since)" if each.is_withdrawn else ""
        snippet = f": {' '.join(each.context_snippet.split())}" if each.context_snippet else ""
        lines.append(f"  said {minute(each.timestamp)} in {each.conversation_id} ({each.sentiment}){gone}{snippet}")
    return lines
