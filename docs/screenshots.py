"""`python -m docs.screenshots`: pictures of what the programs really show. A test plays the scene and compares.

The scene is an SVG of our own rather than rich's: that one loads its font from a stranger's server, which GitHub does
not let it, and it does not move. Here the lines come one after the other. Where motion is off, all of them are shown at
once. The status page is shown as Chromium shows it, with what the browser tests put there; where there is no
Chromium, its pictures stay as they are.
"""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from html import escape, unescape
from pathlib import Path
from tempfile import TemporaryDirectory
from textwrap import wrap
from typing import NamedTuple

FOLDER = Path(__file__).parent / "images"
PLAY = FOLDER / "play.svg"
PAGES = {"/": ("page-overview.png", 1240), "/gaps": ("page-unanswered.png", 530)}
"""Of the status page: what is shown, where, and how much of it."""
PAGE_WIDTH = 1000
INTERN = Path(sys.executable).parent / "intern"

_COLUMNS = 104
_WIDTH, _HEIGHT = 8.4, 19.0  # of a character of 14 pixels
_MARGIN = 18.0
_PAUSE = 0.9  # seconds before a line that a person says
_STYLE = f"""\
text {{ font: 14px ui-monospace, 'DejaVu Sans Mono', Menlo, Consolas, monospace; fill: #d6deeb; white-space: pre }}
.said {{ fill: #ffffff; font-weight: bold }}
.bot {{ fill: #7fdbca }}
.note {{ fill: #8a97a8 }}
@keyframes come {{ from {{ opacity: 0 }} }}
g {{ animation: come {_PAUSE / 3}s backwards }}
@media (prefers-reduced-motion: reduce) {{ g {{ animation: none }} }}"""


class Line(NamedTuple):
    """A line of the screen, and when it comes."""

    text: str
    kind: str
    at: float


def main() -> int:
    FOLDER.mkdir(exist_ok=True)
    PLAY.write_text(drawn(played()), encoding="utf-8")
    _tell(PLAY)
    return asyncio.run(_page_shown())


async def _page_shown() -> int:
    """Take the pictures of the status page. Return the exit code."""
    from tests.frontends.http.chromium import CHROMIUM, WANTED, chromium  # noqa: PLC0415 the scene needs no browser
    from tests.frontends.http.site import site  # noqa: PLC0415 likewise

    if CHROMIUM is None:
        print(f"the pictures of the status page are not made anew: {WANTED}", file=sys.stderr)
        return 1
    with TemporaryDirectory() as folder:
        async with site(Path(folder), past=True) as made, chromium() as browser:
            for path, (name, height) in PAGES.items():
                page = await browser.new_page(
                    base_url=made.address, color_scheme="light", viewport={"width": PAGE_WIDTH, "height": height}
                )
                await page.goto(path)
                await page.screenshot(path=FOLDER / name)
                await page.close()
                _tell(FOLDER / name)
    return 0


def _tell(picture: Path) -> None:
    print(f"wrote {picture.relative_to(FOLDER.parent.parent)}", file=sys.stderr)


def played() -> str:
    """Return the output of `intern try --play`, with fixed times and ids."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("INTERN")}
    command = [str(INTERN), "try", "--play"]
    ended = subprocess.run(
        command, check=True, capture_output=True, encoding="utf-8", env={**environment, "NO_COLOR": "1"}, timeout=120
    )
    return the_same_day(ended.stdout)


def the_same_day(text: str) -> str:
    """Replace the parts that differ each time: the times in ids of pairs, and Discord's ids."""
    text = re.sub(r"\bqa_\d{8}_\d{6}\.\d{6}", "qa_20260201_031056.228000", text)
    return re.sub(r"(?<=/)\d{17,20}", "1458745245675032709", text)


def drawn(text: str) -> str:
    """Draw the text as a terminal shows it, as an SVG."""
    lines = list(_lines(text))
    width, height = 2 * _MARGIN + _COLUMNS * _WIDTH, 2 * _MARGIN + len(lines) * _HEIGHT
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" role="img">',
            "<title>intern try --play: a question, a silence, a lesson of the team, and the answer from it</title>",
            f"<style>\n{_STYLE}\n</style>",
            f'<rect width="{width:g}" height="{height:g}" rx="8" fill="#0b1622"/>',
            *_groups(lines),
            "</svg>\n",
        ]
    )


def text_of(svg: str) -> str:
    """Return the text that `drawn` drew, up to its line breaks."""
    return "\n".join(unescape(line) for line in re.findall(r"<text[^>]*>(.*?)</text>", svg))


def _groups(lines: Sequence[Line]) -> Iterator[str]:
    for n, line in enumerate(lines):
        y = _MARGIN + (n + 0.75) * _HEIGHT
        text = f'<text class="{line.kind}" x="{_MARGIN:g}" y="{y:g}" xml:space="preserve">{escape(line.text)}</text>'
        yield f'<g style="animation-delay:{line.at:.1f}s">{text}</g>'


def _lines(text: str) -> Iterator[Line]:
    at = 0.0
    for line in f"$ intern try --play\n{text.rstrip()}".splitlines():
        kind = _kind(line)
        at += {"said": 2 * _PAUSE, "note": _PAUSE, "bot": _PAUSE / 6}.get(kind, 0.0)
        for part in broken(line):
            yield Line(part, kind, at)


def _kind(line: str) -> str:
    if line.startswith("    intern │"):
        return "bot"
    if line.startswith(("    ", "#")):
        return "note"
    return "said" if ": " in line else "plain"


def broken(line: str) -> list[str]:
    """Break a line to fit the screen; indent what follows like its beginning."""
    head = re.match(r"    (?:intern │ |· |)", line)
    return wrap(line, _COLUMNS, subsequent_indent=head[0].replace("·", " ") if head else "  ") or [""]


if __name__ == "__main__":
    sys.exit(main())
