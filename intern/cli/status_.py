"""`intern status`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from intern.cli.options import settings_of, show, show_json

if TYPE_CHECKING:
    from intern.app.status import Status

_SHOWN = 10  # parked pairs; --json has all


@click.command("status")
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
@click.pass_context
def command(ctx: click.Context, *, as_json: bool) -> None:
    """Say how the data folder stands, whether or not the bot runs.

    Reads only, and disturbs nobody. Exit code 0; 3 where something cannot be read.
    """
    settings = settings_of(ctx, tells_itself=True)
    from intern.app.status import status_of
    from intern.observe.clock import SystemClock

    status = status_of(settings, clock=SystemClock())
    if as_json:
        show_json(status)
    else:
        show("\n".join(_lines(status)))


def _lines(status: Status) -> list[str]:
    runs = f"runs as process {status.pid}" if status.running else "does not run"
    lines = [
        f"{status.data_dir}: intern {runs}",
        f"learned: {status.archived} captures, {status.topics} topics",
        f"not filed: {status.waiting} waiting, {status.undecided} left out, {len(status.parked)} parked",
    ]
    lines += [f"  {pair.qa_id}: {pair.reason}" for pair in status.parked[:_SHOWN]]
    if len(status.parked) > _SHOWN:
        lines.append(f"  and {len(status.parked) - _SHOWN} more")
    lines += [
        f"feedback: {status.feedback.up} helpful, {status.feedback.down} not",
        f"questions shed: {status.shed_today} today, {status.shed} in all",
        f"in work: {status.pending_posts} replies, {status.waiting_jobs} jobs",
    ]
    lines += [
        f"server {mark.guild_id}: all read up to {mark.until:%Y-%m-%d %H:%M:%S} UTC ({_ago(mark.age_seconds)}), "
        f"{mark.channels_ahead} channels further"
        for mark in status.marks
    ]
    return lines


def _ago(seconds: float) -> str:
    for unit, length in (("days", 86_400), ("hours", 3_600), ("minutes", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit} ago"
    return f"{max(seconds, 0):.0f} seconds ago"
