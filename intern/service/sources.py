"""The sources of a data folder, and what is left out: each with its state, read without changing anything."""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Literal

import msgspec
from msgspec import Struct

from intern.core.clock import Clock
from intern.core.ids import SourceId
from intern.service.databases import at_rest
from intern.service.searching import never_discovered
from intern.settings.loading import Settings
from intern.sources.catalogue import Catalogue
from intern.sources.library import page_state
from intern.sources.pages import IN_SETTINGS
from intern.sources.scanning import Scanner, is_below
from intern.stores.database import Database
from intern.stores.library import NEEDS_SCRIPTS, RENDERED, CachedFile, CachedPage, CachedSource, Index
from intern.stores.sqlite.knowledge import Knowledge
from intern.stores.sqlite.maintenance import discovered_in, left_out_in

State = Literal["ok", "pending", "failed", "gone", "left_out"]
_NOTES = frozenset({NEEDS_SCRIPTS, RENDERED})
_OWED: State = "pending"
_PAGES: dict[str, State] = {"fresh": "ok", "pending": _OWED, "unseen": _OWED, "failing": "failed", "gone": "gone"}


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
    next_check: datetime | None = None
    """None: with the next look of the running bot."""
    check_every_seconds: float | None = None
    """How often that looks; None where the source has a time of its own."""
    is_described: bool = True
    """Whether a model has ever described it; `age_seconds` is since it was first listed otherwise."""
    note: str = ""
    """How it was read, where that is worth knowing: a page that needs JavaScript, or that was rendered."""

    @property
    def name(self) -> str:
        """The address of a page; else its id."""
        return self.path if self.type == "page" else self.source_id

    @property
    def why(self) -> str:
        """The last error; else why it is stale, if it is."""
        unread = "its present text is not fetched or not described yet"
        undescribed = "its present text is not described yet; the next look at the folder does that"
        forgotten = "it is not there any more; the next look at the folder forgets it"
        stale = {"pending": unread if self.type == "page" else undescribed, "gone": forgotten}
        return self.last_error or stale.get(self.state, "")

    def since(self, now: datetime) -> datetime:
        """Return when it was last described, or first left out."""
        return now - timedelta(seconds=self.age_seconds)


def sources_of(settings: Settings, knowledge: Knowledge, *, clock: Clock) -> tuple[SourceStatus, ...]:
    """Every source, by id, and then what was left out when the bot or `intern index` looked last. Blocks.

    A process that has `knowledge` gives its own: to open it reads every decision. Raises KnowledgeError for what is
    there and cannot be read.
    """
    paths = settings.paths
    now, every = clock.now(), settings.kb.scan_interval_seconds
    listed: list[SourceStatus] = []
    indices: tuple[tuple[Index, Path], ...] = (("kb", paths.sources), ("team", paths.topics))
    for index, folder in indices:
        sources = Catalogue(knowledge, index).sources()
        # Topics are in the database: no file can be away.
        away = _why_away(folder) if sources and index == "kb" else None
        for source_id, source in sorted(sources.items()):
            listed.append(_listed(source_id, source, folder, now, every, away=away))
    return (*listed, *_discovered(settings, knowledge.db, now), *_left_out(settings, knowledge.db, now))


def sources_at_rest(settings: Settings, *, clock: Clock) -> tuple[SourceStatus, ...]:
    """Return the sources for a process that has nothing open. Blocks; raises KnowledgeError."""
    return sources_of(settings, Knowledge(at_rest(settings)), clock=clock)


def _listed(
    source_id: SourceId, source: CachedSource, folder: Path, now: datetime, every: float, *, away: str | None
) -> SourceStatus:
    kind = "topic" if source_id.startswith("team:") else "document" if isinstance(source, CachedFile) else "page"
    next_check = source.next_check_at if isinstance(source, CachedPage) else None
    state, last_error = _state_of(source, None if kind == "topic" else folder, away)
    return SourceStatus(
        source_id=source_id,
        type=kind,
        path=str(folder / source.rel_path) if isinstance(source, CachedFile) else source.url,
        state=state,
        age_seconds=(now - source.last_indexed_at).total_seconds(),
        last_error=last_error,
        next_check=next_check,
        check_every_seconds=None if next_check else every,
        is_described=source.described_at is not None,
        note=source.fetch_status if isinstance(source, CachedPage) and source.fetch_status in _NOTES else "",
    )


def _state_of(source: CachedSource, folder: Path | None, away: str | None) -> tuple[State, str | None]:
    """Its state, and what went wrong. `away`: why the folder of its file, if it has one, cannot be looked at."""
    if isinstance(source, CachedPage):
        # A summary that failed is owed; the site is not to blame.
        owed = source.summary_pending and source.last_error
        return "failed" if owed else _PAGES[page_state(source)], source.last_error
    if away:
        return "failed", away
    try:
        if folder is not None:
            (folder / source.rel_path).lstat()
    except (FileNotFoundError, NotADirectoryError):
        return "gone", source.last_error  # the next refresh forgets it
    except OSError as error:
        return "failed", f"it cannot be looked at ({error.strerror})"
    if source.last_error:
        return "failed", source.last_error
    return "pending" if source.summary_pending else "ok", None


def _why_away(folder: Path) -> str | None:
    """Why a folder cannot be looked at; None where it can."""
    try:
        os.listdir(folder)  # noqa: PTH208
    except OSError as error:
        return f"{folder} cannot be looked at ({error.strerror})"
    return None


def _discovered(settings: Settings, db: Database, now: datetime) -> Iterator[SourceStatus]:
    away = Scanner(settings.discovery, never=never_discovered(settings)).troubles()
    for source_id, kind, status, path, meta in discovered_in(db):
        known: dict[str, Any] = msgspec.json.decode(meta, type=dict[str, Any])
        state: State = "ok" if status == "ok" else "failed"
        last_error = None if status == "ok" else str(known.get("reason") or status)
        if unseen := next((each for each in away if is_below(path, [each])), None):
            state, last_error = "failed", f"{unseen} cannot be looked at ({away[unseen]})"
        elif not os.path.lexists(path):
            state = "gone"
        yield SourceStatus(
            source_id=SourceId(source_id),
            type=kind,
            path=path,
            state=state,
            age_seconds=(now - _moment(known.get("indexed_at"), now)).total_seconds(),
            last_error=last_error,
            check_every_seconds=settings.discovery.interval_seconds if settings.discovery.scan_paths else None,
        )


def _left_out(settings: Settings, db: Database, now: datetime) -> Iterator[SourceStatus]:
    for each in left_out_in(db):
        folder = settings.paths.sources if each.kind == "document" else settings.paths.links.parent
        yield SourceStatus(
            source_id=SourceId(f"kb:{each.place}" if each.kind == "document" else each.place),
            type=each.kind,
            path=each.place if each.place.startswith(IN_SETTINGS) else str(folder / each.place),
            state="left_out",
            age_seconds=(now - each.since).total_seconds(),
            last_error=each.reason,
            check_every_seconds=settings.kb.scan_interval_seconds,
        )


def _moment(text: object, otherwise: datetime) -> datetime:
    try:
        moment = datetime.fromisoformat(str(text))
    except ValueError:
        return otherwise
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
