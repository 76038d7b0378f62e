"""`intern doctor`."""

from __future__ import annotations

import sys

import anyio
import click

from intern.frontends.cli.options import say, settings_of, show, show_json

_MARKS = {"ok": "ok  ", "note": "note", "todo": "TODO"}


@click.command("doctor")
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
@click.pass_context
def command(ctx: click.Context, *, as_json: bool) -> None:
    """Check model, data folder, and rights and roles on Discord.

    Says the one next thing to do, and prints the link that invites the bot with no more permissions than it needs.
    Asks each model endpoint one short question, which costs some 1,300 tokens, and says what it does not take. A
    database that is there gets the count of tokens and what the endpoint takes; nothing else changes. May run beside
    the bot. Without a token, Discord is left out. Exit code 0: all is well. 1: there is something to do. 3: could not
    look.
    """
    settings = settings_of(ctx, tells_itself=True)
    from intern.service.doctor import examine

    report = anyio.run(examine, settings)
    if as_json:
        show_json(report)
    else:
        for finding in report.findings:
            say(f"{_MARKS[finding.level]}  {finding.what}")
        if report.invite:
            show(f"invite link: {report.invite}")
        show(f"next: {report.next}")
    sys.exit(0 if report.ok else 1)
