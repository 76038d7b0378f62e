"""`intern index` and `intern discover`."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING

import click
from msgspec import to_builtins

from intern.core.progress import report_progress
from intern.frontends.cli import options
from intern.frontends.cli.output import say, show, show_json

if TYPE_CHECKING:
    from intern.service.intern import DiscoveryFeed, Intern
    from intern.service.job_kinds import DiscoveryReport, ExtractionOutcome, RefreshReport

_CAME: Mapping[ExtractionOutcome, str] = {
    "extracted": "read now",
    "nothing": "read now, with nothing to learn",
    "unchanged": "unchanged",
    "too short": "too short",
    "withdrawn": "withdrawn",
    "unknown": "not filed",
    "failed": "failed (see the log)",
}

VECTORS_WITHIN = 5.0
"""Seconds that a command spends on vectors, so that a small knowledge base is complete at once."""
_MANY = 100  # passages; the bot makes fewer before the message is read


@click.command("index")
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
@click.option("--extract", is_flag=True, help="Also extract nuggets and facts from conversations not read yet.")
@click.option("--wait", is_flag=True, help="Make all vectors before exiting.")
@click.option("--rebuild-search", is_flag=True, help="First make the search's own file anew; no model is asked.")
def index(*, as_json: bool, extract: bool, wait: bool, rebuild_search: bool) -> None:
    """Bring the index of the knowledge base up to date.

    Reads the sources folder, describes new and changed documents, and removes deleted ones. Unchanged documents cost
    nothing. Ends when search by words works. Vectors, which find paraphrases, take longer: the running bot makes them,
    or `--wait`. A run that was stopped continues when you start it again. While `intern run` works on the same data
    folder, that process does the work, and this command waits for it.

    --extract also makes nuggets and facts from conversations that were filed while `extraction.auto` was off, or that
    were too short for an earlier `extraction.min_turns`. Each conversation costs one model call.

    Exit code 0: done. 2: there are no sources. 3: documents have no description yet, or (with --wait)
    no vector.
    """
    settings = options.read_settings()
    from intern.service.job_kinds import REBUILD_SEARCH

    if not settings.paths.sources.exists():
        options.check_folder(settings)

    async def work(intern: Intern) -> tuple[RefreshReport, Mapping[ExtractionOutcome, int] | None, int, bool]:
        if rebuild_search:
            await intern.run_job(REBUILD_SEARCH, None)
        refreshed = await intern.index(vectors_within=VECTORS_WITHIN)
        if not as_json:
            _report_index(refreshed)
        came = await intern.extract(_report_read_progress, vectors_within=VECTORS_WITHIN) if extract else None
        if came is not None and not as_json:
            _report_extractions(came)
        missing = await intern.count_without_vectors()
        if missing and wait:
            say("search by words works now; making vectors (Ctrl-C stops, finished vectors are kept)")
            missing = await intern.finish_vectors()
        return refreshed, came, missing, intern.holds_folder

    refreshed, came, missing, owner = options.ask_folder(work, settings)
    if as_json:
        show_json(refreshed if came is None else {**to_builtins(refreshed), "conversations": came})
    sys.exit(max(_report_missing_vectors(missing, wait=wait, owner=owner), _report_undescribed(refreshed)))


def _report_index(refreshed: RefreshReport) -> None:
    for path, reason in refreshed.skipped:
        say(f"left out {path}: {reason}")
    if refreshed.changed or refreshed.removed or not refreshed.pending:
        say(f"{len(refreshed.changed)} described, {len(refreshed.removed)} removed")


def _report_read_progress(done: int, of: int) -> None:
    report_progress("Reading {total} conversations", done, of)


def _report_extractions(came: Mapping[ExtractionOutcome, int]) -> None:
    say("conversations: " + (", ".join(f"{number} {_CAME[each]}" for each, number in came.items()) or "none"))


def _report_missing_vectors(missing: int, *, wait: bool, owner: bool) -> int:
    if missing and wait:
        say(f"intern: {missing} passages have no vector; `intern doctor` checks the model")
        return 3
    if missing and owner:
        say(missing_vectors_hint(missing))
    elif missing >= _MANY:
        say(f"search by words works now; the running intern makes the vectors of {missing} passages")
    return 0


def _report_undescribed(refreshed: RefreshReport) -> int:
    if owed := refreshed.pending:
        say(f"intern: {len(owed)} documents have no description yet; fix this and run it again: {owed[0].reason}")
        return 3
    return 0


@click.command("discover")
@click.option("--once", is_flag=True, help="Work on the feed once: summarise, and forget what is gone.")
@click.option("--json", "as_json", is_flag=True, help="One JSON value on stdout.")
def discover(*, once: bool, as_json: bool) -> None:
    """Show what discovery would look into, and why; or do it.

    Looks below discovery.scan_paths for files that are new, changed, without a summary, or gone. Without --once nothing
    is changed. While `intern run` works on the same data folder, it does the work, and this command waits for it.
    Places that cannot be read are named. Exit code 0: done. 3: files could not be summarised, or none of the
    scan paths could be looked at.
    """
    settings = options.read_folder_settings()
    from intern.service.job_kinds import DISCOVER

    async def work(intern: Intern) -> tuple[DiscoveryReport | None, DiscoveryFeed | None]:
        if not once:
            return None, await intern.preview_discovery()
        done = await intern.run_job(DISCOVER, None)
        return done, None

    done, feed = options.ask_folder(work, settings)
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
        _report_discovery(done)
    elif questions:
        show("\n".join(f"{q.priority:<6}  {q.why:<14}  {q.type:<13}  {q.question}" for q in questions))
    elif not (is_off or looked.nowhere):
        say("all that was found is indexed")
    if done is not None and done.failed:
        say(f"intern: {len(done.failed)} files have no summary yet; a later cycle asks again")
        sys.exit(3)
    sys.exit(3 if looked.nowhere else 0)


def _report_discovery(done: DiscoveryReport) -> None:
    say(f"{len(done.indexed)} indexed, {len(done.passed_over)} passed over, {len(done.dropped)} gone, {done.left} left")


def missing_vectors_hint(missing: int) -> str:
    """Return the line about vectors that the command has not made."""
    return f"search by words works now; `intern run` or `intern index --wait` makes the vectors of {missing} passages"
