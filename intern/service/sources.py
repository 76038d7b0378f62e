"""The sources of answers and the discovered files, for people to read: the state of each."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final, Literal

import msgspec
from msgspec import Struct

from intern.core.clock import Clock
from intern.core.ids import SourceId
from intern.service.databases import open_read_only
from intern.service.paging import PagedList, select_page
from intern.settings.settings import Settings
from intern.stores.database import Database
from intern.stores.source_cache import NEEDS_SCRIPTS, RENDERED, CachedFile, CachedPage, CachedSource, Index
from intern.stores.tables.figures_at_rest import read_discovered_files
from intern.stores.tables.knowledge import KnowledgeStore
from intern.stores.tables.skipped_sources import read_skipped_sources

State = Literal["ok", "pending", "failed", "gone", "skipped"]
SourceStates = Literal["all", "stale", "skipped"]
_ORDER: Final[Sequence[State]] = ("failed", "gone", "pending", "ok", "skipped")
_NOTES = frozenset({NEEDS_SCRIPTS, RENDERED})
_OWED: State = "pending"
_PAGES: dict[str, State] = {"fresh": "ok", "pending": _OWED, "unseen": _OWED, "failing": "failed", "gone": "gone"}


class SourceStatus(Struct, frozen=True, kw_only=True):
    """A source of answers, or a discovered file."""

    source_id: SourceId
    type: str
    path: str
    state: State
    """`pending`: its present text is not described yet; `failed`: the last try to describe it failed, too.

    `skipped`: it is not used as a source, and `last_error` gives the reason.
    """
    age_seconds: float
    """Seconds since it was last described, or first left out for this reason."""
    last_error: str | None
    next_check: datetime | None = None
    """The time of the next refresh; None: with the next one of the running bot."""
    check_every_seconds: float | None = None
    """The refresh interval; None if the source has its own."""
    is_described: bool = True
    """Whether a model has ever described it; if not, `age_seconds` counts from its first listing."""
    note: str = ""
    """The way it was read, if notable: a page that needs JavaScript, or that was rendered."""

    @property
    def name(self) -> str:
        """The address of a page; else its id."""
        return self.path if self.type == "page" else self.source_id

    def since(self, now: datetime) -> datetime:
        """Return when it was last described, or first left out."""
        return now - timedelta(seconds=self.age_seconds)


class SourcesPage(Struct, frozen=True, kw_only=True):
    """Some sources, the stale ones first."""

    listed: PagedList[SourceStatus]
    counts: Mapping[str, int]
    """The number of sources in each state; and, as `pages`, of the web pages in use."""
    now: datetime


class Sources:
    """Reads the states of sources. Methods block, and raise KnowledgeError for files that cannot be read."""

    def __init__(self, settings: Settings, knowledge: KnowledgeStore, clock: Clock) -> None:
        self._settings, self._knowledge, self._clock = settings, knowledge, clock

    def list_all(self) -> tuple[SourceStatus, ...]:
        """Return every source by id, then the files left out when the bot or `intern index` last refreshed."""
        from intern.sources.catalogue import Catalogue

        settings, db, paths = self._settings, self._knowledge.db, self._settings.paths
        now, every = self._clock.now(), settings.kb.scan_interval_seconds
        listed: list[SourceStatus] = []
        indices: tuple[tuple[Index, Path], ...] = (("kb", paths.sources), ("team", paths.topics))
        for index, folder in indices:
            sources = Catalogue(self._knowledge, index).sources()
            # Topics are in the database: their files cannot be missing.
            away = _find_folder_error(folder) if sources and index == "kb" else None
            for source_id, source in sorted(sources.items()):
                listed.append(_build_source_status(source_id, source, folder, now, every, away=away))
        return (*listed, *_read_discovered(settings, db, now), *_read_left_out(settings, db, now))

    def list_page(self, state: SourceStates = "all", offset: int = 0) -> SourcesPage:
        """List documents, pages and discovered files, the stale ones first; or the ignored ones with their reasons."""
        # Up-to-date topics have a list of their own.
        known = [source for source in self.list_all() if source.type != "topic" or source.state != "ok"]
        known.sort(key=lambda source: _ORDER.index(source.state))
        used = [source for source in known if source.state != "skipped"]
        lists = {
            "all": used,
            "stale": [source for source in used if source.state != "ok"],
            "skipped": known[len(used) :],
        }
        counts = {name: len(listed) for name, listed in lists.items()}
        counts["pages"] = sum(source.type == "page" for source in used)
        return SourcesPage(listed=select_page(lists[state], offset), counts=counts, now=self._clock.now())


def open_sources(settings: Settings, clock: Clock) -> Sources:
    """Open the sources for a process that has no store open. Blocks; raises KnowledgeError."""
    return Sources(settings, KnowledgeStore(open_read_only(settings)), clock)


def _build_source_status(
    source_id: SourceId, source: CachedSource, folder: Path, now: datetime, every: float, *, away: str | None
) -> SourceStatus:
    kind = "topic" if source_id.startswith("team:") else "document" if isinstance(source, CachedFile) else "page"
    next_check = source.next_check_at if isinstance(source, CachedPage) else None
    state, last_error = _find_state(source, None if kind == "topic" else folder, away)
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


def _find_state(source: CachedSource, folder: Path | None, away: str | None) -> tuple[State, str | None]:
    """Return its state and its error. `away`: the reason why its file's folder cannot be read."""
    if isinstance(source, CachedPage):
        from intern.sources.library import page_state

        # A failed summary is still due; the site is not to blame.
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


def _find_folder_error(folder: Path) -> str | None:
    """Return the reason why a folder cannot be read; None if it can."""
    try:
        os.listdir(folder)  # noqa: PTH208
    except OSError as error:
        return f"{folder} cannot be looked at ({error.strerror})"
    return None


def _read_discovered(settings: Settings, db: Database, now: datetime) -> Iterator[SourceStatus]:
    from intern.service.indexing import list_ignored_paths
    from intern.sources.scanning import Scanner, is_below

    away = Scanner(settings.discovery, never=list_ignored_paths(settings)).find_unreadable_paths()
    for source_id, kind, status, path, meta in read_discovered_files(db):
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
            age_seconds=(now - _parse_time(known.get("indexed_at"), now)).total_seconds(),
            last_error=last_error,
            check_every_seconds=settings.discovery.interval_seconds if settings.discovery.scan_paths else None,
        )


def _read_left_out(settings: Settings, db: Database, now: datetime) -> Iterator[SourceStatus]:
    from intern.sources.pages import IN_SETTINGS

    for each in read_skipped_sources(db):
        folder = settings.paths.sources if each.kind == "document" else settings.paths.links.parent
        yield SourceStatus(
            source_id=SourceId(f"kb:{each.place}" if each.kind == "document" else each.place),
            type=each.kind,
            path=each.place if each.place.startswith(IN_SETTINGS) else str(folder / each.place),
            state="skipped",
            age_seconds=(now - each.since).total_seconds(),
            last_error=each.reason,
            check_every_seconds=settings.kb.scan_interval_seconds,
        )


def _parse_time(text: object, otherwise: datetime) -> datetime:
    try:
        moment = datetime.fromisoformat(str(text))
    except ValueError:
        return otherwise
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
