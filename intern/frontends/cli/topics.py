"""`intern topics`."""

from __future__ import annotations

import click

from intern.frontends.cli.options import show, show_json
from intern.frontends.cli.telling import json_option, reading, said, show_each, told
from intern.frontends.words import minute


@click.group("topics", invoke_without_command=True)
@click.pass_context
def command(ctx: click.Context) -> None:
    """Read the topics: list them, show one, tell its history.

    Reads only, and works beside a running bot. Without a command: the list. Exit code 0; 2 for a topic that there
    is not; 3 where something cannot be read.
    """
    if ctx.invoked_subcommand is None:
        ctx.invoke(list_topics)


@command.command("list")
@json_option
@click.pass_context
def list_topics(ctx: click.Context, *, as_json: bool = False) -> None:
    """List all topics, each with its pairs, its characters, its newest answer and what it covers."""
    topics = reading(ctx).topics()
    if as_json:
        show_json(topics)
        return
    width = max((len(each.name) for each in topics), default=0)
    for each in topics:
        newest = minute(each.answered_at) if each.answered_at else "-" * 16
        show(f"{each.name:{width}}  {each.blocks:5} pairs  {each.chars:7} characters  {newest}  {each.description}")


@command.command("show")
@click.argument("name")
@click.option("--removed", is_flag=True, help="Also what newer answers made obsolete.")
@json_option
@click.pass_context
def show_topic(ctx: click.Context, name: str, *, removed: bool, as_json: bool) -> None:
    """Show the pairs of a topic, as answers see them."""
    topic = reading(ctx).topic(name)
    if as_json:
        show_json(topic)
        return
    lines = [f"{topic.name}: {topic.description}"]
    for block in topic.blocks:
        lines += ["", f"{block.qa_id}, answered {minute(block.answered_at or block.timestamp)}", *said(block.turns)]
    for gone in topic.removed if removed else ():
        lines += ["", f"{gone.qa_id}, removed {minute(gone.at)} for {gone.by}", *said(gone.turns)]
    show("\n".join(lines))


@command.command("history")
@click.argument("name")
@json_option
@click.pass_context
def history_of(ctx: click.Context, name: str, *, as_json: bool) -> None:
    """Tell all that was decided about the pairs of a topic, oldest first."""
    show_each(reading(ctx).history(name), told, "", as_json=as_json)
