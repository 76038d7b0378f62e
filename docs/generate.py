"""Generate the pages about settings and commands: `python -m docs.generate`.

`configuration.md` comes from the settings' types and from `intern.toml.example`, `commands.md` and the manual page
`intern.1` from the command line's own help. A test compares the committed pages with these.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from inspect import cleandoc
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

import click
import tomli
from msgspec import Meta, Struct

from intern.core.text.secret_values import Secret
from intern.frontends.cli import cli
from intern.settings.settings import Settings

FOLDER = Path(__file__).parent
EXAMPLE = FOLDER.parent / "intern.toml.example"
_NOTE = "<!-- Made by `make docs`, which overwrites changes by hand. -->"
_WIDTH = 100


def pages() -> Mapping[str, str]:
    """Return the text of each page."""
    example = EXAMPLE.read_text(encoding="utf-8")
    return {"configuration.md": configuration(example), "commands.md": commands(), "intern.1": manual()}


def main() -> int:
    for name, text in pages().items():
        (FOLDER / name).write_text(text, encoding="utf-8")
        print(f"wrote docs/{name}", file=sys.stderr)
    return 0


# The settings.

_CONFIGURATION = """\
# Configuration

Every setting is optional, except that `intern run` needs a token, the ids of your servers, and a model. `intern init`
writes an `intern.toml` that holds all settings as comments.

- **The file** is `--config FILE`, else the one that `INTERN_CONFIG` names, else `intern.toml` in the folder where
  intern is started. Without a file, the defaults hold.
- **The environment overrides the file**: `INTERN__DISCORD__TOKEN` sets `discord.token`, `INTERN__LLM__KB__MODEL` sets
  `llm.kb.model`. Strings need no quotes there. Write numbers, true/false and lists as in the file. intern also reads a
  `.env` file in the folder where it is started; variables of the environment override it.
- **A mistake ends the start** with exit code 2. The message names the key and the place, never the value.
- Paths that do not begin with `/` are relative to the folder where intern is started.
"""


class Entry(NamedTuple):
    """The keys that one comment explains."""

    keys: Sequence[tuple[str, str, str]]
    """Each with its default and the note behind it, as they stand in the example."""
    told: Sequence[str]
    """Lines of Markdown."""


def configuration(example: str) -> str:
    """Return the page about settings. Raises ValueError if the example lacks a setting."""
    lines = [_NOTE, "", _CONFIGURATION]
    left = set(_types(Settings))
    for table, intro, entries in _tables(example):
        struct = table.replace(".", "_")
        types = _types(get_type_hints(Settings)[struct] if table != "llm.kb" else type(Settings().llm))
        lines += [f"## `[{table}]`", "", *([*intro, ""] if intro else [])]
        left.discard(struct)
        missing = types.keys() - {key for entry in entries for key, _, _ in entry.keys}
        if missing and table != "llm.kb":
            raise ValueError(f"[{table}] of the example does not tell of {', '.join(sorted(missing))}")
        for entry in entries:
            for key, default, note in entry.keys:
                shown = f"`{note}` in the data folder" if note else f"`{default}`"
                lines.append(f'- <a id="{table}.{key}"></a>**`{key}`**: {in_words(types[key])}; default {shown}')
            lines += ["", *(f"  {line}".rstrip() for line in entry.told), ""]
    if left:
        raise ValueError(f"the example does not tell of {', '.join(sorted(left))}")
    return "\n".join(lines)


def _types(struct: type[Struct]) -> dict[str, Any]:
    hints = get_type_hints(struct, include_extras=True)
    return {name: hints[name] for name in struct.__struct_fields__}


def _tables(example: str) -> Iterator[tuple[str, Sequence[str], Sequence[Entry]]]:
    """Each table's name, what stands above it, and its entries. The head of the file is of no table."""
    pieces = re.split(r"(?m)^\[([\w.]+)\]$", example)
    above = _paragraph_at_end(pieces[0])
    for table, text in zip(pieces[1::2], pieces[2::2], strict=True):
        intro, above = above, _paragraph_at_end(text)
        own = text.removesuffix("\n".join(f"# {line}" for line in above) + "\n") if above else text
        yield table, intro, list(_entries(own))


def _paragraph_at_end(text: str) -> list[str]:
    """Comments behind the last empty line, that belong to the table below."""
    _, found, last = text.rstrip("\n").rpartition("\n\n")
    lines = last.splitlines()
    return [line.removeprefix("# ") for line in lines] if found and not any(map(_KEY.fullmatch, lines)) else []


_KEY = re.compile(r"# (\w+) = (.*?)(?:\s+# (.*))?")


def _entries(text: str) -> Iterator[Entry]:
    keys: list[tuple[str, str, str]] = []
    told: list[str] = []
    for line in text.splitlines():
        found = _KEY.fullmatch(line)
        if found:
            keys.append((found[1], found[2], found[3] or ""))
        elif line.startswith("#"):
            if keys:
                yield Entry(keys, _with_fences(told))
                keys, told = [], []
            told.append(line.removeprefix("#").removeprefix(" "))
    if keys:
        yield Entry(keys, _with_fences(told))


def _with_fences(told: Sequence[str]) -> list[str]:
    """Put fences around indented lines: these are TOML."""
    lines: list[str] = []
    inside = False
    for line in told:
        if line.startswith("  ") != inside:
            inside = not inside
            lines += ["", "```toml"] if inside else ["```", ""]
        lines.append(line.removeprefix("  ") if inside else line)
    return [*lines, "```"] if inside else lines


def in_words(hint: Any) -> str:
    """Describe a type in words."""
    hint = getattr(hint, "__supertype__", hint)  # an id is a text under a name of its own
    kind, arguments = get_origin(hint), get_args(hint)
    if kind is Annotated:
        return in_words(arguments[0]) + "".join(_bounds(each) for each in arguments[1:] if isinstance(each, Meta))
    if kind is Literal:
        return "one of " + ", ".join(f'`"{choice}"`' for choice in arguments)
    if kind in {tuple, dict}:
        return (
            _list_in_words(arguments[0]) if kind is tuple else f"a table of names, each with {in_words(arguments[1])}"
        )
    if kind in {UnionType, Union}:
        return " or ".join(in_words(each) for each in arguments if each is not type(None))
    if isinstance(hint, type) and issubclass(hint, Struct):
        return "a table with " + " and ".join(f"`{name}` ({in_words(each)})" for name, each in _types(hint).items())
    return {
        str: "a text",
        Path: "a path",
        int: "a whole number",
        float: "a number",
        bool: "`true` or `false`",
        Secret: "a secret",
    }[hint]


def _list_in_words(kind: Any) -> str:
    if isinstance(kind, type) and issubclass(kind, Struct):
        fields = (f"`{name}` ({in_words(hint)})" for name, hint in _types(kind).items())
        return f"tables; the keys of each: {'; '.join(fields)}"
    return {"a text": "a list of texts", "a whole number": "a list of whole numbers"}[in_words(kind)]


def _bounds(meta: Meta) -> str:
    told = [
        *([f"at least {_plain(meta.ge)}"] if meta.ge is not None else []),
        *([f"more than {_plain(meta.gt)}"] if meta.gt is not None else []),
        *([f"at most {_plain(meta.le)}"] if meta.le is not None else []),
    ]
    return f", {' and '.join(told)}" if told else ""


def _plain(number: float) -> str:
    return f"{number:.10g}"


# The commands.

_COMMANDS = """\
# Commands

Results go to stdout, messages to stderr. Exit codes: 0 done or answered; 1 no answer, and the reason (for `doctor`: a
task is left); 2 wrong use or configuration; 3 could not look (endpoint, disk, network); 70 a bug, with a traceback.
`NO_COLOR` is respected.

If there is no data folder, commands end with exit code 2 and make none. Only `run`, `try`, `init`, `import` and
`import-notes` make one, and so does `index` if the sources are there.

Commands that read work beside a running bot and without one. Commands that write hand the work to the bot that holds
the data folder, and wait for it. If no bot runs, they do it themselves.
"""


def commands() -> str:
    """Return the page about the command line."""
    lines = [_NOTE, "", _COMMANDS, "| command | what it does |", "|---|---|"]
    with cli.make_context("intern", [], resilient_parsing=True) as ctx:
        lines += [*_overview(ctx), ""]
        ctx.terminal_width = ctx.max_content_width = _WIDTH
        for name in cli.list_commands(ctx):
            command = cli.get_command(ctx, name)
            assert command is not None
            lines += [f"## intern {name}", "", *_help(command, name, ctx)]
    return "\n".join(lines)


def _overview(ctx: click.Context) -> Iterator[str]:
    """Yield a row for each command: a link to its help, and its first sentence."""
    for name in cli.list_commands(ctx):
        command = cli.get_command(ctx, name)
        assert command is not None
        yield f"| [`intern {name}`](#intern-{name}) | {command.get_short_help_str(limit=200)} |"


# The manual page.

_MANUAL = r"""\
.\" Made by `make docs`, which overwrites changes by hand.
.TH INTERN 1 "" "intern" "User Commands"
.SH NAME
intern \- answer a Discord community's questions, and learn from the team's replies
.SH SYNOPSIS
.B intern
[\fB\-\-config\fR \fIFILE\fR] \fICOMMAND\fR [\fIOPTIONS\fR] [\fIARGUMENTS\fR]
.SH DESCRIPTION
"""
_FILES = """\
.SH FILES
.TP
.I intern.toml
The settings, in the folder where intern is started; or the file that \\fB\\-\\-config\\fR or INTERN_CONFIG names.
.TP
.I .env
Variables of the environment, in the same folder.
"""


def manual() -> str:
    """Return the manual page."""
    intro = _COMMANDS.partition("\n\n")[2].replace("`", "")
    lines = [_MANUAL + _roff(intro).replace("\n\n", "\n.PP\n") + ".SH COMMANDS"]
    with cli.make_context("intern", [], resilient_parsing=True) as ctx:
        lines += (line for command, below in _each(cli, ctx) for line in _manual_of(command, below))
    return "\n".join([*lines, _FILES])


def _each(group: click.Group, ctx: click.Context) -> Iterator[tuple[click.Command, click.Context]]:
    """Yield all commands of a group, and theirs."""
    for name in group.list_commands(ctx):
        command = group.get_command(ctx, name)
        assert command is not None
        with click.Context(command, info_name=name, parent=ctx, color=False) as below:
            yield command, below
            if isinstance(command, click.Group):
                yield from _each(command, below)


def _manual_of(command: click.Command, ctx: click.Context) -> Iterator[str]:
    usage = " ".join(command.collect_usage_pieces(ctx))
    yield f".SS {_roff(ctx.command_path)} {_roff(usage)}"
    for paragraph in cleandoc(command.help or "").split("\n\n"):
        as_it_stands = paragraph.startswith("\b\n")
        yield from (".PP", *([".nf"] if as_it_stands else []), _roff(paragraph.removeprefix("\b\n")))
        if as_it_stands:
            yield ".fi"
    for option in command.get_params(ctx):
        record = option.get_help_record(ctx)
        if record and record[1] and "--help" not in option.opts:
            yield from (".TP", rf"\fB{_roff(record[0])}\fR", _roff(record[1]))


def _roff(text: str) -> str:
    """Escape a text for roff, where a full stop or an apostrophe begins a request in the first column."""
    plain = text.replace("\\", r"\e").replace("-", r"\-")
    return re.sub(r"(?m)^(?=[.'])", r"\\&", plain)


def _help(command: click.Command, name: str, above: click.Context) -> Iterator[str]:
    with click.Context(
        command, info_name=name, parent=above, terminal_width=_WIDTH, max_content_width=_WIDTH, color=False
    ) as ctx:
        yield from ("```text", *(line.rstrip() for line in command.get_help(ctx).splitlines()), "```", "")
        if isinstance(command, click.Group):
            for below in command.list_commands(ctx):
                each = command.get_command(ctx, below)
                assert each is not None
                yield from (f"### {ctx.command_path} {below}", "", *_help(each, below, ctx))


if __name__ == "__main__":
    # What stands in the example must be TOML once its comments are gone; a fence of something else would mislead.
    tomli.loads(EXAMPLE.read_text(encoding="utf-8"))
    sys.exit(main())
