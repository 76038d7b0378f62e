"""Commands about learned knowledge: topics, archive, review, retry, forget and regenerate."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING, Literal

import click

from intern.core.clock import SystemClock
from intern.core.errors import ConfigError
from intern.core.ids import MessageId, QAId, TopicName, UserId
from intern.core.progress import report_progress
from intern.core.records import (
    Decision,
    MessagesForgotten,
    MessagesWithdrawn,
    PairApproved,
    PairParked,
    PairRejected,
    Turn,
)
from intern.frontends.cli.options import (
    DefaultListGroup,
    ask_folder,
    json_option,
    open_reader,
    read_folder_settings,
    run_work,
)
from intern.frontends.cli.output import say, show, show_json, show_list, show_result
from intern.frontends.words import ago, describe_decision, minute

if TYPE_CHECKING:
    from intern.service.intern import ForgetResult, RegenerationProgress, RegenerationResult
    from intern.service.models import RegenerationEstimate
    from intern.service.reading import PairDetails, PairLine, TopicLine, WaitingPair
    from intern.service.restoring import TopicAdoption

_LISTED = 50  # a screen or two; --all has the rest
_NAMED = 10
_TOLD = 20  # parked pairs; more would fill the screen

_qa_ids = click.argument("qa_ids", metavar="QA_ID…", nargs=-1)


@click.group("archive", cls=DefaultListGroup)
def archive() -> None:
    """Read the captured pairs: list them, show one.

    Reads only, and works beside a running bot. Without a command: the list, with its options. Exit code 0; 2 for a
    pair that there is not; 3 where something cannot be read.
    """


@archive.command("list")
@click.option("--all", "everything", is_flag=True, help=f"All pairs; else the newest {_LISTED}.")
@json_option
def list_pairs(*, everything: bool, as_json: bool) -> None:
    """List archived pairs, oldest first, each with what became of it."""
    pairs = open_reader().pairs(newest=None if everything else _LISTED)
    show_list(pairs, _pair_line, "nothing was archived yet", as_json=as_json)


def _pair_line(pair: PairLine) -> str:
    what = pair.decision.replace("_", " ") + (f" {pair.topic}" if pair.topic else "")
    return f"{pair.qa_id}  answered {minute(pair.answered_at)}  {what}: {pair.question[:200]}"


@archive.command("show")
@click.argument("qa_id")
@json_option
def show_pair(qa_id: str, *, as_json: bool) -> None:
    """Show one pair, word for word, and all that was decided about it."""
    show_result(open_reader().pair(qa_id), _show_pair, as_json=as_json)


def _show_pair(found: PairDetails) -> None:
    pair = found.pair
    lines = [
        f"{pair.qa_id}, answered {minute(pair.answered_at)}, archived {minute(pair.timestamp)}",
        f"conversation {pair.conversation_id}, messages {', '.join(pair.message_ids)}",
        *_format_turns(pair.turns),
    ]
    show("\n".join([*lines, *(["", *map(_format_decision, found.decisions)] if found.decisions else [])]))


@click.group("topics", cls=DefaultListGroup)
def topics() -> None:
    """Read the topics: list them, show one, tell its history.

    Reads only, and works beside a running bot. Without a command: the list, with its options. Exit code 0; 2 for a
    topic that there is not; 3 where something cannot be read.
    """


@topics.command("list")
@json_option
def list_topics(*, as_json: bool) -> None:
    """List all topics, each with its pairs, its characters, its newest answer and what it covers."""
    topics = open_reader().topics()
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
    topic = open_reader().topic(name)
    if as_json:
        show_json(topic)
        return
    lines = [f"{topic.name}: {topic.description}"]
    for block in topic.blocks:
        lines += [
            "",
            f"{block.qa_id}, answered {minute(block.answered_at or block.timestamp)}",
            *_format_turns(block.turns),
        ]
    for gone in topic.removed if removed else ():
        lines += ["", f"{gone.qa_id}, removed {minute(gone.at)} for {gone.by}", *_format_turns(gone.turns)]
    show("\n".join(lines))


@topics.command("history")
@click.argument("name")
@json_option
def show_topic_history(name: str, *, as_json: bool) -> None:
    """Tell all that was decided about the pairs of a topic, oldest first."""
    show_list(open_reader().history(name), _format_decision, "nothing was decided about its pairs", as_json=as_json)


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
    show_result(ask_folder(lambda intern: intern.adopt(name)), _report_adoption, as_json=as_json)


def _report_adoption(done: TopicAdoption) -> None:
    say(f"{done.topic}: {len(done.changed)} pairs with other words, {len(done.removed)} taken out")
    if done.left_out:
        say(f"left out, for they stand in no topic any more: {', '.join(done.left_out)}")


@click.group("review", cls=DefaultListGroup)
def review() -> None:
    """Read, approve or reject captures that wait for the team.

    With `kb.review = true`, nothing is learned from a capture before that. Without a command: the list, which reads
    only and works beside a running bot. Exit code 0; 2 for a pair that is unknown or does not wait; 3 where
    something cannot be read or written.
    """


@review.command("list")
@json_option
def list_waiting(*, as_json: bool) -> None:
    """List the captures that wait, oldest first, each with all that was said."""
    show_result(_read_waiting(), _show_waiting, as_json=as_json)


def _show_waiting(waiting: tuple[WaitingPair, ...]) -> None:
    lines: list[str] = []
    for each in waiting:
        newer = f"; in {each.in_newer}, too" if each.in_newer else ""
        gone = "  (its question or its answer was deleted)"
        lines += ["", f"{each.qa_id}, answered {minute(each.answered_at)}, captured {ago(each.seconds)}{newer}"]
        lines += _format_turns(each.turns) if each.turns else [gone]
    if lines:
        show("\n".join(lines[1:]))
    else:
        say("nothing waits for review")


_topic = click.option(
    "--topic", metavar="NAME", help="All that is likely to be filed there: see `intern review topics`."
)


@review.command("topics")
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
def list_waiting_topics(*, as_json: bool) -> None:
    """List the topics where captures that wait are likely to be filed, with their number."""
    numbers = Counter(topic or "" for topic in _likely_topics().values())
    named = dict(sorted(numbers.items(), key=lambda each: (not each[0], -each[1], each[0])))
    lines = [f"{number:4}  {name or '(no topic yet)'}" for name, number in named.items()]
    show_result(named, lambda _: show("\n".join(lines)) if lines else say("nothing waits for review"), as_json=as_json)


@review.command("approve")
@_qa_ids
@_topic
@click.option("--all", "everything", is_flag=True, help="All that waits now, each conversation in its newest version.")
@json_option
def approve(*, qa_ids: tuple[str, ...], topic: str | None, everything: bool, as_json: bool) -> None:
    """Have captures filed. Older versions of them need not wait any more."""
    if [bool(qa_ids), topic is not None, everything].count(True) != 1:
        raise click.UsageError("say which: ids from `intern review`, --topic, or --all")
    if topic is not None:
        qa_ids = _waiting_in_topic(topic)
    if everything:
        qa_ids = tuple(each.qa_id for each in _read_waiting() if each.in_newer is None)
    _decide_review("approve", qa_ids, as_json=as_json)


@review.command("reject")
@_qa_ids
@_topic
@json_option
def reject(*, qa_ids: tuple[str, ...], topic: str | None, as_json: bool) -> None:
    """Have nothing learned from captures, ever. With --topic, that includes their older versions."""
    if bool(qa_ids) == (topic is not None):
        raise click.UsageError("say which: ids from `intern review`, or --topic")
    if topic is not None:
        newest, waiting = _waiting_in_topic(topic), _read_waiting()
        conversations = {each.conversation_id for each in waiting if each.qa_id in newest}
        qa_ids = tuple(each.qa_id for each in waiting if each.conversation_id in conversations)
    _decide_review("reject", qa_ids, as_json=as_json)


def _likely_topics() -> dict[QAId, TopicName | None]:
    settings = read_folder_settings()
    if not _read_waiting():  # and there may be no database
        return {}
    from intern.service.reviewing import read_waiting_topics

    return run_work(read_waiting_topics, settings, SystemClock())


def _waiting_in_topic(name: str) -> tuple[str, ...]:
    """Return the newest version of each conversation that waits for the topic. Raises ConfigError if none does."""
    found = tuple(qa_id for qa_id, topic in _likely_topics().items() if topic == name)
    if not found:
        raise ConfigError(f"nothing that waits is likely to be filed under {name!r}; see `intern review topics`")
    return found


def _read_waiting() -> tuple[WaitingPair, ...]:
    return open_reader().list_waiting_pairs(SystemClock().now())


def _decide_review(action: Literal["approve", "reject"], qa_ids: tuple[str, ...], *, as_json: bool) -> None:
    from intern.service.intern import Review

    asked = Review(action=action, qa_ids=tuple(map(QAId, qa_ids)))
    decisions = ask_folder(lambda intern: intern.review(asked)) if qa_ids else ()
    show_list(decisions, _format_decision, "nothing waits for review", as_json=as_json)
    if any(isinstance(each, PairApproved) for each in decisions):
        say("what is approved only is filed once the model is there: by `intern run`, or by saying this again")


@click.command("retry")
@_qa_ids
@json_option
def retry(*, qa_ids: tuple[str, ...], as_json: bool) -> None:
    """File parked pairs now: all of them, or those that you name.

    `intern status` lists them. While `intern run` works on the same data folder, it does the work, and this command
    waits for it. Exit code 0: done. 2: a pair is unknown or not parked. 3: one is parked again,
    since the model gave nothing usable, or model or disk failed altogether; what was filed by then stays so.
    """
    decisions = ask_folder(lambda intern: intern.retry(tuple(map(QAId, qa_ids))))
    show_list(decisions, _format_decision, "nothing is parked", as_json=as_json)
    sys.exit(3 if any(isinstance(each, PairParked) for each in decisions) else 0)


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
    from intern.service.intern import ForgetRequest

    user_id, ids = UserId(user) if user is not None else None, tuple(map(MessageId, messages))
    asked = ForgetRequest(user_id=user_id, message_ids=ids, erase=erase).validate()
    if erase and not yes:
        if not sys.stdin.isatty():
            raise click.UsageError("--erase cannot be undone: without a terminal, confirm it with --yes")
        click.confirm("This rewrites the archive and cannot be undone. Erase?", abort=True, err=True)
    done = ask_folder(lambda intern: intern.forget(asked))
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
        from intern.service.models import estimate_regeneration

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


def _format_turns(turns: Iterable[Turn]) -> list[str]:
    """Return the lines of a conversation, a message's further lines below its first."""
    return [f"  {turn.speaker}: " + turn.text.replace("\n", "\n    ") for turn in turns]


def _format_decision(decision: Decision) -> str:
    """Return a decision on one line."""
    what = describe_decision(decision)
    match decision:
        case MessagesWithdrawn(message_ids=ids) | MessagesForgotten(message_ids=ids):
            about = f"{len(ids)} messages"
        case _:
            about = decision.qa_id
            if isinstance(decision, PairApproved | PairRejected) and decision.by:
                what += f" by member {decision.by}"
    return f"{minute(decision.at)}  {about}  {what}" + (f": {decision.reason}" if decision.reason else "")
