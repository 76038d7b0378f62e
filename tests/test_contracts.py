"""Rules that hold for the whole tree, beside the import contract in pyproject.toml."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "intern"
STORES = PACKAGE / "stores"

_STATEMENT = re.compile(
    r"\b(select\b.+\bfrom|insert (or \w+ )?into|update \w+ set|delete from|create (virtual )?table|pragma) ", re.DOTALL
)
_ASKING = {"rows", "row", "run", "run_each", "texts", "number"}


def sql_in(source: str) -> list[str]:
    """Return what looks like SQL, or like asking a database for it; prose in docstrings does not count."""
    tree = ast.parse(source)
    docs = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    found: list[str] = []
    for node in ast.walk(tree):
        match node:
            case ast.Constant(value=str(text)) if id(node) not in docs and _STATEMENT.search(text):
                found.append(f"line {node.lineno}: {text[:60]!r}")
            case ast.JoinedStr() if _STATEMENT.search(text := ast.unparse(node)):
                found.append(f"line {node.lineno}: {text[:60]}")
            case ast.Import(names=names) if any(each.name == "apsw" for each in names):
                found.append(f"line {node.lineno}: import apsw")
            case ast.Call(func=ast.Attribute(value=ast.Name("db" | "tx") | ast.Attribute(attr="_db"), attr=attr)) if (
                attr in _ASKING
            ):
                found.append(f"line {node.lineno}: .{attr}(")
            case _:
                pass
    return found


def test_sql_is_in_the_stores_alone() -> None:
    modules = [each for each in PACKAGE.rglob("*.py") if not each.is_relative_to(STORES)]
    found = {str(each.relative_to(PACKAGE)): sql_in(each.read_text(encoding="utf-8")) for each in modules}
    assert {module: said for module, said in found.items() if said} == {}


@pytest.mark.parametrize(
    ("source", "is_sql"),
    [
        ("import apsw", True),
        ("db.run('x')", True),
        ("await self._db.rows('x')", True),
        ("run(f'select {columns} from posts')", True),
        ("S = 'delete from posts where id = ?'", True),
        ("run('insert into posts values (1)')", True),
        ("'''Select a row from the table.'''", False),
        ("anyio.run(main)", False),
        ("S = 'select the answer'", False),
    ],
)
def test_what_counts_as_sql(source: str, *, is_sql: bool) -> None:
    assert bool(sql_in(source)) is is_sql
