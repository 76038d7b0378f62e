"""Draw docs/images/flow.svg: how a member's question and a team's reply flow. `python -m docs.flow` writes it."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from html import escape
from itertools import pairwise
from typing import NamedTuple

from docs.screenshots import FOLDER

PICTURE = FOLDER / "flow.svg"

_WIDTH, _HEIGHT = 840, 630
_BOX = 290  # the width of a box
_STYLE = """\
text { font: 13px system-ui, -apple-system, 'Segoe UI', 'DejaVu Sans', sans-serif; fill: #1f2933 }
.title { font-weight: 600; font-size: 14px } .head { font-weight: 600; font-size: 16px } .quiet { fill: #52606d }
.ground { fill: #ffffff } .box { fill: #f5f7fa; stroke: #7b8794 } .say { fill: #eef4fb; stroke: #3e6b9e }
.keep { fill: #eaf5ee; stroke: #2c6e49 }
.arrow { fill: none; stroke: #52606d; stroke-width: 1.6 } .tip { fill: #52606d }
@media (prefers-color-scheme: dark) {
  text { fill: #e4e7eb } .quiet { fill: #a9b4c0 } .ground { fill: #10161d } .box { fill: #1b242e; stroke: #7b8794 }
  .say { fill: #16283b; stroke: #7fb0e6 } .keep { fill: #14291d; stroke: #7fc29b }
  .arrow { stroke: #a9b4c0 } .tip { fill: #a9b4c0 }
}"""


_MARKER = (
    '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
    '<path class="tip" d="M0 0 L8 4 L0 8 z"/></marker></defs>'
)


class Box(NamedTuple):
    """A step, and where it is drawn."""

    x: int
    y: int
    title: str
    words: Sequence[str]
    kind: str = "box"

    @property
    def height(self) -> int:
        """Return the height, which its words need."""
        return 32 + 18 * len(self.words)

    @property
    def bottom(self) -> int:
        """Return where the box ends."""
        return self.y + self.height


_LEFT, _RIGHT = 30, 510
ASKED = Box(_LEFT, 56, "A member writes", ["What follows within a minute", "belongs to the same question."], "say")
MEANT = Box(_LEFT, 154, "Is it for the bot?", ["A channel that everyone can read,", "no reply to another member."])
SOUGHT = Box(_LEFT, 252, "Search", ["By words and by meaning."])
DRAFTED = Box(_LEFT, 332, "Answer", ["The model quotes lines of the", "sources first, then answers."])
CHECKED = Box(_LEFT, 430, "Check", ["Code compares quotes, commands, links.", "The model looks a second time."])
POSTED = Box(_LEFT, 540, "Answer in a thread", ["With its sources and buttons."], "say")
SILENT = Box(_RIGHT, 540, "Silence", ["The reason is recorded, and the", "question is listed for the team."])
REPLIED = Box(_RIGHT, 56, "A team member replies", ["As they always did, in the channel."], "say")
ARCHIVED = Box(_RIGHT, 136, "Archive", ["Keys and passwords are masked."], "keep")
REVIEWED = Box(_RIGHT, 216, "Review, if you want it", ["It waits until the team approves it."])
FILED = Box(_RIGHT, 296, "Topic", ["A newer answer replaces an older one."], "keep")
KNOWN = Box(_RIGHT, 376, "Knowledge", ["Topics, your documents, web pages,", "facts from conversations."], "keep")
BOXES = (ASKED, MEANT, SOUGHT, DRAFTED, CHECKED, POSTED, SILENT, REPLIED, ARCHIVED, REVIEWED, FILED, KNOWN)


def drawn() -> str:
    """Draw the picture."""
    told = "; ".join(f"{box.title}: {' '.join(box.words)}" for box in BOXES)
    between = _LEFT + _BOX
    lines = [
        *(_down(a, b) for a, b in pairwise(BOXES[:6])),
        *(_down(a, b) for a, b in pairwise(BOXES[7:])),
        _arrow(f"M{_RIGHT} {KNOWN.y + 20} H 460 V {SOUGHT.y + 25} H {between}"),
        _arrow(f"M{between} {MEANT.y + 34} H 350"),
        _words(356, MEANT.y + 38, "no: it is ignored", "quiet"),
        _arrow(f"M{between} {DRAFTED.y + 34} H 436 V {SILENT.y + 24} H {_RIGHT}"),
        f'<path class="arrow" d="M{between} {CHECKED.y + 34} H 436"/>',
        _words(between + 8, CHECKED.y + 28, "not supported", "quiet"),
        _words(between + 8, DRAFTED.y + 28, "no source says it", "quiet"),
        _arrow(f"M{_RIGHT + _BOX} {SILENT.y + 34} H {_RIGHT + _BOX + 16} V {REPLIED.y + 25} H {_RIGHT + _BOX}"),
        _words(_LEFT, 36, "A question", "head"),
        _words(_RIGHT, 36, "A lesson", "head"),
        *(line for box in BOXES for line in _box(box)),
    ]
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img">',
            f"<title>{escape(told)}</title>",
            f"<style>\n{_STYLE}\n</style>",
            _MARKER,
            f'<rect class="ground" width="{_WIDTH}" height="{_HEIGHT}" rx="10"/>',
            *lines,
            "</svg>\n",
        ]
    )


def _box(box: Box) -> list[str]:
    place = f'x="{box.x}" y="{box.y}" width="{_BOX}" height="{box.height}"'
    return [
        f'<rect class="{box.kind}" {place} rx="7"/>',
        _words(box.x + 14, box.y + 22, box.title, "title"),
        *(_words(box.x + 14, box.y + 22 + 18 * n, line) for n, line in enumerate(box.words, 1)),
    ]


def _down(above: Box, below: Box) -> str:
    return _arrow(f"M{above.x + _BOX / 2:g} {above.bottom} V {below.y}")


def _arrow(path: str) -> str:
    return f'<path class="arrow" marker-end="url(#tip)" d="{path}"/>'


def _words(x: float, y: float, text: str, kind: str = "") -> str:
    return f'<text class="{kind}" x="{x:g}" y="{y:g}">{escape(text)}</text>'


def main() -> int:
    PICTURE.write_text(drawn(), encoding="utf-8")
    print(f"wrote docs/images/{PICTURE.name}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
