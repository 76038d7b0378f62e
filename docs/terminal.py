"""`python -m docs.terminal`: pictures of a newcomer's path in `intern try`, at 80 and at 120 columns.

They type, correct with arrow keys, answer as the team, paste a block, mistype a command, make the window narrower and
press Ctrl-C. The program runs on a pseudo-terminal, and the screen of a terminal emulator is drawn as an SVG.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from html import escape
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from intern.frontends.cli.output import INTERRUPTED
from tests.frontends.cli.conftest import environment
from tests.frontends.cli.screen import CTRL_C, CTRL_L, ENTER, HOME, UP, Terminal, pasted, terminal
from tests.worlds.program import program

FOLDER = Path(__file__).parent / "screens"
WIDTHS = (80, 120)
ROWS = 44
NARROWER = 20  # columns less, in the last picture
PASTED = """\
error[E0432]: unresolved import `lumen::relay`
 --> src/main.rs:3:5
  |
3 | use lumen::relay;
  |     ^^^^^^^^^^^^ no `relay` in the root
hint: agents are rejected with clock skew too large
http://example.org/an/address/that/is/too/long/for/one/line/of/a/terminal/with/eighty/columns"""
QUESTION = "bob: Since the relay runs on a Raspberry Pi, agents are rejected with `clock skew too large`. Any ideas?"
LESSON = (
    "@mira: A Raspberry Pi has no battery-backed clock, so after a power cut its time is wrong until NTP has run. "
    "Install chrony, run `chronyc makestep`, then `lumen-relay agents reset-skew`. 時計がずれています 🕒"
)
# The last ones are for Japanese and for emoji.
_FONTS = (
    "ui-monospace,'DejaVu Sans Mono',Menlo,Consolas,"
    "'Noto Sans Mono CJK JP','Hiragino Sans','MS Gothic',IPAGothic,"
    "'Apple Color Emoji','Segoe UI Emoji','Noto Color Emoji',monospace"
)
_WIDTH, _HEIGHT, _MARGIN = 8.4, 19.0, 14.0
_COLOURS = {"cyan": "#79c0ff", "green": "#7fdbca", "brown": "#ffd479", "yellow": "#ffd479", "default": "#d6deeb"}


class Piece(NamedTuple):
    """Characters of one look, from a column on."""

    column: int
    text: str
    colour: str
    bold: bool


def pictures() -> Iterator[tuple[str, str]]:
    """Walk the path at each width. Yield the name and the SVG of each screen."""
    for columns in WIDTHS:
        with TemporaryDirectory() as folder:
            place = environment(TMPDIR=folder, INTERN__LLM__PROVIDER="offline")
            with terminal(program("try"), place, columns=columns, rows=ROWS) as shown:
                for moment in walk(shown):
                    yield (
                        f"{columns}-{moment}.svg",
                        drawn(shown, f"intern try at {shown.screen.columns} columns: {moment}"),
                    )


def walk(shown: Terminal) -> Iterator[str]:
    """Do what a newcomer does. Yield the name of each moment worth a picture."""
    columns = shown.screen.columns
    shown.wait("alice ›")
    shown.type("do I change the port that the relay listens on?" + HOME + "How ")
    shown.wait("› How do I change")
    shown.type(ENTER)
    shown.wait("Sources:")
    shown.wait("\nalice ›")
    yield "answered"
    shown.type(QUESTION + ENTER)
    shown.wait("\nbob ›")
    shown.type(LESSON + ENTER)
    shown.wait("index updated")
    shown.wait("\nbob ›")
    shown.type("carol: My agents get rejected because of clock skew after the Pi lost power. What can I do?" + ENTER)
    shown.wait("`team:")
    shown.wait("\ncarol ›")
    yield "learned"
    shown.type(pasted(PASTED))
    shown.wait("carol › error")
    shown.wait("columns")
    yield "pasted"
    shown.type(ENTER)
    shown.wait("carol: error")
    shown.wait("\ncarol ›")
    shown.type("/topisc" + ENTER)
    shown.wait("did you mean /topics?")
    shown.type("/help" + ENTER)
    shown.wait("is one message.\ncarol ›")
    yield "helped"
    shown.type(CTRL_L)
    shown.resize(columns - NARROWER, ROWS)
    shown.type("dave: How do I change the port that the relay listens on, and what do I restart then?" + ENTER)
    shown.wait("Sources:")
    shown.wait("\ndave ›")
    shown.type(UP)
    shown.wait("dave › dave: How")
    yield "narrower"
    shown.type(CTRL_C)
    assert shown.ended() == INTERRUPTED
    yield "interrupted"


def drawn(shown: Terminal, title: str) -> str:
    """Draw the screen."""
    rows = len("\n".join(line.rstrip() for line in shown.screen.display).rstrip("\n").split("\n"))
    width, height = 2 * _MARGIN + shown.screen.columns * _WIDTH, 2 * _MARGIN + rows * _HEIGHT
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" role="img">',
        f"<title>{escape(title)}</title>",
        f"<style>text{{font:14px {_FONTS};white-space:pre}}</style>",
        f'<rect width="{width:g}" height="{height:g}" rx="8" fill="#0b1622"/>',
    ]
    for y in range(rows):
        for piece in _pieces(shown.screen.buffer[y], shown.screen.columns):
            weight = ' font-weight="bold"' if piece.bold else ""
            place = f'x="{_MARGIN + piece.column * _WIDTH:g}" y="{_MARGIN + (y + 0.75) * _HEIGHT:g}"'
            lines.append(f'<text {place} fill="{piece.colour}"{weight}>{escape(piece.text)}</text>')
    cursor = shown.screen.cursor
    if shown.code is None:
        place = f'x="{_MARGIN + cursor.x * _WIDTH:g}" y="{_MARGIN + cursor.y * _HEIGHT + 2:g}"'
        lines.append(f'<rect {place} width="{_WIDTH:g}" height="{_HEIGHT - 2:g}" fill="#d6deeb" opacity=".5"/>')
    return "\n".join([*lines, "</svg>\n"])


def _pieces(row: Mapping[int, object], columns: int) -> Iterator[Piece]:
    """Join characters of one look; one that is wider than a column begins a piece, so that the next is in its place."""
    found: Piece | None = None
    for x in range(columns):
        char = row[x]
        text, bold = str(getattr(char, "data", " ")), bool(getattr(char, "bold", False))
        colour = _COLOURS.get(str(getattr(char, "fg", "default")), _COLOURS["default"])
        if found is not None and (colour, bold) == found[2:] and text and text.isascii() and found.text.isascii():
            found = found._replace(text=found.text + text)
        elif text:
            if found is not None and found.text.strip():
                yield found
            found = Piece(x, text, colour, bold)
    if found is not None and found.text.strip():
        yield found._replace(text=found.text.rstrip())


def main() -> int:
    for name, svg in pictures():
        (FOLDER / name).write_text(svg, encoding="utf-8")
        print(f"wrote docs/screens/{name}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
