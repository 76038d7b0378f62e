"""`intern topics` and `intern regenerate`."""

from __future__ import annotations

import sys
from functools import partial
from typing import TYPE_CHECKING

import click

from intern.core.progress import report_progress
from intern.frontends.cli.options import DefaultListGroup, ask_folder, json_option, read_folder_settings
from intern.frontends.cli.output import say, show, show_json, show_list, show_result
from intern.frontends.wording import minute

if TYPE_CHECKING:
    from intern.service.intern import RegenerationProgress
    from intern.service.job_kinds import RegenerationResult, TopicAdoption
    from intern.service.regeneration_estimate import RegenerationEstimate
    from intern.service.topics import TopicLine, Topics
from intern.frontends.cli.captures import format_decision, format_turns

_TOLD = 20  # parked pairs; more would fill the screen


@click.group("topics", cls=DefaultListGroup)
def topics() -> None:
    """Read the topics: list them, show one, tell its history.

    Reads only, and works beside a running bot. Without a command: the list, with its options. Exit code 0; 2 for a
    topic that there is not; 3 where something cannot be read.
    """


def _open_topics() -> Topics:
    settings = read_folder_settings()
    from intern.service.topics import open_topics

    return open_topics(settings)


@topics.command("list")
@json_option
def list_topics(*, as_json: bool) -> None:
    """List all topics, each with its pairs, its characters, its newest answer and what it covers."""
    topics = _open_topics().list_all()
    width = max((len(each.name) for each in topics), default=0)
    show_list(topics, partial(_topic_line, width), "there is no topic yet: nothing was learned", as_json=as_json)


def _topic_line(width: int, topic: TopicLine) -> str:
    newest = minute(topic.answered_at) if topic.answered_at else "-" * 16
    return f"{topic.name:{width}}  {topic.blocks:5} pairs  {topic.chars:7} characters  {newest}  {topic.description}"


@topics.command("show")
@click.argument("name")
@click.option("--removed", is_flag=True, help="Also what newer answers made obsolete.")
@json_option
def show_topic(name: str, *, removed: bool, as_json: bool) -> None:
    """Show the pairs of a topic, as answers see them."""
    topic = _open_topics().read(name)
    if as_json:
        show_json(topic)
        return
    lines = [f"{topic.name}: {topic.description}"]
    for block in topic.blocks:
        lines += [
            "",
            f"{block.qa_id}, answered {minute(block.answered_at or block.timestamp)}",
            *format_turns(block.turns),
        ]
    for gone in topic.removed if removed else ():
        lines += ["", f"{gone.qa_id}, removed {minute(gone.at)} for {gone.by}", *format_turns(gone.turns)]
    show("\n".join(lines))


@topics.command("history")
@click.argument("name")
@json_option
def show_topic_history(name: str, *, as_json: bool) -> None:
    """Tell all that was decided about the pairs of a topic, oldest first."""
    show_list(
        _open_topics().list_decisions(name), format_decision, "nothing was decided about its pairs", as_json=as_json
    )


@topics.command("adopt")
@click.argument("name")
@json_option
def adopt(name: str, *, as_json: bool) -> None:
    """Take in a topic whose text file you edited.

    Topic files are written from the database, so an edit changes nothing by itself; it is kept beside, as
    .NAME.txt.edited. This takes it in as a decision of the team. A regeneration makes topics anew from the archive, and
    knows nothing of it. While `intern run` works on the same data folder, it does the work. Exit code 2 where nothing
    was edited, or where it has what cannot be taken in.
    """
    from intern.service.job_kinds import ADOPT

    show_result(ask_folder(lambda intern: intern.run_job(ADOPT, name)), _report_adoption, as_json=as_json)


def _report_adoption(done: TopicAdoption) -> None:
    say(f"{done.topic}: {len(done.changed)} pairs with other words, {len(done.removed)} taken out")
    if done.left_out:
        say(f"left out, for they stand in no topic any more: {', '.join(done.left_out)}")


@click.command("regenerate")
@click.option("--dry-run", is_flag=True, help="Say what it would cost, and do nothing.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
def regenerate(*, dry_run: bool, as_json: bool) -> None:
    """Rebuild the topics from the archive.

    Useful after the prompts changed. The topics stay as they are until the new ones are complete. Stopped at any
    moment, it goes on where it was when it is called again, unless settings, prompts or the archive changed meanwhile.

    While `intern run` works on the same data folder, it does the work, and this command waits for it. Exit code 0:
    done. 3: a pair is parked, or something cannot be read or written.
    """
    if dry_run:
        settings = read_folder_settings()
        from intern.service.regeneration_estimate import estimate_regeneration

        show_result(estimate_regeneration(settings), _report_estimate, as_json=as_json)
        return
    done = ask_folder(lambda intern: intern.regenerate(_report_progress))
    show_result(done, _report_regeneration, as_json=as_json)
    sys.exit(3 if done.parked else 0)


def _report_estimate(estimated: RegenerationEstimate) -> None:
    already = f", {estimated.decided} of them done already" if estimated.decided else ""
    cost = f"about {estimated.calls} calls, {estimated.tokens} tokens" if estimated.calls else "no model asked"
    say(f"{estimated.pairs} captures of {estimated.conversations} conversations{already}: {cost}")


def _report_regeneration(done: RegenerationResult) -> None:
    tally = done.tally
    cost = f"; {done.calls} calls, {done.tokens} tokens" if done.calls else ""
    say(
        f"{done.pairs} captures: {tally.filed + tally.moved} filed under {done.topics} topics, "
        f"{tally.skipped} skipped, {tally.replaced} replaced by fuller ones, {tally.parked} parked{cost}"
    )
    for qa_id in done.parked[:_TOLD]:
        say(f"parked: {qa_id}")
    if done.parked:
        say("`intern status` says why they are parked")


def _report_progress(progress: RegenerationProgress) -> None:
    """Report progress. Classifying a conversation counts as half of its work."""
    cost = f"{progress.calls} calls, {progress.tokens} tokens" if progress.calls else ""
    report_progress(
        "Regenerating {total} conversations", (progress.classified + progress.decided) // 2, progress.total, cost
    )
