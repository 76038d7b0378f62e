"""The cost of a community for a process that hosts many: opening one, keeping it open, and only knowing it.

The reference community has 1,000 pairs in 100 topics and 5,000 documents with vectors. It is made once, and its rows
and files are copied for each of some communities; the first one warms the process up. A query by vector makes each read
its vectors into the shared memory, which holds those of two. So in the median, a community's vectors replace another's.
"""

from __future__ import annotations

import asyncio
import gc
import random
import shutil
import tempfile
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import AsyncExitStack
from datetime import timedelta
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from time import process_time
from typing import Any, TypeVar

import anyio
import apsw
import numpy as np
from anyio.to_thread import run_sync

from benchmarks.figures import Figure
from benchmarks.memory import resident
from intern.actors.activity import ActivityReporter
from intern.actors.pipeline import run_pipeline
from intern.core.captures import Capture, Turn
from intern.core.clock import SystemClock, Wakeup
from intern.core.decisions import PairFiled
from intern.core.flow import ChannelSnapshot, SessionStarted
from intern.core.ids import ChannelId, ConversationId, GuildId, TopicName, UserId, position_at
from intern.core.log import configure_logging
from intern.core.memory import limit_malloc_arenas, release_free_memory
from intern.core.messages import Channel
from intern.core.search_documents import SearchFilter
from intern.learning.prompts import build_block
from intern.platforms.sandbox import Sandbox
from intern.runtime.bot import _LocalFiles, _NoCommands
from intern.runtime.hosting import build_communities
from intern.runtime.parts import open_community_parts
from intern.runtime.resources import PlatformPorts, ProcessResources, open_process_resources
from intern.search.embedding_local import ENGLISH
from intern.service.databases import open_database
from intern.service.opening import open_intern
from intern.service.stores import Stores
from intern.settings.communities import Community, build_community_settings
from intern.settings.loading import load_settings
from intern.settings.settings import Settings
from intern.stores.search_file.search_index import SqliteSearchStore
from tests.worlds.samples import START

T = TypeVar("T")

PAIRS, TOPICS, FILES = 1000, 100, 375
OPENED = 8
KNOWN = 1000
CHANNELS = 30
ROOM = 20  # MB
_WORDS = [
    a + b + c for a in ("ka", "lo", "mi", "nu", "pe") for b in ("den", "fil", "gor", "han") for c in "abdegimnopst"
]


def measure() -> Iterator[Figure]:
    """Measure a thousand closed communities, then open some of each kind."""
    with tempfile.TemporaryDirectory() as folder:
        seconds, each = alone(known, Path(folder) / "known")
        yield Figure("1,000 known communities, CPU at the start", seconds, "s", 5)
        yield Figure("a known community, memory", each, "MB", 0.1)
        alone(reference, Path(folder) / "reference")
        for kind, milliseconds, megabytes in (("reference", 150, 5.0), ("empty", None, 1.2)):
            cpu, memory, reading, vectors, rest = alone(opened, Path(folder), kind)
            bar = float("inf") if milliseconds is None else milliseconds
            yield Figure(f"{kind} community, opened, CPU", cpu, "ms", bar)
            yield Figure(f"{kind} community, open, memory", memory, "MB", megabytes)
            yield Figure(f"{kind} community, open and at rest, CPU a second", rest, "ms")
            if kind == "reference":
                yield Figure("reference community, its vectors read at the first question, CPU", reading, "ms")
                yield Figure(f"vectors of {OPENED} reference communities, memory", vectors, "MB", ROOM)


def alone(work: Callable[..., Coroutine[Any, Any, T]], *given: Any) -> T:
    """Run it in a process of its own: freed memory would be used again."""
    with ProcessPoolExecutor(1, get_context("spawn")) as process:
        return process.submit(_run, work, given).result()


def _run(work: Callable[..., Coroutine[Any, Any, T]], given: tuple[Any, ...]) -> T:
    configure_logging(log_format="json", level="error")
    limit_malloc_arenas()  # as `intern run` does
    return asyncio.run(work(*given))


def _settings(folder: Path, **more: Any) -> Settings:
    model = {"base_url": "http://127.0.0.1:9", "model": "none"}
    return load_settings(environ={}, overrides={"data": {"dir": str(folder)}, "llm": model, **more})


async def reference(folder: Path) -> None:
    chance = random.Random(1)

    def text(words: int) -> str:
        return " ".join(chance.choices(_WORDS, k=words))

    sources = folder / "knowledge-base/sources"
    sources.mkdir(parents=True)
    for n in range(FILES):
        parts = [f"# {text(4)}", *(f"## {text(3)}\n\n{text(60)}." for _ in range(9))]
        (sources / f"page{n}.md").write_text("\n\n".join(parts))
    offline = {"llm": {"provider": "offline"}, "embeddings": {"provider": "none"}, "extraction": {"auto": False}}
    settings = _settings(folder, **offline)
    async with await open_database(settings) as db:
        stores = await run_sync(Stores, settings, db, SystemClock())
        await stores.claim_archive()
        for n in range(PAIRS):
            at = START + timedelta(minutes=7 * n)
            ids = (position_at(at).id, position_at(at + timedelta(seconds=30)).id)
            pair = stores.archive.append(
                Capture(
                    conversation_id=ConversationId(f"reply_{ids[0]}"),
                    turns=(Turn("User", f"{text(15)}?"), Turn("Team", f"{text(25)}.")),
                    message_ids=ids,
                    author_ids=(UserId("11"), UserId("12")),
                    answered_at=at,
                    guild_id=GuildId("100"),
                    channel_id=ChannelId("200"),
                )
            )
            filed = PairFiled(qa_id=pair.qa_id, at=at, reason="it fits", topic=TopicName(f"topic-{_WORDS[n % TOPICS]}"))
            await stores.knowledge.change(partial(_file, build_block(pair), filed))
    async with open_intern(settings) as intern:
        await intern.index()
    async with await open_database(settings) as db:
        store, numbers = SqliteSearchStore(db, settings.paths.search), np.random.default_rng(1)
        while documents := await store.find_unembedded(ENGLISH.name, 500):
            rows = numbers.standard_normal((len(documents), 384)).astype("<f4")
            rows /= np.linalg.norm(rows, axis=1, keepdims=True)
            await store.store_vectors(
                ENGLISH.name, [(d, row.tobytes()) for d, row in zip(documents, rows, strict=True)]
            )


def _file(block: Any, filed: PairFiled, change: Any) -> None:
    change.put(filed.topic, block)
    change.decide(filed)


async def opened(folder: Path, kind: str) -> tuple[float, float, float, float, float]:
    """Return medians of one: CPU, memory, CPU for its vectors; memory of all vectors; CPU of a second at rest."""
    defaults = _settings(folder / f"host of {kind}", search={"megabytes": ROOM})
    cpu, memory, reading = list[float](), list[float](), list[float]()
    async with AsyncExitStack() as stack:
        host = await stack.enter_async_context(open_process_resources(defaults, SystemClock()))
        tg = await stack.enter_async_context(anyio.create_task_group())
        for n in range(OPENED):
            community = Community(name=f"community-{n}", guild_ids=(GuildId(str(n + 1)),))
            settings = build_community_settings(community, defaults)
            if kind == "reference":
                shutil.copytree(folder / kind, settings.data.dir)
                _copy_rows(folder / kind / "intern.db", host, community.name)
            settings.paths.sources.mkdir(parents=True, exist_ok=True)
            sandbox = Sandbox(SystemClock())
            platform = PlatformPorts(sandbox, _NoCommands(), _LocalFiles())
            held, began = _held(), process_time()
            parts = await stack.enter_async_context(
                open_community_parts(
                    host, community.name, settings, platform, events=ActivityReporter(), jobs_came=Wakeup()
                )
            )
            tg.start_soon(partial(run_pipeline, parts, stop=anyio.Event()))
            await sandbox.wait_ready()
            cpu.append(1000 * (process_time() - began))
            if kind == "reference":
                store = _store(community.name)
                began = process_time()
                assert await store.search_vector(_VECTOR, ENGLISH.name, SearchFilter(), 10)
                reading.append(1000 * (process_time() - began))
            # The first round of its actors counts as memory, but not as opening.
            await anyio.sleep(3)
            memory.append(_held() - held)
        vectors = host.shared.room.held / 1e6
        rest = 1000 * min([await _spent(5) for _ in range(3)]) / 5 / OPENED  # without the first work of the actors
        tg.cancel_scope.cancel()
    return median(cpu[1:]), median(memory[1:]), median(reading[1:] or [0.0]), vectors, rest


async def _spent(seconds: float) -> float:
    began = process_time()
    await anyio.sleep(seconds)
    return process_time() - began


_VECTOR = np.eye(1, 384, dtype="<f4").tobytes()


def _store(community: str) -> SqliteSearchStore:
    """Return the search of an open community, which has no public access."""
    found = (each for each in gc.get_objects() if isinstance(each, SqliteSearchStore))
    return next(each for each in found if each.db.community == community)


def _copy_rows(source: Path, host: ProcessResources, community: str) -> None:
    db: Any = apsw.Connection(host.db.place)
    db.execute("attach ? as source", (str(source),))
    for (table,) in db.execute("select name from source.sqlite_schema where type = 'table'").fetchall():
        columns = [name for _, name, *_ in db.execute(f"pragma source.table_info({table})")]
        if "community" in columns and not table.startswith("recording"):
            values = ", ".join("?" if each == "community" else each for each in columns)
            db.execute(f"insert into {table} ({', '.join(columns)}) select {values} from source.{table}", (community,))
    db.close()


async def known(folder: Path) -> tuple[float, float]:
    defaults = _settings(folder)
    sandbox = Sandbox(SystemClock())
    async with open_process_resources(defaults, SystemClock()) as host:
        registry = build_communities(lambda _: host, defaults, sandbox, _NoCommands(), _LocalFiles())
        held, began = _held(), process_time()
        for n in range(KNOWN):
            guild_id = GuildId(f"{n + 1:020}")
            await registry.add(Community(name=f"community-{n}", guild_ids=(guild_id,)))
            registry.receive(_session(guild_id, n))
        assert not registry.open, "a session opens none"
        return process_time() - began, (_held() - held) / KNOWN


def _session(guild_id: GuildId, n: int) -> SessionStarted:
    ids = [ChannelId(str(10**18 + CHANNELS * n + each)) for each in range(CHANNELS)]
    places = [Channel(id=each, guild_id=guild_id, kind="channel", name=f"channel-{each}") for each in ids]
    newest = position_at(START).id
    return SessionStarted(
        guild_id=guild_id, channels=tuple(ChannelSnapshot(channel=p, last_message_id=newest) for p in places)
    )


def _held() -> float:
    gc.collect()
    release_free_memory()
    return resident()
