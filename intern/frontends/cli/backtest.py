"""`intern backtest` and `intern calibrate`."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from tempfile import TemporaryFile
from typing import TYPE_CHECKING, Any

import anyio
import click

from intern.core.errors import ConfigError, KnowledgeError
from intern.core.progress import report_progress
from intern.core.tasks import open_task_group
from intern.frontends.cli.options import UTC_DATES, ask_folder, read_settings, run_work, team_options
from intern.frontends.cli.output import INTERRUPTED, say, show, show_result
from intern.frontends.wording import describe_calibration

if TYPE_CHECKING:
    from intern.lab.backtest import BacktestRequest, BacktestRun
    from intern.lab.backtest_estimate import BacktestEstimate, EstimateRange
    from intern.lab.evaluation import EvaluationOutcome
    from intern.lab.outcomes import BacktestOutcome as Replayed, BacktestReport
    from intern.service import Settings

AT_A_TIME = 4  # questions; an endpoint's own limits hold, too

_JSON, _HTML = Path("backtest.json"), Path("backtest.html")
_WRITTEN = click.Path(dir_okay=False, path_type=Path)


@click.command("backtest")
@click.argument("exports", nargs=-1, required=True, metavar="EXPORT…", type=click.Path(path_type=Path))
@team_options
@click.option("--since", type=UTC_DATES, help="Ask no older questions (UTC); what was taught before counts.")
@click.option("--until", type=UTC_DATES, help="Ask no newer questions (UTC).")
@click.option("--limit", type=click.IntRange(min=1), metavar="N", help="Ask so many at most, spread evenly.")
@click.option("--no-documents", is_flag=True, help="Answer from what the team said only.")
@click.option("--concurrency", type=click.IntRange(min=1), help="Questions at the same time; else 4, offline 1.")
@click.option("--dry-run", is_flag=True, help="Say how many questions there are, and what asking them would cost.")
@click.option("--json", "as_json", is_flag=True, help="The whole result as one JSON object on stdout, too.")
@click.option("--result", "json_file", type=_WRITTEN, help=f"Write the result there as JSON; else to {_JSON}.")
@click.option("--html", "html_file", type=_WRITTEN, help=f"Write a report to read there; else to {_HTML}.")
def backtest(
    *,
    exports: tuple[Path, ...],
    no_documents: bool,
    concurrency: int | None,
    dry_run: bool,
    as_json: bool,
    json_file: Path | None,
    html_file: Path | None,
    **wanted: Any,
) -> None:
    """Replay exported history, and compare with the team's answers.

    An EXPORT is a file of DiscordChatExporter's (JSON), or a folder whose exports are read, those of its subfolders
    too; name those of all channels and threads together. A damaged file, or one in another format, is left out, and
    named at the end. Each question is asked knowing only what was known before it. All is done in a temporary folder:
    of the data folder only the documents are read, and nothing is posted. What it takes is not counted there: each run
    has a whole daily budget of its own. At its end, the data folder gets which answers were unlike the team's, and is
    calibrated by that (see `intern calibrate`): if no score keeps to ai.max_wrong, the bot gives no answers any more.

    The summary goes to stdout, a report to backtest.html and backtest.json in the current folder. Those that are there
    already are not overwritten: it asks for another place before it starts; files named by --html and --result
    are overwritten.

    Ctrl-C ends it early; what is written then says so. A model that is away is waited for; after some minutes it ends
    early, too. Exit code 0: done. 3: a file was left out, or some questions could not be looked up. 130: stopped by
    Ctrl-C.
    """
    settings = read_settings()
    from intern.lab.backtest import BacktestRequest
    from intern.service.history_import import list_exports

    at_once = concurrency or (1 if settings.llm.kind == "offline" else AT_A_TIME)
    asked = BacktestRequest(
        files=tuple(list_exports(exports)), documents=not no_documents, concurrency=at_once, **wanted
    )
    if not dry_run:
        for option, named, usual in (("--result", json_file, _JSON), ("--html", html_file, _HTML)):
            _check_writable(named or usual, option)
            if not named and usual.exists():
                raise ConfigError(f"{usual} is there already: move it away, or name a place with {option}")
        _check_paths_differ(json_file or _JSON, html_file or _HTML, asked.files)
    work = partial(
        _run_backtest, settings, asked, json_file or _JSON, html_file or _HTML, dry_run=dry_run, as_json=as_json
    )
    sys.exit(run_work(work))


@click.command("calibrate")
@click.option("--dry-run", is_flag=True, help="Say what it would come to; change nothing.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
def calibrate(*, dry_run: bool, as_json: bool) -> None:
    """Set how sure an answer must be, by judged answers.

    Answers are judged by backtests, votes, deletions, and the team's words after them. The least score is the lowest
    one that keeps to ai.max_wrong with 90% confidence; a running bot uses it at once. If enough
    is judged and none keeps to it, no answers are given from then on; with less, nothing changes. A backtest calibrates
    by itself.

    Exit code 0: done.
    """
    stands = ask_folder(lambda intern: intern.calibrate(dry_run=dry_run))
    show_result(stands, lambda stands: show("\n".join(describe_calibration(stands))), as_json=as_json)


async def _calibrate_from_backtest(settings: Settings, done: BacktestReport) -> None:
    """Keep the judgements of a whole backtest, and calibrate. Without a database, only report the result."""
    from intern.service.calibration import simulate_calibration
    from intern.service.databases import is_made
    from intern.service.opening import open_intern

    if not (done.finished and done.judgements):
        return
    stands = simulate_calibration(done.max_wrong, done.judgements)
    if await anyio.to_thread.run_sync(is_made, settings):
        async with open_intern(settings) as intern:
            stands = await intern.calibrate(done.judgements)
    for line in describe_calibration(stands):
        say(line)


async def _run_backtest(
    settings: Settings, wanted: BacktestRequest, json_file: Path, html_file: Path, *, dry_run: bool, as_json: bool
) -> int:
    from intern.lab.backtest import PAUSES, BacktestRun, prepare_backtest
    from intern.lab.backtest_estimate import estimate_backtest
    from intern.lab.report import format_table

    prepared = await prepare_backtest(settings, wanted)
    exports, asked = prepared.exports, prepared.timeline.asked
    if wanted.documents and not settings.paths.sources.is_dir():
        where = settings.paths.sources
        say(f"there are no documents: {where} is not there, so answers come from what the team said only")
    refused = [f"left out: {reason}" for reason in exports.refused]
    say(f"read {exports.messages} messages in {len(exports.channels)} channels and threads")
    if dry_run:
        estimate = estimate_backtest(settings, prepared.timeline)
        show_result(estimate, lambda estimate: show("\n".join(_format_estimate(estimate))), as_json=as_json)
        for line in refused:
            say(line)
        return 3 if refused else 0
    replay = BacktestRun(settings, prepared, tell=progress_reporter(len(asked)), say=say, pauses=PAUSES)
    stopped = await _replay_until_stopped(replay)
    done = replay.report()
    try:
        show_result(done, lambda done: show(format_table(done)), as_json=as_json)
        for line in _explain_unanswered(done):
            say(line)
    finally:  # also where the reader of the summary closed the pipe
        await anyio.to_thread.run_sync(_write_all, done, json_file, html_file)
    await _calibrate_from_backtest(settings, done)
    for line in refused:
        say(line)
    if stopped:
        return INTERRUPTED
    return 3 if done.totals.could_not_look or done.stopped or refused else 0


async def _replay_until_stopped(replay: BacktestRun) -> bool:
    """Replay until it is done or stopped, and return whether it was stopped."""
    stopped = False
    async with open_task_group() as tg:

        async def watch() -> None:
            nonlocal stopped
            with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
                async for _ in signals:
                    say("stopping; the report has what was asked so far")
                    stopped = True
                    tg.cancel_scope.cancel()
                    return

        tg.start_soon(watch)
        await replay.run()
        tg.cancel_scope.cancel()
    return stopped


def _check_writable(file: Path, option: str) -> None:
    """Check that a report can be written there, before hours of work go into it. Raises ConfigError."""
    if not file.parent.is_dir():
        raise ConfigError(f"{file}: there is no folder {file.parent}; make it, or name another")
    if file.exists() and not file.is_file():  # a pipe, or /dev/stdout: no file can be made beside it
        return
    try:
        with TemporaryFile(dir=file.resolve().parent):
            pass
    except OSError as error:
        raise ConfigError(f"{file} cannot be written ({error.strerror}); name another place with {option}") from error


def _check_paths_differ(json_file: Path, html_file: Path, exports: tuple[Path, ...]) -> None:
    """Check that no report replaces the other, or a file that is read. Raises ConfigError."""
    taken = {os.path.realpath(export) for export in exports}
    for option, file in (("--result", json_file), ("--html", html_file)):
        if os.path.realpath(file) in taken and (file.is_file() or not file.exists()):
            raise ConfigError(f"{file} is one of the exports that are read; name another place with {option}")
    # A pipe, or /dev/stdout, may well take both.
    files = [os.path.realpath(file) for file in (json_file, html_file) if file.is_file() or not file.exists()]
    if len(files) > len(set(files)):
        raise ConfigError(
            f"{html_file}: both reports would be written there; name another place with --result or --html"
        )


def _explain_unanswered(done: BacktestReport) -> Iterator[str]:
    """Explain why some questions were not answered that may be answered another time."""
    if done.stopped:
        yield f"gave up waiting for the model: {done.stopped}"
    elif errors := [each.error for each in done.outcomes if each.verdict == "could_not_look" and each.error]:
        yield f"could not look up {sum(done.totals.could_not_look.values())} questions; the last: {errors[-1]}"


def _write_all(done: BacktestReport, json_file: Path, html_file: Path) -> None:
    """Write each report whole, or leave it as it was; write the second one even if the first fails."""
    import msgspec

    from intern.lab.report import render_page

    problems: list[KnowledgeError] = []
    for file, data in ((json_file, msgspec.json.encode(done) + b"\n"), (html_file, render_page(done))):
        try:
            _write(file, data)
        except KnowledgeError as error:
            problems.append(error)
        else:
            say(f"wrote {file}")
    if problems:
        raise KnowledgeError("; ".join(map(str, problems)))


def _write(file: Path, data: bytes) -> None:
    from intern.service.stores import write_whole

    if file.exists() and not file.is_file():  # a pipe, or /dev/stdout: no file may replace it
        try:
            file.write_bytes(data)
        except OSError as error:
            raise KnowledgeError(f"{file} cannot be written ({error.strerror})") from error
    else:
        write_whole(file.resolve(), data)


def _format_estimate(estimated: BacktestEstimate) -> Iterator[str]:
    yield f"questions to ask: {estimated.questions}; the team answered {estimated.team_answered} of them"
    yield f"conversations to learn: {estimated.conversations}"
    for reason, number in estimated.left_out.items():
        yield f"left out: {number} {reason}"
    if not estimated.calls.most:
        yield "no model calls: rules answer"
        return
    yield f"model calls: {_format_range(estimated.calls)}"
    yield f"tokens: {_format_range(estimated.tokens)}"
    if estimated.priced:
        yield f"cost: {estimated.cost.least:.2f} to {estimated.cost.most:.2f} {estimated.currency}"
    else:
        yield "cost: not known; set llm.prices"


def _format_range(numbers: EstimateRange) -> str:
    return f"{numbers.least:.0f} to {numbers.most:.0f}"


def progress_reporter(total: int) -> Callable[[EvaluationOutcome | Replayed], None]:
    """Return a function that reports the progress over questions, with the tokens that they took."""
    tokens: list[int] = []

    def report_outcome(outcome: EvaluationOutcome | Replayed) -> None:
        tokens.append(outcome.tokens)
        note = f"{sum(tokens)} tokens" if any(tokens) else ""
        report_progress("Asking {total} questions", len(tokens), total, note)

    return report_outcome
