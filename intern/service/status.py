"""The state of a data folder, read without its lock and without changing anything, whether or not a bot is running."""

from __future__ import annotations

import fcntl
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any, Literal

import msgspec
from msgspec import Struct

from intern.core.clock import Clock
from intern.core.errors import KnowledgeError
from intern.core.ids import QAId, SourceId, parse_position
from intern.core.records import PairParked
from intern.service.calibration import read_calibration_status
from intern.service.databases import is_hosted, open_archive, open_read_only
from intern.service.embedding import embedding_model, open_vector_copy
from intern.service.hidden_files import find_edited_files
from intern.settings.loading import Paths, Settings
from intern.stores.blocks import normalize_qa_id
from intern.stores.database import Database
from intern.stores.library import NEEDS_SCRIPTS, RENDERED, CachedFile, CachedPage, CachedSource, Index
from intern.stores.sqlite.knowledge import KnowledgeStore
from intern.stores.sqlite.maintenance import DatabaseFigures, read_discovered_files, read_figures, read_skipped_sources
from intern.stores.sqlite.traces import Votes
from intern.stores.sqlite.work import Retry, find_retry, parse_retries

SHED = "questions_shed"
"""The name under which dropped questions are counted; see `intern.actors.events`."""

MASKED = "masked_"
"""The prefix of the counts of masked secrets; the kind follows."""


class ParkedPair(Struct, frozen=True, kw_only=True):
    """A pair that could not be filed."""

    qa_id: QAId
    reason: str
    tries: int
    """The number of tries."""
    next_at: datetime | None
    """The time of the next automatic try; None where it waits for a person."""


class PendingImages(Struct, frozen=True, kw_only=True):
    """Captures that are not archived yet: their images have no description."""

    captures: int
    oldest_seconds: float
    reason: str
    """The reason why the oldest one waits."""


class ServerReadProgress(Struct, frozen=True, kw_only=True):
    """The reading progress of a server."""

    guild_id: str
    until: datetime
    """No message up to here needs to be read again, in any channel."""
    age_seconds: float
    channels_ahead: int
    """Channels that are read further; in all others, there were no new messages lately."""
    newest: datetime
    """The time up to which the furthest channel is settled."""
    newest_age_seconds: float


class FolderStatus(Struct, frozen=True, kw_only=True):
    """The state of the folder."""

    data_dir: str
    running: bool
    """Whether a process works on it: holds the folder, or shares the communities of the database."""
    pid: int | None
    """The process that holds the folder."""
    archived: int
    """Pairs in the archive."""
    topics: int
    waiting: int
    """Pairs that are not decided yet: they come next."""
    damaged: tuple[str, ...]
    """Lost or unreadable parts of archive, topics and decisions: file, line, reason."""
    undecided: int
    """Pairs behind the cursor without a decision: they would never be filed. `intern regenerate` files them."""
    parked: tuple[ParkedPair, ...]
    awaiting_review: int
    """Pairs that the team has to approve or reject."""
    due: int
    """Approved pairs that are not filed yet."""
    feedback: Votes
    calibration: str
    """The problem of the calibration; empty if there is none."""
    shed_today: int
    shed: int
    """Questions dropped so far because the queue was full."""
    counts_today: dict[str, int]
    """All counts of this UTC day."""
    masked: dict[str, int]
    """Secrets kept out of the archive so far, by kind."""
    secret_facts: int
    """Facts that were not stored because they look secret."""
    outdated_answers: int
    """Posted answers that cite deleted sources."""
    pending_posts: int
    """Replies that are not completely on Discord yet."""
    pending_images: PendingImages | None
    waiting_jobs: int
    """Jobs of commands."""
    tokens_today: int
    """Tokens of prompts and replies of this UTC day."""
    token_budget: int
    """`llm.daily_token_budget`; 0: none."""
    cost_today: float
    """The cost of this UTC day, by the configured prices."""
    cost_budget: float
    """`llm.daily_cost_budget`; 0: none."""
    currency: str
    marks: tuple[ServerReadProgress, ...]
    documents: int
    """Documents that can be searched."""
    embeddings: str | None
    """The model whose vectors are searched; None if the search uses words alone."""
    unembedded: int
    """Documents without a vector of it."""
    engine: str = ""
    """The vector engine; empty where vectors are local."""
    engine_behind: int = 0
    """Documents that are still to be copied or deleted there."""


def read_status(settings: Settings, *, clock: Clock) -> FolderStatus:
    """Read the folder. Raises KnowledgeError for existing files that cannot be read. Blocks."""
    pid, running = find_lock_holder(settings.home)
    # The decisions first: pairs archived meanwhile wait, but every decision is about a pair that we see.
    db = open_read_only(settings)
    knowledge, copy = KnowledgeStore(db), open_vector_copy(settings, db)
    cursor = knowledge.cursor()
    floor = QAId(settings.kb.qa_raw_last_processed_id)
    passed_over = normalize_qa_id(floor) if floor else ""
    archive = open_archive(settings, db, clock=clock)
    archived, damaged = archive.scan_ids()
    counted = {each for each in archived if each > passed_over}
    until, undecided = normalize_qa_id(cursor) if cursor else "", knowledge.find_undecided(counted)
    figures = read_figures(db)
    today, counts, retries = clock.now().date().isoformat(), figures.counts, parse_retries(figures.retries)
    votes = dict(figures.votes)
    return FolderStatus(
        data_dir=str(settings.data.dir),
        running=running or is_hosted(settings),
        pid=pid,
        archived=len(archived),
        topics=len(knowledge.topic_names()),
        damaged=(*find_lost_folders(settings.paths, knowledge, moves=settings.moves), *map(str, damaged)),
        waiting=sum(each > until for each in undecided),
        undecided=sum(each <= until for each in undecided),
        parked=tuple(
            _build_parked_pair(each, retries)
            for each in knowledge.list_parked()
            if normalize_qa_id(each.qa_id) in counted
        ),
        awaiting_review=len(knowledge.list_awaiting_review()),
        due=len(knowledge.list_due()),
        feedback=Votes(up=votes.get("up", 0), down=votes.get("down", 0)),
        calibration=db.read_blocking(partial(read_calibration_status, settings=settings)).problem,
        shed_today=sum(number for day, name, number in counts if (day, name) == (today, SHED)),
        shed=sum(number for _, name, number in counts if name == SHED),
        masked=_sum_masked_secrets(counts),
        secret_facts=figures.secret_facts,
        counts_today={name: number for day, name, number in counts if day == today},
        outdated_answers=figures.outdated_answers,
        pending_posts=figures.pending_posts,
        pending_images=_read_pending_images(figures.pending_images, clock),
        waiting_jobs=figures.waiting_jobs,
        tokens_today=sum(tokens for day, tokens, _ in figures.spent if day == today),
        token_budget=settings.llm.daily_token_budget,
        cost_today=sum(cost for day, _, cost in figures.spent if day == today),
        cost_budget=settings.llm.daily_cost_budget,
        currency=settings.llm.currency,
        marks=tuple(_build_read_progress(row, clock) for row in figures.attended),
        embeddings=embedding_model(settings),
        documents=figures.documents,
        unembedded=count_without_vectors(settings, figures),
        engine="" if copy is None else copy.engine.name,
        engine_behind=0 if copy is None else db.read_blocking(copy.count_behind),
    )


def _build_parked_pair(parked: PairParked, retries: Mapping[QAId, Retry]) -> ParkedPair:
    retry = find_retry(parked, retries)
    return ParkedPair(qa_id=parked.qa_id, reason=parked.reason, tries=retry.tries, next_at=retry.next_at)


def _read_pending_images(rows: Sequence[Sequence[Any]], clock: Clock) -> PendingImages | None:
    if not rows:
        return None
    since, reason = rows[0]
    try:
        age = (clock.now() - datetime.fromisoformat(str(since))).total_seconds()
    except (ValueError, TypeError) as error:
        raise KnowledgeError(f"a pending capture says that it waits since {since!r}, which is no time") from error
    return PendingImages(captures=len(rows), oldest_seconds=age, reason=str(reason))


def _sum_masked_secrets(counts: Iterable[Sequence[Any]]) -> dict[str, int]:
    kinds: Counter[str] = Counter()
    for _, name, number in counts:
        if name.startswith(MASKED):
            kinds[name.removeprefix(MASKED)] += number
    return dict(kinds)


def _build_read_progress(row: Sequence[Any], clock: Clock) -> ServerReadProgress:
    guild_id, until, ahead, furthest = row
    now, moment, newest = clock.now(), parse_position(str(until)).time, parse_position(str(furthest)).time
    return ServerReadProgress(
        guild_id=guild_id,
        until=moment,
        age_seconds=(now - moment).total_seconds(),
        channels_ahead=ahead,
        newest=newest,
        newest_age_seconds=(now - newest).total_seconds(),
    )


def count_without_vectors(settings: Settings, figures: DatabaseFigures) -> int:
    """Return how many documents have no vector of the model that is searched; 0 where there is none."""
    model = embedding_model(settings)
    return 0 if model is None else figures.documents - dict(figures.vectors).get(model, 0)


def find_lost_folders(paths: Paths, knowledge: KnowledgeStore, *, moves: bool = False) -> Iterator[str]:
    """Report a missing archive if decisions refer to it, and files that a person edited. Blocks."""
    if knowledge.cursor() is not None and not moves and not paths.raw.exists():
        yield f"{paths.raw} is not there, though pairs were archived: correct kb.team_raw_dir, or put a backup there"
    for edited in find_edited_files(paths):
        name = re.sub(r"(\.[0-9]+)?\.edited$", "", edited.name[1:])  # a second one has a number
        adopt = f"run `intern topics adopt {name.removesuffix('.txt')}`, or " if edited.parent == paths.topics else ""
        yield f"{name} was edited by hand, which changes nothing; the edit is kept as {edited}: {adopt}delete it"


def find_lock_holder(data_dir: Path) -> tuple[int | None, bool]:
    """Return the process that holds the folder, and whether one does. Reads the lock's file, to disturb no process.

    Only if a process died and left its id behind, try the lock for an instant.
    """
    path = data_dir / ".lock"
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return None, False
    except OSError as error:
        raise KnowledgeError(f"{path} cannot be read ({error.strerror}); check its rights") from error
    try:
        written = os.pread(fd, 32, 0).strip()
        if not written.isdigit():
            return None, False
        try:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return int(written), True
        return None, False
    finally:
        os.close(fd)


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
    """`pending`: its present text is not described yet; `failed`: the last try to describe it failed, too.

    `left_out`: it is not used as a source, and `last_error` gives the reason.
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

    @property
    def why(self) -> str:
        """The last error; else the reason why it is stale, if it is."""
        unread = "its present text is not fetched or not described yet"
        undescribed = "its present text is not described yet; the next look at the folder does that"
        forgotten = "it is not there any more; the next look at the folder forgets it"
        stale = {"pending": unread if self.type == "page" else undescribed, "gone": forgotten}
        return self.last_error or stale.get(self.state, "")

    def since(self, now: datetime) -> datetime:
        """Return when it was last described, or first left out."""
        return now - timedelta(seconds=self.age_seconds)


def read_source_statuses(settings: Settings, knowledge: KnowledgeStore, *, clock: Clock) -> tuple[SourceStatus, ...]:
    """Return every source by id, then the files left out when the bot or `intern index` last refreshed. Blocks.

    Pass the `knowledge` of the process, if any: opening it reads every decision. Raises KnowledgeError for existing
    files that cannot be read.
    """
    from intern.sources.catalogue import Catalogue

    paths = settings.paths
    now, every = clock.now(), settings.kb.scan_interval_seconds
    listed: list[SourceStatus] = []
    indices: tuple[tuple[Index, Path], ...] = (("kb", paths.sources), ("team", paths.topics))
    for index, folder in indices:
        sources = Catalogue(knowledge, index).sources()
        # Topics are in the database: their files cannot be missing.
        away = _find_folder_error(folder) if sources and index == "kb" else None
        for source_id, source in sorted(sources.items()):
            listed.append(_build_source_status(source_id, source, folder, now, every, away=away))
    return (*listed, *_read_discovered(settings, knowledge.db, now), *_read_left_out(settings, knowledge.db, now))


def open_source_statuses(settings: Settings, *, clock: Clock) -> tuple[SourceStatus, ...]:
    """Return the sources for a process that has no store open. Blocks; raises KnowledgeError."""
    return read_source_statuses(settings, KnowledgeStore(open_read_only(settings)), clock=clock)


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
    from intern.service.searching import list_ignored_paths
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
            state="left_out",
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
