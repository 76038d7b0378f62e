"""Starts intern as a process, waits for what it logs, and looks at what it leaves on disk."""

from __future__ import annotations

import json
import os
import signal
import socket
from collections.abc import AsyncGenerator, Generator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from subprocess import DEVNULL
from typing import Any

import anyio
from anyio.abc import Process
from anyio.streams.text import TextReceiveStream

from intern.sources.catalogue import Catalogue
from intern.stores.engines.sqlite.database import ReadOnlySqliteDatabase
from intern.stores.tables.knowledge import KnowledgeStore
from tests.double.discord import DiscordDouble
from tests.double.world import Message

PATIENCE = 60.0
API_KEY = "sk-double-9d27c1f04b"

Json = dict[str, Any]


@dataclass(frozen=True)
class Installed:
    """The program, from the wheel or as the single binary."""

    program: Path


@dataclass(frozen=True)
class InstalledWheel(Installed):
    """The environment with the wheel."""

    python: Path
    packages: Path


def variables(discord: DiscordDouble, base_url: str, **more: str) -> dict[str, str]:
    """Return a complete environment of a bot. `more` overrides it by key, as in `discord__token=""`."""
    return {
        "INTERN__DISCORD__TOKEN": discord.token,
        "INTERN__DISCORD__REST_URL": discord.rest_url,
        "INTERN__DISCORD__GUILD_IDS": json.dumps([discord.guild.id]),
        "INTERN__DISCORD__TEAM_ROLE_IDS": json.dumps([discord.team_role.id]),
        "INTERN__DISCORD__MESSAGE_BATCH_WAIT_SECONDS": "0.2",
        "INTERN__LLM__BASE_URL": base_url,
        "INTERN__LLM__MODEL": "double",
        "INTERN__LLM__API_KEY": API_KEY,
        "INTERN__LLM__MAX_RETRIES": "0",
        "INTERN__KB__SETTLE_SECONDS": "0.1",
        "INTERN__LOG__FORMAT": "json",
        **{f"INTERN__{key.upper()}": value for key, value in more.items()},
    }


def _environment(settings: Mapping[str, str]) -> dict[str, str]:
    """Return the few variables that a service manager sets; above all, no settings of the person who runs the tests."""
    return {"PATH": os.defpath, "HOME": os.devnull, "LANG": "C.UTF-8", **settings}


class Folder:
    """A folder that intern works in. Documents are written before it starts, the rest is read."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._sources = path / "data" / "knowledge-base" / "sources"
        self._sources.mkdir(parents=True)

    def write(self, name: str, text: str) -> None:
        """Put a document among the sources."""
        (self._sources / name).write_text(text, encoding="utf-8")

    def raw(self) -> str:
        """Return the whole archive."""
        return self._team("raw/*.txt")

    def topics(self) -> str:
        """Return all topics, as answers see them; their files come a second later."""
        knowledge = self._knowledge()
        return "".join(map(knowledge.read_text, knowledge.topic_names()))

    def team_index(self) -> list[str]:
        """Return the topics that the index lists."""
        return list(Catalogue(self._knowledge(), "team").entries())

    def _knowledge(self) -> KnowledgeStore:
        return KnowledgeStore(ReadOnlySqliteDatabase(self.path / "data" / "intern.db"))

    def decisions(self) -> list[Json]:
        return [json.loads(line) for line in self._team("decisions.jsonl").splitlines()]

    def _team(self, pattern: str) -> str:
        found = sorted((self.path / "data" / "team-knowledge").glob(pattern))
        return "\n".join(path.read_text(encoding="utf-8") for path in found)


@dataclass
class Running:
    """A process at work. Its stderr is read as it comes, so that it never waits for us."""

    process: Process
    lines: list[str] = field(default_factory=list[str])
    _news: anyio.Event = field(default_factory=anyio.Event)
    _silent: bool = False

    @property
    def events(self) -> list[Json]:
        """The lines logged so far."""
        return [json.loads(line) for line in self.lines if line.startswith("{")]

    @property
    def pids(self) -> list[int]:
        """Its processes: the single binary is two, and the second is the bot."""
        return family(self.process.pid)

    @property
    def complaints(self) -> list[str]:
        """The output except log lines of level info."""
        return [line for line in self.lines if '"level": "info"' not in line]

    async def until_logged(self, event: str, *, count: int = 1, **fields: object) -> Json:
        """Wait for the `count`th line with this event and these fields, and give it; fail if the process ends first."""
        while True:
            found = [line for line in self.events if line["event"] == event and fields.items() <= line.items()]
            if len(found) >= count:
                return found[count - 1]
            assert not self._silent, f"it ended before it logged {event} {fields or ''}"
            await self._news.wait()

    async def until_ended(self) -> int:
        """Wait until it is gone and all it wrote is read, and give its exit code."""
        while not self._silent:
            await self._news.wait()
        return await self.process.wait()

    async def kill(self) -> None:
        """Kill it as a power cut does, and wait until it is gone."""
        self.process.kill()
        assert await self.until_ended() == -signal.SIGKILL

    def ask_to_end(self) -> None:
        """Send SIGTERM, as service managers do."""
        self.process.terminate()

    async def read(self) -> None:
        """Read its output, until it is gone."""
        assert self.process.stderr is not None
        rest = ""
        async for chunk in TextReceiveStream(self.process.stderr):
            *whole, rest = (rest + chunk).split("\n")
            self.lines += whole
            self._tell()
        self.lines += [rest] if rest else []
        self._silent = True
        self._tell()

    def _tell(self) -> None:
        news, self._news = self._news, anyio.Event()
        news.set()


def family(pid: int) -> list[int]:
    """Return a process and all that it started; where the system does not say, the process alone."""
    children = list[str]()
    with suppress(FileNotFoundError):
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()
    return [pid, *(each for child in children for each in family(int(child)))]


@asynccontextmanager
async def started(installed: Installed, folder: Folder, settings: Mapping[str, str]) -> AsyncGenerator[Running]:
    """Run `intern run` in a folder, with these settings; kill it at the end, if it is still there."""
    process = await anyio.open_process(
        [installed.program, "run"],
        stdin=DEVNULL,
        stdout=DEVNULL,
        cwd=folder.path,
        env=_environment(settings),
    )
    async with process, anyio.create_task_group() as tg:
        running = Running(process)
        tg.start_soon(running.read)
        try:
            with anyio.fail_after(PATIENCE):
                yield running
        except BaseException as error:
            error.add_note("stderr of intern run:\n" + "\n".join(running.lines))
            raise
        finally:
            with suppress(ProcessLookupError):
                process.kill()


@dataclass(frozen=True)
class Ended:
    """The exit code and output of a command."""

    exit_code: int
    stdout: str
    stderr: str


async def ended(installed: Installed, folder: Folder, settings: Mapping[str, str], *arguments: str) -> Ended:
    """Run a command to its end."""
    with anyio.fail_after(PATIENCE):
        done = await anyio.run_process(
            [installed.program, *arguments], stdin=DEVNULL, check=False, cwd=folder.path, env=_environment(settings)
        )
    return Ended(done.returncode, done.stdout.decode(), done.stderr.decode())


async def until_heard(discord: DiscordDouble) -> None:
    """Wait until the bot has read all that the gateway sent: its next heartbeat names the last event."""
    (session,) = (session for session in discord.gateway.sessions.values() if session.socket is not None)
    assert session.socket is not None
    session.socket.send({"op": 1, "d": None})
    sent = len(session.events)
    await discord.until(lambda: any((beat.seq or 0) >= sent for beat in discord.gateway.heartbeats))


def answers_to(discord: DiscordDouble, question: Message) -> list[Message]:
    """Return the bot's messages in a question's thread."""
    thread = discord.thread_of(question)
    return [] if thread is None else [m for m in discord.messages(thread) if m.author.id == discord.bot_id]


@contextmanager
def nobody_listening() -> Generator[str]:
    """Return the base URL of an endpoint that refuses every connection."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and never listens
        yield f"http://127.0.0.1:{taken.getsockname()[1]}/v1"
