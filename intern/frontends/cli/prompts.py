"""`intern prompts`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from intern.frontends.cli.options import DefaultListGroup, json_option, read_settings
from intern.frontends.cli.output import say, show, show_json

if TYPE_CHECKING:
    from intern.service.prompt_library import PromptLibrary


_IN_A_LANGUAGE = 2  # slashes in the name of a message: messages/de/busy


@click.group("prompts", cls=DefaultListGroup)
def prompts() -> None:
    """Read and check the wording of prompts and messages.

    To change one, copy it (`intern prompts show NAME --source`) into a folder of your own, name that folder in
    prompts.dir, and edit the copy. Without a command: the list, with its options. Exit code 0; 2 where something is
    wrong.
    """


@prompts.command("list")
@json_option
def list_prompts(*, as_json: bool) -> None:
    """List all prompts and messages: who uses each, whose it is, and its variables."""
    prompting = _open_prompts()
    lines, constants = prompting.list_templates(), prompting.constants()
    if as_json:
        show_json({"prompts": lines, "constants": constants})
        return
    shown = [each for each in lines if each.overridden or each.name.count("/") < _IN_A_LANGUAGE]
    width = max(len(each.name) for each in shown)
    for each in shown:
        whose = each.file if each.overridden else "shipped"
        unused = f"; not used with {each.unused}" if each.unused else ""
        show(f"{each.name:{width}}  {each.used_by:13}  {' '.join(each.fields) or '-'}  ({whose}{unused})")
    languages = sorted({each.name.split("/")[1] for each in lines if each.name.count("/") == _IN_A_LANGUAGE})
    show(f"\nmessages/LANGUAGE/NAME: the same messages in {', '.join(languages)}\n")
    for setting, value in constants.items():
        users = " ".join(each.name for each in lines if setting in each.constants) or "no prompt"
        words = " ".join(value.split())
        show(f"{setting}: {words[:80] + '…' if len(words) > 80 else words or '(empty)'}; used by {users}")


@prompts.command("show")
@click.argument("name")
@click.option("--source", is_flag=True, help="The template itself instead, to be copied and edited.")
@json_option
def show_prompt(name: str, *, source: bool, as_json: bool) -> None:
    """Show a prompt as a model gets it, with made-up input."""
    prompting = _open_prompts()
    if source:
        text = prompting.source(name)
        if as_json:
            show_json({"name": name, "source": text})
        else:
            show(text.rstrip("\n"))
        return
    shown = prompting.preview(name)
    system, user, examples = shown.rendered
    if as_json:
        given = [each._asdict() for each in examples]
        show_json({"name": shown.name, "file": shown.file, "system": system, "examples": given, "user": user})
        return
    if system:
        say(f"{shown.file}, with made-up input: about {shown.tokens} tokens")
        turns = [("system", system), *(turn for each in examples for turn in each._asdict().items()), ("user", user)]
        show("\n\n".join(f"--- {role} ---\n{said}" for role, said in turns))
    else:
        say(shown.file)
        show(user)


@prompts.command("check")
@json_option
def check_prompts(*, as_json: bool) -> None:
    """Render every prompt and message with examples, and say what is wrong, with file and line."""
    checked = _open_prompts().check()
    if as_json:
        show_json(checked)
    else:
        for fault in checked.faults:
            say(f"wrong: {fault}")
        for note in checked.notes:
            say(f"note: {note}")
        say(f"{checked.sound} are sound" + (f", {len(checked.faults)} mistakes" if checked.faults else ""))
    sys.exit(2 if checked.faults else 0)


@prompts.command("diff")
@click.argument("name", required=False)
@json_option
def diff_prompts(name: str | None, *, as_json: bool) -> None:
    """Show what you changed: your prompts against those that intern brings."""
    differences = _open_prompts().diff((name,) if name else ())
    if as_json:
        show_json(differences)
        return
    for each in differences:
        if each.diff:
            show(each.diff)
        else:
            say(f"{each.name}: as intern brings it")
    if not differences:
        say("nothing is overridden: prompts.dir names no folder with a template of yours")


def _open_prompts() -> PromptLibrary:
    from intern.service.prompt_library import PromptLibrary

    return PromptLibrary(read_settings())
