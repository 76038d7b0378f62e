"""The cost of the flight recorder for an answer, and whether each of 1,000 recorded answers replays to the byte.

Each question has a history of four messages of its own. The endpoint is a process of its own.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from time import perf_counter, process_time
from typing import Any, cast

import apsw
from anyio.to_thread import run_sync

from benchmarks.answering import index
from benchmarks.elsewhere import endpoint_elsewhere, settings_for
from benchmarks.figures import Figure
from benchmarks.made_up import document, subject
from intern.answering.answerer import Answerer
from intern.core.ids import MessageId, UserId
from intern.core.messages import Conversation, Message, RequestContext
from intern.search.embedding_local import is_english_installed
from intern.service.intern import Intern
from intern.service.opening import open_intern
from intern.settings.settings import Settings

ANSWERS = 1_000
SOURCES = 200
TOGETHER = 20
"""Answers of the same second, which are stored together."""
_EMBEDDINGS = "local" if is_english_installed() else "none"
_START = datetime(2026, 2, 1, tzinfo=UTC)


def measure() -> Iterator[Figure]:
    """Measure CPU and bytes of an answer, then replay all of them."""
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(index(Path(folder), SOURCES, embeddings=_EMBEDDINGS))
        with endpoint_elsewhere("benchmarks.answering") as base_url:
            yield from asyncio.run(
                _measured(settings_for(Path(folder), base_url, steps="fused", embeddings=_EMBEDDINGS))
            )


async def _measured(settings: Settings) -> list[Figure]:
    async with open_intern(settings) as intern:
        cpu, size = await _recorded(intern, settings)
        began = perf_counter()
        replayed = await intern.replay(_START, offline=True)
        took = perf_counter() - began
    same = sum(each.is_same and not each.changed for each in replayed)
    return [
        Figure("an answer recorded, CPU", cpu * 1000, "ms", 2),
        Figure("an answer recorded, in the database", size / 1000, "kB", 6),
        Figure(f"of {ANSWERS:,} recorded answers, replayed offline to the byte", same, "", least=ANSWERS),
        Figure("an answer replayed offline", took / ANSWERS * 1000, "ms"),
    ]


async def _recorded(intern: Intern, settings: Settings) -> tuple[float, float]:
    """Return the CPU and the bytes of recording, for each answer."""
    recorder = (await intern.acquire_writer()).stores.recorder
    answerer: Answerer = cast("Any", intern)._answerer  # noqa: SLF001 as the bot has one
    answers = recorder.wrap_answerer(answerer, settings.llm.model)
    before, spent = await run_sync(_bytes, settings), 0.0
    for first in range(0, ANSWERS, TOGETHER):
        async with asyncio.TaskGroup() as at_once:
            for n in range(first, first + TOGETHER):
                context = RequestContext(message_id=MessageId(str(10**18 + n)))
                at_once.create_task(answers.answer(_asked(n), context, addressed=True))
        began = process_time()
        await recorder.store()
        spent += process_time() - began
    return spent / ANSWERS, (await run_sync(_bytes, settings) - before) / ANSWERS


def _asked(n: int) -> Conversation:
    random = Random(n)
    said = [document(4 * n + k)[40:240] for k in range(4)]
    said.append(f"How do I set up the {subject(random.randrange(SOURCES)).replace('-', ' ')}? I have {n} of them.")
    asker = [UserId(str(random.randrange(10**17, 10**18))) for _ in range(2)]
    return Conversation(
        tuple(
            Message(role="user", text=text, author_id=asker[k % 2], id=MessageId(str(10**18 - 5 + n + k)))
            for k, text in enumerate(said)
        )
    )


def _bytes(settings: Settings) -> int:
    """Return the size of the database, with all contents of its log."""
    db: Any = apsw.Connection(str(settings.paths.database))
    try:
        db.execute("pragma wal_checkpoint(truncate)").fetchall()
        return settings.paths.database.stat().st_size
    finally:
        db.close()
