"""`intern regenerate`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from intern.core.progress import tell
from intern.frontends.cli.options import say, settings_of, show_json
from intern.frontends.cli.telling import ask_folder

if TYPE_CHECKING:
    from intern.service.results import Progress

_TOLD = 20  # parked pairs; more would fill the screen


@click.command("regenerate")
@click.option("--dry-run", is_flag=True, help="Say what it would cost, and do nothing.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
@click.pass_context
def command(ctx: click.Context, *, dry_run: bool, as_json: bool) -> None:
    """Rebuild the topic files from the archive.

    Useful after the prompts changed, or when topic files were damaged. The old library stays in use until the new one
    is complete, and is kept beside it, as topics.prev, until the next regeneration. Stopped at any moment, it goes on
    where it was when it is called again, unless settings, prompts or the archive changed meanwhile.

    While `intern run` works on the same data folder, it does the work, and this command waits for it. Exit code 3 where
    a pair is parked.
    """
    if dry_run:
        settings = settings_of(ctx, tells_itself=True, needs_folder=True)
        from intern.service.costs import estimate_regeneration

        estimated = estimate_regeneration(settings)
        if as_json:
            show_json(estimated)
        else:
            already = f", {estimated.decided} of them done already" if estimated.decided else ""
            cost = f"about {estimated.calls} calls, {estimated.tokens} tokens" if estimated.calls else "no model asked"
            say(f"{estimated.pairs} captures of {estimated.conversations} conversations{already}: {cost}")
        return

    done = ask_folder(ctx, lambda intern: intern.regenerate(_tell))
    if as_json:
        show_json(done)
    else:
        tally = done.tally
        cost = f"; {done.calls} calls, {done.tokens} tokens" if done.calls else ""
        say(
            f"{done.pairs} captures: {tally.filed + tally.moved} filed under {done.topics} topics, "
            f"{tally.skipped} skipped, {tally.replaced} replaced by fuller ones, {tally.parked} parked{cost}"
        )
        for qa_id in done.parked[:_TOLD]:
            say(f"parked: {qa_id}")
        if done.parked:
            say("`intern status` says why they are parked")
    sys.exit(3 if done.parked else 0)


def _tell(progress: Progress) -> None:
    """Report progress. Classifying a conversation counts as half of its work."""
    cost = f"{progress.calls} calls, {progress.tokens} tokens" if progress.calls else ""
    tell("Regenerating {total} conversations", (progress.classified + progress.decided) // 2, progress.total, cost)
