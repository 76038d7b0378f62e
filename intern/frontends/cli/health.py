"""`intern status` and `intern doctor`: the state of the data folder, and what is to be mended."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import click

from intern.core.clock import SystemClock
from intern.frontends.cli.options import read_folder_settings, read_settings, run_work
from intern.frontends.cli.output import say, show, show_result
from intern.frontends.wording import ago

if TYPE_CHECKING:
    from intern.service.doctor import DoctorReport
    from intern.service.model_servers import ModelServer
    from intern.service.sources import SourceStatus
    from intern.service.status import FolderStatus, ParkedPair, ServerReadProgress

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
    from intern.service.sources import open_sources
    from intern.service.status import read_status

    if sources:
        show_result(open_sources(settings, SystemClock()).list_all(), _show_sources, as_json=as_json)
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
    old = status.counts_today.get("questions_too_old", 0)
    yield f"questions refused today: {status.refused_today} over the limit, {old} too old"
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
    yield from map(_format_checkpoint, status.checkpoints)


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
    if all(each.state == "skipped" for each in known):
        say("no sources: `intern index` lists them")
    if known:
        show("\n".join(_source_lines(known)))


def _source_lines(known: Sequence[SourceStatus]) -> Iterator[str]:
    """Yield a line for each source, then the files that are none."""
    left_out = [each for each in known if each.state == "skipped"]
    yield from (_source_line(each) for each in known if each.state != "skipped")
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
        from intern.service.model_servers import find_local_servers

        servers = run_work(find_local_servers)
        show_result(servers, _show_local_servers, as_json=as_json)
        sys.exit(0 if servers else 1)
    settings = read_settings()
    from intern.service.doctor import examine

    report = run_work(examine, settings)
    show_result(report, _show_report, as_json=as_json)
    sys.exit(0 if report.ok else 1)


def _show_local_servers(servers: Sequence[ModelServer]) -> None:
    """Show the servers of this machine with the lines that choose each."""
    if not servers:
        say("no model server answers on this machine at the default ports of Ollama, LM Studio, llama.cpp and vLLM")
    for server in servers:
        say(f"{server.name} answers at {server.base_url}. To use it, put into intern.toml:")
        show(server.settings_for(server.models[0].id or server.models[0].name))
        if others := [model.id or model.name for model in server.models[1:]]:
            say(f"It also offers {', '.join(others)}.")


def _show_report(report: DoctorReport) -> None:
    for finding in report.findings:
        say(f"{_MARKS[finding.level]}  {finding.what}")
    if report.invite:
        show(f"invite link: {report.invite}")
    show(f"next: {report.next}")
