"""The time and memory of opening and reading an archive of 100,000 pairs."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from time import process_time

from benchmarks.figures import Figure
from benchmarks.memory import KILOBYTE
from intern.core.captures import CapturedPair, Turn
from intern.core.ids import ConversationId, UserId, position_at
from intern.stores.archive import Archive
from intern.stores.block_format import format_pair_block
from intern.stores.qa_ids import make_qa_id

PAIRS = 100_000
_BEGIN = datetime(2026, 2, 2, tzinfo=UTC)


def measure() -> Iterator[Figure]:
    """Measure in a process of its own, to count only the archive's memory: four messages and 700 letters a pair."""
    with tempfile.TemporaryDirectory() as folder:
        _write(Path(folder))
        command = [sys.executable, "-m", "benchmarks.archive", folder]
        said = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    yield Figure("archive of 100,000 pairs, opening (CPU)", said["opening"], "s", 15)
    yield Figure("archive of 100,000 pairs, reading through (CPU)", said["reading"], "s", 15)
    # 400,000 messages, each of which knows its conversation; the pairs themselves would be ten times that.
    yield Figure("archive of 100,000 pairs, memory", said["megabytes"], "MB", 120)


def _write(folder: Path) -> None:
    with (folder / "2026-W06.txt").open("w", encoding="utf-8") as file:
        for n in range(PAIRS):
            at = _BEGIN + timedelta(seconds=n)
            pair = CapturedPair(
                qa_id=make_qa_id(at),
                timestamp=at,
                conversation_id=ConversationId(f"thread_{position_at(at)!s}"),
                turns=tuple(Turn("Team" if turn % 2 else "User", "how are you? " * 14) for turn in range(4)),
                message_ids=tuple(position_at(at, turn).id for turn in range(4)),
                author_ids=tuple(UserId(str(turn)) for turn in range(4)),
                answered_at=at,
            )
            file.write(format_pair_block(pair))


def _read(folder: Path) -> dict[str, float]:
    before, began = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, process_time()
    archive = Archive(folder)
    opened = process_time()
    assert sum(1 for _ in archive.pairs_after(None)) == PAIRS
    return {
        "opening": opened - began,
        "reading": process_time() - opened,
        "megabytes": (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * KILOBYTE,
    }


if __name__ == "__main__":
    print(json.dumps(_read(Path(sys.argv[1]))))
