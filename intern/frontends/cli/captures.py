"""`intern archive`, `intern review` and `intern retry`: the captures, and those that wait."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING, Literal

import click

from intern.core.captures import Turn
from intern.core.clock import SystemClock
from intern.core.decisions import Decision, MessagesForgotten, MessagesWithdrawn, PairApproved, PairParked, PairRejected
from intern.core.errors import ConfigError
from intern.core.ids import QAId, TopicName
from intern.frontends.cli.options import DefaultListGroup, ask_folder, json_option, read_folder_settings
from intern.frontends.cli.output import say, show, show_list, show_result
from intern.frontends.wording import ago, describe_decision, minute

if TYPE_CHECKING:
    from intern.service.captured_pairs import CapturedPairs, PairDetails, PairForReview, PairLine

_LISTED = 50  # a screen or two; --all has the rest

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
    pairs = open_captures().list_all(newest=None if everything else _LISTED)
    show_list(pairs, _pair_line, "nothing was archived yet", as_json=as_json)


def _pair_line(pair: PairLine) -> str:
    what = pair.decision.replace("_", " ") + (f" {pair.topic}" if pair.topic else "")
    return f"{pair.qa_id}  answered {minute(pair.answered_at)}  {what}: {pair.question[:200]}"


@archive.command("show")
@click.argument("qa_id")
@json_option
def show_pair(qa_id: str, *, as_json: bool) -> None:
    """Show one pair, word for word, and all that was decided about it."""
    show_result(open_captures().read(qa_id), _show_pair, as_json=as_json)


def _show_pair(found: PairDetails) -> None:
    pair = found.pair
    lines = [
        f"{pair.qa_id}, answered {minute(pair.answered_at)}, archived {minute(pair.timestamp)}",
        f"conversation {pair.conversation_id}, messages {', '.join(pair.message_ids)}",
        *format_turns(pair.turns),
    ]
    show("\n".join([*lines, *(["", *map(format_decision, found.decisions)] if found.decisions else [])]))


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


def _show_waiting(waiting: tuple[PairForReview, ...]) -> None:
    lines: list[str] = []
    for each in waiting:
        newer = f"; in {each.in_newer}, too" if each.in_newer else ""
        gone = "  (its question or its answer was deleted)"
        lines += ["", f"{each.qa_id}, answered {minute(each.answered_at)}, captured {ago(each.seconds)}{newer}"]
        lines += format_turns(each.turns) if each.turns else [gone]
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
        qa_ids = open_captures().add_older_versions(_waiting_in_topic(topic))
    _decide_review("reject", qa_ids, as_json=as_json)


def _likely_topics() -> dict[QAId, TopicName | None]:
    if not _read_waiting():  # and there may be no database
        return {}
    return ask_folder(lambda intern: intern.captures.suggest_topics())


def _waiting_in_topic(name: str) -> tuple[QAId, ...]:
    """Return the newest version of each conversation that waits for the topic. Raises ConfigError if none does."""
    found = tuple(qa_id for qa_id, topic in _likely_topics().items() if topic == name)
    if not found:
        raise ConfigError(f"nothing that waits is likely to be filed under {name!r}; see `intern review topics`")
    return found


def open_captures() -> CapturedPairs:
    """Open the captures of the data folder to be read. Raises ConfigError and KnowledgeError."""
    settings = read_folder_settings()
    from intern.service.captured_pairs import open_captures

    return open_captures(settings)


def _read_waiting() -> tuple[PairForReview, ...]:
    return open_captures().list_waiting(SystemClock().now())


def _decide_review(action: Literal["approve", "reject"], qa_ids: tuple[str, ...], *, as_json: bool) -> None:
    from intern.service.job_kinds import Review

    asked = Review(action=action, qa_ids=tuple(map(QAId, qa_ids)))
    decisions = ask_folder(lambda intern: intern.review(asked)) if qa_ids else ()
    show_list(decisions, format_decision, "nothing waits for review", as_json=as_json)
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
    show_list(decisions, format_decision, "nothing is parked", as_json=as_json)
    sys.exit(3 if any(isinstance(each, PairParked) for each in decisions) else 0)


def format_turns(turns: Iterable[Turn]) -> list[str]:
    """Return the lines of a conversation, a message's further lines below its first."""
    return [f"  {turn.speaker}: " + turn.text.replace("\n", "\n    ") for turn in turns]


def format_decision(decision: Decision) -> str:
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
