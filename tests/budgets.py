"""The size of intern, compared with `budgets.toml`: `python -m tests.budgets`.

A line of code holds a token that is no comment and no docstring. The largest module counts with its text.
"""

from __future__ import annotations

import ast
import io
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import tomli
from msgspec import Struct

TREE = Path(__file__).parents[1]
APART = "lab"  # built on the service alone, and counted separately
_SILENT = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}


class Size(Struct, frozen=True):
    """The size of one module, or of several together."""

    modules: int = 0
    lines: int = 0
    imports: int = 0
    """Lines of code that belong to import statements."""
    protocols: int = 0
    largest: int = 0
    """Lines of the longest module, with comments and blank lines."""

    def __add__(self, other: Size) -> Size:
        return Size(
            self.modules + other.modules,
            self.lines + other.lines,
            self.imports + other.imports,
            self.protocols + other.protocols,
            max(self.largest, other.largest),
        )


def size_of(source: str) -> Size:
    """Measure one module."""
    tree = ast.parse(source)
    nodes = list(ast.walk(tree))
    texts = _lines_of(each for each in nodes if isinstance(each, ast.Expr) and _is_text(each.value))
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    code = {
        line
        for token in tokens
        if token.type not in _SILENT
        for line in range(token.start[0], token.end[0] + 1)
        if line not in texts
    }
    imports = _lines_of(each for each in nodes if isinstance(each, ast.Import | ast.ImportFrom))
    protocols = sum(isinstance(each, ast.ClassDef) and any(map(_is_protocol, each.bases)) for each in nodes)
    return Size(1, len(code), len(code & imports), protocols, source.count("\n"))


def sizes(package: Path) -> dict[str, Size]:
    """Measure a package by its parts: the folders and modules directly below it."""
    rooms: dict[str, Size] = {}
    for path in sorted(package.rglob("*.py")):
        room = path.relative_to(package).parts[0].removesuffix(".py")
        rooms[room] = rooms.get(room, Size()) + size_of(path.read_text(encoding="utf-8"))
    return rooms


def broken(rooms: dict[str, Size], budgets: dict[str, Any]) -> list[str]:
    """List all sizes above their budgets, a sentence each."""
    whole = _whole(rooms)
    held = [
        ("intern: lines", whole.lines, budgets["all"]["lines"]),
        ("intern: modules", whole.modules, budgets["all"]["modules"]),
        ("intern: Protocols", whole.protocols, budgets["all"]["protocols"]),
        ("intern: largest module", max(each.largest for each in rooms.values()), budgets["all"]["largest_module"]),
        ("lab: lines", rooms[APART].lines, budgets[APART]["lines"]),
        *(
            (f"{name}: lines", size.lines, budgets["rooms"].get(name, 0))
            for name, size in rooms.items()
            if name != APART
        ),
    ]
    return [f"{name}: {now}, and the budget is {most}" for name, now, most in held if now > most]


def read_budgets() -> dict[str, Any]:
    """Read `budgets.toml`."""
    return tomli.loads((TREE / "budgets.toml").read_text(encoding="utf-8"))


def table(rooms: dict[str, Size]) -> str:
    """Return all sizes, for a terminal."""
    rows: list[tuple[str, ...]] = [("", "modules", "lines", "imports", "Protocols", "largest")]
    named = [*sorted(rooms.items(), key=lambda each: -each[1].lines), (f"all but {APART}", _whole(rooms))]
    rows += [(name, *(str(getattr(size, field)) for field in Size.__struct_fields__)) for name, size in named]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if at else cell.ljust(width)
            for at, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    )


def _whole(rooms: dict[str, Size]) -> Size:
    return sum((size for name, size in rooms.items() if name != APART), start=Size())


def _is_text(value: ast.expr) -> bool:
    return isinstance(value, ast.Constant) and isinstance(value.value, str)


def _is_protocol(base: ast.expr) -> bool:
    named = base.value if isinstance(base, ast.Subscript) else base
    return isinstance(named, ast.Name) and named.id == "Protocol"


def _lines_of(nodes: Iterator[ast.stmt]) -> set[int]:
    return {line for node in nodes for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)}


if __name__ == "__main__":
    found = sizes(TREE / "intern")
    print(table(found))
    for sentence in (over := broken(found, read_budgets())):
        print(sentence, file=sys.stderr)
    sys.exit(bool(over))
