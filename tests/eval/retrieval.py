"""A measurement of how well search finds the right document among few and many, on sets of real questions.

By words, by likeness, by both, and as index entries are selected for a model: all of it through our own store,
embedder, `HybridSearch` and `SourceIndex`. Beside it plain FTS5 in the same run: whole texts, porter, stop words
dropped, any term, bm25. More documents than a set has are made of sentences of all sets, but for those of documents
that answer.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from hashlib import sha256
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any, NamedTuple, Protocol

import apsw
import msgspec
from msgspec import Struct

from intern.answering.source_index import build_source_index
from intern.core.ids import SourceId
from intern.core.knowledge import IndexEntry
from intern.core.search_documents import SearchDocument, SearchFilter
from intern.core.text.passages import split_passages
from intern.core.text.words import split_words
from intern.search.embedder import Embedder
from intern.search.hybrid_search import HybridSearch
from intern.sources.catalogue import EmbeddingUpdater
from intern.stores.engines.sqlite.database import SqliteDatabase
from intern.stores.search_file.search_index import SqliteSearchStore
from intern.stores.search_file.word_matches import match_any
from intern.stores.tables.vector_cache import VectorMemory
from tests.eval.chats import EVAL

DEPTH = 50
PASSAGE = 1500
"""Characters, as sources are indexed."""
_AT = datetime(2026, 1, 1, tzinfo=UTC)
_STOP_WORDS = """
a about above after again against all am an and any are as at be because been before being below between both but by
can could did do does doing don down during each few for from further had has have having he her here hers herself him
himself his how i if in into is it its itself just me more most my myself no nor not now of off on once only or other
our ours ourselves out over own s same she should so some such t than that the their theirs them themselves then there
these they this those through to too under until up very was we were what when where which while who whom why will with
would you your yours yourself yourselves
"""
"""A list that many use; ours may be better, and that is part of what is measured."""


class Row(Struct):
    """A document or a query of any set; what a set does not have is empty."""

    doc_id: str = ""
    query_id: str = ""
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
    gain: tuple[float, float] = (1.2, 1.1)
    """What nDCG@10 by both must reach, as a share of plain FTS5: up to 6,000 documents, and beyond."""
    type: str = "document"
    """Of its documents; turns of a chat are nobody's document."""


class Scores(NamedTuple):
    """Means over the questions."""

    recall_1: float
    recall_5: float
    recall_10: float
    mrr: float
    ndcg: float


LABELS = ("recall@1", "recall@5", "recall@10", "MRR", "nDCG@10")


class Retrieved(NamedTuple):
    """The result of a case."""

    case: Case
    asked: int
    documents: int
    plain: Scores
    words: Scores
    vectors: Scores
    both: Scores
    searched: Scores
    """By both among all documents, also where a question is asked of some only: a selection knows no such filter."""
    selected: Scores
    """The order in which index entries would be shown to a model."""

    @property
    def bar(self) -> float:
        """The least nDCG@10 by both."""
        return self.plain.ndcg * self.case.gain[self.documents > MANY]


MANY = 6_000
LEAST_BY_WORDS = 1.0
"""Share of plain FTS5, at every size."""
MOST_LOST = 0.01
"""nDCG@10 that a selection may have less than the search that it is made from."""


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
    return [(piece.heading, piece.text) for piece in split_passages(text, PASSAGE)]


def _question(row: Row) -> Sequence[tuple[str, str]]:
    return [(row.title or "", piece.text) for piece in split_passages(row.text, PASSAGE)] or [(row.title or "", "")]


CASES = (
    Case("factoids technical, text", "factoids", _text, _technical),
    Case("factoids technical, title+aliases+text", "factoids", _named, _technical),
    Case("factoids all kinds, title+aliases+text", "factoids", _named, _query),
    Case("faq", "faq", _section, _query),
    Case("csse duplicates, title", "csse_duplicates", _question, _query),
    Case("csse duplicates, title+body", "csse_duplicates", _question, _with_body),
    Case("locomo turns", "locomo", _turn, _query, (1.0, 1.0), ""),
)


class Remembering:
    """An embedder that keeps what it made in a database: the same texts are embedded once for many runs."""

    def __init__(self, embedder: Embedder, db: SqliteDatabase) -> None:
        self._embedder = embedder
        self._memory = VectorMemory(db)
        self._memory.most = 200_000
        self.model = embedder.model

    async def compute_vectors(self, texts: Sequence[str], /, *, asked: bool = False) -> Sequence[bytes]:
        """As the embedder does it."""
        kind = f"{self.model}\0asked" if asked else self.model
        keys = [sha256(f"{kind}\0{text}".encode("utf-8", "replace")).hexdigest() for text in texts]
        known = dict(await self._memory.recall(keys))
        missing = {key: text for key, text in zip(keys, texts, strict=True) if key not in known}
        if missing:
            made = await self._embedder.compute_vectors(list(missing.values()), asked=asked)
            known.update(zip(missing, made, strict=True))
            await self._memory.remember({key: known[key] for key in missing})
        return [known[key] for key in keys]


class Shelf:
    """A store and a plain table that hold the same: filler as much as is wanted, and the documents of one case."""

    def __init__(self, db: SqliteDatabase, folder: Path, embedder: Embedder) -> None:
        self.store = SqliteSearchStore(db, folder / "search.db")
        self.embedder = embedder
        self.plain: Any = apsw.Connection(":memory:")
        self.plain.execute("create virtual table plain using fts5 (text, tokenize = 'porter unicode61')")
        self._whole: dict[int, Whole] = {}
        self._filler = filler()
        self._case: tuple[object, ...] = ()

    async def fill(self, size: int) -> None:
        """Add filler until there are so many documents."""
        await self._empty()
        for some in _batched(islice(self._filler, max(0, size - len(self._whole)))):
            await self._put(some)
        await self._settle()

    async def hold(self, case: Case) -> int:
        """Let the documents of a case stand beside the filler, instead of another's, and say how many there are."""
        wanted = (case.file, case.type, case.documents)
        if self._case != wanted:
            await self._replace(_wholes(case))
            self._case = wanted
        return len(self._whole)

    async def hold_texts(self, texts: Mapping[str, str]) -> None:
        """Let these documents stand beside the filler."""
        await self._replace(_documented(SourceId(source_id), text) for source_id, text in texts.items())

    async def _replace(self, wholes: Iterable[Whole]) -> None:
        await self._empty()
        for some in _batched(wholes):
            await self._put(some)
        await self._settle()

    async def _empty(self) -> None:
        gone = [rid for rid, each in self._whole.items() if not each.filler]
        await self.store.delete_sources([self._whole[rid].id for rid in gone])
        self.plain.executemany("delete from plain where rowid = ?", [(rid,) for rid in gone])
        for rid in gone:
            del self._whole[rid]
        self._case = ()

    async def _put(self, some: Sequence[Whole]) -> None:
        first = max(self._whole, default=0) + 1
        self._whole.update(enumerate(some, first))
        self.plain.executemany(
            "insert into plain (rowid, text) values (?, ?)", [(n, each.text) for n, each in enumerate(some, first)]
        )
        documents = [document for each in some for document in each.documents]
        await self.store.replace_documents(documents)
        if made := [each for each in some if each.pieces]:
            vectors = await _means([each.pieces for each in made], self.embedder)
            pairs = [(each.documents[0], vector) for each, vector in zip(made, vectors, strict=True)]
            await self.store.store_vectors(self.embedder.model, pairs)

    async def _settle(self) -> None:
        await EmbeddingUpdater(self.store, self.embedder).update_all()
        await self.store.optimize()
        self.plain.execute("insert into plain (plain) values ('optimize')")

    def by_plain(self, text: str, guild_id: str | None = None) -> list[SourceId]:
        """Return the documents that plain FTS5 finds."""
        said = dict.fromkeys(word.lower() for word in split_words(text))
        match = match_any([word for word in said if word not in _STOP_WORDS.split()] or said)
        if match is None:
            return []
        limit = DEPTH if guild_id is None else -1
        found = self.plain.execute(
            "select rowid from plain where plain match ? order by bm25(plain) limit ?", (match, limit)
        )
        wholes = [self._whole[rid] for (rid,) in found]
        return [each.id for each in wholes if guild_id in {None, each.guild_id}][:DEPTH]

    def texts(self) -> dict[str, str]:
        """The whole texts."""
        return {each.id: each.text for each in self._whole.values()}

    def entries(self) -> tuple[IndexEntry, ...]:
        """An index of all: each with its title and its beginning."""
        return tuple(IndexEntry(each.id, each.text[:200]) for each in self._whole.values())


class Whole(NamedTuple):
    """A document, and as what it is indexed."""

    id: SourceId
    guild_id: str
    text: str
    documents: Sequence[SearchDocument]
    filler: bool = False
    pieces: Sequence[str] = ()
    """What its vector is made from, where it is not embedded itself."""


class Ask(Protocol):
    """A way to look for a text within one of the places that documents come from."""

    async def __call__(self, text: str, guild_id: str | None, /) -> list[SourceId]: ...


async def measure(folder: Path, embedder: Embedder, cases: Sequence[Case] = CASES) -> Sequence[Retrieved]:
    """Ask all questions of each case among its own documents."""
    async with await SqliteDatabase.open(folder / "retrieval.db") as db:
        shelf = Shelf(db, folder, embedder)
        return [await ask(case, shelf) for case in cases]


async def ask(case: Case, shelf: Shelf) -> Retrieved:
    """Ask all questions of a case among its own documents and whatever filler is there."""
    documents = await shelf.hold(case)
    asked = [(row, text) for row, text in questions(case) if row.relevant]
    embedder = shelf.embedder
    words, both = HybridSearch(shelf.store), HybridSearch(shelf.store, embedder)
    index = build_source_index(shelf.entries())

    async def by_plain(text: str, guild_id: str | None) -> list[SourceId]:
        return shelf.by_plain(text, guild_id)

    async def by_words(text: str, guild_id: str | None) -> list[SourceId]:
        return [
            each.document.source_id
            for each in await words.find_without_terms(text, SearchFilter(guild_id=guild_id), DEPTH)
        ]

    async def by_vectors(text: str, guild_id: str | None) -> list[SourceId]:
        [vector] = await embedder.compute_vectors([text], asked=True)
        hits = await shelf.store.search_vector(vector, embedder.model, SearchFilter(guild_id=guild_id), DEPTH)
        return [each.source_id for each in hits]

    async def by_both(text: str, guild_id: str | None) -> list[SourceId]:
        return [
            each.document.source_id
            for each in await both.find_without_terms(text, SearchFilter(guild_id=guild_id), DEPTH)
        ]

    async def searched(text: str, _guild_id: str | None) -> list[SourceId]:
        return await by_both(text, None)

    async def selected(text: str, _guild_id: str | None) -> list[SourceId]:
        best = [hit.source_id for hit in await both.find_passages(text, index.count_candidates(SELECTED))]
        return [index.entries[n].source_id for n in islice(index.rank_entries(text, best), DEPTH)]

    ways: Sequence[Ask] = (by_plain, by_words, by_vectors, by_both, searched, selected)
    relevant = [list(map(SourceId, row.relevant)) for row, _ in asked]
    scores: list[Scores] = []
    for way in ways:
        found = [await way(text, row.conversation_id or None) for row, text in asked]
        others = [[each for each in ids if each != row.doc_id] for (row, _), ids in zip(asked, found, strict=True)]
        scores.append(scored(others, relevant))
    return Retrieved(case, len(asked), documents, *scores)


SELECTED = 12_000
"""Characters of an index that a model is shown, unless it is set otherwise."""


def questions(case: Case) -> Iterator[tuple[Row, str]]:
    """Those that are part of the case, and how each is asked."""
    for row in _rows(f"retrieval_{case.file}_queries.jsonl"):
        if (text := case.asks(row)) is not None:
            yield row, text


def filler() -> Iterator[Whole]:
    """Documents of two to five sentences of a set each, and turns of two: as many as anybody wants, always the same."""
    chance = Random(17)
    pools = {case.file: (_sentences(case.file), case) for case in CASES}
    guilds = sorted({row.conversation_id for row in _rows("retrieval_locomo_corpus.jsonl")})
    n = 0
    while True:
        for sentences, case in pools.values():
            n += 1
            turn = not case.type
            pieces = [chance.choice(sentences) for _ in range(2 if turn else chance.randint(2, 5))]
            source_id, text = SourceId(f"filler:{n}"), " ".join(pieces)
            guild_id = chance.choice(guilds) if turn else ""
            made = _document(source_id, guild_id, case.type, text=text)
            yield Whole(source_id, guild_id, text, [made], filler=True, pieces=pieces)


def _sentences(file: str) -> list[str]:
    """Return the sentences of the documents that answer no question."""
    answers = {doc_id for row in _rows(f"retrieval_{file}_queries.jsonl") for doc_id in row.relevant}
    texts = [row.text for row in _rows(f"retrieval_{file}_corpus.jsonl") if row.doc_id not in answers]
    found = (each.strip() for text in texts for each in re.split(r"(?<=[.!?])\s+|\n+", text))
    return list(dict.fromkeys(each for each in found if 20 <= len(each) <= 400))


async def _means(pieces: Sequence[Sequence[str]], embedder: Embedder) -> list[bytes]:
    """For each document the mean of its pieces' vectors, of length 1: to embed 50,000 texts takes half an hour."""
    np: Any = __import__("numpy")
    texts = list(dict.fromkeys(piece for each in pieces for piece in each))
    vectors = dict(zip(texts, await embedder.compute_vectors(texts), strict=True))
    means = [sum(np.frombuffer(vectors[piece], "<f4") for piece in each) for each in pieces]
    return [(mean / np.linalg.norm(mean)).astype("<f4").tobytes() for mean in means]


def _wholes(case: Case) -> Iterator[Whole]:
    for row in _rows(f"retrieval_{case.file}_corpus.jsonl"):
        parts = case.documents(row)
        source_id = SourceId(row.doc_id)
        documents = [
            _document(source_id, row.conversation_id, case.type, n=n, title=title, text=text)
            for n, (title, text) in enumerate(parts)
        ]
        named = row.title if case.documents in {_section, _question} else parts[0][0]
        yield Whole(source_id, row.conversation_id, "\n".join(filter(None, (named, row.text))), documents)


def _documented(source_id: SourceId, text: str) -> Whole:
    pieces = enumerate(split_passages(text, PASSAGE))
    documents = [_document(source_id, "", "document", n=n, title=piece.heading, text=piece.text) for n, piece in pieces]
    return Whole(source_id, "", text, documents)


def _document(
    source_id: SourceId, guild_id: str, type_: str, *, text: str, title: str = "", n: int = 0
) -> SearchDocument:
    return SearchDocument(
        id=f"{source_id}#{n}",
        source_id=source_id,
        kind="source",
        type=type_,
        # Turns are searched within their conversation.
        guild_id=guild_id,
        title=title,
        text=text,
        at=_AT,
    )


def _batched(wholes: Iterable[Whole]) -> Iterator[list[Whole]]:
    rest = iter(wholes)
    while some := list(islice(rest, 500)):
        yield some


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
