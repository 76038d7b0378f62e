"""The code that one answered question and one team reply run through, and the tables that each writes.

The bot runs in one process: rules as a model, a chat in memory, a folder on disk. Counted are functions and methods
of `intern/` that ran between the message and a second after its end, when progress is stored, too; lambdas and
comprehensions count as a part of theirs. A table counts if a row of it was added, changed or deleted.
"""

from __future__ import annotations

import sys
import tempfile
import threading
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import asynccontextmanager
from math import inf
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, cast

import anyio
import apsw

from benchmarks.figures import Figure
from intern import __file__ as _root
from intern.actors.activity import ActivityReporter
from intern.core.clock import SystemClock
from intern.core.decisions import Decision
from intern.core.flow import Reply
from intern.platforms.sandbox import Sandbox
from intern.runtime.bot import open_sandbox
from intern.settings.loading import load_settings
from intern.settings.settings import Settings
from intern.sources.refresh import RefreshReport

_BARS = {"a question": (650, 8)}  # functions, tables
_STORED = 1.5  # seconds after which progress is on disk
_PACKAGE = str(Path(_root).parent)


class _Milestones(ActivityReporter):
    """Says when the index was built, a reply posted, and a pair filed."""

    def __init__(self) -> None:
        super().__init__()
        self.indexed, self.posted, self.filed = anyio.Event(), anyio.Event(), anyio.Event()

    def report_index_refresh(self, refreshed: RefreshReport) -> None:
        super().report_index_refresh(refreshed)
        self.indexed.set()

    def report_post(self, reply: Reply, outcome: str) -> None:
        super().report_post(reply, outcome)
        self.posted.set()

    def report_decision(self, decision: Decision) -> None:
        super().report_decision(decision)
        self.filed.set()


class _Journey:
    """The functions that ran and the tables that were written while it was under way."""

    def __init__(self, database: Path) -> None:
        self._database = database
        self._codes = set[CodeType]()
        self._under_way = False

    def watch_call(self, frame: FrameType, event: str, _: Any) -> None:
        if self._under_way and event == "call":
            self._codes.add(frame.f_code)

    def install_triggers(self) -> None:
        """Let each table note that it was written."""
        kinds = self._query("select name, type from pragma_table_list where schema = 'main'")
        tables = [name for name, kind in kinds if kind == "table" and not name.startswith("sqlite_")]
        self._query("create table journey (name text)")
        for table in tables:
            for act in ("insert", "update", "delete"):
                self._query(
                    f"create trigger journey_{table}_{act} after {act} on {table} "
                    f"begin insert into journey values ('{table}'); end"
                )

    @asynccontextmanager
    async def under_way(self) -> AsyncGenerator[None]:
        """Count what happens in the block and in the second after it."""
        self._codes.clear()
        self._query("delete from journey")
        self._under_way = True
        yield
        await anyio.sleep(_STORED)
        self._under_way = False

    def functions(self) -> set[tuple[str, str]]:
        """Return the functions, each with its module."""
        named = (code for code in self._codes if code.co_filename.startswith(_PACKAGE) and code.co_name[0] != "<")
        return {(code.co_filename.removeprefix(_PACKAGE), code.co_qualname) for code in named}

    def tables(self) -> set[str]:
        """Return the tables that were written."""
        return {name for (name,) in self._query("select distinct name from journey")}

    def _query(self, statement: str) -> list[Any]:
        db = apsw.Connection(str(self._database))
        try:
            return [*cast("Any", db).execute(statement)]
        finally:
            db.close()


def measure() -> Iterator[Figure]:
    """Return modules, functions and tables of both ways."""
    with tempfile.TemporaryDirectory() as folder:
        yield from anyio.run(_travel, Path(folder))


async def _travel(folder: Path) -> list[Figure]:
    events = _Milestones()
    settings = _load_settings(folder)
    journey = _Journey(folder / "intern.db")
    threading.setprofile(journey.watch_call)
    sys.setprofile(journey.watch_call)
    sandbox = Sandbox(SystemClock(), team=["ann"])
    try:
        with anyio.fail_after(60):
            async with open_sandbox(settings, sandbox, events=events):
                await events.indexed.wait()
                await anyio.sleep(_STORED)  # the rest of the first indexing
                journey.install_triggers()
                return [
                    *await _measured(journey, "a question", lambda: _ask(sandbox, events)),
                    *await _measured(journey, "a team reply", lambda: _teach(sandbox, events)),
                ]
    finally:
        sys.setprofile(None)
        threading.setprofile(None)


def _load_settings(folder: Path) -> Settings:
    sources = folder / "sources"
    sources.mkdir()
    (sources / "ports.md").write_text("# Ports\n\nThe relay listens on port 7480. Set `listen` to change it.\n")
    (sources / "logs.md").write_text("# Logs\n\nA log file may have a size of 50 MB. Then a new one begins.\n")
    return load_settings(
        environ={},
        overrides={
            "data": {"dir": str(folder)},
            "llm": {"provider": "offline"},
            "discord": {"message_batch_wait_seconds": 0},
            "kb": {"settle_seconds": 0, "sources_dir": str(sources)},
        },
    )


async def _measured(journey: _Journey, name: str, travel: Callable[[], Any]) -> list[Figure]:
    async with journey.under_way():
        await travel()
    functions, tables = journey.functions(), journey.tables()
    most_functions, most_tables = _BARS.get(name, (inf, inf))
    print(f"{name} writes {', '.join(sorted(tables))}", file=sys.stderr)
    return [
        Figure(f"{name}, modules", len({module for module, _ in functions}), ""),
        Figure(f"{name}, functions", len(functions), "", most_functions),
        Figure(f"{name}, tables written", len(tables), "", most_tables),
    ]


async def _ask(sandbox: Sandbox, events: _Milestones) -> None:
    sandbox.say("bob", "What size may a log file have?")
    await events.posted.wait()


async def _teach(sandbox: Sandbox, events: _Milestones) -> None:
    asked = sandbox.say("bob", "Does the gateway cache answers of the upstream?")
    sandbox.say("ann", "No, it never caches them; set `cache.ttl` on the upstream itself.", reply_to=asked.id)
    await events.filed.wait()
