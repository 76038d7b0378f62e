"""How well the right document is found by words, by likeness and by both, on each set of real questions.

All of it through our own store, embedder and `Finder`; beside it, the figures of the same sets by plain FTS5.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from intern.domain import SearchDocument, SearchFilter, SourceId
from intern.indexing.embedding import Embedding
from intern.knowledge.database import Database
from intern.knowledge.search_store import SqliteSearchStore
from intern.search.finding import Embedder, Finder
from intern.text.passages import passages
from tests.eval.chats import EVAL

DEPTH = 50
PASSAGE = 1500
"""Characters, as sources are indexed."""
_AT = datetime(2026, 1, 1, tzinfo=UTC)


class Row(Struct):
    """A document or a query of any set; what a set does not have is empty."""

    doc_id: str = ""
    title: str | None = None
    aliases: tuple[str, ...] = ()
    author: str = ""
    text: str = ""
    query: str = ""
    body: str = ""
    kind: str = ""
    conversation_id: str = ""
    relevant: Mapping[str, int] = {}


class Case(NamedTuple):
    """A set of questions, and how each is asked."""

    name: str
    file: str
    documents: Callable[[Row], Sequence[tuple[str, str]]]
    """The title and text of each part of a document."""
    asks: Callable[[Row], str | None]
    """The question; None for what is no part of it."""
    plain: float
    """nDCG@10 of plain FTS5, as the sets' README gives it."""
    gain: float
    """What the figure of both together must reach, as a share of the plain one."""
    type: str = "document"
    """Of its documents: chat turns have none."""


class Scores(NamedTuple):
    """Means over the questions."""

    recall_1: float
    recall_5: float
    recall_10: float
    mrr: float
    ndcg: float


LABELS = ("recall@1", "recall@5", "recall@10", "MRR", "nDCG@10")


class Retrieved(NamedTuple):
    """What a case gave."""

    case: Case
    asked: int
    words: Scores
    vectors: Scores
    both: Scores

    @property
    def bar(self) -> float:
        """What `both` must reach."""
        return self.case.plain * self.case.gain


def _query(row: Row) -> str | None:
    return row.query


def _with_body(row: Row) -> str | None:
    return f"{row.query}\n{row.body}"


def _technical(row: Row) -> str | None:
    return row.query if row.kind == "technical" else None


def _text(row: Row) -> Sequence[tuple[str, str]]:
    return [("", row.text)]


def _turn(row: Row) -> Sequence[tuple[str, str]]:
    return [(row.author, row.text)]


def _named(row: Row) -> Sequence[tuple[str, str]]:
    return [(" ".join(filter(None, (row.title, *row.aliases))), row.text)]


def _section(row: Row) -> Sequence[tuple[str, str]]:
    text = f"# {row.title}\n\n{row.text}" if row.title else row.text
    return [(piece.heading, piece.text) for piece in passages(text, PASSAGE)]


def _question(row: Row) -> Sequence[tuple[str, str]]:
    return [(row.title or "", piece.text) for piece in passages(row.text, PASSAGE)] or [(row.title or "", "")]


CASES = (
    Case("factoids technical, text", "factoids", _text, _technical, 0.344, 1.2),
    Case("factoids technical, title+aliases+text", "factoids", _named, _technical, 0.390, 1.2),
    Case("factoids all kinds, title+aliases+text", "factoids", _named, _query, 0.308, 1.2),
    Case("faq", "faq", _section, _query, 0.456, 1.2),
    Case("csse duplicates, title", "csse_duplicates", _question, _query, 0.430, 1.2),
    Case("csse duplicates, title+body", "csse_duplicates", _question, _with_body, 0.456, 1.2),
    Case("locomo turns", "locomo", _turn, _query, 0.498, 1.0, ""),
)


async def measure(folder: Path, embedder: Embedder, cases: Sequence[Case] = CASES) -> Sequence[Retrieved]:
    """Ask all questions of each case."""
    found: list[Retrieved] = []
    for (file, type_, documents), group in groupby(cases, key=lambda case: (case.file, case.type, case.documents)):
        # Cases that ask the same documents share them: vectors are what takes the time.
        async with await Database.open(folder / f"{len(found)}.db") as db:
            store = SqliteSearchStore(db)
            await store.put([replace(each, type=type_) for each in _documents(file, documents)])
            await store.optimize()
            await Embedding(store, embedder).all()
            found += [await _asked(case, store, embedder) for case in group]
    return found


def _documents(file: str, parts: Callable[[Row], Sequence[tuple[str, str]]]) -> Iterator[SearchDocument]:
    for row in _rows(f"retrieval_{file}_corpus.jsonl"):
        for n, (title, text) in enumerate(parts(row)):
            yield SearchDocument(
                id=f"{row.doc_id}#{n}",
                source_id=SourceId(row.doc_id),
                kind="source",
                # Turns are searched within their conversation.
                guild_id=row.conversation_id,
                title=title,
                text=text,
                at=_AT,
            )


async def _asked(case: Case, store: SqliteSearchStore, embedder: Embedder) -> Retrieved:
    asked = [
        (row, text, [SourceId(each) for each in row.relevant])
        for row in _rows(f"retrieval_{case.file}_queries.jsonl")
        if row.relevant and (text := case.asks(row)) is not None
    ]
    vectors = await embedder.embed([text for _, text, _ in asked])
    by_words, by_both = Finder(store), Finder(store, embedder)
    words: list[list[SourceId]] = []
    alike: list[list[SourceId]] = []
    both: list[list[SourceId]] = []
    for (row, text, _), vector in zip(asked, vectors, strict=True):
        wanted = SearchFilter(guild_id=row.conversation_id or None)
        own = {SourceId(row.doc_id)}
        words.append(_others([each.document for each in await by_words.find(text, wanted, DEPTH)], own))
        hits = await store.like(vector, embedder.model, wanted, DEPTH)
        alike.append([hit.source_id for hit in hits if hit.source_id not in own])
        both.append(_others([each.document for each in await by_both.find(text, wanted, DEPTH)], own))
    relevant = [each for _, _, each in asked]
    return Retrieved(case, len(asked), scored(words, relevant), scored(alike, relevant), scored(both, relevant))


def _others(documents: Sequence[SearchDocument], own: set[SourceId]) -> list[SourceId]:
    """In their order, without the question itself."""
    return [document.source_id for document in documents if document.source_id not in own]


def scored(found: Sequence[Sequence[SourceId]], relevant: Sequence[Sequence[SourceId]]) -> Scores:
    """Recall, reciprocal rank and nDCG, as usual; each relevant document counts the same."""
    each = [_scores(have, set(want)) for have, want in zip(found, relevant, strict=True)]
    return Scores(*(sum(column) / len(each) for column in zip(*each, strict=True)))


def _scores(found: Sequence[SourceId], relevant: set[SourceId]) -> Scores:
    hits = [source_id in relevant for source_id in found]
    gained = sum(hit / math.log2(place + 1) for place, hit in enumerate(hits[:10], 1))
    ideal = sum(1 / math.log2(place + 1) for place in range(1, min(10, len(relevant)) + 1))
    recalls = [sum(hits[:depth]) / len(relevant) for depth in (1, 5, 10)]
    return Scores(
        recall_1=recalls[0],
        recall_5=recalls[1],
        recall_10=recalls[2],
        mrr=1 / (hits.index(True) + 1) if any(hits) else 0.0,
        ndcg=gained / ideal,
    )


def _rows(name: str) -> list[Row]:
    return [msgspec.json.decode(line, type=Row) for line in (EVAL / name).read_bytes().splitlines()]
