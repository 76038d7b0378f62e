"""`intern search`."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import anyio
import click

from intern.cli.options import say, settings_of, show, show_json

if TYPE_CHECKING:
    from intern.app.searching import SearchResult
    from intern.domain import SearchKind


@click.command("search")
@click.argument("text", nargs=-1, required=True)
@click.option(
    "--kind",
    "kinds",
    type=click.Choice(["source", "file"]),
    multiple=True,
    help="Sources of answers, or discovered files; all, unless given.",
)
@click.option("--type", "type_", metavar="TYPE", help="document, page, topic, documentation, source_code and so on.")
@click.option("--status", metavar="STATUS", help="ok, pending, summary_failed and so on.")
@click.option("--after", type=click.DateTime(), help="Written at or after this time (UTC).")
@click.option("--before", type=click.DateTime(), help="Written before this time (UTC).")
@click.option(
    "--top", metavar="N", type=click.IntRange(1, 1000), default=10, show_default=True, help="At most so many."
)
@click.option("--json", "as_json", is_flag=True, help="One JSON array on stdout.")
@click.pass_context
def command(
    ctx: click.Context,
    *,
    text: tuple[str, ...],
    kinds: tuple[SearchKind, ...],
    type_: str | None,
    status: str | None,
    after: datetime | None,
    before: datetime | None,
    top: int,
    as_json: bool,
) -> None:
    """Search all that is indexed, and what was discovered.

    Tells path and summary of what holds words of TEXT, best first, and which words these are. What changed since it was
    indexed is indexed anew first. Exit code 1 where nothing was found, 3 where it could not be looked up.
    """
    settings = settings_of(ctx, tells_itself=True)
    from intern.app import open_intern
    from intern.domain import SearchFilter

    wanted = SearchFilter(kinds=kinds, type=type_, status=status, after=_utc(after), before=_utc(before))

    async def work() -> int:
        async with open_intern(settings) as intern:
            found = await intern.search(" ".join(text), wanted, top)
        if as_json:
            show_json(found)
        elif found:
            show("\n\n".join(map(_told, found)))
        else:
            say("nothing was found")
        return 0 if found else 1

    sys.exit(anyio.run(work))


def _told(result: SearchResult) -> str:
    where = result.path if result.kind == "file" else result.source_id
    notes = [result.type, *([result.status] if result.status != "ok" else []), *(["stale"] if result.stale else [])]
    lines = [f"{where}  ({', '.join(notes)})"]
    if result.summary:
        lines.append(f"  {result.summary}")
    if result.matched:
        lines.append(f"  holds: {', '.join(result.matched)}")
    return "\n".join(lines)


def _utc(moment: datetime | None) -> datetime | None:
    return None if moment is None else moment.replace(tzinfo=UTC)
