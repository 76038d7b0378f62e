"""The entries of an index, and the search, updated from the indices.

A model that answers junk to one source, or refuses it, will most likely do so again, and each try is paid for. So the
next try waits for a new text, a command, or a pause. An outage says nothing about a source: its pauses are short, and
only keep an endpoint that fails for one source from being asked with every capture.

The search has each listed source as its description and its passages, with their vectors. Stamps show which stored
documents differ from the indices. So the next refresh completes the work of a killed process and restores a lost
database, and a refresh without changes writes nothing. Each document without a vector of the embedder's model gets one,
a batch at a time: another model starts anew, and meanwhile the search uses the vectors that are there.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import AsyncIterable, Awaitable, Callable, Collection, Generator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from datetime import UTC, datetime, timedelta
from itertools import chain
from typing import NamedTuple, TypeVar

from anyio import Lock, current_time, to_thread
from msgspec.structs import replace

from intern.core.captures import TopicBlock
from intern.core.clock import Wakeup
from intern.core.errors import ModelError, ModelRefusedError, ModelReplyError, SourceError
from intern.core.ids import SourceId
from intern.core.knowledge import IndexEntry
from intern.core.log import get_logger
from intern.core.progress import report_progress
from intern.core.search_documents import SearchDocument, SourceType
from intern.core.text.passages import PASSAGE, join_headings, split_passages
from intern.search.embedder import CachingEmbedder, Embedder
from intern.sources.descriptions import first_question
from intern.stores.search_file.search_index import SqliteSearchStore
from intern.stores.source_cache import (
    CachedFile,
    CachedPage,
    CachedSource,
    CachedTopic,
    DescriptionAttempts,
    Index,
    flatten_description,
    is_source_id,
    is_url,
)
from intern.stores.tables.knowledge import KnowledgeStore

_log = get_logger(__name__)

T = TypeVar("T")


class Catalogue:
    """One index (of the sources, or of the team's topics), as the database has it. Reads block."""

    def __init__(self, knowledge: KnowledgeStore, index: Index) -> None:
        self.clock = knowledge.clock
        self._knowledge = knowledge
        self._index: Index = index
        # Set in one step: several threads may read it.
        self._known: tuple[int, Mapping[SourceId, CachedSource], Mapping[SourceId, IndexEntry]] = (0, {}, {})

    def sources(self) -> Mapping[SourceId, CachedSource]:
        """Return the result of the last indexing, files before pages, each sorted by id. Raises KnowledgeError."""
        return self._read_changes()[0]

    def entries(self) -> Mapping[SourceId, IndexEntry]:
        """Return the entries of the index. Unchanged entries are the same objects as before. Raises KnowledgeError."""
        return self._read_changes()[1]

    def _read_changes(self) -> tuple[Mapping[SourceId, CachedSource], Mapping[SourceId, IndexEntry]]:
        position, sources, entries = self._known
        position, changed = self._knowledge.read_source_changes(self._index, position)
        if changed:
            told = {each: source.summary_text if source else "" for each, source in changed.items()}
            listed = {
                each: IndexEntry(each, flatten_description(text)) if text else None for each, text in told.items()
            }
            sources, entries = _merge_changes(sources, changed), _merge_changes(entries, listed)
            self._known = (position, sources, entries)
        return sources, entries

    async def change(self, put: Mapping[SourceId, CachedSource], drop: Collection[SourceId] = ()) -> None:
        """Add entries, remove others. An entry with an id that no index can hold is left out, with a warning.

        Raises KnowledgeError.
        """
        fit = {source_id: source for source_id, source in put.items() if is_source_id(source_id)}
        for source_id in put.keys() - fit:
            _log.warning("index_entry_refused", source_id=ascii(source_id), index=self._index)
        if fit or drop:
            await self._knowledge.change(lambda change: change.update_sources(self._index, fit, drop))


def _merge_changes(known: Mapping[SourceId, T], changed: Mapping[SourceId, T | None]) -> dict[SourceId, T]:
    """Return the known entries with the changes: files before pages, each sorted by id."""
    now = {**known, **changed}
    # Few change at a time, and most of these are known.
    order = now if changed.keys() <= known.keys() else sorted(sorted(now), key=is_url)
    return {each: value for each in order if (value := now[each]) is not None}


PAUSES = (timedelta(minutes=10), timedelta(hours=1), timedelta(hours=6), timedelta(days=1))
"""After the first, second and third time in a row that the same text was not described, and after each further one."""
OUTAGE_PAUSES = (timedelta(0), timedelta(minutes=1), timedelta(minutes=5), timedelta(minutes=10))
"""The same, if no model was available."""

_unasked: ContextVar[bool] = ContextVar("intern_indexing_unasked", default=False)


@contextmanager
def respect_pauses() -> Generator[None]:
    """Mark a refresh that no person asked for: it respects the pauses. Otherwise, every summary is tried now."""
    token = _unasked.set(True)
    try:
        yield
    finally:
        _unasked.reset(token)


def is_paused(source: CachedSource, now: datetime) -> bool:
    """Return whether the pause of this text is not over."""
    next_at = source.tries.next_at if source.tries else None
    if not (_unasked.get() and source.summary_pending and next_at):
        return False
    # A time further off was written by a clock that was wrong.
    return now < next_at <= now + PAUSES[-1]


def apply_description_failure(entry: CachedSource, error: ModelError, now: datetime) -> CachedSource:
    """Return the entry after a failed try to describe its text."""
    before = entry.tries or DescriptionAttempts()
    if isinstance(error, ModelReplyError | ModelRefusedError):
        failed, unheard = before.failed + 1, 0
        pause = PAUSES[min(failed, len(PAUSES)) - 1]
    else:
        failed, unheard = before.failed, before.unheard + 1
        pause = OUTAGE_PAUSES[min(unheard, len(OUTAGE_PAUSES)) - 1]
    tries = DescriptionAttempts(failed=failed, unheard=unheard, next_at=now + pause)
    return replace(entry, last_error=str(error) or type(error).__name__, tries=tries)


def apply_description(entry: CachedSource, description: str, now: datetime) -> CachedSource:
    """Return the entry with a model's description of its present text."""
    # The error of a page that could not be fetched stays.
    unfetched = entry.fetch_status if isinstance(entry, CachedPage) and entry.failures else None
    return replace(
        entry,
        summary_text=description,
        last_indexed_at=now,
        summary_pending=False,
        provisional=False,
        last_error=unfetched,
        tries=None,
    )


# Sources whose texts are held at the same time, and written together.
_CHUNK = 64

_MANY = 0.05  # of all sources: to optimize writes all of the full-text tables anew

# Raised when sources are processed in another way, so that a newer intern processes them anew.
_VERSION = "1"
_UNREAD = "!"


class SourceContent(NamedTuple):
    """The content of a source: its title, and sections with their heading paths."""

    title: str
    parts: Sequence[tuple[str, str]]
    at: datetime | None = None


ReadContent = Callable[[SourceId], Awaitable[SourceContent]]
"""Reads the content of a listed source. Raises SourceError."""


def divide_document(title: str, text: str) -> SourceContent:
    """Divide a document into its passages, each below the title of the document and its own headings."""
    pieces = split_passages(text, PASSAGE)
    return SourceContent(title, [(join_headings(title, piece.heading), piece.text) for piece in pieces])


def divide_topic(title: str, blocks: Sequence[TopicBlock]) -> SourceContent:
    """Divide a topic into its conversations: their words, without ids and dates."""
    parts = [(first_question(block.turns), "\n".join(turn.text for turn in block.turns)) for block in blocks]
    return SourceContent(title, parts, max((block.answered_at or block.timestamp for block in blocks), default=None))


async def update_search_index(
    store: SqliteSearchStore, listed: Mapping[SourceId, CachedSource], read: ReadContent
) -> int:
    """Update the documents of all listed sources; return how many sources changed. Raises KnowledgeError."""
    # A source without a description (a page that is gone, or was never fetched) is in no index either.
    listed = {source_id: source for source_id, source in listed.items() if source.summary_text}
    known = await store.stamps("source")

    def compare() -> tuple[list[SourceId], list[SourceId]]:
        """Return gone sources, and new or changed ones. For 100,000 sources, it takes half a second."""
        stale = [source_id for source_id, source in listed.items() if known.get(source_id) != _stamp(source)]
        return sorted(known.keys() - listed.keys()), stale

    gone, stale = await to_thread.run_sync(compare)
    await store.delete_sources(gone)
    changed = len(gone)
    async with store.widen_cache() if len(stale) > _CHUNK else nullcontext():
        for start in range(0, len(stale), _CHUNK):
            report_progress("Indexing the words of {total} sources", start, len(stale))
            some = stale[start : start + _CHUNK]
            made = [await _build_documents(each, listed[each], read, known.get(each)) for each in some]
            changed += sum(map(bool, made))
            await store.replace_documents(list(chain.from_iterable(made)))
        if changed > max(_CHUNK, len(listed) * _MANY):
            await store.optimize()
    return changed


async def _build_documents(
    source_id: SourceId, source: CachedSource, read: ReadContent, known: str | None
) -> tuple[SearchDocument, ...]:
    """Make the documents of a source: its description, and each part of its text. Empty if there is nothing new."""
    stamp = _stamp(source)
    try:
        covered = await read(source_id)
    except SourceError as error:
        # Gone meanwhile, or a page without a copy: its description can still be found.
        if known == stamp + _UNREAD:
            return ()
        _log.debug("source_searchable_by_description", source_id=source_id, reason=str(error))
        covered, stamp = SourceContent("", ()), stamp + _UNREAD
    path = source_id.partition(":")[2]
    is_topic = isinstance(source, CachedTopic)
    mtime = source.version / 1e9 if isinstance(source, CachedFile) and not is_topic else None
    at = covered.at or (source.last_indexed_at if mtime is None else datetime.fromtimestamp(mtime, UTC))
    kind: SourceType = "topic" if is_topic else "page" if mtime is None else "document"

    def build_document(n: int, title: str, text: str) -> SearchDocument:
        return SearchDocument(
            id=f"{source_id}#{n}",
            source_id=source_id,
            kind="source",
            part="text" if n else "description",
            type=kind,
            status="pending" if source.summary_pending else "ok",
            path=path,
            title=title,
            text=text,
            meta={
                "summary": source.summary_text,
                "title": covered.title,
                "indexed_mtime": mtime,
                "version": source.version if isinstance(source, CachedTopic) else None,
                "indexed_at": source.last_indexed_at.isoformat(),
            },
            stamp=stamp,
            at=at,
        )

    parts = [(covered.title, source.summary_text), *covered.parts]
    return tuple(build_document(n, title, text) for n, (title, text) in enumerate(parts))


def _stamp(source: CachedSource) -> str:
    # The time, too: a search compares it with the file's own.
    mtime = source.version if isinstance(source, CachedFile) else 0
    what = "\0".join((source.content_hash, source.summary_text, str(source.summary_pending), str(mtime)))
    return f"{_VERSION}:{hashlib.sha256(what.encode('utf-8', 'replace')).hexdigest()[:24]}"


# Documents that are held, embedded and written together: a few seconds of one core, one commit. A kill repeats them.
_SOME = 128
# Vectors that are kept while there is more to embed, for texts that come again: 12 MB with them.
_REMEMBERED = 4096


class EmbeddingUpdater(Wakeup):
    """The vectors of documents. Concurrent callers take turns.

    Identical texts are embedded once, if no more than 4,096 others come between.
    """

    def __init__(self, store: SqliteSearchStore, embedder: Embedder) -> None:
        super().__init__()
        self._store = store
        self._embedder = CachingEmbedder(embedder, _REMEMBERED)
        self._turn = Lock()
        self._done = 0
        # Texts that the model refuses: tried again only once they change, or after a restart.
        self._refused: set[bytes] = set()

    async def update_batch(self) -> int:
        """Embed a batch, and return how many documents got a vector or were refused one; 0 when none is left.

        Raises KnowledgeError, and ModelError while the model gives no vectors.
        """
        async with self._turn:
            found = await self._store.find_unembedded(self._embedder.model, _SOME + len(self._refused))
            documents = [document for document in found if _digest_document(document) not in self._refused][:_SOME]
            if documents:
                if not self._done:
                    await self._report_progress(0)
                await self._compute_vectors(documents)
                await self._report_progress(len(documents))
            else:
                self._done = 0
                self._embedder.forget()
            return len(documents)

    async def update_all(self, within: float = math.inf) -> None:
        """Embed documents until none is left or `within` seconds have passed. Raises as `update_batch` does."""
        until = current_time() + within
        while await self.update_batch() and current_time() < until:
            pass

    async def count_missing(self) -> int:
        """Return how many documents have no vector yet. Raises KnowledgeError."""
        return max(await self._store.count_unembedded(self._embedder.model) - len(self._refused), 0)

    async def import_vectors(self, others: AsyncIterable[Sequence[tuple[SearchDocument, bytes]]]) -> None:
        """Use vectors that were made elsewhere by the same model, for documents that are the same here."""
        async for some in others:
            await self._store.store_vectors(self._embedder.model, some)

    async def _report_progress(self, more: int) -> None:
        self._done += more
        report_progress("Embedding {total} passages", self._done, self._done + await self.count_missing())

    async def _compute_vectors(self, documents: Sequence[SearchDocument]) -> None:
        try:
            vectors = await self._embedder.compute_vectors([embedding_text(document) for document in documents])
        except (ModelRefusedError, ModelReplyError) as error:
            # One text among them is at fault; the others need not wait for it.
            if half := len(documents) // 2:
                await self._compute_vectors(documents[:half])
                await self._compute_vectors(documents[half:])
                return
            self._refused.add(_digest_document(documents[0]))
            _log.warning("document_not_embedded", source_id=documents[0].source_id, reason=str(error))
            return
        await self._store.store_vectors(self._embedder.model, list(zip(documents, vectors, strict=True)))


def embedding_text(document: SearchDocument) -> str:
    """Return the text that a document's vector is made of: its title and its text.

    A colon joins title and text, as in a chat: it finds 17% more chat turns than a line break.
    """
    return f"{document.title}: {document.text}" if document.title and document.text else document.title or document.text


def _digest_document(document: SearchDocument) -> bytes:
    text = f"{document.id}\0{embedding_text(document)}"
    return hashlib.sha256(text.encode("utf-8", "replace")).digest()
