"""A measurement of how often the right source is among the best: 120 real questions over 596 real documents.

Each document is a file whose name says nothing, indexed with the rules instead of a model. Beside ours, what SQLite's
full-text search does by itself: the same texts whole, porter, stop words dropped, any of the terms, bm25.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import apsw
import msgspec
from msgspec import Struct

from intern.answering.source_index import MOST_RANKED, build_source_index
from intern.core.ids import SourceId
from intern.search.embedder import Embedder
from intern.search.hybrid_search import HybridSearch
from intern.search.terms import split_search_terms
from intern.service.opening import open_intern
from intern.settings.loading import load_settings
from intern.settings.settings import Settings
from intern.sources.catalogue import EmbeddingUpdater
from intern.stores.engines.sqlite.database import SqliteDatabase
from intern.stores.search_file.search_index import SqliteSearchStore
from intern.stores.search_file.word_matches import match_any
from tests.eval.chats import EVAL

SHOWN = 50
"""Entries that the model is shown."""
SHOWN_BAR = 0.80
"""By words alone."""
SHOWN_BY_BOTH_BAR = 0.92
DEPTHS = (1, 5, 10, 50)


class Document(Struct):
    """One of the corpus."""

    doc_id: str
    title: str
    text: str


class Query(Struct):
    """A question, and the documents that answer it."""

    query: str
    relevant: dict[str, int]


class Retrieved(NamedTuple):
    """The result of a search."""

    asked: int
    ours: Mapping[int, float]
    """Share of questions whose document is among the best so many."""
    plain: Mapping[int, float]
    shown: float
    """Share of questions whose entry a model is shown, with room for `SHOWN` of them."""
    shown_by_descriptions: float
    """The same, without a search in the texts."""


async def measure(folder: Path, embedder: Embedder | None = None) -> Retrieved:
    """Index the corpus in a folder, and ask; by words and likeness where there is an embedder."""
    documents = _lines("retrieval_faq_corpus.jsonl", Document)
    queries = _lines("retrieval_faq_queries.jsonl", Query)
    names = {document.doc_id: SourceId(f"kb:{n:04}.md") for n, document in enumerate(documents)}
    texts = {names[each.doc_id]: f"# {each.title}\n\n{each.text}\n" if each.title else each.text for each in documents}
    settings = _settings_in(folder)
    settings.paths.sources.mkdir(parents=True)
    for source_id, text in texts.items():
        (settings.paths.sources / source_id.removeprefix("kb:")).write_text(text, encoding="utf-8")
    async with open_intern(settings) as intern:
        await intern.index()
        entries = await intern.entries()
    room = SHOWN * sum(len(entry.source_id) + len(entry.description) + 3 for entry in entries) // len(entries)
    index = build_source_index(entries)
    assert not index.fits(room)
    wanted = [{names[doc_id] for doc_id in query.relevant} for query in queries]
    async with await SqliteDatabase.open(settings.paths.database) as db:
        store = SqliteSearchStore(db, settings.paths.search)
        if embedder is not None:
            await EmbeddingUpdater(store, embedder).update_all()
        finder = HybridSearch(store, embedder)
        hits = [await finder.find_passages(query.query, index.count_candidates(room)) for query in queries]
    by_text = [[hit.source_id for hit in each] for each in hits]
    ours = [
        [index.entries[n].source_id for n in index.rank_entries(query.query, best)]
        for query, best in zip(queries, by_text, strict=True)
    ]
    plain = _plain(texts, [query.query for query in queries])
    shown = [
        {entry.source_id for entry in build_source_index(tuple(entries)).select_entries(query.query, room, best)}
        for query, best in zip(queries, by_text, strict=True)
    ]
    described = [
        {entry.source_id for entry in build_source_index(tuple(entries)).select_entries(query.query, room)}
        for query in queries
    ]
    return Retrieved(
        asked=len(queries),
        ours={depth: _recall([each[:depth] for each in ours], wanted) for depth in DEPTHS},
        plain={depth: _recall([each[:depth] for each in plain], wanted) for depth in DEPTHS},
        shown=_recall(shown, wanted),
        shown_by_descriptions=_recall(described, wanted),
    )


def _recall(found: Sequence[Sequence[SourceId] | set[SourceId]], wanted: Sequence[set[SourceId]]) -> float:
    return sum(not want.isdisjoint(have) for have, want in zip(found, wanted, strict=True)) / len(wanted)


def _plain(texts: Mapping[SourceId, str], queries: Sequence[str]) -> list[list[SourceId]]:
    db: Any = apsw.Connection(":memory:")
    db.execute("create virtual table plain using fts5 (id unindexed, text, tokenize = 'porter unicode61')")
    db.executemany("insert into plain values (?, ?)", texts.items())
    statement = "select id from plain where plain match ? order by bm25(plain) limit ?"
    found = [
        [SourceId(row[0]) for row in db.execute(statement, (match_any(split_search_terms(query).words), MOST_RANKED))]
        for query in queries
    ]
    db.close()
    return found


def _settings_in(folder: Path) -> Settings:
    return load_settings(environ={}, overrides={"data": {"dir": str(folder / "data")}, "llm": {"provider": "offline"}})


def _lines(name: str, kind: Any) -> list[Any]:
    return [msgspec.json.decode(line, type=kind) for line in (EVAL / name).read_bytes().splitlines()]
