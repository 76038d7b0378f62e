"""What commands share: asking a data folder, and how what it says looks on a terminal."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TYPE_CHECKING, TypeVar

import anyio
import click

from intern.core.records import Approved, Forgotten, Rejected, Turn, Withdrawn
from intern.frontends.cli.options import say, settings_of, show, show_json
from intern.frontends.words import became, minute

if TYPE_CHECKING:
    from intern.core.records import Decision
    from intern.service.intern import Intern
    from intern.service.reading import Reading

T = TypeVar("T")

VECTORS_WITHIN = 5.0
"""Seconds that a command spends on vectors, so that a small knowledge base is complete at once."""

json_option = click.option("--json", "as_json", is_flag=True, help="One JSON value on stdout.")


def reading(ctx: click.Context) -> Reading:
    """The data folder that the settings name, opened to be read. Raises ConfigError and KnowledgeError."""
    settings = settings_of(ctx, tells_itself=True, needs_folder=True)
    from intern.service.reading import Reading

    return Reading(settings)


def ask_folder(ctx: click.Context, ask: Callable[[Intern], Awaitable[T]]) -> T:
    """What the data folder that the settings name says. Raises ConfigError where there is none."""
    settings = settings_of(ctx, tells_itself=True, needs_folder=True)
    from intern.service.intern import open_intern

    async def work() -> T:
        async with open_intern(settings) as intern:
            return await ask(intern)

    return anyio.run(work)


def show_each(found: Sequence[T], line: Callable[[T], str], nothing: str, *, as_json: bool) -> None:
    """A line for each on stdout, or on stderr that there is nothing."""
    if as_json:
        show_json(found)
    elif found:
        show("\n".join(map(line, found)))
    else:
        say(nothing)


def vectors_later(missing: int) -> str:
    """Return the line about vectors that a command leaves to others."""
    return f"search by words works now; `intern run` or `intern index --wait` makes the vectors of {missing} passages"


def ago(seconds: float) -> str:
    """How long something is ago, as exact as people want it."""
    for unit, length in (("days", 86_400), ("hours", 3_600), ("minutes", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit} ago"
    return f"{max(seconds, 0):.0f} seconds ago"


def said(turns: Iterable[Turn]) -> list[str]:
    """A conversation, a message's further lines below its first."""
    return [f"  {turn.speaker}: " + turn.text.replace("\n", "\n    ") for turn in turns]


def told(decision: Decision) -> str:
    """A decision on one line."""
    what = became(decision)
    match decision:
        case Withdrawn(message_ids=ids) | Forgotten(message_ids=ids):
            about = f"{len(ids)} messages"
        case _:
            about = decision.qa_id
            if isinstance(decision, Approved | Rejected) and decision.by:
                what += f" by member {decision.by}"
    return f"{minute(decision.at)}  {about}  {what}" + (f": {decision.reason}" if decision.reason else "")
