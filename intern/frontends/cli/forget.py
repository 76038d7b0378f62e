"""`intern forget`."""

from __future__ import annotations

import sys

import click

from intern.frontends.cli.options import say, show_json
from intern.frontends.cli.telling import ask_folder

_NAMED = 10


@click.command("forget")
@click.option("--user", metavar="ID", help="All that a member wrote until now.")
@click.option("--message", "messages", metavar="ID", multiple=True, help="One message; may be given several times.")
@click.option("--erase", is_flag=True, help="Rewrite the archive, too. There is no way back.")
@click.option("--yes", is_flag=True, help="Do not ask before erasing.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
@click.pass_context
def command(
    ctx: click.Context, *, user: str | None, messages: tuple[str, ...], erase: bool, yes: bool, as_json: bool
) -> None:
    """Take a member's or a message's text out of what was learned.

    Out of topics, index, caches and the database; it does not come back when a thread is read again, nor by a
    regeneration. The archive keeps it unless you --erase. While `intern run` works on the same data folder, it does the
    work, and this command waits for it. Exit code 1 where nothing was held of it, 3 where that could not be looked up.
    """
    from intern.core.ids import MessageId, UserId
    from intern.service.results import Forget, Forgot

    asked = Forget(
        user_id=UserId(user) if user is not None else None,
        message_ids=tuple(map(MessageId, messages)),
        erase=erase,
    ).checked()
    if erase and not yes:
        if not sys.stdin.isatty():
            raise click.UsageError("--erase cannot be undone: without a terminal, confirm it with --yes")
        click.confirm("This rewrites the archive and cannot be undone. Erase?", abort=True, err=True)

    def tell(done: Forgot) -> None:
        if not done.found:
            say("nothing of it is held here; should it be read again, it will be left out")
        else:
            say(f"{done.messages} messages in {done.captures} captures; topics changed: {len(done.topics)}")
        if done.erased is not None:
            erased = done.erased
            say(f"erased: {erased.messages} messages of {erased.captures} captures; {erased.gone} captures are gone")
        if done.nameless_count:
            say(
                f"{done.nameless_count} captures do not say who wrote in them; look them through, and forget by "
                f"--message what is theirs: {', '.join(done.nameless[:_NAMED])}"
                + (" …" if done.nameless_count > _NAMED else "")
            )

    done = ask_folder(ctx, lambda intern: intern.forget(asked))
    if as_json:
        show_json(done)
    else:
        tell(done)
    sys.exit(0 if done.found else 1)
