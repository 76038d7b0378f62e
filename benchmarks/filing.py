"""The speed of an import for its first pairs and its last ones: 100,000 messages, filed without a model.

The messages are recorded chat, if available, or a made-up community, repeated. Every 5,000 messages half of the longer
words become other ones, so topics are opened until the end. It takes about four minutes; `FILING_MESSAGES=20000` is
shorter.
"""

from __future__ import annotations

import asyncio
import math
import os
import re
import tempfile
from collections.abc import Callable, Iterable, Iterator
from datetime import timedelta
from functools import partial
from itertools import islice
from pathlib import Path
from random import Random
from time import perf_counter, process_time
from typing import Any, NamedTuple
from zlib import crc32

import msgspec

from benchmarks.figures import Figure
from intern.core.ids import UserId, position_at
from intern.core.progress import send_progress_to
from intern.service.history_import import ImportRequest, ImportResult, import_history
from intern.settings.loading import load_settings
from tests.soak.traffic import PLACES, RECORDED, Line, lines
from tests.worlds.samples import START

MESSAGES = int(os.environ.get("FILING_MESSAGES", "100000"))
SAME_WORDS = 5_000  # messages
LEAST = 0.8
"""The least rate of the last tenth, relative to the first."""

_LONG_WORD = re.compile("[a-z]{5,}")


class Told(NamedTuple):
    """The time when so many pairs were filed."""

    pairs: int
    seconds: float
    cpu_seconds: float


def measure() -> Iterator[Figure]:
    """Measure one import of all of it."""
    with tempfile.TemporaryDirectory() as folder:
        wanted = export(Path(folder))
        told, done = asyncio.run(_imported(wanted, Path(folder) / "data"))
    assert done.filed is not None
    name = f"{MESSAGES} messages imported"
    first, last = (_rate(told, begin, begin + 0.1, lambda each: each.seconds) for begin in (0.0, 0.9))
    busy_first, busy_last = (_rate(told, begin, begin + 0.1, lambda each: each.cpu_seconds) for begin in (0.0, 0.9))
    yield Figure(f"{name}, pairs filed", told[-1].pairs, "", math.inf)
    yield Figure(f"{name}, the first tenth of the pairs, a second", first, "", math.inf)
    yield Figure(f"{name}, the last tenth of the pairs, a second", last, "", math.inf)
    yield Figure(f"{name}, the last tenth to the first", last / first, "x", least=LEAST)
    yield Figure(f"{name}, the same by CPU", busy_last / busy_first, "x", math.inf)


def export(folder: Path, recorded: Path = RECORDED) -> ImportRequest:
    """Write the messages as an export, a file a channel."""
    channels: list[list[dict[str, Any]]] = [[] for _ in range(PLACES)]
    team: set[UserId] = set()
    ids: list[str] = []
    for n, line in enumerate(islice(changing(lines(Random(17), recorded)), MESSAGES)):
        at = START + timedelta(seconds=10 * n)
        ids.append(position_at(at).id)
        user = UserId(str(1 + crc32(line.author.encode())))
        if line.role == "team":
            team.add(user)
        replied = None if line.replies_to is None else {"messageId": ids[line.replies_to]}
        channels[line.place].append(
            {
                "id": ids[n],
                "type": "Reply" if replied else "Default",
                "timestamp": at.isoformat(),
                "content": line.text,
                "author": {"id": user, "name": line.author, "isBot": line.role == "bot"},
                "reference": replied,
            }
        )
    files = [folder / f"{place}.json" for place in range(PLACES)]
    for place, (file, messages) in enumerate(zip(files, channels, strict=True)):
        channel = {"id": str(100 + place), "type": "GuildTextChat", "name": f"channel-{place}"}
        file.write_bytes(msgspec.json.encode({"guild": {"id": "5"}, "channel": channel, "messages": messages}))
    return ImportRequest(files=tuple(files), team_ids=tuple(sorted(team)))


def changing(said: Iterable[Line]) -> Iterator[Line]:
    """Make the lines; after the first SAME_WORDS, words of these replace others."""
    words: dict[str, None] = {}
    known: list[str] = []
    for n, line in enumerate(said):
        turn = n // SAME_WORDS
        if turn:
            known = known or list(words)
            other = partial(_other, turn=turn, known=known)
            yield line._replace(text=_LONG_WORD.sub(other, line.text))
        else:
            words.update(dict.fromkeys(_LONG_WORD.findall(line.text)))
            yield line


def _other(word: re.Match[str], *, turn: int, known: list[str]) -> str:
    number = crc32(f"{word[0]} {turn}".encode())
    return known[number // 2 % len(known)] if number % 2 else word[0]


async def _imported(wanted: ImportRequest, folder: Path) -> tuple[list[Told], ImportResult]:
    told: list[Told] = []

    def listen(what: str, done: int, total: int, note: str = "") -> None:  # noqa: ARG001
        if what.startswith("Filing"):
            told.append(Told(done, perf_counter(), process_time()))
        elif what.startswith("Archiving"):
            told[:] = [Told(0, perf_counter(), process_time())]

    settings = load_settings(
        environ={},
        overrides={
            "data": {"dir": str(folder)},
            "llm": {"provider": "offline"},
            # The work after filing takes its own time.
            "extraction": {"auto": False},
            "embeddings": {"provider": "none"},
        },
    )
    with send_progress_to(listen):
        return told, await import_history(settings, wanted)


def _rate(told: list[Told], begin: float, end: float, time_of: Callable[[Told], float]) -> float:
    """Return the pairs a second in a part of all of them, as near as the reports allow."""
    pairs = told[-1].pairs
    one, other = (min(told, key=lambda each: abs(each.pairs - share * pairs)) for share in (begin, end))
    return (other.pairs - one.pairs) / (time_of(other) - time_of(one))
