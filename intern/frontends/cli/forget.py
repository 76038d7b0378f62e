"""`intern forget`: a member's or a message's text, taken out."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from intern.core.ids import MessageId, UserId
from intern.frontends.cli.options import ask_folder
from intern.frontends.cli.output import say, show_result

if TYPE_CHECKING:
    from intern.service.job_kinds import ForgetResult

_NAMED = 10


@click.command("forget")
@click.option("--user", metavar="ID", help="All that a member wrote until now.")
@click.option("--message", "messages", metavar="ID", multiple=True, help="One message; may be given several times.")
@click.option("--erase", is_flag=True, help="Rewrite the archive, too. There is no way back.")
@click.option("--yes", is_flag=True, help="Do not ask before erasing.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
def forget(*, user: str | None, messages: tuple[str, ...], erase: bool, yes: bool, as_json: bool) -> None:
    """Take a member's or a message's text out of what was learned.

    Out of topics, index, caches and the database; it does not come back when a thread is read again, nor by a
    regeneration. The archive keeps it unless you --erase. While `intern run` works on the same data folder, it does the
    work, and this command waits for it. Exit code 0: done. 1: nothing was held of it. 3: that could not be looked up.
    """
    from intern.service.job_kinds import FORGET, ForgetRequest

    user_id, ids = UserId(user) if user is not None else None, tuple(map(MessageId, messages))
    asked = ForgetRequest(user_id=user_id, message_ids=ids, erase=erase).validate()
    if erase and not yes:
        if not sys.stdin.isatty():
            raise click.UsageError("--erase cannot be undone: without a terminal, confirm it with --yes")
        click.confirm("This rewrites the archive and cannot be undone. Erase?", abort=True, err=True)
    done = ask_folder(lambda intern: intern.run_job(FORGET, asked))
    show_result(done, _report_forgetting, as_json=as_json)
    sys.exit(0 if done.found else 1)


def _report_forgetting(done: ForgetResult) -> None:
    if not done.found:
        say("nothing of it is held here; should it be read again, it will be left out")
    else:
        say(f"{done.messages} messages in {done.captures} captures; topics changed: {len(done.topics)}")
    if erased := done.erased:
        say(f"erased: {erased.messages} messages of {erased.captures} captures; {erased.gone} captures are gone")
    if done.owed:
        say(f"copies in the vector engine are deleted once it is back: {done.owed}")
    if done.nameless_count:
        say(
            f"{done.nameless_count} captures do not say who wrote in them; look them through, and forget by "
            f"--message what is theirs: {', '.join(done.nameless[:_NAMED])}"
            + (" …" if done.nameless_count > _NAMED else "")
        )
