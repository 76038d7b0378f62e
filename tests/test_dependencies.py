"""`pip install discord-intern` installs the packages that the program uses, and no more."""

from __future__ import annotations

import ast
from importlib.metadata import distribution
from pathlib import Path

import pytest
import tomli
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]
MOST = 38  # with intern itself; hikari and aiohttp bring 12 of them, resiliparse 3, prompt-toolkit and markdown-it-py 1
MODULES = {"PyStemmer": "Stemmer", "python-dotenv": "dotenv", "markdown-it-py": "markdown_it"}


def required() -> list[Requirement]:
    project = tomli.loads((ROOT / "pyproject.toml").read_text())["project"]
    return [Requirement(each) for each in project["dependencies"]]


@pytest.mark.rest
def test_each_dependency_is_imported() -> None:
    imported: set[str] = set()
    for path in (ROOT / "intern").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                imported.update(each.name.partition(".")[0] for each in node.names)
            elif isinstance(node, ast.ImportFrom):
                imported.add((node.module or "").partition(".")[0])
    names = {MODULES.get(each.name, each.name.replace("-", "_")) for each in required()}
    assert names <= imported


def test_an_installation_has_few_distributions() -> None:
    waiting, found = required(), {"discord-intern"}
    while waiting:
        name = waiting.pop().name.lower().replace("_", "-")
        if name not in found:
            found.add(name)
            needs = map(Requirement, distribution(name).requires or ())
            waiting += [each for each in needs if each.marker is None or each.marker.evaluate({"extra": ""})]
    assert len(found) <= MOST, sorted(found)
