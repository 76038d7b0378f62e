"""Commands that read the flight recorder: why and replay."""

from __future__ import annotations

import shutil
import sys
import textwrap
from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import click

from intern.core.errors import ConfigError
from intern.core.messages import SILENCES
from intern.core.text.words import collapse_whitespace, truncate_text
from intern.frontends.cli.options import UTC_DATES, ask_folder, check_folder, read_settings
from intern.frontends.cli.output import show, show_list, show_result
from intern.frontends.wording import minute

if TYPE_CHECKING:
    from intern.lab.replay_comparison import ReplayComparison, ReplayJudgement
    from intern.service.recordings import CallDetails, RecordingDetails

_WIDEST = 100  # columns; longer lines are hard to read
_START = 300  # characters of a passage
_ON_A_LINE = 60


@click.command("why")
@click.argument("id", default="")
@click.option("--full", is_flag=True, help="Also each prompt as the model got it, with its instructions.")
@click.option("--json", "as_json", is_flag=True, help="One JSON array on stdout, with all that is recorded.")
def why(*, id: str, full: bool, as_json: bool) -> None:  # noqa: A002 what people are asked for
    """Explain an answer, or a silence.

    Shows messages, searches, sources, reply and checks, and the reason for silence. ID is a message of the question or
    of the reply, or its link; or a captured pair (qa_…) or a source (kb:…, team:…), for the calls that filed or
    described it. Without it, the newest recordings are listed. Works beside a running bot. Exit code 0: done.
    2: nothing is recorded.
    """
    found = ask_folder(lambda intern: intern.explain(id))
    if id:
        show_result(
            found,
            lambda found: show("\n\n".join("\n".join(_explain_recording(each, full=full)) for each in found)),
            as_json=as_json,
        )
    else:
        show_list(found, _format_recording, "nothing is recorded yet", as_json=as_json)


def _format_recording(why: RecordingDetails) -> str:
    asked = " ".join(" ".join(line.text for line in why.heard if line.speaker == "asker").split())
    begun = f"  {asked[:_ON_A_LINE]}" if asked else ""
    return f"{_format_time(why.at)}  {why.kind:9}  {why.subject or '-'}  {why.outcome}{begun}"


def _explain_recording(why: RecordingDetails, *, full: bool) -> Iterator[str]:
    outcome = SILENCES[why.outcome].words if why.outcome in SILENCES else why.outcome
    yield f"{why.kind} {why.subject}".strip() + f", {_format_time(why.at)} UTC: {outcome}"
    if why.unfit:
        yield f"cannot be replayed: {why.unfit}"
    if why.kind == "answer":
        yield from _format_messages(why)
        yield from _format_search(why)
    for said in why.said:
        yield from _format_call(said, full=full or why.kind != "answer")
    for step, decided in why.checks.items():
        yield from _block(f"{step}:", _format_check(decided))
    if why.error:
        yield from _block("it failed:", why.error)
    if why.reply is not None:
        yield from _block("answered:", why.reply)
        yield from (f"  source: {each.source_id}" for each in why.citations)


def _format_messages(why: RecordingDetails) -> Iterator[str]:
    yield "heard, as a question to the bot:" if why.addressed else "heard:"
    for line in why.heard:
        yield from _wrap_lines(f"{line.speaker}: {line.text}")


def _format_search(why: RecordingDetails) -> Iterator[str]:
    if why.searched is None:
        yield f"searched nothing ({why.entries} entries in the index)"
        return
    yield from _block(f"searched {why.entries} entries for:", why.searched)
    if why.hits is None:
        yield "  the search failed; descriptions decided"
    for hit in why.hits or ():
        like = "" if hit.likeness is None else f" (like it: {hit.likeness:.2f})"
        yield from _wrap_lines(f"{hit.source_id}{like}: {_shorten(hit.text)}")
    for name, ids in (("nuggets and facts", why.learned), ("read", why.read)):
        if ids:
            yield from _block(f"{name}:", ", ".join(ids))
    for source_id, error in why.unreadable.items():
        yield from _wrap_lines(f"{source_id} could not be read: {error}")


def _format_call(said: CallDetails, *, full: bool) -> Iterator[str]:
    spent = f"{said.tokens} tokens, {said.seconds:.1f} s" if said.tokens else "no call, by rules or as replied before"
    yield f"asked {said.model} with the prompt {said.prompt} ({spent}):"
    if full:
        yield from _wrap_lines(said.instructions)
    yield from _wrap_lines(said.shown)
    yield from _block("it failed:", said.error) if said.error else _block("it replied:", said.reply)


def _block(head: str, text: str) -> Iterator[str]:
    yield head
    yield from _wrap_lines(text)


def _wrap_lines(text: str) -> Iterator[str]:
    """Yield the lines of a text, indented, none wider than the terminal."""
    columns = min(_WIDEST, shutil.get_terminal_size().columns)
    for line in text.splitlines():
        yield from textwrap.wrap(line, columns, initial_indent="  ", subsequent_indent="    ") or [""]


def _format_check(decided: Mapping[str, Any]) -> str:
    told = ((name, _format_value(value)) for name, value in decided.items())
    return ", ".join(f"{name}: {_shorten(value)}" for name, value in told if value)


def _format_value(value: object) -> str:
    match value:
        case None:
            return ""
        case float():
            return f"{value:.3f}"
        case list():
            return " | ".join(map(str, cast("list[object]", value)))
        case _:
            return str(value)


def _shorten(text: str) -> str:
    return truncate_text(collapse_whitespace(text), _START)


def _format_time(at: str) -> str:
    return minute(datetime.fromisoformat(at))


@click.command("replay")
@click.argument("id", default="")
@click.option("--since", type=UTC_DATES, metavar="DAY", help="All answers since this day (UTC), instead of one.")
@click.option(
    "--prompts",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    metavar="DIR",
    help="Templates to try, in place of those of prompts.dir.",
)
@click.option("--model", metavar="NAME", help="A model of the endpoint to try, in place of llm.model.")
@click.option("--offline", is_flag=True, help="Ask no model: list the answers whose prompts changed.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
def replay(
    *,
    id: str,  # noqa: A002 what people are asked for
    since: datetime | None,
    prompts: Path | None,
    model: str | None,
    offline: bool,
    as_json: bool,
) -> None:
    """Answer recorded questions again, with today's settings.

    The conversation and all that the knowledge gave are taken from the recording. So is the model's reply where the
    prompt is the same to the byte; other prompts are asked anew, at a cost. With --model, replies of other models do
    not count. A table tells which answers changed, and which got better or worse, by the team's own answers and by
    votes. Changes nothing, and works beside a running bot.

    Exit code 0: all answers are the same, or better. 1: some changed. 2: nothing is recorded. 3: some could not be
    replayed.
    """
    if bool(id) == (since is not None):
        raise click.UsageError("say what to replay: ID, or --since DAY")
    if model and offline:
        raise click.UsageError("--model asks that model, so it does not go with --offline")
    tried: dict[str, Any] = {"prompts": {"dir": str(prompts)}} if prompts else {}
    settings = read_settings(tried | ({"llm": {"model": model}} if model else {}))
    check_folder(settings)
    if model and settings.llm.kind == "offline":
        raise ConfigError("--model names a model of an endpoint, and llm.base_url names none")
    from intern.lab.replay_comparison import compare_replays

    wanted = since or id
    replayed = ask_folder(lambda intern: intern.replay(wanted, offline=offline, only=model or ""), settings)
    done = compare_replays(replayed)
    show_result(done, lambda done: show("\n".join(_comparison_table(done))), as_json=as_json)
    changed = {"worse", "changed", "prompt_changed"} & done.verdicts.keys()
    sys.exit(3 if "left_out" in done.verdicts else 1 if changed else 0)


def _comparison_table(done: ReplayComparison) -> Iterator[str]:
    from intern.lab.replay_comparison import VERDICTS

    for each in done.answers:
        if each.verdict != "same":
            yield from _answer_rows(each)
    if len(done.answers) > done.verdicts.get("same", 0):
        yield ""
    width = max(map(len, map(str, done.verdicts.values())))
    for verdict, number in done.verdicts.items():
        yield f"{number:{width}}  {VERDICTS[verdict]}"  # type: ignore[index]
    yield f"model calls made anew: {done.calls}"


def _answer_rows(judged: ReplayJudgement) -> Iterator[str]:
    again = judged.again
    by = f" by {judged.by}" if judged.by else ""
    why = again.unfit or (f"changed: {', '.join(again.changed)}" if again.changed else "")
    yield f"{judged.verdict + by:16} {again.subject}  {_format_time(again.at)}  {why}".rstrip()
    asked = (("asked", again.question), ("team", again.team or ""))
    for head, text in (*asked, ("then", again.then), ("now", again.now)):
        if text and judged.verdict not in {"left_out", "prompt_changed"}:
            yield from _wrap_lines(f"{head}: {_shorten(text)}")
