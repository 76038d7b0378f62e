"""Names are plain: a class has a name of its own, a function is a verb, a docstring begins with an act or a thing.

The three rules stand in docs/developing.md ("Names").
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from msgspec import Struct, field

TREE = Path(__file__).parents[1]
MOST_PARTICIPLES = 40
_IRREGULAR = frozenset(
    """told said shown known kept found held made left gone begun written given taken heard seen spent sent put cut
    built lost taught bought drawn chosen broken stuck came owed""".split()
)
_NO_BEGINNING = re.compile(r"(?:Of|What|Who|As much|How)\b")
_PROPERTIES = {"property", "cached_property", "setter"}


class Names(Struct):
    """The names of some modules that the rules are about. Each place is `path:line name`."""

    classes: dict[str, list[str]] = field(default_factory=lambda: defaultdict[str, list[str]](list))
    """By the name without leading and trailing underscores; nested classes, too."""
    participles: list[str] = field(default_factory=list[str])
    """Functions and methods whose first word is a participle, without properties and what returns a bool."""
    beginnings: list[str] = field(default_factory=list[str])
    """Where a docstring, also one below a field, begins with a word that names neither an act nor a thing."""

    def read(self, source: str, path: str) -> None:
        """Add the names of a module."""
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                place = f"{path}:{getattr(node, 'lineno', 1)} {getattr(node, 'name', '')}".strip()
                texts = (each.value for each in node.body if isinstance(each, ast.Expr))
                if any(isinstance(text, ast.Constant) and _NO_BEGINNING.match(str(text.value)) for text in texts):
                    self.beginnings.append(place)
                if isinstance(node, ast.ClassDef):
                    self.classes[node.name.strip("_")].append(place)
                elif not isinstance(node, ast.Module) and _is_participle(node):
                    self.participles.append(place)

    @property
    def twice(self) -> dict[str, list[str]]:
        """Names that mean several classes."""
        return {name: places for name, places in self.classes.items() if len(places) > 1}


def _is_participle(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    first, *others = function.name.strip("_").split("_")
    if first == "get" and others:  # no verb: "get_joined" is "joined"
        first = others[0]
    decorators = {word for each in function.decorator_list for word in re.split(r"\W", ast.unparse(each))}
    is_bool = function.returns is not None and ast.unparse(function.returns).strip("'\"") == "bool"
    return (first.endswith("ed") or first in _IRREGULAR) and not is_bool and not decorators & _PROPERTIES


def _modules() -> Iterator[tuple[str, str]]:
    for path in sorted((TREE / "intern").rglob("*.py")):
        yield path.read_text(encoding="utf-8"), str(path.relative_to(TREE))


NAMES = Names()
for _module in _modules():
    NAMES.read(*_module)


def test_each_class_has_a_name_of_its_own() -> None:
    assert len(NAMES.classes) > 100
    assert not NAMES.twice


def test_few_functions_begin_with_a_participle() -> None:
    assert len(NAMES.participles) <= MOST_PARTICIPLES, "\n".join(NAMES.participles)


def test_docstrings_begin_with_an_act_or_a_thing() -> None:
    assert not NAMES.beginnings


def test_the_rules_find_each_kind_of_name_that_they_are_about() -> None:
    source = '''"""How things stand."""
class Held:
    class _Found:
        """What was found."""
    def told(self): ...
    @property
    def shown(self): ...
    @cached_property
    def known(self): ...
    async def _get_joined(self) -> str: ...
    def kept(self) -> bool: ...
    def let_go(self): "As much as is left."
    def add(self): "Add what is found."
class _Held_: "Howling."
class Found: ...
class Point:
    x: int
    """How far to the right."""
'''
    names = Names()
    names.read(source, "a.py")

    assert names.twice == {"Held": ["a.py:2 Held", "a.py:14 _Held_"], "Found": ["a.py:15 Found", "a.py:3 _Found"]}
    assert names.participles == ["a.py:5 told", "a.py:10 _get_joined"]
    assert sorted(names.beginnings) == ["a.py:1", "a.py:12 let_go", "a.py:16 Point", "a.py:3 _Found"]
