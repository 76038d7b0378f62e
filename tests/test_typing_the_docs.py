"""The commands of the docs work, in the order of each page, with doubles for Discord and for the endpoint."""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from threading import Thread

import anyio
import pytest

from intern.core.captures import Capture, Turn
from intern.core.ids import ConversationId, GuildId, MessageId, UserId
from intern.service.doctor import WANTED
from intern.stores.archive import Archive
from intern.stores.engines.sqlite.database import SqliteDatabase
from intern.stores.tables.communities import CommunityStore
from tests.double.discord import DiscordDouble
from tests.frontends.cli.test_import import export
from tests.newcomer import FOLDER, FailedError, Stand, Step, _run, steps, variable
from tests.worlds.clock import HandClock
from tests.worlds.endpoint import EndpointDouble
from tests.worlds.program import MAIN

TREE = Path(__file__).parents[1]
TYPED = {"intern", ".venv/bin/intern", "export"}
NOT_TYPED = {"chown", "make", "python", "pipx", "install", "systemctl", "journalctl", "docker", "-v", "-e"}
"""Installing, which `make newcomer` and the tests of packaging do; tests/test_docs.py reads these lines."""


pytestmark = pytest.mark.on_asyncio


def _documents(folder: Path) -> None:
    """Make a folder of documents, and an export of a server's history."""
    (folder / FOLDER).mkdir(parents=True)
    (folder / FOLDER / "lamp.md").write_text("# The lamp\n\nTo change the colour of the lamp, run `lamp colour`.\n")
    text = export(folder).read_text().replace('"21"', '"123456789012345678"').replace('"77"', '"234567890123456789"')
    (folder / "export.json").write_text(text)


def _server(folder: Path) -> None:
    """Make the same, with the documents in the page's place."""
    _documents(folder)
    sources = folder / "data" / "knowledge-base" / "sources"
    sources.mkdir(parents=True)
    (folder / FOLDER / "lamp.md").rename(sources / "lamp.md")


def _asked(folder: Path) -> None:
    """Make the same, with a file of questions."""
    _server(folder)
    (folder / "questions.jsonl").write_text(
        '{"question": "How do I change the colour of the lamp?", "expected_sources": ["kb:lamp.md"]}\n'
    )


def _kept(folder: Path) -> None:
    _searchable(folder)
    (folder / "intern.toml").write_text('[discord]\nteam_role_ids = ["234567890123456789"]\n')


def _two_communities(folder: Path) -> None:
    for name in ("relay", "lamp"):
        (folder / name).mkdir()
        (folder / name / "intern.toml").write_text(f'[data]\ndir = "{name}/data"\n[llm]\nprovider = "offline"\n')


def _hosted(folder: Path) -> None:
    async def joined() -> None:
        async with await SqliteDatabase.open(folder / "data" / "intern.db") as db:
            await CommunityStore(db).add_server(GuildId("1"), "Rust")

    in_a_loop = Thread(target=anyio.run, args=(joined,))
    in_a_loop.start()
    in_a_loop.join()


def _captured(folder: Path) -> None:
    """Make the captures that the page's examples name."""
    archive = Archive(folder / "data" / "team-knowledge" / "raw", clock=HandClock())
    for message, text in (("1458745245675032709", "How?"), ("1458745245675032710", "How, then?")):
        archive.append(
            Capture(
                conversation_id=ConversationId(f"reply_{message}"),
                turns=(Turn("User", text), Turn("Team", "Like this.")),
                message_ids=(MessageId(message), MessageId(f"{message}1")),
                author_ids=(UserId("80351110224678912"), UserId("7")),
                answered_at=HandClock().now(),
            )
        )


def _searchable(folder: Path) -> None:
    _captured(folder)
    (folder / "data" / "intern.db").touch()


PAGES: Mapping[str, tuple[Callable[[Path], None], Mapping[str, str]]] = {
    "data.md": (_searchable, {"intern backup intern-2026-02-01.db": r"checked(.|\n)*also copy, as they are: data"}),
    "hosting.md": (
        _hosted,
        {"intern community list": "rust  active", "intern --community rust review": "nothing waits"},
    ),
    "local-models.md": (
        _asked,
        {
            '.venv/bin/intern ask "How do I change the colour of the lamp?"': r"kb:lamp\.md",
            ".venv/bin/intern eval questions.jsonl": "1 question",
        },
    ),
    "operators.md": (
        _kept,
        {"intern status": "captures", "intern backup intern-2026-02-01.db": "checked"},
    ),
    "privacy.md": (_captured, {"intern forget --user 80351110224678912 --erase --yes": "erased: "}),
    "quick-start.md": (
        _documents,
        {
            ".venv/bin/intern try path/to/documents --data my-trial": r"`kb:lamp\.md`",
            ".venv/bin/intern backtest export.json --team-id 123456789012345678": "wrote backtest.html",
        },
    ),
    "scaling.md": (_two_communities, {}),
    "server.md": (
        _server,
        {
            ".venv/bin/intern doctor": r"invite link: https?://(.|\n)*next: nothing",
            ".venv/bin/intern import export.json --team-role-id 234567890123456789 --dry-run": "nothing was changed",
            ".venv/bin/intern import export.json --team-role-id 234567890123456789": "1 filed",
            ".venv/bin/intern status --sources": r"ok +kb:lamp\.md",
            ".venv/bin/intern review": "nothing waits for review",
        },
    ),
}
"""The pages, each with the reader's earlier files, and the required outputs of some commands."""


SET_BEFORE: Mapping[str, Sequence[str]] = {
    "local-models.md": (
        "DISCORD__TOKEN",
        "DISCORD__GUILD_IDS",
        "DISCORD__TEAM_ROLE_IDS",
        "LLM__BASE_URL",
        "LLM__MODEL",
    ),
    "operators.md": ("DISCORD__TOKEN", "DISCORD__GUILD_IDS", "DISCORD__TEAM_ROLE_IDS", "LLM__BASE_URL", "LLM__MODEL"),
    "scaling.md": ("DISCORD__TOKEN", "DISCORD__GUILD_IDS"),
    "server.md": ("DISCORD__GUILD_IDS", "DISCORD__TEAM_ROLE_IDS", "LLM__BASE_URL", "LLM__MODEL"),
}
"""The page's contents of `intern.toml`."""


@pytest.mark.rest
@pytest.mark.parametrize("page", PAGES)
async def test_what_a_page_tells_people_to_type_works(page: str, tmp_path: Path) -> None:
    prepare, shown = PAGES[page]
    prepare(tmp_path)
    environment = {"PATH": f"{_installed(tmp_path)}:{os.defpath}", "LANG": "C.UTF-8"}
    async with DiscordDouble() as discord, EndpointDouble().serving() as endpoint:
        [role] = (role for role in discord.guild.roles.values() if role.managed_by == discord.bot_id)
        role.permissions = WANTED
        stand = Stand(tmp_path, discord, endpoint)
        environment["INTERN__DISCORD__REST_URL"] = discord.rest_url
        for name in SET_BEFORE.get(page, ()):
            environment.update([_set(f"export INTERN__{name}=double", stand)])
        _exported_from(discord.guild.id, tmp_path / "export.json")
        for step in _steps(page):
            if step.command.startswith("export "):
                environment.update([_set(step.command, stand)])
                continue
            said = await _run(step, stand, environment)
            if (wanted := shown.get(step.command)) and not re.search(wanted, said):
                raise FailedError(f"{page}, line {step.line}: `{step.command}` does not show {wanted}:\n{said[-3000:]}")


def test_every_page_with_something_to_type_is_typed_and_each_line_is_known() -> None:
    typed = {path.name for path in (TREE / "docs").glob("*.md") if _steps(path.name)}
    assert typed == set(PAGES)
    for page, (_, shown) in PAGES.items():
        assert shown.keys() <= {step.command for step in _steps(page)}


def _steps(page: str) -> list[Step]:
    found = [*steps((TREE / "docs" / page).read_text(encoding="utf-8"), page)]
    assert {step.command.split()[0] for step in found} <= TYPED | NOT_TYPED
    return [step for step in found if step.command.split()[0] in TYPED]


def _exported_from(guild_id: str, path: Path) -> None:
    if path.exists():
        path.write_text(path.read_text().replace('"id": "5"', f'"id": "{guild_id}"'))


def _set(command: str, stand: Stand) -> tuple[str, str]:
    setting = variable(command, stand)
    assert setting is not None
    return setting


def _installed(folder: Path) -> Path:
    """Return the place of `intern`, as after an installation."""
    binary = folder / ".venv" / "bin" / "intern"
    binary.parent.mkdir(parents=True)
    binary.write_text(f"#!/bin/sh\nPYTHONPATH='{TREE}' exec '{sys.executable}' -c {shlex.quote(MAIN)} \"$@\"\n")
    binary.chmod(0o755)
    return binary.parent
