"""The state of a data folder, read without its lock and without changing anything, whether or not a bot is running."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Any

from msgspec import Struct

from intern.core.clock import Clock
from intern.core.decisions import PairParked
from intern.core.errors import KnowledgeError
from intern.core.ids import QAId, parse_position
from intern.service.calibration import read_calibration_status
from intern.service.databases import is_any_process_running, open_learned
from intern.service.embedding import embedding_model, open_vector_copy
from intern.service.hidden_files import find_edited_files
from intern.settings.settings import Paths, Settings
from intern.stores.folder_lock import FolderLock
from intern.stores.qa_ids import normalize_qa_id
from intern.stores.tables.attempts import Retry, find_retry, parse_retries
from intern.stores.tables.feedback import Votes
from intern.stores.tables.figures_at_rest import DatabaseFigures, read_figures
from intern.stores.tables.knowledge import KnowledgeStore

SHED = "questions_shed"
"""The name under which dropped questions are counted; see `intern.actors.activity`."""

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
    """Posted answers that cite sources that are gone or say something else now."""
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
    checkpoints: tuple[ServerReadProgress, ...]
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

    @property
    def refused_today(self) -> int:
        """Questions of this day beyond the limit of a member or of the server."""
        return sum(self.counts_today.get(f"questions_{each}", 0) for each in ("over_limit", "over_day_limit"))


def read_status(settings: Settings, *, clock: Clock) -> FolderStatus:
    """Read the folder. Raises KnowledgeError for existing files that cannot be read. Blocks."""
    pid = FolderLock(settings.home).find_holder()
    knowledge, archive = open_learned(settings, clock=clock)
    db, cursor = knowledge.db, knowledge.cursor()
    copy = open_vector_copy(settings, db)
    floor = QAId(settings.kb.qa_raw_last_processed_id)
    passed_over = normalize_qa_id(floor) if floor else ""
    archived, damaged = archive.scan_ids()
    counted = {each for each in archived if each > passed_over}
    until, undecided = normalize_qa_id(cursor) if cursor else "", knowledge.find_undecided(counted)
    figures = read_figures(db)
    today, retries, votes = clock.now().date().isoformat(), parse_retries(figures.retries), dict(figures.votes)
    counts_today = {name: number for day, name, number in figures.counts if day == today}
    counts = Counter[str]()
    for _, name, number in figures.counts:
        counts[name] += number
    tokens_today, cost_today = next(((tokens, cost) for day, tokens, cost in figures.spent if day == today), (0, 0))
    return FolderStatus(
        data_dir=str(settings.data.dir),
        running=pid is not None or is_any_process_running(settings),
        pid=pid,
        archived=len(archived),
        topics=len(knowledge.topic_names()),
        damaged=(*describe_folder_problems(settings.paths, knowledge, moves=settings.moves), *map(str, damaged)),
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
        shed_today=counts_today.get(SHED, 0),
        shed=counts[SHED],
        masked={name.removeprefix(MASKED): number for name, number in counts.items() if name.startswith(MASKED)},
        secret_facts=figures.secret_facts,
        counts_today=counts_today,
        outdated_answers=figures.outdated_answers,
        pending_posts=figures.pending_posts,
        pending_images=_read_pending_images(figures.pending_images, clock),
        waiting_jobs=figures.waiting_jobs,
        tokens_today=tokens_today,
        token_budget=settings.llm.daily_token_budget,
        cost_today=cost_today,
        cost_budget=settings.llm.daily_cost_budget,
        currency=settings.llm.currency,
        checkpoints=tuple(_build_read_progress(row, clock) for row in figures.attended),
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


def describe_folder_problems(paths: Paths, knowledge: KnowledgeStore, *, moves: bool = False) -> Iterator[str]:
    """Report a missing archive if decisions refer to it, and files that a person edited. Blocks."""
    if knowledge.cursor() is not None and not moves and not paths.raw.exists():
        yield f"{paths.raw} is not there, though pairs were archived: correct kb.team_raw_dir, or put a backup there"
    for edited in find_edited_files(paths):
        name = re.sub(r"(\.[0-9]+)?\.edited$", "", edited.name[1:])  # a second one has a number
        adopt = f"run `intern topics adopt {name.removesuffix('.txt')}`, or " if edited.parent == paths.topics else ""
        yield f"{name} was edited by hand, which changes nothing; the edit is kept as {edited}: {adopt}delete it"
