"""How a data folder stands, read without its lock and without changing anything, whether or not a bot is at work."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from msgspec import Struct

from intern.core.clock import Clock
from intern.core.errors import KnowledgeError
from intern.core.ids import QAId, position_of
from intern.core.records import Filed, Parked
from intern.service.models import embedding_model
from intern.settings.loading import Paths, Settings
from intern.stores.archive import Archive
from intern.stores.blocks import time_of
from intern.stores.decisions import DecisionLog, read_state
from intern.stores.sqlite.maintenance import Figures, figures_of
from intern.stores.sqlite.pending import Retry, retries_of, retry_of
from intern.stores.sqlite.replies import Votes
from intern.stores.topics import TopicLibrary

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
    """A process holds the folder."""
    pid: int | None
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


def status_of(settings: Settings, *, clock: Clock) -> Status:
    """Read the folder. Raises KnowledgeError for what is there and cannot be read. Blocks."""
    paths = settings.paths
    pid, running = _holder(settings.data.dir)
    # The decisions first: what is archived meanwhile waits, but no decision is about a pair that we do not see.
    decisions = DecisionLog(paths.decisions)
    cursors = [read_state(paths.state), decisions.cursor()]
    passed_over = QAId(settings.kb.qa_raw_last_processed_id) or None
    archive = Archive(paths.raw, clock=clock)
    times = {pair.qa_id: pair.timestamp for pair in archive.after(passed_over)}
    until = max((time_of(cursor) for cursor in cursors if cursor), default=datetime.min.replace(tzinfo=UTC))
    undecided = [qa_id for qa_id in times if not decisions.decided(qa_id)]
    topics = TopicLibrary(paths.topics)
    figures = figures_of(paths.database)
    today, counts, retries = clock.now().date().isoformat(), figures.counts, retries_of(figures.retries)
    votes = dict(figures.votes)
    return Status(
        data_dir=str(settings.data.dir),
        running=running,
        pid=pid,
        archived=len(archive),
        topics=len(topics.names()),
        damaged=(
            *lost_folders(paths, decisions),
            *map(str, (*archive.damaged, *topics.damaged, *decisions.damaged)),
        ),
        waiting=sum(times[qa_id] > until for qa_id in undecided),
        undecided=sum(times[qa_id] <= until for qa_id in undecided),
        parked=tuple(_parked(each, retries) for each in decisions.parked() if each.qa_id in times),
        awaiting_review=len(decisions.awaiting()),
        due=len(decisions.due()),
        feedback=Votes(up=votes.get("up", 0), down=votes.get("down", 0)),
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
        unembedded=_unembedded(settings, figures),
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
    kinds: dict[str, int] = {}
    for _, name, number in counts:
        if name.startswith(MASKED):
            kind = name.removeprefix(MASKED)
            kinds[kind] = kinds.get(kind, 0) + number
    return kinds


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


def vectors_told(settings: Settings) -> tuple[str | None, int, int]:
    """The model whose vectors are searched, all documents, and those without such a vector. Blocks.

    Raises KnowledgeError.
    """
    figures = figures_of(settings.paths.database)
    return embedding_model(settings), figures.documents, _unembedded(settings, figures)


def outdated_answers(settings: Settings) -> int:
    """How many posted answers cite what is not there any more. Raises KnowledgeError. Blocks."""
    return figures_of(settings.paths.database).outdated_answers


def _unembedded(settings: Settings, figures: Figures) -> int:
    model = embedding_model(settings)
    return 0 if model is None else figures.documents - dict(figures.vectors).get(model, 0)


def lost_folders(paths: Paths, decisions: DecisionLog) -> Iterator[str]:
    """Archive and topics, where their folder is not there though decisions tell of what stood in it. Blocks."""
    if decisions.cursor() is None:
        return
    if not paths.raw.exists():
        yield f"{paths.raw} is not there, though pairs were archived: correct kb.team_raw_dir, or put a backup there"
    if not paths.topics.exists() and any(isinstance(each, Filed) for each in decisions.all()):
        yield (
            f"{paths.topics} is not there, though pairs were filed: correct kb.team_topics_dir, or run "
            "`intern regenerate`"
        )


def _holder(data_dir: Path) -> tuple[int | None, bool]:
    """The process that holds the folder, and whether one does. Reads the lock's file, so that it disturbs no process.

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
