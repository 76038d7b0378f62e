"""Commands for operators: run, init, backup, doctor and status."""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from intern.core.clock import SystemClock
from intern.core.errors import ConfigError, KnowledgeError
from intern.frontends.cli.options import ask_folder, check_folder, read_folder_settings, read_settings, run_work
from intern.frontends.cli.output import say, show, show_result
from intern.frontends.words import ago
from intern.service import CONFIG_FILE

if TYPE_CHECKING:
    from intern.service.databases import DatabaseMove
    from intern.service.doctor import DoctorReport
    from intern.service.hosted import HostingState
    from intern.service.restoring import RestoreResult
    from intern.service.running import LiveBotState
    from intern.service.status import FolderStatus, ParkedPair, ServerReadProgress, SourceStatus
    from intern.service.stores import BackupResult


@click.command("run")
def run() -> None:
    """Run the bot on Discord.

    Needs discord.token, discord.guild_ids (or hosting.enabled) and a model endpoint (or llm.provider = "offline").
    Ends calmly on SIGINT or SIGTERM. Exit code 0: stopped. 2: a setting is missing or wrong. 3: Discord, the endpoint
    or the disk failed.
    """
    settings = read_settings(logs=True)
    settings.require_for_run()
    from intern.core.log import ProgressLogger
    from intern.core.progress import send_progress_to
    from intern.runtime.bot import run

    beside = None
    if settings.page.enabled:
        from intern.frontends.http.server import create_page_service  # aiohttp.web and Prometheus cost half a second

        beside = create_page_service(settings)
    with send_progress_to(ProgressLogger()):  # its output is a log, on a terminal, too
        run(settings, beside)


@click.command("page")
@click.option("--port", type=click.IntRange(0, 65_535), help="Else page.port; 0: any free port.")
def page(*, port: int | None) -> None:
    """Serve the status page without the bot.

    For a look at a data folder without Discord, or beside a running bot. Approving, filing and the like are done here,
    or by the bot if it runs; the folder is locked only meanwhile. The address is printed. Ends on SIGINT or SIGTERM.
    Exit code 0: stopped. 2: a setting is missing or wrong, or there is no data folder. 3: the disk failed.
    """
    settings = read_settings({"page": {"enabled": True, **({} if port is None else {"port": port})}})
    check_folder(settings)
    settings.require_model()
    from intern.frontends.http.server import serve_pages
    from intern.runtime.bot import show_page

    @asynccontextmanager
    async def serve_and_announce(running: LiveBotState | HostingState) -> AsyncGenerator[None]:
        async with serve_pages(settings.page, running) as address:
            show(address)
            say("Ctrl-C ends this")
            yield

    show_page(settings, serve_and_announce)


_FOLDERS = ("knowledge-base/sources", "team-knowledge/raw", "team-knowledge/topics")


@click.command("init")
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path), default=Path())
def init(folder: Path) -> None:
    """Write a commented intern.toml and the data folders.

    Overwrites nothing: what is there already stays as it is. Exit code 0: done. 3: the folder cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name in _FOLDERS:
            (folder / "data" / name).mkdir(parents=True, exist_ok=True)
        config = folder / CONFIG_FILE
        try:
            # Readable by its owner only: people put tokens into it.
            with open(config, "x", encoding="utf-8", opener=partial(os.open, mode=0o600)) as file:
                file.write(_read_example_config())
            say(f"wrote {config}")
        except FileExistsError:
            say(f"{config} is there already; left as it is")
    except OSError as error:
        raise KnowledgeError(f"{error.filename or folder}: cannot be written ({error.strerror})") from None
    say(f"put documents into {folder / 'data' / 'knowledge-base' / 'sources'}, then: intern index")


def _read_example_config() -> str:
    from importlib.resources import files

    packaged = files("intern") / "_example.toml"
    if packaged.is_file():
        return packaged.read_text(encoding="utf-8")
    in_tree = Path(__file__).parents[3] / "intern.toml.example"
    if in_tree.is_file():
        return in_tree.read_text(encoding="utf-8")
    raise ConfigError("the example configuration is missing from this installation; install intern again")


@click.command("backup")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--force", is_flag=True, help="Write over a file that is there.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
def backup(file: Path, *, force: bool, as_json: bool) -> None:
    """Copy the database to a file, whether or not the bot runs.

    The copy is of one moment, is checked, and appears under its name only when it is whole. It says what else belongs
    to a backup. Exit code 0: done. 2: it must not be written there. 3: it could not be made.
    """
    settings = read_folder_settings()
    from intern.service.stores import back_up

    show_result(back_up(settings, file, force=force), _report_backup, as_json=as_json)


def _report_backup(done: BackupResult) -> None:
    show(done.path)
    say(f"{done.bytes:,} bytes, checked; it holds what is secret, too: keep it where only you can read")
    if done.beside:
        say(f"also copy, as they are: {', '.join(done.beside)}")


@click.command("export")
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
def export(folder: Path, *, as_json: bool) -> None:
    """Write archive, decisions, topics and indices as text files.

    Into a folder that is empty or not there yet; `intern restore` reads it. Works beside a running bot. Your documents,
    nuggets, facts, votes and traces are not in it. Exit code 0: done. 2: the folder holds something. 3: it could not be
    read or written.
    """
    names = ask_folder(lambda intern: intern.export(folder))
    show_result(names, lambda names: say(f"wrote {len(names)} files to {folder}"), as_json=as_json)


@click.command("restore")
@click.argument("folder", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
def restore(folder: Path, *, as_json: bool) -> None:
    """Make a lost database anew from the text files of a folder.

    FOLDER is a data folder or what `intern export` wrote. Archive, decisions, topics and the descriptions of the
    indices are taken from it, and no model is asked. Nuggets, facts, votes and traces are not in text files: a backup
    has them. Exit code 0: done. 2: the database holds something already. 3: something cannot be read or written.
    """
    done = ask_folder(lambda intern: intern.restore(folder), read_settings())  # there may be no data folder yet
    show_result(done, _report_restore, as_json=as_json)


def _report_restore(done: RestoreResult) -> None:
    say(
        f"{done.pairs} captures, {done.decisions} decisions, {done.topics} topics, {done.sources} descriptions;"
        " no model was asked"
    )
    for each in done.damaged[:_TOLD]:
        say(f"passed over: {each}")
    if len(done.damaged) > _TOLD:
        say(f"passed over: {len(done.damaged) - _TOLD} more pieces")
    say("nuggets, facts and the search are not in text files; make them anew with: intern index --extract")


@click.command("move")
@click.argument("source", metavar="FROM")
@click.argument("target", metavar="TO")
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
def move(source: str, target: str, *, as_json: bool) -> None:
    """Copy the database to another engine.

    FROM and TO are a file, such as data/intern.db, or postgresql://USER@HOST/DATABASE. A password is better in
    ~/.pgpass than in a command. The bot must be stopped. FROM stays as it is, and TO must hold nothing. Exit code 0:
    done. 2: there is nothing to move, or TO holds something. 3: one of them cannot be read or written.
    """
    settings = read_folder_settings()
    from intern.service.databases import move_database

    show_result(run_work(move_database, settings, source, target), _report_move, as_json=as_json)


def _report_move(done: DatabaseMove) -> None:
    say(f"{done.rows:,} rows are in {done.target} now; {done.source} is as it was")
    say("name the new one before the next start: a server as data.url, a file as intern.db in the data folder")


_TOLD = 5
_MARKS = {"ok": "ok  ", "note": "note", "todo": "TODO"}


@click.command("doctor")
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
@click.option("--find", is_flag=True, help="Only look for model servers on this machine, and print the lines to set.")
def doctor(*, as_json: bool, find: bool) -> None:
    """Check model, data folder, and rights and roles on Discord.

    Says the one next thing to do, and prints the link that invites the bot with no more permissions than it needs.
    Asks each model endpoint one short question of some 1,300 tokens; says what that took, and what it does not take. A
    database that is there gets the count of tokens and what the endpoint takes; nothing else changes. May run beside
    the bot. Without a token, Discord is left out. Exit code 0: all is well. 1: there is something to do. 3: could not
    look.
    """
    if find:
        from intern.frontends.cli.models import show_local_servers
        from intern.service.model_servers import find_local_servers

        servers = run_work(find_local_servers)
        show_result(servers, show_local_servers, as_json=as_json)
        sys.exit(0 if servers else 1)
    settings = read_settings()
    from intern.service.doctor import examine

    report = run_work(examine, settings)
    show_result(report, _show_report, as_json=as_json)
    sys.exit(0 if report.ok else 1)


def _show_report(report: DoctorReport) -> None:
    for finding in report.findings:
        say(f"{_MARKS[finding.level]}  {finding.what}")
    if report.invite:
        show(f"invite link: {report.invite}")
    show(f"next: {report.next}")


_SHOWN = 10  # parked pairs; --json has all


@click.command("status")
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
@click.option(
    "--sources",
    is_flag=True,
    help="Each source instead: its state, age, last error and next check; and what is left out, with the reason.",
)
def status(*, as_json: bool, sources: bool) -> None:
    """Show the data folder's state, whether or not the bot runs.

    Reads only, and works beside a running bot. Exit code 0; 3 where something cannot be read.
    """
    settings = read_folder_settings()
    from intern.service.status import open_source_statuses, read_status

    if sources:
        show_result(open_source_statuses(settings, clock=SystemClock()), _show_sources, as_json=as_json)
    else:
        found = read_status(settings, clock=SystemClock())
        show_result(found, lambda found: show("\n".join(_status_lines(found))), as_json=as_json)


def _status_lines(status: FolderStatus) -> Iterator[str]:
    runs = f"runs as process {status.pid}" if status.pid else "runs" if status.running else "does not run"
    yield f"{status.data_dir}: intern {runs}"
    yield f"learned: {status.archived} captures, {status.topics} topics"
    yield f"not filed: {status.waiting} waiting, {status.undecided} left out, {len(status.parked)} parked"
    yield from (f"  {pair.qa_id}: {pair.reason} ({_format_tries(pair)})" for pair in status.parked[:_SHOWN])
    if len(status.parked) > _SHOWN:
        yield f"  and {len(status.parked) - _SHOWN} more"
    if status.damaged:
        yield f"damaged or away: {len(status.damaged)} pieces of the text files; `intern doctor` names them"
    if status.awaiting_review or status.due:
        hint = " (`intern review`)" if status.awaiting_review else ""
        yield f"review: {status.awaiting_review} wait for the team{hint}, {status.due} approved and not filed yet"
    yield f"feedback: {status.feedback.up} helpful, {status.feedback.down} not"
    if status.calibration:
        yield f"calibration: {status.calibration}"
    if outdated := status.outdated_answers:
        yield f"answers with sources that changed or went: {outdated} (the status page lists them; see ai.retract)"
    yield f"questions dropped (queue full): {status.shed_today} today, {status.shed} in all"
    yield _format_refusals(status.counts_today)
    if status.masked:
        kinds = ", ".join(f"{number} {kind}" for kind, number in sorted(status.masked.items()))
        yield f"kept out of the archive: {kinds}"
    if secret := status.secret_facts:
        yield f"facts that look secret: {secret}, not kept (facts.overrides says what else they are, facts.keep_secret)"
    yield f"in work: {status.pending_posts} replies, {status.waiting_jobs} jobs"
    yield _format_spending(status)
    yield _format_search_state(status)
    if (waits := status.pending_images) is not None:
        number = "1 capture waits" if waits.captures == 1 else f"{waits.captures} captures wait"
        yield f"attachments: {number} to be archived, the first from {ago(waits.oldest_seconds)}: {waits.reason}"
    yield from map(_format_checkpoint, status.marks)


def _format_checkpoint(mark: ServerReadProgress) -> str:
    """Describe how far a server was read. Checkpoints of quiet channels do not move, and are no backlog."""
    newest = f"{mark.newest:%Y-%m-%d %H:%M:%S} UTC ({ago(mark.newest_age_seconds)})"
    if not mark.channels_ahead:
        return f"server {mark.guild_id}: nothing new was handled since {newest}"
    again = f"a restart looks at quiet channels from {mark.until:%Y-%m-%d %H:%M:%S} UTC on"
    return f"server {mark.guild_id}: handled up to {newest} where people write; {again}"


def _format_spending(status: FolderStatus) -> str:
    spent = f"spent today (UTC): {status.tokens_today} tokens"
    if status.token_budget:
        spent += f" of {status.token_budget}"
    if status.cost_today or status.cost_budget:
        spent += f", {status.cost_today:.4f}"
        spent += f" of {status.cost_budget:g}" if status.cost_budget else ""
        spent += f" {status.currency}"
    return spent


def _format_search_state(status: FolderStatus) -> str:
    if status.embeddings is None:
        return f"search: {status.documents} documents, by words alone"
    lacking = f", {status.unembedded} of them still without a vector" if status.unembedded else ""
    behind = f" (still to be copied there: {status.engine_behind})" if status.engine_behind else ""
    engine = f", in {status.engine}{behind}" if status.engine else ""
    return f"search: {status.documents} documents, by words and {status.embeddings}{lacking}{engine}"


def _show_sources(known: Sequence[SourceStatus]) -> None:
    if all(each.state == "left_out" for each in known):
        say("no sources: `intern index` lists them")
    if known:
        show("\n".join(_source_lines(known)))


def _source_lines(known: Sequence[SourceStatus]) -> Iterator[str]:
    """Yield a line for each source, then the files that are none."""
    left_out = [each for each in known if each.state == "left_out"]
    yield from (_source_line(each) for each in known if each.state != "left_out")
    if left_out:
        yield f"left out, as of the last look: {len(left_out)}"
        yield from (f"  {each.path}: {each.last_error} ({ago(each.age_seconds)})" for each in left_out)


def _source_line(source: SourceStatus) -> str:
    where = source.path if source.source_id.startswith("file:") else source.source_id
    if source.next_check is not None:
        check = f"next check {source.next_check:%Y-%m-%d %H:%M} UTC"
    elif source.check_every_seconds is not None:
        check = f"looked at every {source.check_every_seconds:.0f} seconds"
    else:
        check = "not looked at any more"
    error = f": {source.last_error}" if source.last_error else ""
    note = f" ({source.note})" if source.note else ""
    described = f"described {ago(source.age_seconds)}" if source.is_described else "not described yet"
    return f"{source.state:<7}  {where}{note}  {described}, {check}{error}"


def _format_tries(pair: ParkedPair) -> str:
    times = "tried once" if pair.tries == 1 else f"tried {pair.tries} times"
    if pair.next_at is None:
        return f"{times}, now only by `intern retry`"
    return f"{times}, again from {pair.next_at:%Y-%m-%d %H:%M} UTC on"


def _format_refusals(counts: Mapping[str, int]) -> str:
    over = counts.get("questions_over_limit", 0) + counts.get("questions_over_day_limit", 0)
    old = counts.get("questions_too_old", 0)
    return f"questions refused today: {over} over the limit, {old} too old"
