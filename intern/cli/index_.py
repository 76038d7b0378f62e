"""`intern index`."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING

import anyio
import click
from msgspec import to_builtins

from intern.cli.options import check_folder, say, settings_of, show_json

if TYPE_CHECKING:  # only where it is used, for it takes a while to import
    from intern.app import Intern
    from intern.learning.extracting import Came

_CAME: Mapping[Came, str] = {
    "extracted": "read now",
    "nothing": "read now, with nothing to learn",
    "unchanged": "read before",
    "too short": "too short",
    "withdrawn": "withdrawn",
    "unknown": "that teach nothing any more",
    "failed": "not read, the log says why",
}


@click.command("index")
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
@click.option("--extract", is_flag=True, help="Then read the filed conversations that were never read.")
@click.pass_context
def command(ctx: click.Context, *, as_json: bool, extract: bool) -> None:
    """Bring the index of the knowledge base up to date.

    Reads the sources folder, describes what is new or changed, and forgets what is gone. What did not change costs
    nothing. While `intern run` works on the same data folder, it does the work, and this command waits for it.

    With --extract, nuggets and facts are also made of conversations that were filed while `extraction.auto` was off or
    that were too short for an earlier `extraction.min_turns`. Each costs one call of the model.
    """
    settings = settings_of(ctx, tells_itself=True)
    if not settings.paths.sources.exists():
        check_folder(settings)
    from intern.app import open_intern

    async def work() -> int:
        async with open_intern(settings) as intern:
            refreshed = await intern.index()
            came = await _extracted(intern) if extract else None
        if as_json:
            show_json(refreshed if came is None else {**to_builtins(refreshed), "conversations": came})
        else:
            for path, reason in refreshed.skipped:
                say(f"left out {path}: {reason}")
            if refreshed.changed or refreshed.removed or not refreshed.pending:
                say(f"{len(refreshed.changed)} described, {len(refreshed.removed)} removed")
            if came is not None:
                say(
                    "conversations: "
                    + (", ".join(f"{number} {_CAME[each]}" for each, number in came.items()) or "none")
                )
        if refreshed.pending:
            owed = refreshed.pending
            say(f"intern: not described yet: {len(owed)}; mend this and run it again: {owed[0].reason}")
            return 3
        return 0

    sys.exit(anyio.run(work))


async def _extracted(intern: Intern) -> Mapping[Came, int]:
    from intern.cli.progress import CountTeller

    teller: list[CountTeller] = []

    def tell(_done: int, of: int) -> None:
        if not teller:
            teller.append(CountTeller(sys.stderr, of))
        teller[0].one(0)

    try:
        return await intern.extract(tell)
    finally:
        for each in teller:
            each.end()
