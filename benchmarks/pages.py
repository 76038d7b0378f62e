"""Each page over 10,000 questions and 2,000 topics: its size, and the CPU of the first and second view after a change.

Browser and page share the process, so that a view has the CPU of its request, too.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator
from datetime import timedelta
from functools import partial
from pathlib import Path
from time import process_time
from typing import Any

import anyio
from anyio.to_thread import run_sync

from benchmarks.figures import Figure
from benchmarks.made_up import document, subject
from intern.core.captures import Capture, Turn
from intern.core.decisions import PairFiled
from intern.core.ids import ConversationId, GuildId, TopicName, UserId, position_at
from intern.core.tasks import run_each
from intern.frontends.http.page_renderer import PAGES
from intern.learning.prompts import build_block
from intern.stores.tables.knowledge import KnowledgeChange
from tests.frontends.http.site import Site, site
from tests.worlds import samples
from tests.worlds.samples import START

QUESTIONS, TOPICS, PAIRS = 10_000, 2_000, 2
KILOBYTES, MILLISECONDS = 60, 100
_REASONS = ("no_sources", "", "", "timeout", "not_good_enough")
_MORE = ("/?days=90", "/topics", "/topics?offset=100", "/facts", "/nuggets", "/sources", "/outdated", "/parked")
_ONE = ("/topics", "/questions")
"""Lists whose first entry is measured, too."""


def measure() -> Iterator[Figure]:
    """Fill a folder, then measure each page twice."""
    with tempfile.TemporaryDirectory() as folder:
        yield from anyio.run(_measured, Path(folder))


async def _measured(folder: Path) -> list[Figure]:
    figures = list[Figure]()
    async with site(folder, empty=True, patience=None) as made, made.client() as browser:
        await _fill(made)
        paths = [*(path for path, _ in PAGES), *_MORE]
        for listing in _ONE:
            found = re.search(rf'href="({listing}/[^"?/]+)"', (await browser.get(listing)).text)
            assert found, listing
            paths += [found[1], f"{found[1]}/history"] if listing == "/topics" else [found[1]]
        for path in paths:  # templates are compiled with the first view
            await browser.get(path)
        await _teach(made, PAIRS * TOPICS)
        for path in paths:
            name = re.sub(r"(?<=s)/[^/?]+", "/ONE", path)
            size = 0.0
            for view in ("first", "second"):
                began = process_time()
                reply = await browser.get(path)
                cpu = 1000 * (process_time() - began)
                assert reply.status_code == 200, (path, reply.status_code)
                size = len(reply.content) / 1000
                figures.append(Figure(f"{name}, {view} view, CPU", cpu, "ms", MILLISECONDS))
            figures.append(Figure(f"{name}, size", size, "kB", KILOBYTES))
    return figures


async def _fill(made: Site) -> None:
    for n in range(PAIRS * TOPICS):
        await _teach(made, n)

    async def ask(n: int) -> None:
        text = f"How do I set up the {subject(n % 700).replace('-', ' ')} with {n // 700} of them?"
        asked = samples.message(text, n=10_000 + n)
        figures: Any = {"seconds": 3.5, "tokens": 6_000, "cost": 0.004}
        await samples.save_question(made.writer.stores.answers, [asked], _REASONS[n % len(_REASONS)], **figures)

    await run_each(ask, range(QUESTIONS), 100)


async def _teach(made: Site, n: int) -> None:
    at = START + timedelta(minutes=n)
    ids = tuple(position_at(at + timedelta(seconds=each)).id for each in (0, 30))
    name = TopicName(f"{subject(n % TOPICS)}-{n % TOPICS}")
    turns = (Turn("User", f"How do I set up the {name}?"), Turn("Team", document(n)[40:640]))
    capture = Capture(
        conversation_id=ConversationId(f"reply_{ids[0]}"),
        turns=turns,
        message_ids=ids,
        author_ids=(UserId("11"), UserId("12")),
        answered_at=at,
        guild_id=GuildId("100"),
    )
    stores = made.writer.stores
    pair = await run_sync(stores.archive.append, capture)

    def file(change: KnowledgeChange) -> None:
        change.file_blocks(name, build_block(pair))
        change.decide(PairFiled(qa_id=pair.qa_id, at=at, reason="it fits", topic=name))

    await stores.knowledge.change(partial(file))
