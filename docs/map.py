"""Draw docs/images/map.svg: the packages of intern with who imports whom, and the streams between the actors.

`python -m docs.map` writes it. The packages and their order come from the import contract in pyproject.toml, the arrows
from the code's own imports and from the table of streams in `intern/actors/pipeline.py`; a test compares.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from html import escape
from pathlib import Path
from textwrap import shorten, wrap

import tomli

from intern.actors.pipeline import STREAMS

TREE = Path(__file__).parents[1]
PICTURE = TREE / "docs" / "images" / "map.svg"

_ROW = 34
_LEFT = 24
_MATRIX = 620  # where the columns of the matrix begin
_COLUMN = 30
_BOX = (112, 30)
_STEP = (140, 66)  # between two actors of a row, and between two rows
_GRAPH = _MATRIX - 40  # the width of the graph
_STYLE = """\
svg { background: #ffffff; color: #1f2933 }
text { font: 13px system-ui, 'DejaVu Sans', sans-serif; fill: #1f2933 }
.title { font-weight: bold; font-size: 16px }
.name { font: bold 13px ui-monospace, 'DejaVu Sans Mono', monospace }
.quiet { fill: #52606d; font-size: 12px }
.strong { font-weight: bold; font-size: 12px }
.small { fill: #52606d; font-size: 11px }
.box { fill: #eef4fb; stroke: #3e6b9e }
.row { fill: #f5f7fa }
.dot { fill: #3e6b9e }
.stream { fill: none; stroke: #7b8794; stroke-width: 1.2 }
@media (prefers-color-scheme: dark) {
  svg { background: #10161d }
  text { fill: #e4e7eb } .quiet, .small { fill: #a9b4c0 }
  .box { fill: #1b2a3a; stroke: #7fb0e6 } .row { fill: #161e27 } .dot { fill: #7fb0e6 } .stream { stroke: #8896a5 }
}"""


def layers() -> list[str]:
    """Return the packages in the order of the import contract, the highest first."""
    contract = tomli.loads((TREE / "pyproject.toml").read_text(encoding="utf-8"))
    (found,) = [each for each in contract["tool"]["importlinter"]["contracts"] if each["type"] == "layers"]
    return [name.strip() for layer in found["layers"] for name in layer.split("|")]


def imports() -> dict[str, set[str]]:
    """Return which packages each package imports."""
    found: dict[str, set[str]] = {}
    for path in (TREE / "intern").rglob("*.py"):
        room = path.relative_to(TREE / "intern").parts[0].removesuffix(".py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("intern."):
                found.setdefault(room, set()).add(node.module.split(".")[1])
    return found


def drawn() -> str:
    """Draw the whole picture."""
    packages, after = _packages(layers(), imports())
    streams, height = _streams(after + 60)
    width = _MATRIX + _COLUMN * len(layers()) + _LEFT
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        'role="img" aria-label="The packages of intern, who imports whom, and the streams between its actors">'
    )
    marker = (
        '<defs><marker id="end" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        '<path class="dot" d="M0 0 L8 4 L0 8 z"/></marker></defs>'
    )
    return "\n".join([head, f"<style>{_STYLE}</style>", marker, *packages, *streams, "</svg>", ""])


def _packages(names: list[str], imported: Mapping[str, set[str]]) -> tuple[list[str], int]:
    lines = [_text(_LEFT, 30, "Packages: each imports only those below it", "title")]
    top = 120
    for at, name in enumerate(names):
        x = _MATRIX + at * _COLUMN + 8
        lines.append(f'<text class="quiet" transform="translate({x + 8} {top - 10}) rotate(-60)">{name}</text>')
    for row, name in enumerate(names):
        y = top + row * _ROW
        if row % 2 == 0:
            width = _MATRIX + _COLUMN * len(names) - 10
            lines.append(f'<rect class="row" x="{_LEFT - 8}" y="{y}" width="{width}" height="{_ROW}"/>')
        lines.append(_text(_LEFT, y + 22, name, "name"))
        lines.append(_text(_LEFT + 100, y + 22, shorten(_about(name), 76, placeholder=" …"), "quiet"))
        for at, other in enumerate(names):
            if other != name and other in imported.get(name, ()):
                x = _MATRIX + at * _COLUMN + 12
                title = f"<title>{name} imports {other}</title>"
                lines.append(f'<circle class="dot" cx="{x}" cy="{y + _ROW / 2}" r="5">{title}</circle>')
    return lines, top + len(names) * _ROW


def _streams(top: int) -> tuple[list[str], int]:
    level = _levels()
    rows: dict[int, list[str]] = {}
    for name in sorted(level):
        rows.setdefault(level[name], []).append(name)
    place = {
        name: (_LEFT + (_GRAPH - len(names) * _STEP[0]) / 2 + at * _STEP[0], top + 40 + row * _STEP[1])
        for row, names in rows.items()
        for at, name in enumerate(names)
    }
    lines = [_text(_LEFT, top, "Streams between actors: bounded, one type each; all else is on disk", "title")]
    for stream in STREAMS:
        x2, y2 = place[stream.to][0] + _BOX[0] / 2, place[stream.to][1]
        for source in stream.source:
            x1, y1 = place[source][0] + _BOX[0] / 2, place[source][1] + _BOX[1]
            bend = (y2 - y1) / 2
            curve = f"M{x1} {y1} C{x1} {y1 + bend} {x2} {y2 - bend} {x2} {y2}"
            title = f"<title>{escape(stream.name)}</title>"
            lines.append(f'<path class="stream" marker-end="url(#end)" d="{curve}">{title}</path>')
    for name, (x, y) in place.items():
        lines.append(f'<rect class="box" x="{x}" y="{y}" width="{_BOX[0]}" height="{_BOX[1]}" rx="5"/>')
        lines.append(f'<text class="name" text-anchor="middle" x="{x + _BOX[0] / 2}" y="{y + 20}">{name}</text>')
    y = top + 40
    for stream in STREAMS:
        lines.append(_text(_MATRIX, y, stream.name, "strong"))
        for line in wrap(f"{' or '.join(stream.kinds)}; at most {stream.size} waiting", 70):
            y += 16
            lines.append(_text(_MATRIX + 12, y, line, "small"))
        y += 24
    return lines, int(max(y, *(each for _, each in place.values()))) + _BOX[1] + 20


def _levels() -> dict[str, int]:
    """Return the row of each actor: below all actors that send to it."""
    senders: dict[str, set[str]] = {}
    takers: dict[str, set[str]] = {}
    for stream in STREAMS:
        senders.setdefault(stream.to, set()).update(stream.source)
        for source in stream.source:
            takers.setdefault(source, set()).add(stream.to)

    def below(name: str) -> int:
        return 1 + max((below(each) for each in senders.get(name, ())), default=-1)

    actors = senders.keys() | takers.keys()
    # An actor that only sends, like the scout, is right above the first that it sends to.
    return {
        name: below(name) if name in senders else max(0, min(below(each) for each in takers[name]) - 1)
        for name in actors
    }


def _about(name: str) -> str:
    """Return the first line of a package's docstring."""
    path = TREE / "intern" / name / "__init__.py"
    source = path if path.exists() else TREE / "intern" / f"{name}.py"
    return (ast.get_docstring(ast.parse(source.read_text(encoding="utf-8"))) or "").partition("\n")[0]


def _text(x: float, y: float, text: str, kind: str) -> str:
    return f'<text class="{kind}" x="{x}" y="{y}">{escape(text)}</text>'


if __name__ == "__main__":
    PICTURE.write_text(drawn(), encoding="utf-8")
    print(PICTURE)
