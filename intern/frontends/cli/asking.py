"""`intern ask` and `intern search`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, get_args

import click
import msgspec

from intern.core.knowledge import FactCategory
from intern.core.messages import LOOKUP_FAILURES, AnswerResult, Conversation, Message
from intern.core.progress import report_progress
from intern.core.search_documents import FileType, SearchFilter, SearchKind, SearchStatus, SourceType
from intern.core.text.encoding import encode_json
from intern.core.text.words import stem_set
from intern.frontends.cli.options import UtcTime, ask_folder, read_folder_settings
from intern.frontends.cli.output import paint, say, show, show_json, show_painted
from intern.frontends.wording import excerpt, explain_silence, mark_words

if TYPE_CHECKING:
    from intern.service.intern import Intern
    from intern.service.knowledge_search import SearchResult


@click.command("ask")
@click.argument("question")
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
@click.option("--trace", is_flag=True, help="Also say, step by step, how the answer came about.")
def ask(question: str, *, as_json: bool, trace: bool) -> None:
    """Ask a question, as a community member would.

    Exit code 0: answered. 1: nothing known, with the reason. 3: could not look.
    """
    if not question.strip():
        raise click.UsageError("the question is empty")
    settings = read_folder_settings()

    async def work(intern: Intern) -> tuple[AnswerResult, bool]:
        report_progress("Answering the question", 0, 1)
        result = await intern.answer(Conversation((Message(role="user", text=question),)))
        return result, bool(await intern.entries())

    result, is_indexed = ask_folder(work, settings)
    if as_json:
        show_json(result)
    elif result.should_reply:
        sources = [
            f"Source: {each.source_id}"
            + (f" <{each.url}>" if each.url else "")
            + (f"\n  “{' '.join(each.quote.split())}”" if each.quote else "")
            for each in result.citations
        ]
        show("\n".join([result.reply_text or "", "", *sources]))
    elif result.reason in LOOKUP_FAILURES:
        error = (result.debug or {}).get("error")
        say(f"intern: could not look: {error or explain_silence(result.reason)}")
    else:
        say(f"no answer: {explain_silence(result.reason)}")
        for each in result.citations:
            say(f"perhaps: {each.source_id}{f' <{each.url}>' if each.url else ''}")
        if not is_indexed:
            say(f"nothing is indexed yet: put documents into {settings.paths.sources}, then run: intern index")
    if trace and not as_json:
        say(msgspec.json.format(encode_json(result.debug), indent=2).decode())
    if not result.should_reply:
        sys.exit(3 if result.reason in LOOKUP_FAILURES else 1)


_UP_TO_1000 = click.IntRange(1, 1000)


@click.command("search")
@click.argument("text", nargs=-1, required=True)
@click.option(
    "--kind",
    "kinds",
    type=click.Choice(get_args(SearchKind)),
    multiple=True,
    help="Sources of answers, discovered files, nuggets or facts; all, unless given.",
)
@click.option(
    "--type",
    type=click.Choice([*get_args(SourceType), *get_args(FileType), *get_args(FactCategory)]),
    help="Of a source of answers, of a discovered file, or a fact's category.",
)
@click.option("--keyword", metavar="WORD", help="Only lessons with this keyword.")
@click.option("--status", type=click.Choice(get_args(SearchStatus)))
@click.option("--guild", "guild_id", metavar="ID", help="Only from this server.")
@click.option("--after", type=UtcTime(), help="Written at or after this time (UTC).")
@click.option("--before", type=UtcTime(), help="Written before this time (UTC).")
@click.option("--top", metavar="N", type=_UP_TO_1000, default=10, show_default=True, help="At most so many.")
@click.option("--json", "as_json", is_flag=True, help="One JSON array on stdout.")
def search(*, text: tuple[str, ...], top: int, as_json: bool, **wanted: Any) -> None:
    """Search all that is known.

    Sources, discovered files, nuggets and facts; secret ones are never found, retired ones with `--status retired`.

    Shows path, title and the two lines that hold most words of TEXT, best first; --json has all, also why each was
    found. Of nuggets that fit as well, the more certain and the newer come first. Documents that are new or changed
    are indexed by their words first; no model is asked to describe them. Exit code 0: found. 1: nothing was found.
    3: it could not be looked up.
    """
    found = ask_folder(lambda intern: intern.search(" ".join(text), SearchFilter(**wanted), top))
    if as_json:
        show_json(found)
    elif found:
        show_painted("\n\n".join(map(_format_result, found)))
    else:
        say("nothing was found")
    if any(each.words_only for each in found):
        say("found by words only: what says the same in other words could not be looked up just now")
    sys.exit(0 if found else 1)


def _format_result(result: SearchResult) -> str:
    where = result.path if result.kind == "file" else result.source_id
    said = (
        result.kind if result.kind in {"nugget", "fact"} else "",
        result.type,
        result.status if result.status != "ok" else "",
        result.visibility if result.visibility != "shared" else "",
        "stale" if result.stale else "",
    )
    title = f"  {paint(result.title, bold=True)}" if result.title and not where.endswith(result.title) else ""
    begin = f"{paint(where)}{title}  ({paint(', '.join(filter(None, said)))})"
    asked = stem_set(" ".join(result.matched))
    return "\n".join([begin, *(f"  {_highlight_words(line, asked)}" for line in excerpt(result.text, asked))])


def _highlight_words(line: str, asked: frozenset[str]) -> str:
    """Paint the words of the question, on a terminal only."""
    parts = mark_words(line, asked)
    return "".join(paint(each, fg="green", bold=True) if is_asked else paint(each) for each, is_asked in parts)
