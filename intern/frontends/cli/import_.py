"""`intern import`."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import click

from intern.frontends.cli.options import say, settings_of, show_json, team_options
from intern.frontends.cli.telling import VECTORS_WITHIN, vectors_later

if TYPE_CHECKING:
    from intern.service.importing import Imported


@click.command("import")
@click.argument(
    "files", nargs=-1, required=True, metavar="FILE…", type=click.Path(exists=True, dir_okay=False, path_type=Path)
)
@team_options
@click.option("--since", type=click.DateTime(["%Y-%m-%d", "%Y-%m-%dT%H:%M:%S"]), help="Leave out older answers (UTC).")
@click.option("--dry-run", is_flag=True, help="Say what would be captured and what it would cost; change nothing.")
@click.option("--data", type=click.Path(file_okay=False), help="The data folder, instead of that of the settings.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
@click.pass_context
def command(
    ctx: click.Context,
    *,
    files: tuple[Path, ...],
    team_ids: tuple[str, ...],
    team_role_ids: tuple[str, ...],
    since: datetime | None,
    dry_run: bool,
    data: str | None,
    as_json: bool,
) -> None:
    """Learn from exported history (DiscordChatExporter, JSON).

    Name the files of all channels and threads together, so that each thread finds the question that it hangs on. They
    go through the same rules as live messages, by the time at which they were written; nothing is answered, nothing is
    posted, and an answer from history never makes a newer one obsolete. Importing the same again changes nothing.

    Export only what everybody may read: what a file holds is taken to be public. While `intern run` works on the same
    data folder, it files what this command brings. Exit code 2 for a file that is no such export; 3 where a pair is
    parked.
    """
    settings = settings_of(ctx, {"data": {"dir": data}} if data else None, tells_itself=True)
    from intern.core.ids import RoleId, UserId
    from intern.service.importing import Wanted, import_history

    wanted = Wanted(
        files=files,
        team_ids=tuple(map(UserId, team_ids)),
        team_role_ids=tuple(map(RoleId, team_role_ids)),
        since=since.replace(tzinfo=UTC) if since else None,
    )

    async def work() -> int:
        done = await import_history(settings, wanted, dry_run=dry_run, vectors_within=VECTORS_WITHIN, tell=say)
        if as_json:
            show_json(done)
        else:
            _tell(done, dry_run=dry_run)
        return 3 if done.filed and done.filed.parked else 0

    sys.exit(anyio.run(work))


def _tell(done: Imported, *, dry_run: bool) -> None:
    say(
        f"{done.messages} messages, {done.team_replies} team replies, {done.captured} conversations: "
        f"{done.archived} new, {done.joined} fuller than before, {done.known} known already"
    )
    for reason, number in done.skipped.items():
        say(f"left out: {number} {reason}")
    if done.masked:
        say("masked: " + ", ".join(f"{number} {kind}" for kind, number in sorted(done.masked.items())))
    if dry_run:
        say(f"nothing was changed; filing these would take at most {done.model_calls} model calls")
    elif done.filed is not None:
        tally = done.filed
        say(
            f"{tally.filed} filed, {tally.skipped} skipped, {tally.replaced} replaced by fuller ones, "
            f"{tally.parked} parked; describe the topics with: intern index"
        )
        if done.without_vectors:
            say(vectors_later(done.without_vectors))
    elif done.archived or done.joined:
        say("the running intern files them")
