"""The right source among the first five, in six languages, over the sample in English and in each of them.

The questions and the translations are in `languages`.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import anyio
import msgspec
from msgspec import Struct

from benchmarks.figures import Figure
from intern.core.ids import SourceId
from intern.core.search_documents import SearchFilter
from intern.search.embedding_local import ENGLISH, MULTILINGUAL, LocalEmbedder
from intern.search.hybrid_search import HybridSearch
from intern.stores.engines.sqlite.database import SqliteDatabase
from tests.eval.retrieval import Remembering, Shelf

HERE = Path(__file__).parent / "languages"
SAMPLE = Path(__file__).parent.parent / "sample"
LEAST = 0.85
FIRST = 5


class Asked(Struct):
    """A question, and the sources that answer it."""

    language: str
    question: str
    sources: set[SourceId]


def measure() -> Iterator[Figure]:
    """Measure with each installed model, and by words alone."""
    with tempfile.TemporaryDirectory() as folder:
        yield from anyio.run(_measured, Path(folder))


async def _measured(folder: Path) -> list[Figure]:
    questions = [msgspec.json.decode(line, type=Asked) for line in (HERE / "questions.jsonl").read_bytes().splitlines()]
    figures: list[Figure] = []
    for name, model in (("the multilingual model", MULTILINGUAL), ("the English model", ENGLISH)):
        if not model.is_installed:
            print(f"{name} is not measured: it needs the extra {model.extra}", file=sys.stderr)
            continue
        part = folder / name
        part.mkdir()
        async with (
            await SqliteDatabase.open(part / "known.db") as known,
            await SqliteDatabase.open(part / "intern.db") as db,
        ):
            shelf = Shelf(db, part, Remembering(LocalEmbedder(model), known))
            for language in sorted({each.language for each in questions}):
                asked = [each for each in questions if each.language == language]
                for where, texts in _shelves(language).items():
                    await shelf.hold_texts(texts)
                    bar = LEAST if model is MULTILINGUAL else 0.0
                    for by, embedder in ((name, shelf.embedder), ("words alone", None)):
                        if embedder is not None or model is MULTILINGUAL:
                            first, five = await _recalled(asked, HybridSearch(shelf.store, embedder))
                            what = f"questions in {language}, documents in {where}, by {by}: recall@"
                            least = bar if embedder is not None else 0.0
                            figures += [Figure(f"{what}1", first, ""), Figure(f"{what}{FIRST}", five, "", least=least)]
    return figures


def _shelves(language: str) -> Mapping[str, Mapping[str, str]]:
    """Return the documents by their language: English, and the questions' own."""
    found = {"en": _texts(SAMPLE)}
    return found if language == "en" else found | {language: _texts(HERE / language)}


def _texts(folder: Path) -> Mapping[str, str]:
    files = sorted(folder.rglob("*.md"))
    return {f"kb:{path.relative_to(folder).as_posix()}": path.read_text(encoding="utf-8") for path in files}


async def _recalled(asked: list[Asked], finder: HybridSearch) -> tuple[float, float]:
    """Return how often a source that answers is the first, and among the first five."""
    places: list[int] = []
    for each in asked:
        found = [
            hit.document.source_id for hit in await finder.find_without_terms(each.question, SearchFilter(), FIRST)
        ]
        places.append(next((n for n, source_id in enumerate(found, 1) if source_id in each.sources), FIRST + 1))
    return tuple(sum(place <= most for place in places) / len(places) for most in (1, FIRST))  # type: ignore[return-value]
