"""How each source stands: its state, its age, what went wrong last, and when it is looked at next.

Read from the index caches, the folders and the database, without the folder's lock and without changing anything.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import msgspec
from msgspec import Struct

from intern.app.status import open_read_only
from intern.domain import SourceId
from intern.indexing.page_states import page_state
from intern.knowledge.indices import CachedFile, CachedPage, CachedSource, IndexCache
from intern.knowledge.left_out import ALL_LEFT_OUT, left_out_of
from intern.observe.clock import Clock
from intern.settings import Settings

State = Literal["ok", "pending", "failed", "gone", "left_out"]
_OF_PAGES: Mapping[str, State] = {
    "fresh": "ok",
    "pending": "pending",
    "unseen": "pending",
    "failing": "failed",
    "gone": "gone",
}

_DISCOVERED = "select source_id, type, status, path, meta from search_documents where kind = 'file' order by path"


class SourceStatus(Struct, frozen=True, kw_only=True):
    """A source of answers, or a discovered file."""

    source_id: SourceId
    type: str
    path: str
    state: State
    """`pending`: its present text is not described yet; `failed`: and the last try to do so failed.

    `left_out`: it is no source, and `last_error` says why; answers draw on nothing of it.
    """
    age_seconds: float
    """Since it was last described, or first left out for this reason."""
    last_error: str | None
    next_check: datetime | None
    """None: with the next look of the running bot."""
    check_every_seconds: float | None
    """How often that looks; None where the source has a time of its own."""
    is_described: bool = True
    """Whether a model has ever described it; `age_seconds` is since it was first listed otherwise."""
    note: str = ""
    """How it was read, where that is worth knowing: a page that needs JavaScript, or that was rendered."""


def sources_of(settings: Settings, *, clock: Clock) -> tuple[SourceStatus, ...]:
    """Every source, by id, and then what was left out when the bot or `intern index` looked last. Blocks.

    Raises KnowledgeError for what is there and cannot be read.
    """
    paths = settings.paths
    now, every = clock.now(), settings.kb.scan_interval_seconds
    listed: list[SourceStatus] = []
    for cache, folder in ((paths.index_cache, paths.sources), (paths.team_index_cache, paths.topics)):
        sources: Mapping[SourceId, CachedSource] = IndexCache.load(cache).sources
        listed += [_listed(source_id, source, folder, now, every) for source_id, source in sorted(sources.items())]
    return (*listed, *_discovered(settings, now), *_left_out(settings, now))


def _listed(source_id: SourceId, source: CachedSource, folder: Path, now: datetime, every: float) -> SourceStatus:
    kind = "topic" if source_id.startswith("team:") else "document" if isinstance(source, CachedFile) else "page"
    next_check = source.next_check_at if isinstance(source, CachedPage) else None
    return SourceStatus(
        source_id=source_id,
        type=kind,
        path=str(folder / source.rel_path) if isinstance(source, CachedFile) else source.url,
        state=_state_of(source, folder),
        age_seconds=(now - source.last_indexed_at).total_seconds(),
        last_error=source.last_error,
        next_check=next_check,
        check_every_seconds=None if next_check else every,
        is_described=source.described_at is not None,
        note=page_state(source).note if isinstance(source, CachedPage) else "",
    )


def _state_of(source: CachedSource, folder: Path) -> State:
    if isinstance(source, CachedPage):
        # A summary that failed is owed; the site is not to blame.
        return "failed" if source.summary_pending and source.last_error else _OF_PAGES[page_state(source).state]
    if not os.path.lexists(folder / source.rel_path):
        return "gone"  # the next refresh forgets it
    if source.last_error:
        return "failed"
    return "pending" if source.summary_pending else "ok"


def _discovered(settings: Settings, now: datetime) -> Iterator[SourceStatus]:
    with open_read_only(settings.paths.database) as db:
        rows = db.rows("search_documents", _DISCOVERED)
    for source_id, kind, status, path, meta in rows:
        known: dict[str, Any] = msgspec.json.decode(meta, type=dict[str, Any])
        yield SourceStatus(
            source_id=SourceId(source_id),
            type=kind,
            path=path,
            state="gone" if not os.path.lexists(path) else "ok" if status == "ok" else "failed",
            age_seconds=(now - _moment(known.get("indexed_at"), now)).total_seconds(),
            last_error=None if status == "ok" else str(known.get("reason") or status),
            next_check=None,
            check_every_seconds=settings.discovery.interval_seconds if settings.discovery.scan_paths else None,
        )


def _left_out(settings: Settings, now: datetime) -> Iterator[SourceStatus]:
    with open_read_only(settings.paths.database) as db:
        rows = db.rows("left_out", ALL_LEFT_OUT)
    for each in left_out_of(rows):
        folder = settings.paths.sources if each.kind == "document" else settings.paths.links.parent
        yield SourceStatus(
            source_id=SourceId(f"kb:{each.place}" if each.kind == "document" else each.place),
            type=each.kind,
            path=str(folder / each.place),
            state="left_out",
            age_seconds=(now - each.since).total_seconds(),
            last_error=each.reason,
            next_check=None,
            check_every_seconds=settings.kb.scan_interval_seconds,
        )


def _moment(text: object, otherwise: datetime) -> datetime:
    try:
        moment = datetime.fromisoformat(str(text))
    except ValueError:
        return otherwise
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
