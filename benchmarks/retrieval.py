"""The quality and speed of finding sources among few and many, beside plain FTS5 in the same run.

The real questions and their documents are among filler: documents that are made of real sentences. Vectors are made
once and kept in `.cache`; a filler document's is the mean of its sentences'.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from time import perf_counter, process_time

import anyio

from benchmarks.figures import Figure
from intern.search.embedding_local import LocalEmbedder, is_english_installed
from intern.search.hybrid_search import HybridSearch
from intern.stores.engines.sqlite.database import SqliteDatabase
from tests.eval import retrieval
from tests.eval.chats import EVAL
from tests.eval.retrieval import CASES, LEAST_BY_WORDS, MOST_LOST, Remembering, Shelf

SIZES = (0, 5_000, 50_000)
"""Numbers of documents; with 0 those of each set separately, some 600 to 900."""
BARS = {5_000: 30, 50_000: 60, 100_000: 60}
"""Milliseconds for 95 of 100 questions with at most `SHORT` words, by the number of documents."""
SHORT = 30
MOST_TO_PLAIN = 1.5
"""The highest time relative to plain FTS5, for longer ones; by the clock it depends more on other load."""
CACHE = Path(__file__).parent.parent / ".cache"


def measure() -> Iterator[Figure]:
    """Return the figures, or none without the real questions or the embedder."""
    if not EVAL.is_dir() or not is_english_installed():
        print(f"retrieval is not measured: it needs the questions in {EVAL}, and the extra embeddings", file=sys.stderr)
        return
    with tempfile.TemporaryDirectory() as folder:
        yield from anyio.run(_measured, Path(folder))


async def _measured(folder: Path) -> list[Figure]:
    figures: list[Figure] = []
    CACHE.mkdir(exist_ok=True)
    async with (
        await SqliteDatabase.open(CACHE / "vectors.db") as known,
        await SqliteDatabase.open(folder / "retrieval.db") as db,
    ):
        shelf = Shelf(db, folder, Remembering(LocalEmbedder(), known))
        for size in sorted({*SIZES, *BARS}):
            await shelf.fill(size)
            if size in SIZES:
                for case in CASES:
                    figures += _quality(size, await retrieval.ask(case, shelf))
            if size in BARS:
                figures += await _speed(size, shelf)
    return figures


def _quality(size: int, found: retrieval.Retrieved) -> Iterator[Figure]:
    among = f"{found.case.name} among {f'{size:,}' if size else 'its own'} documents"
    plain = found.plain.ndcg
    yield Figure(f"{among}: plain FTS5, nDCG@10", plain, "")
    yield Figure(f"{among}: by words, to plain FTS5", found.words.ndcg / plain, "x", least=LEAST_BY_WORDS)
    yield Figure(f"{among}: by vectors, to plain FTS5", found.vectors.ndcg / plain, "x")
    yield Figure(f"{among}: by both, to plain FTS5", found.both.ndcg / plain, "x", least=found.bar / plain)
    lost = found.searched.ndcg - found.selected.ndcg
    yield Figure(f"{among}: nDCG@10 lost by selection", lost, "", MOST_LOST)


async def _speed(size: int, shelf: Shelf) -> Iterator[Figure]:
    """Ask each question of plain FTS5 and of ours, one right after the other."""
    case = next(each for each in CASES if each.name == "csse duplicates, title+body")
    await shelf.hold(case)
    bodies = [text for _, text in retrieval.questions(case)]
    titles = {text for each in CASES for _, text in retrieval.questions(each) if len(text.split()) <= SHORT}
    beginnings = {" ".join(text.split()[:SHORT]) for text in bodies}
    finder = HybridSearch(shelf.store)

    async def timed(texts: list[str]) -> tuple[float, float, float, float]:
        """Return the 95th of 100 of plain FTS5 and of ours, each by the clock and by CPU."""
        times: tuple[list[float], ...] = ([], [], [], [])
        for text in texts:
            began, spent = perf_counter(), process_time()
            shelf.by_plain(text)
            between, used = perf_counter(), process_time()
            await finder.find(text)
            ended, all_used = perf_counter(), process_time()
            for each, seconds in zip(
                times, (between - began, used - spent, ended - between, all_used - used), strict=True
            ):
                each.append(seconds * 1000)
        plain, plain_cpu, ours, ours_cpu = (sorted(each)[len(each) * 95 // 100] for each in times)
        return plain, plain_cpu, ours, ours_cpu

    among = f"search among {size:,} real documents by words"
    plain, plain_cpu, ours, ours_cpu = await timed(sorted(titles | beginnings))
    longer = await timed([text for text in bodies if len(text.split()) > SHORT])
    return iter(
        (
            Figure(f"{among}, up to {SHORT} words, p95", ours, "ms", BARS[size]),
            Figure(f"{among}, up to {SHORT} words, p95 (CPU)", ours_cpu, "ms", BARS[size]),
            Figure(f"{among}, up to {SHORT} words, p95 of plain FTS5", plain, "ms"),
            Figure(f"{among}, up to {SHORT} words, p95 of plain FTS5 (CPU)", plain_cpu, "ms"),
            Figure(f"{among}, longer, p95", longer[2], "ms"),
            Figure(f"{among}, longer, p95 of plain FTS5", longer[0], "ms"),
            Figure(f"{among}, longer, p95 to that of plain FTS5", longer[2] / longer[0], "x", MOST_TO_PLAIN),
            Figure(f"{among}, longer, p95 (CPU)", longer[3], "ms"),
            Figure(f"{among}, longer, p95 of plain FTS5 (CPU)", longer[1], "ms"),
            Figure(f"{among}, longer, p95 (CPU) to that of plain FTS5", longer[3] / longer[1], "x", MOST_TO_PLAIN),
        )
    )
