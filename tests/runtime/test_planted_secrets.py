"""Secrets planted wherever people write occur nowhere afterwards, and harmless lookalikes are untouched."""

from __future__ import annotations

import io
import json
import logging
import re
import zlib
from collections.abc import AsyncGenerator, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import apsw
import httpx
import pytest
from anyio import Event, create_task_group, fail_after
from anyio.to_thread import run_sync

from intern.actors.pipeline import run_pipeline
from intern.core.decisions import PairFiled
from intern.core.log import configure_logging
from intern.core.messages import AnswerResult
from intern.frontends.http.server import create_page_service
from intern.runtime.bot import open_discord_parts
from intern.settings.settings import Settings
from intern.sources.refresh import RefreshReport
from tests.double import interactions as double
from tests.double.discord import DiscordDouble
from tests.double.world import Message
from tests.worlds.bot import Watching
from tests.worlds.clock import HandClock
from tests.worlds.discord import make_section
from tests.worlds.endpoint import EndpointDouble, endpoint_double
from tests.worlds.secrets import LOOKALIKES, SECRETS
from tests.worlds.settings import make_settings

pytestmark = [pytest.mark.rest, pytest.mark.on_asyncio]

QUESTION = "On which port does the relay listen?"
_MOST = 1500  # characters of a message


def messages_of(texts: Iterable[str]) -> Iterator[str]:
    """Pack texts into as few messages as Discord takes."""
    pack = ""
    for text in texts:
        if pack and len(pack) + len(text) > _MOST:
            yield pack
            pack = ""
        pack += f"\n{text}."
    yield pack


def spelled(part: str) -> set[str]:
    """Return a text as it is, and as JSON and HTML spell it."""
    return {part, json.dumps(part)[1:-1], part.replace("&", "&amp;").replace('"', "&#34;").replace("'", "&#39;")}


def leaks(place: str, text: str) -> list[str]:
    """Return the secrets that occur anywhere, in any spelling."""
    parts = ((kind, part) for kind, planted in SECRETS.items() for part in planted.secret)
    return [f"{kind} in {place}" for kind, part in parts if any(each in text for each in spelled(part))]


class Stage:
    """A bot on Discord's double, with models on an endpoint and its page, and all that it shows or stores."""

    def __init__(self, folder: Path, discord: DiscordDouble, endpoint: EndpointDouble, clock: HandClock) -> None:
        self.folder, self.discord, self.endpoint, self.clock = folder, discord, endpoint, clock
        self.seen, self.log, self.pages = Watching(), io.StringIO(), dict[str, str]()

    def settings(self, port: int) -> Settings:
        sources = self.folder / "knowledge-base" / "sources"
        sources.mkdir(parents=True, exist_ok=True)
        (sources / "ports.md").write_text("# Ports\n\nThe relay listens on port 7480. Set `listen` to change it.\n")
        model = {"base_url": self.endpoint.base_url, "model": "m"}
        return make_settings(
            self.folder,
            llm=model,
            embeddings={"provider": "endpoint", **model},
            kb={"settle_seconds": 0},
            page={"enabled": True, "port": port},
            log={"level": "debug"},
            recorder={"context": True},
            discord=make_section(self.discord, message_batch_wait_seconds=0, max_questions_per_user_per_hour=0),
        )

    @asynccontextmanager
    async def up(self, port: int) -> AsyncGenerator[None]:
        settings, stop = self.settings(port), Event()
        configure_logging(log_format="json", level="debug", secrets=settings.secrets, stream=self.log)
        door: dict[str, Any] = {"events": self.seen, "clock": self.clock, "first_pause": 0.1}
        async with (
            open_discord_parts(settings, beside=create_page_service(settings), **door) as parts,
            create_task_group() as tg,
        ):
            tg.start_soon(partial(run_pipeline, parts, stop=stop))
            await self.discord.wait_ready()
            await self.seen.one_of(RefreshReport)
            yield
            stop.set()

    async def asked(self, text: str, **how: Any) -> Message:
        """Ask, and wait for the answer or its refusal."""
        before = len(self.seen.all_of(AnswerResult))
        self.clock.turn(seconds=60)
        message = await self.discord.say(self.discord.alice, f"{self.discord.bot.mention} {text}", **how)
        await self.seen.one_of(AnswerResult, after=before)
        return message

    async def visit(self, port: int, question_ids: Sequence[str]) -> None:
        """Open every page that is reachable from the first, and those of these questions."""
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", follow_redirects=True) as client:
            left = ["/", *(f"/questions/{each}" for each in question_ids), "/search?q=relay", "/questions?q=relay"]
            while left:
                path = left.pop()
                if path in self.pages or len(self.pages) > 150:
                    continue
                self.pages[path] = (await client.get(path)).text
                found = re.findall(r'href="(/[^"#]*)"', self.pages[path])
                left += [each.replace("&amp;", "&") for each in found if "/static" not in each]

    def kept(self) -> Iterator[tuple[str, str]]:
        """Return the rows of all databases, their compressed contents, and the bytes of all files."""
        for path in sorted(self.folder.rglob("*")):
            if not path.is_file():
                continue
            yield path.name, path.read_bytes().decode("utf-8", "replace")
            if path.suffix == ".db":
                yield from (((f"{path.name}.{table}", row) for table, row in rows_of(path)))


def rows_of(path: Path) -> Iterator[tuple[str, str]]:
    db: Any = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
    for (table,) in db.execute("select name from sqlite_schema where type = 'table'").fetchall():
        if table.startswith("passages_"):  # the parts of a virtual table
            continue
        for row in db.execute(f"select * from {table}"):
            yield table, "\n".join(map(readable, row))
    db.close()


def readable(value: Any) -> str:
    if not isinstance(value, bytes):
        return str(value)
    try:
        return zlib.decompress(value).decode()
    except (zlib.error, UnicodeDecodeError):
        return value.decode("utf-8", "replace")


@pytest.fixture
async def stage(tmp_path: Path) -> AsyncGenerator[Stage]:
    clock = HandClock()
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    with endpoint_double() as endpoint:
        async with DiscordDouble(now=clock.now) as discord:
            yield Stage(tmp_path, discord, endpoint, clock)
    root.handlers[:] = handlers
    root.setLevel(level)


# Findings A3, A8.
async def test_a_planted_secret_stands_nowhere_and_what_looks_like_one_is_untouched(
    stage: Stage, free_tcp_port: int
) -> None:
    discord, seen = stage.discord, stage.seen
    packs = list(messages_of(planted.text for planted in SECRETS.values()))
    asked: list[Message] = []
    with fail_after(300):
        async with stage.up(free_tcp_port):
            # In a channel: at the beginning, where a thread takes its name from, and below.
            for kind in ("ghp", "sk_live", "card_plain"):
                asked.append(await stage.asked(f"{SECRETS[kind].text} {QUESTION}"))
                await discord.wait_for_thread(asked[-1])
            asked += [await stage.asked(f"{QUESTION}\n{pack}") for pack in packs]
            # In a thread, by another member, before a question.
            thread = await discord.wait_for_thread(asked[0])
            for pack in packs:
                await discord.say(discord.bob, pack, channel=thread)
            asked.append(await stage.asked(QUESTION, channel=thread))
            # In a post of a forum, and in its title.
            for pack in packs:
                before = len(seen.all_of(AnswerResult))
                title = f"{SECRETS['npm'].text} is refused"
                await discord.create_thread(title, author=discord.alice, text=f"{QUESTION}\n{pack}")
                await seen.one_of(AnswerResult, after=before)
            # For one member's eyes.
            for pack in packs:
                used = await double.ask(discord, discord.alice, f"{QUESTION}\n{pack}")
                await discord.until(partial(double.shown, used))
            # In the team's answer, and in its question.
            for n, pack in enumerate(packs):
                question = await discord.say(discord.bob, f"How do I rotate the relay's tokens?\n{pack}")
                await discord.say(discord.tess, f"Rotate them with this: {pack}", reply_to=question)
                await seen.one_of(PairFiled, after=n)
            await stage.asked("How do I rotate the relay's tokens?")
            # And harmless lookalikes.
            for pack in messages_of(LOOKALIKES):
                await stage.asked(f"{QUESTION}\n{pack}")
            await stage.visit(free_tcp_port, [each.id for each in asked])
    bodies = [json.dumps(each.body, ensure_ascii=False) for each in stage.endpoint.requests]
    sent = [json.dumps(each.body, ensure_ascii=False, default=str) for each in discord.requests if each.body]
    prompts = "\n".join(each.user for each in stage.endpoint.requests)
    places = [
        *(("a prompt", each) for each in bodies),
        *(("an embedding", each) for each in stage.endpoint.embedded),
        *(("what is sent to Discord", each) for each in sent),
        *(
            (f"the name of thread {each.id}", each.name)
            for each in discord.threads()
            if each.owner_id == discord.bot_id
        ),
        *stage.pages.items(),
        ("the log", stage.log.getvalue()),
        *await run_sync(lambda: list(stage.kept())),
    ]
    assert {leak for place, text in places for leak in leaks(place, text)} == set()
    masks = {kind for _, text in places for kind in re.findall(r"\[masked (\w+)\]", text)}
    assert len(masks) > 10, "so they were there to be masked"
    assert len(stage.pages) > 20
    assert any("[masked github_token]" in each.name for each in discord.threads())
    assert stage.endpoint.embedded
    said = " ".join(prompts.split())
    assert [text for text in LOOKALIKES if " ".join(text.split()) not in said] == []
