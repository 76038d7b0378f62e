"""`intern index`."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING

import anyio
import click
from msgspec import to_builtins

from intern.core.progress import tell
from intern.frontends.cli.options import check_folder, say, settings_of, show_json
from intern.frontends.cli.telling import VECTORS_WITHIN, vectors_later

if TYPE_CHECKING:  # only where it is used, for it takes a while to import
    from intern.service.results import Came, Refreshed

_CAME: Mapping[Came, str] = {
    "extracted": "read now",
    "nothing": "read now, with nothing to learn",
    "unchanged": "unchanged",
    "too short": "too short",
    "withdrawn": "withdrawn",
    "unknown": "no longer filed",
    "failed": "failed (see the log)",
}

_MANY = 100  # passages; the bot makes fewer before the message is read


@click.command("index")
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
@click.option("--extract", is_flag=True, help="Also extract nuggets and facts from conversations not read yet.")
@click.option("--wait", is_flag=True, help="Make all vectors before exiting.")
@click.pass_context
def command(ctx: click.Context, *, as_json: bool, extract: bool, wait: bool) -> None:
    """Bring the index of the knowledge base up to date.

    Reads the sources folder, describes new and changed documents, and removes deleted ones. Unchanged documents cost
    nothing. Ends when search by words works. Vectors, which find paraphrases, take longer: the running bot makes them,
    or `--wait`. A run that was stopped continues when you start it again. While `intern run` works on the same data
    folder, that process does the work, and this command waits for it.

    --extract also makes nuggets and facts from conversations that were filed while `extraction.auto` was off, or that
    were too short for an earlier `extraction.min_turns`. Each conversation costs one model call.
    """
    settings = settings_of(ctx, tells_itself=True)
    if not settings.paths.sources.exists():
        check_folder(settings)
    from intern.service.intern import open_intern

    async def work() -> int:
        async with open_intern(settings) as intern:
            refreshed = await intern.index(vectors_within=VECTORS_WITHIN)
            if not as_json:
                _tell(refreshed)
            came = await intern.extract(_tell_read, vectors_within=VECTORS_WITHIN) if extract else None
            if came is not None and not as_json:
                _tell_came(came)
            missing = await intern.without_vectors()
            if missing and wait:
                say("search by words works now; making vectors (Ctrl-C stops, finished vectors are kept)")
                missing = await intern.finish_vectors()
            owner = intern.holds_folder
        if as_json:
            show_json(refreshed if came is None else {**to_builtins(refreshed), "conversations": came})
        return max(_about_vectors(missing, wait=wait, owner=owner), _about_descriptions(refreshed))

    sys.exit(anyio.run(work))


def _tell(refreshed: Refreshed) -> None:
    for path, reason in refreshed.skipped:
        say(f"left out {path}: {reason}")
    if refreshed.changed or refreshed.removed or not refreshed.pending:
        say(f"{len(refreshed.changed)} described, {len(refreshed.removed)} removed")


def _tell_read(done: int, of: int) -> None:
    tell("Reading {total} conversations", done, of)


def _tell_came(came: Mapping[Came, int]) -> None:
    say("conversations: " + (", ".join(f"{number} {_CAME[each]}" for each, number in came.items()) or "none"))


def _about_vectors(missing: int, *, wait: bool, owner: bool) -> int:
    if missing and wait:
        say(f"intern: {missing} passages have no vector; `intern doctor` checks the model")
        return 3
    if missing and owner:
        say(vectors_later(missing))
    elif missing >= _MANY:
        say(f"search by words works now; the running intern makes the vectors of {missing} passages")
    return 0


def _about_descriptions(refreshed: Refreshed) -> int:
    if owed := refreshed.pending:
        say(f"intern: {len(owed)} documents have no description yet; fix this and run it again: {owed[0].reason}")
        return 3
    return 0
