"""The terminal of `intern try`: text wrapped at its width behind a gutter, and a line that can be edited.

If input or output is no terminal, lines are read and written as they are.
"""

from __future__ import annotations

import re
import sys
from io import TextIOWrapper
from typing import TYPE_CHECKING, NamedTuple, cast

import click
from anyio.to_thread import run_sync

from intern.frontends.cli.output import say, terminal_width

if TYPE_CHECKING:
    from prompt_toolkit import PromptSession
    from prompt_toolkit.key_binding import KeyPressEvent

_NARROWEST = 20  # columns of text; in a narrower window, the terminal wraps
_ITEM = re.compile(r"\s*(?:[-*•] |\d+[.)] )?")


def say_wrapped(text: str) -> None:
    """Print a message on stderr, wrapped if it is a terminal."""
    say("\n".join(part for line in text.split("\n") for part in _wrap_line(line, "", 0)))


def write_lines(
    gutter: str, text: str, *, shown: str = "", below: str = "", fg: str | None = None, dim: bool | None = None
) -> None:
    """Print lines on stdout behind a gutter, which may be `shown` in colours of its own.

    Further lines have `below` there, or else the gutter.
    """
    first = shown or click.style(gutter, fg=fg, dim=dim)
    further = below or first
    lead = 0
    if sys.stdout.isatty() and below:
        from wcwidth import wcswidth

        lead = wcswidth(gutter) - wcswidth(below)
    for n, line in enumerate(text.split("\n")):
        for part in _wrap_line(line, below or gutter, 0 if n else lead):
            click.echo(first + (click.style(part, dim=True) if dim else part))
            first = further


def _wrap_line(line: str, gutter: str, lead: int) -> list[str]:
    """Break a line between words. Its beginning lacks `lead` columns; parts of a list's item stay below each other."""
    if not sys.stdout.isatty():
        return [line]
    from wcwidth import wcswidth, wrap

    room = terminal_width(sys.stdout) - wcswidth(gutter) - 1
    begun = _ITEM.match(line)
    indent = " " * min(len(begun[0]), room // 2) if begun else ""
    if room < _NARROWEST + lead or lead + wcswidth(line) <= room:
        return [line]
    # A long address begins on a line of its own.
    begin, *addresses = re.split(rf" (?=\S{{{room - len(indent) + 1}}})", line[len(indent) :])
    begin = line[: len(indent)] + begin
    wrapped = wrap(begin, room, initial_indent=" " * lead, subsequent_indent=indent, break_on_hyphens=False)
    first, *rest = wrapped or [""]
    for each in addresses:
        rest += wrap(each, room, initial_indent=indent, subsequent_indent=indent, break_on_hyphens=False)
    return [first[lead:], *rest]


class TypedMessage(NamedTuple):
    """A message as it was typed, pasted or read."""

    text: str
    pasted: bool = False
    """It begins with pasted text."""


class Keyboard:
    """The input of people: at a terminal with line editing and history, from a pipe or a file line by line."""

    def __init__(self) -> None:
        self.is_terminal = sys.stdin.isatty() and sys.stdout.isatty()
        self._session = self._create_session() if self.is_terminal else None
        self._pasted: set[str] = set()  # the first lines; history may bring them back
        cast("TextIOWrapper", sys.stdin).reconfigure(errors="replace")  # a keyboard or a file may send invalid bytes

    async def read(self, speaker: str) -> TypedMessage | None:
        """Read a message; None at the end of the input. Raises KeyboardInterrupt."""
        if self._session is None:
            line = await run_sync(sys.stdin.readline, abandon_on_cancel=True)
            return TypedMessage(line.strip()) if line else None
        from prompt_toolkit.patch_stdout import patch_stdout

        try:
            with patch_stdout(raw=True):  # notes that arrive meanwhile are shown above the line
                text = await self._session.prompt_async([("ansicyan bold", speaker), ("", " › ")])
        except EOFError:
            return None
        text = text.strip()
        return TypedMessage(text, text.startswith(tuple(self._pasted)))

    def _create_session(self) -> PromptSession[str]:
        from prompt_toolkit import PromptSession
        from prompt_toolkit.key_binding import KeyBindings
        from prompt_toolkit.keys import Keys
        from prompt_toolkit.layout.processors import TabsProcessor

        keys = KeyBindings()
        keys.add("enter")(_submit)
        keys.add(Keys.BracketedPaste)(self._paste)
        return PromptSession(
            multiline=True,  # a pasted block is shown as it is
            prompt_continuation="  ",
            key_bindings=keys,
            input_processors=[TabsProcessor()],
            erase_when_done=True,  # the chat shows it with the name of its speaker
        )

    def _paste(self, event: KeyPressEvent) -> None:
        text = event.data.replace("\r\n", "\n").replace("\r", "\n")
        buffer = event.current_buffer
        if text.strip() and not buffer.document.text_before_cursor.strip():
            self._pasted.add(text.strip().partition("\n")[0])
        buffer.insert_text(text)


def _submit(event: KeyPressEvent) -> None:
    event.current_buffer.validate_and_handle()
