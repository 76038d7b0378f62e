"""`intern review`."""

from __future__ import annotations

from typing import Literal

import click

from intern.frontends.cli.options import say, show, show_json
from intern.frontends.cli.telling import ago, ask_folder, json_option, reading, said, show_each, told
from intern.frontends.words import minute

_qa_ids = click.argument("qa_ids", metavar="QA_ID…", nargs=-1)


@click.group("review", invoke_without_command=True)
@click.pass_context
def command(ctx: click.Context) -> None:
    """Read, approve or reject captures that wait for the team.

    With `kb.review = true`, nothing is learned from a capture before that. Without a command: the list, which reads
    only and works beside a running bot. Exit code 0; 2 for a pair that is unknown or does not wait; 3 where
    something cannot be read or written.
    """
    if ctx.invoked_subcommand is None:
        ctx.invoke(list_waiting)


@command.command("list")
@json_option
@click.pass_context
def list_waiting(ctx: click.Context, *, as_json: bool = False) -> None:
    """List the captures that wait, oldest first, each with all that was said."""
    from intern.core.clock import SystemClock

    waiting = reading(ctx).awaiting(SystemClock().now())
    if as_json:
        show_json(waiting)
        return
    lines: list[str] = []
    for each in waiting:
        newer = f"; in {each.in_newer}, too" if each.in_newer else ""
        gone = "  (its question or its answer was deleted)"
        lines += ["", f"{each.qa_id}, answered {minute(each.answered_at)}, captured {ago(each.seconds)}{newer}"]
        lines += said(each.turns) if each.turns else [gone]
    if lines:
        show("\n".join(lines[1:]))
    else:
        say("nothing waits for review")


@command.command("approve")
@_qa_ids
@click.option("--all", "everything", is_flag=True, help="All that waits now, each conversation in its newest version.")
@json_option
@click.pass_context
def approve(ctx: click.Context, *, qa_ids: tuple[str, ...], everything: bool, as_json: bool) -> None:
    """Have captures filed. Older versions of them need not wait any more."""
    if everything == bool(qa_ids):
        raise click.UsageError("say which: ids from `intern review`, or --all")
    if everything:
        from intern.core.clock import SystemClock

        waiting = reading(ctx).awaiting(SystemClock().now())
        qa_ids = tuple(each.qa_id for each in waiting if each.in_newer is None)
    _review(ctx, "approve", qa_ids, as_json=as_json)


@command.command("reject")
@_qa_ids
@json_option
@click.pass_context
def reject(ctx: click.Context, *, qa_ids: tuple[str, ...], as_json: bool) -> None:
    """Have nothing learned from captures, ever."""
    if not qa_ids:
        raise click.UsageError("say which: ids from `intern review`")
    _review(ctx, "reject", qa_ids, as_json=as_json)


def _review(
    ctx: click.Context, action: Literal["approve", "reject"], qa_ids: tuple[str, ...], *, as_json: bool
) -> None:
    from intern.core.ids import QAId
    from intern.core.records import Approved
    from intern.service.results import Review

    asked = Review(action=action, qa_ids=tuple(map(QAId, qa_ids)))
    decisions = ask_folder(ctx, lambda intern: intern.review(asked)) if qa_ids else ()
    show_each(decisions, told, "nothing waits for review", as_json=as_json)
    if any(isinstance(each, Approved) for each in decisions):
        say("what is approved only is filed once the model is there: by `intern run`, or by saying this again")
