"""`intern discover`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import anyio
import click

from intern.frontends.cli.options import say, settings_of, show, show_json

if TYPE_CHECKING:
    from intern.service.results import Discovered, Question


@click.command("discover")
@click.option("--once", is_flag=True, help="Work on the feed once: summarise, and forget what is gone.")
@click.option("--json", "as_json", is_flag=True, help="One JSON value on stdout.")
@click.pass_context
def command(ctx: click.Context, *, once: bool, as_json: bool) -> None:
    """Show what discovery would look into, and why; or do it.

    Looks below discovery.scan_paths for files that are new, changed, without a summary, or gone. Without --once nothing
    is changed. While `intern run` works on the same data folder, it does the work, and this command waits for it.
    What cannot be looked at is named. Exit code 3 where files could not be summarised, and where not one of the scan
    paths could be looked at.
    """
    settings = settings_of(ctx, tells_itself=True, needs_folder=True)
    from intern.service.intern import open_intern

    async def work() -> int:
        async with open_intern(settings) as intern:
            done = await intern.discover() if once else None
            feed = None if once else await intern.look_around()
        looked = done or feed
        assert looked is not None
        for path, reason in sorted(looked.unreadable.items()):
            say(f"intern: {path} could not be looked at ({reason}); correct discovery.scan_paths, or its permissions")
        questions = () if feed is None else feed.questions
        is_off = not settings.discovery.scan_paths
        if is_off:
            say("discovery is off: discovery.scan_paths names no folder")
        if as_json:
            show_json(questions if done is None else done)
        elif done is not None:
            _tell(done)
        elif questions:
            show("\n".join(map(_line, questions)))
        elif not (is_off or looked.nowhere):
            say("all that was found is indexed")
        if done is not None and done.failed:
            say(f"intern: {len(done.failed)} files have no summary yet; a later cycle asks again")
            return 3
        return 3 if looked.nowhere else 0

    sys.exit(anyio.run(work))


def _line(question: Question) -> str:
    return f"{question.priority:<6}  {question.why:<14}  {question.type:<13}  {question.question}"


def _tell(done: Discovered) -> None:
    say(f"{len(done.indexed)} indexed, {len(done.passed_over)} passed over, {len(done.dropped)} gone, {done.left} left")
