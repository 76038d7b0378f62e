"""`intern ask`."""

from __future__ import annotations

import sys

import anyio
import click
import msgspec

from intern.core.progress import tell
from intern.core.text.masking import encoded
from intern.frontends.cli.options import in_words, say, settings_of, show, show_json


@click.command("ask")
@click.argument("question")
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
@click.option("--trace", is_flag=True, help="Also say, step by step, how the answer came about.")
@click.pass_context
def command(ctx: click.Context, question: str, *, as_json: bool, trace: bool) -> None:
    """Ask a question, as a community member would.

    Exit code 0: answered. 1: nothing known, with the reason. 3: could not look.
    """
    if not question.strip():
        raise click.UsageError("the question is empty")
    settings = settings_of(ctx, tells_itself=True, needs_folder=True)
    from intern.core.messages import COULD_NOT_LOOK, Conversation, Message
    from intern.service.intern import open_intern

    async def work() -> int:
        async with open_intern(settings) as intern:
            tell("Answering the question", 0, 1)
            result = await intern.answer(Conversation((Message(role="user", text=question),)))
            is_indexed = bool(await intern.entries())
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
        elif result.reason in COULD_NOT_LOOK:
            error = (result.debug or {}).get("error")
            say(f"intern: could not look: {f'{error} ({result.reason})' if error else in_words(result.reason)}")
        else:
            say(f"no answer: {in_words(result.reason)}")
            if not is_indexed:
                say(f"nothing is indexed yet: put documents into {settings.paths.sources}, then run: intern index")
        if trace and not as_json:
            say(msgspec.json.format(encoded(result.debug), indent=2).decode())
        if result.should_reply:
            return 0
        return 3 if result.reason in COULD_NOT_LOOK else 1

    sys.exit(anyio.run(work))
