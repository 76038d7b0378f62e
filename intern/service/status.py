"""How a data folder stands, read without its lock and without changing anything, whether or not a bot is at work."""

from __future__ import annotations

import fcntl
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from msgspec import Struct

from intern.core.clock import Clock
from intern.core.errors import KnowledgeError
from intern.core.ids import QAId, position_of
from intern.core.records import Parked
from intern.service.calibration import calibrated_in
from intern.service.databases import archive_of, at_rest, is_hosted
from intern.service.models import embedding_model
from intern.service.projection import edited_files
from intern.service.stores import vector_copy_of
from intern.settings.loading import Paths, Settings
from intern.stores.blocks import time_of
from intern.stores.sqlite.knowledge import Knowledge
from intern.stores.sqlite.maintenance import Figures, figures_of
from intern.stores.sqlite.traces import Votes
from intern.stores.sqlite.work import Retry, retries_of, retry_of

SHED = "questions_shed"
"""The name that questions without room are counted by; see `intern.actors.events`."""

MASKED = "masked_"
"""What the counts of masked secrets begin with; the kind follows."""


class ParkedPair(Struct, frozen=True, kw_only=True):
    """A pair that could not be filed."""

    qa_id: QAId
    reason: str
    tries: int
    """How often it was tried."""
    next_at: datetime | None
    """When it is tried again by itself; None where it waits for a person."""


class PendingImages(Struct, frozen=True, kw_only=True):
    """Captures that are not archived yet: their images have no description."""

    captures: int
    oldest_seconds: float
    reason: str
    """Why the oldest one waits."""


class Attended(Struct, frozen=True, kw_only=True):
    """How far a server was read."""

    guild_id: str
    until: datetime
    """Nothing up to here needs to be read again, in any channel."""
    age_seconds: float
    channels_ahead: int
    """Channels that are further than that; in all others, nothing was written lately."""
    newest: datetime
    """Up to here, the furthest of them is settled."""
    newest_age_seconds: float


class Status(Struct, frozen=True, kw_only=True):
    """All that the folder tells."""

    data_dir: str
    running: bool
    """A process works on it: holds the folder, or shares the communities of the database."""
    pid: int | None
    """Of the process that holds the folder."""
    archived: int
    """Pairs in the archive."""
    topics: int
    waiting: int
    """Pairs that are not decided yet: they come next."""
    damaged: tuple[str, ...]
    """What of archive, topics and decisions is away, or cannot be read and is passed over: file, line, reason."""
    undecided: int
    """Pairs behind the cursor without a decision: they would never come. `intern regenerate` files them."""
    parked: tuple[ParkedPair, ...]
    awaiting_review: int
    """Pairs that the team has to approve or reject."""
    due: int
    """Pairs that were approved, and are not filed yet."""
    feedback: Votes
    calibration: str
    """What is the matter with it; empty where there is nothing."""
    shed_today: int
    shed: int
    """Questions that found no room, ever."""
    counts_today: dict[str, int]
    """Everything that was counted this UTC day."""
    masked: dict[str, int]
    """Secrets that were kept out of the archive, ever, by kind."""
    secret_facts: int
    """Facts that were not kept, for they look secret."""
    outdated_answers: int
    """Posted answers that cite what is not there any more."""
    pending_posts: int
    """Replies that are not wholly on Discord yet."""
    pending_images: PendingImages | None
    waiting_jobs: int
    """Asked for by commands."""
    tokens_today: int
    """Prompts and replies of this UTC day."""
    token_budget: int
    """`llm.daily_token_budget`; 0: none."""
    cost_today: float
    """Of this UTC day, by the prices that were set."""
    cost_budget: float
    """`llm.daily_cost_budget`; 0: none."""
    currency: str
    marks: tuple[Attended, ...]
    documents: int
    """What can be searched."""
    embeddings: str | None
    """The model whose vectors are searched; None where words alone are."""
    unembedded: int
    """Documents that have no vector of it yet."""
    engine: str = ""
    """The vector engine; empty where vectors are local."""
    engine_behind: int = 0
    """Documents that are still to be copied or deleted there."""


def status_of(settings: Settings, *, clock: Clock) -> Status:
    """Read the folder. Raises KnowledgeError for what is there and cannot be read. Blocks."""
    pid, running = holder_of(settings.home)
    # The decisions first: what is archived meanwhile waits, but no decision is about a pair that we do not see.
    db = at_rest(settings)
    knowledge, copy = Knowledge(db), vector_copy_of(settings, db)
    cursor = knowledge.cursor()
    passed_over = QAId(settings.kb.qa_raw_last_processed_id) or None
    archive = archive_of(settings, db, clock=clock)
    moments = archive.moments_after(passed_over)
    until = time_of(cursor) if cursor else datetime.min.replace(tzinfo=UTC)
    undecided, counted = knowledge.undecided(moments), set(moments)
    figures = figures_of(db)
    today, counts, retries = clock.now().date().isoformat(), figures.counts, retries_of(figures.retries)
    votes = dict(figures.votes)
    return Status(
        data_dir=str(settings.data.dir),
        running=running or is_hosted(settings),
        pid=pid,
        archived=len(archive),
        topics=len(knowledge.names()),
        damaged=(*lost_folders(settings.paths, knowledge, moves=settings.moves), *map(str, archive.damaged)),
        waiting=sum(moment > until for moment in undecided),
        undecided=sum(moment <= until for moment in undecided),
        parked=tuple(_parked(each, retries) for each in knowledge.parked() if time_of(each.qa_id) in counted),
        awaiting_review=len(knowledge.awaiting()),
        due=len(knowledge.due()),
        feedback=Votes(up=votes.get("up", 0), down=votes.get("down", 0)),
        calibration=db.look(partial(calibrated_in, settings=settings)).problem,
        shed_today=sum(number for day, name, number in counts if (day, name) == (today, SHED)),
        shed=sum(number for _, name, number in counts if name == SHED),
        masked=_masked(counts),
        secret_facts=figures.secret_facts,
        counts_today={name: number for day, name, number in counts if day == today},
        outdated_answers=figures.outdated_answers,
        pending_posts=figures.pending_posts,
        pending_images=_pending(figures.pending_images, clock),
        waiting_jobs=figures.waiting_jobs,
        tokens_today=sum(tokens for day, tokens, _ in figures.spent if day == today),
        token_budget=settings.llm.daily_token_budget,
        cost_today=sum(cost for day, _, cost in figures.spent if day == today),
        cost_budget=settings.llm.daily_cost_budget,
        currency=settings.llm.currency,
        marks=tuple(_attended(row, clock) for row in figures.attended),
        embeddings=embedding_model(settings),
        documents=figures.documents,
        unembedded=unembedded(settings, figures),
        engine="" if copy is None else copy.engine.name,
        engine_behind=0 if copy is None else db.look(copy.behind),
    )


def _parked(parked: Parked, retries: Mapping[QAId, Retry]) -> ParkedPair:
    retry = retry_of(parked, retries)
    return ParkedPair(qa_id=parked.qa_id, reason=parked.reason, tries=retry.tries, next_at=retry.next_at)


def _pending(rows: Sequence[Sequence[Any]], clock: Clock) -> PendingImages | None:
    if not rows:
        return None
    since, reason = rows[0]
    try:
        age = (clock.now() - datetime.fromisoformat(str(since))).total_seconds()
    except (ValueError, TypeError) as error:
        raise KnowledgeError(f"a pending capture says that it waits since {since!r}, which is no time") from error
    return PendingImages(captures=len(rows), oldest_seconds=age, reason=str(reason))


def _masked(counts: Iterable[Sequence[Any]]) -> dict[str, int]:
    kinds: Counter[str] = Counter()
    for _, name, number in counts:
        if name.startswith(MASKED):
            kinds[name.removeprefix(MASKED)] += number
    return dict(kinds)


def _attended(row: Sequence[Any], clock: Clock) -> Attended:
    guild_id, until, ahead, furthest = row
    now, moment, newest = clock.now(), position_of(str(until)).time, position_of(str(furthest)).time
    return Attended(
        guild_id=guild_id,
        until=moment,
        age_seconds=(now - moment).total_seconds(),
        channels_ahead=ahead,
        newest=newest,
        newest_age_seconds=(now - newest).total_seconds(),
    )


def unembedded(settings: Settings, figures: Figures) -> int:
    """Return how many documents have no vector of the model that is searched; 0 where there is none."""
    model = embedding_model(settings)
    return 0 if model is None else figures.documents - dict(figures.vectors).get(model, 0)


def lost_folders(paths: Paths, knowledge: Knowledge, *, moves: bool = False) -> Iterator[str]:
    """Tell that the archive is not there, though decisions tell of it, and of what a person edited. Blocks."""
    if knowledge.cursor() is not None and not moves and not paths.raw.exists():
        yield f"{paths.raw} is not there, though pairs were archived: correct kb.team_raw_dir, or put a backup there"
    for edited in edited_files(paths):
        name = re.sub(r"(\.[0-9]+)?\.edited$", "", edited.name[1:])  # a second one has a number
        adopt = f"run `intern topics adopt {name.removesuffix('.txt')}`, or " if edited.parent == paths.topics else ""
        yield f"{name} was edited by hand, which changes nothing; the edit is kept as {edited}: {adopt}delete it"


def holder_of(data_dir: Path) -> tuple[int | None, bool]:
    """Return the process that holds the folder, and whether one does. Reads the lock's file, to disturb no process.

    Only where a process died and left its id behind, the lock is tried, for an instant.
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
