"""Keeping the search true to the indices: each listed source as its description and its passages.

What is stored is compared with what is listed, by stamps: what a killed process left undone, or what was lost with the
database, is made good by the next refresh, and a refresh that finds nothing changed writes nothing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime

from anyio.to_thread import run_sync

from intern.core.errors import SourceError
from intern.core.ids import SourceId
from intern.core.log import get_logger
from intern.core.progress import tell
from intern.core.records import SearchDocument, SourceType, TopicBlock
from intern.core.text.passages import passages
from intern.sources.descriptions import question_of
from intern.stores.indices import CachedFile, CachedSource
from intern.stores.sqlite.search_index import SqliteSearchStore

_log = get_logger(__name__)

# Of 120 real questions, the right one of 596 sources is among the best 50 for 86% with passages of 1,000 or 1,500
# characters, and for 84% with sources taken whole; longer ones also hide what stands at the end of a long document.
_PASSAGE = 1500

# Sources whose texts are held at the same time, and written together.
_CHUNK = 64

_MANY = 0.05  # of all sources: to optimize writes all of the full-text tables anew

# Changes with what is made of a source, so that a newer intern makes it anew.
_VERSION = "1"
_UNREAD = "!"


class Covered:
    """What stands in a source: its title, and its parts with what stands above each."""

    def __init__(self, title: str, parts: Sequence[tuple[str, str]], at: datetime | None = None) -> None:
        self.title = title
        self.parts = parts
        self.at = at


Read = Callable[[SourceId], Awaitable[Covered]]
"""What stands in a listed source. Raises SourceError."""


def covered_text(title: str, text: str) -> Covered:
    """A document, by its passages."""
    return Covered(title, [(piece.heading, piece.text) for piece in passages(text, _PASSAGE)])


def covered_topic(title: str, blocks: Sequence[TopicBlock]) -> Covered:
    """A topic, by its conversations: the words that were said, without ids and dates."""
    parts = [(question_of(block.turns), "\n".join(turn.text for turn in block.turns)) for block in blocks]
    return Covered(title, parts, max((block.answered_at or block.timestamp for block in blocks), default=None))


async def keep_searchable(store: SqliteSearchStore, listed: Mapping[SourceId, CachedSource], read: Read) -> int:
    """Bring the documents of all listed sources up to date, and say how many sources changed. Raises KnowledgeError."""
    # What has no description (a page that was never had, or is gone) is in no index either.
    listed = {source_id: source for source_id, source in listed.items() if source.summary_text}
    known = await store.stamps("source")
    gone, stale = await run_sync(_compared, listed, known)
    await store.drop(gone)
    changed = len(gone)
    for start in range(0, len(stale), _CHUNK):
        tell("Indexing the words of {total} sources", start, len(stale))
        documents: list[SearchDocument] = []
        for source_id in stale[start : start + _CHUNK]:
            made = await _documents(source_id, listed[source_id], read, known.get(source_id))
            documents += made
            changed += bool(made)
        await store.put(documents)
    if changed > max(_CHUNK, len(listed) * _MANY):
        await store.optimize()
    return changed


def _compared(
    listed: Mapping[SourceId, CachedSource], known: Mapping[SourceId, str]
) -> tuple[list[SourceId], list[SourceId]]:
    """What is gone, and what is new or changed. Of 100,000 sources, half a second's work."""
    stale = [source_id for source_id, source in listed.items() if known.get(source_id) != _stamp(source)]
    return sorted(known.keys() - listed.keys()), stale


async def _documents(
    source_id: SourceId, source: CachedSource, read: Read, known: str | None
) -> tuple[SearchDocument, ...]:
    """Nothing where nothing new can be said of it."""
    stamp = _stamp(source)
    try:
        covered = await read(source_id)
    except SourceError as error:
        # Gone meanwhile, or a page without a copy: its description can still be found.
        if known == stamp + _UNREAD:
            return ()
        _log.debug("source_searchable_by_description", source_id=source_id, reason=str(error))
        covered, stamp = Covered("", ()), stamp + _UNREAD
    return documents_of(source_id, source, covered, stamp)


def documents_of(source_id: SourceId, source: CachedSource, covered: Covered, stamp: str) -> tuple[SearchDocument, ...]:
    """The description, and each part of the text."""
    path = source_id.partition(":")[2]
    mtime = source.mtime_ns / 1e9 if isinstance(source, CachedFile) else None
    at = covered.at or (source.last_indexed_at if mtime is None else datetime.fromtimestamp(mtime, UTC))
    kind: SourceType = (
        "topic" if source_id.startswith("team:") else "document" if isinstance(source, CachedFile) else "page"
    )

    def document(n: int, title: str, text: str) -> SearchDocument:
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
                "indexed_at": source.last_indexed_at.isoformat(),
            },
            stamp=stamp,
            at=at,
        )

    parts = [(covered.title, source.summary_text), *covered.parts]
    return tuple(document(n, title, text) for n, (title, text) in enumerate(parts))


def _stamp(source: CachedSource) -> str:
    # The time, too: a search compares it with the file's own.
    mtime = source.mtime_ns if isinstance(source, CachedFile) else 0
    what = "\0".join((source.content_hash, source.summary_text, str(source.summary_pending), str(mtime)))
    return f"{_VERSION}:{hashlib.sha256(what.encode('utf-8', 'replace')).hexdigest()[:24]}"
