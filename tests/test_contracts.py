"""The rules about names that `pyproject.toml`'s import contract cannot express."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

TREE = Path(__file__).parents[1] / "intern"
_ADAPTER = "intern.platforms.discord"
_WORDS = re.compile(r"discord|hikari|snowflake", re.IGNORECASE)

SETTINGS = frozenset({"discord", "DiscordOptions", "_discord", "_discord_ids"})
"""The table `[discord]` keeps its name."""
KNOWN: dict[str, frozenset[str]] = {
    # The start of the program chooses the platform.
    "runtime/bot.py": frozenset({"HikariDiscord", "HikariCommands", "hikari", "open_discord_parts", "run_on_discord"}),
    "runtime/hosted_bot.py": frozenset({"HikariDiscord", "HikariCommands", "hikari", "open_hosting_on_discord"}),
    "sources/library.py": frozenset({"DISCORD"}),
    "answering/distilled_sources.py": frozenset({"DISCORD"}),
}
IMPORT_THE_ADAPTER = frozenset(
    {
        "runtime/bot.py",
        "runtime/hosted_bot.py",
        "runtime/hosting.py",  # the shard of a server
        "settings/settings.py",  # `[discord]`
        "service/__init__.py",
        "service/doctor.py",
        "service/history_batches.py",  # exports of DiscordChatExporter
        "service/history_import.py",  # exports of DiscordChatExporter
    }
)


def names_in(tree: ast.AST) -> Iterator[str]:
    """Return all identifiers and imported modules."""
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name) | ast.Attribute(attr=name) | ast.arg(arg=name):
                yield name
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield name
            case ast.keyword(arg=str(name)):
                yield name
            case ast.Import(names=names):
                yield from (each.name for each in names)
            case ast.ImportFrom(module=module, names=names):
                yield module or ""
                yield from (each.name for each in names)
            case _:
                pass


def test_discord_is_known_to_its_adapter_only() -> None:
    strange, importing = list[str](), set[str]()
    for path in sorted(TREE.rglob("*.py")):
        file = path.relative_to(TREE).as_posix()
        source = path.read_text()
        if file.startswith("platforms/discord/") or not _WORDS.search(source):
            continue
        for name in sorted(set(names_in(ast.parse(source)))):
            if name.startswith(_ADAPTER):
                importing.add(file)
            elif _WORDS.search(name) and name not in SETTINGS | KNOWN.get(file, frozenset()):
                strange.append(f"{file} says {name}")
    assert strange == []
    assert importing == IMPORT_THE_ADAPTER


def test_no_error_is_named_for_a_platform() -> None:
    source = (TREE / "core" / "errors.py").read_text()
    assert [node.name for node in ast.walk(ast.parse(source)) if isinstance(node, ast.ClassDef)]
    assert not re.search(r"Discord\w*Error", source)
