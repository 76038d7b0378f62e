"""`intern facts` and `intern nuggets`: the lessons of conversations."""

from __future__ import annotations

import sys
from collections.abc import Callable
from datetime import UTC, datetime, time
from typing import TYPE_CHECKING, Any, get_args

import click

from intern.core.errors import ConfigError
from intern.core.knowledge import Fact, FactCategory, Nugget, NuggetStatus
from intern.frontends.cli.options import DefaultListGroup, ask_folder, json_option
from intern.frontends.cli.output import show, show_list, show_result
from intern.frontends.wording import minute

if TYPE_CHECKING:
    from intern.service.facts import FactChainLink, FactFilter
    from intern.service.intern import Intern
    from intern.service.job_kinds import FactRetirement

_AS_OF = "Facts as they were known at this time (UTC); of a day, at its end."
_id = click.argument("fact_id", metavar="ID")
_secret = click.option("--secret", is_flag=True, help="Also what is secret.")
_some = click.IntRange(1)
_top = click.option("--top", metavar="N", type=_some, default=100, show_default=True, help="At most so many.")


def _parse_as_of(ctx: click.Context, param: click.Parameter, value: str | None) -> datetime | None:
    """Read a time (UTC, unless it says otherwise); a day without an hour is its last moment."""
    if value is None:
        return None
    try:
        moment = datetime.fromisoformat(value)
    except ValueError:
        raise click.BadParameter(f"{value!r} is no date such as 2026-03-01 or 2026-03-01T12:00", ctx, param) from None
    if len(value) == len("2026-03-01"):
        moment = datetime.combine(moment.date(), time.max)
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def _add_fact_filters(command: Callable[..., None]) -> Callable[..., None]:
    for option in (
        json_option,
        _secret,
        click.option("--all", "everything", is_flag=True, help="Also what is retired."),
        click.option("--as-of", metavar="DATE", callback=_parse_as_of, help=_AS_OF),
        click.option("--category", type=click.Choice(get_args(FactCategory))),
        _top,
    ):
        command = option(command)
    return command


@click.group("facts", cls=DefaultListGroup)
def facts() -> None:
    """Read what is known as facts; retire what is no longer true.

    Secret ones are shown with --secret only. Without a command: the list, with its options. The beginning of an id
    is enough.

    Exit code 0; 1 where a search found nothing; 2 for an id that is unknown, or the beginning of several; 3 where
    something cannot be read or written.
    """


@facts.command("list")
@_add_fact_filters
def list_facts(*, top: int, as_json: bool, **filters: Any) -> None:
    """List facts, what was said last first."""
    found = ask_folder(lambda intern: intern.facts.list_all(_build_fact_filter(**filters), top))
    show_list(found, _fact_line, "no fact is known", as_json=as_json)


@facts.command("search")
@click.argument("text", nargs=-1, required=True)
@_add_fact_filters
def search_facts(*, text: tuple[str, ...], top: int, as_json: bool, **filters: Any) -> None:
    """Find facts that hold words of TEXT, best first."""
    found = ask_folder(lambda intern: intern.facts.search(" ".join(text), _build_fact_filter(**filters), top))
    show_list(found, _fact_line, "nothing was found", as_json=as_json)
    sys.exit(0 if found else 1)


@facts.command("show")
@_id
@_secret
@json_option
def show_fact(*, fact_id: str, secret: bool, as_json: bool) -> None:
    """Show a fact whole, and where it was said."""
    fact, links = ask_folder(lambda intern: intern.facts.find_history(fact_id, secret=secret))
    link = next(each for each in links if each.fact.id == fact.id)
    show_result(link, lambda link: show(_format_fact(link)), as_json=as_json)


@facts.command("history")
@_id
@_secret
@json_option
def show_fact_history(*, fact_id: str, secret: bool, as_json: bool) -> None:
    """Show what a fact took the place of, and what took its place, oldest first."""
    _, links = ask_folder(lambda intern: intern.facts.find_history(fact_id, secret=secret))
    show_result(links, lambda links: show("\n\n".join(map(_format_fact, links))), as_json=as_json)


@facts.command("retire")
@_id
@click.option("--why", required=True, help="Kept with the fact.")
@json_option
def retire(*, fact_id: str, why: str, as_json: bool) -> None:
    """Mark a fact as outdated. The older fact is not restored."""
    if not why.strip():
        raise click.BadParameter("say why", param_hint="--why")
    from intern.service.job_kinds import RETIRE_FACT, FactRetirement

    async def work(intern: Intern) -> FactRetirement:
        fact = await intern.facts.find(fact_id, secret=True)
        if not fact.is_active:
            raise ConfigError(f"{fact.id} is retired already; `intern facts history` tells why")
        return await intern.run_job(RETIRE_FACT, FactRetirement(fact_id=fact.id, why=why))

    show_result(ask_folder(work), lambda done: show(f"{done.fact_id}  retired: {done.why}"), as_json=as_json)


def _build_fact_filter(
    category: FactCategory | None, as_of: datetime | None, *, everything: bool, secret: bool
) -> FactFilter:
    from intern.service.facts import FactFilter

    return FactFilter(category=category, as_of=as_of, active=None if everything else True, secret=secret)


def _fact_line(fact: Fact) -> str:
    notes = [fact.category, fact.visibility, f"said {fact.occurrence_count}×", *([] if fact.is_active else ["retired"])]
    return f"{fact.id}  {minute(fact.last_seen_at)}  ({', '.join(notes)})  {' '.join(fact.content.split())}"


def _format_fact(link: FactChainLink) -> str:
    fact = link.fact
    lines = [_fact_line(fact), f"  believed since {minute(fact.first_seen_at)}, confidence {fact.confidence:.2f}"]
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
    return "\n".join(lines)


@click.group("nuggets", cls=DefaultListGroup)
def nuggets() -> None:
    """Read what was distilled from conversations.

    Without a command: the list, with its options. The beginning of an id is enough. Exit code 0; 2 for an id that
    is unknown, or the beginning of several; 3 where something cannot be read.
    """


@nuggets.command("list")
@click.option("--status", type=click.Choice(get_args(NuggetStatus)))
@_top
@json_option
def list_nuggets(*, status: NuggetStatus | None, top: int, as_json: bool) -> None:
    """List nuggets, newest first."""
    found = ask_folder(lambda intern: intern.facts.list_nuggets(status, size=top))
    show_list(found.rows, _nugget_line, "no nugget was distilled yet", as_json=as_json)


@nuggets.command("show")
@click.argument("nugget_id", metavar="ID")
@json_option
def show_nugget(*, nugget_id: str, as_json: bool) -> None:
    """Show a nugget whole."""
    show_result(ask_folder(lambda intern: intern.facts.find_nugget(nugget_id)), _show_nugget, as_json=as_json)


def _nugget_line(nugget: Nugget) -> str:
    return f"{nugget.id}  {minute(nugget.timestamp)}  ({nugget.status})  {nugget.topic}: {nugget.topic_summary}"


def _show_nugget(nugget: Nugget) -> None:
    lines = [_nugget_line(nugget), *(f"  {line}" for line in nugget.detailed_analysis.splitlines())]
    if nugget.keywords:
        lines.append(f"  keywords: {', '.join(nugget.keywords)}")
    if nugget.user_ids_involved:
        lines.append(f"  said by: {', '.join(nugget.user_ids_involved)}")
    show("\n".join([*lines, f"  from {nugget.conversation_id}, messages {', '.join(nugget.source_message_ids)}"]))
