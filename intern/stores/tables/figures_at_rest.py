"""Figures for `intern status`, read from the database as it is.

Functions that take a path block. All raise KnowledgeError.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple

import msgspec
from msgspec import Struct

from intern.core.ids import SourceId
from intern.stores.database import Database, Transaction
from intern.stores.tables.attempts import RETRIES
from intern.stores.tables.citations import COUNT_OUTDATED
from intern.stores.tables.store import OURS

_FIGURES = {
    "counts": f"select day, name, number from daily_counts {OURS}",
    "retries": RETRIES,
    "spent": "select day, cast(sum(prompt_tokens + completion_tokens) as bigint), sum(cost) from usage"
    f" {OURS} group by day",
    "votes": f"select vote, count(*) from feedback {OURS} group by vote",
    "pending_images": f"select since, reason from pending_captures {OURS} order by rid",
    "attended": "select server.guild_id, until, count(settled_to),"
    " case when max(settled_to) > until then max(settled_to) else until end"
    " from attended_servers as server"
    " left join checkpoints as point on point.community = server.community and point.guild_id = server.guild_id"
    " where server.community = :community group by server.guild_id, until order by server.guild_id",
    "vectors": f"select model, count(*) from document_vectors {OURS} group by model",
}
_NUMBERS = {
    "secret_facts": f"select sum(facts_secret) from extraction_log {OURS}",
    "outdated_answers": COUNT_OUTDATED,
    "pending_posts": f"select count(*) from posts {OURS} and state = 'open'",
    "waiting_jobs": f"select count(*) from jobs {OURS} and state <> 'finished'",
    "documents": f"select count(*) from documents {OURS}",
}


class DatabaseFigures(Struct, frozen=True, kw_only=True):
    """The content of a database in numbers; empty if there is none."""

    counts: tuple[tuple[str, str, int], ...] = ()
    """Day, name and number."""
    retries: tuple[tuple[str, int, str | None], ...] = ()
    """Pair, tries and the time of the next one."""
    spent: tuple[tuple[str, int, float], ...] = ()
    """Day, tokens and money."""
    votes: tuple[tuple[str, int], ...] = ()
    pending_images: tuple[tuple[str, str], ...] = ()
    """The time since when a capture waits, and why; oldest first."""
    attended: tuple[tuple[str, int, int, int], ...] = ()
    """Server, its checkpoint, the number of channels that are further, and the furthest checkpoint."""
    vectors: tuple[tuple[str, int], ...] = ()
    """Model and how many documents have a vector of it."""
    secret_facts: int = 0
    outdated_answers: int = 0
    pending_posts: int = 0
    waiting_jobs: int = 0
    documents: int = 0


def read_figures(database: Database) -> DatabaseFigures:
    """Return the figures of a database. Blocks; raises KnowledgeError."""

    def read(db: Transaction) -> DatabaseFigures:
        found = {name: db.rows(statement) for name, statement in _FIGURES.items()}
        return msgspec.convert(found | {name: db.number(each) for name, each in _NUMBERS.items()}, DatabaseFigures)

    return database.read_blocking(read)


_LOOKED_AT = 500  # texts, and characters of each
_TEXTS = f"select substr(text, 1, {_LOOKED_AT}) from documents {OURS} order by rid desc limit ?"
_QUESTIONS = f"select texts from answers {OURS} and texts is not null order by at desc limit ?"


def read_newest_texts(database: Database) -> tuple[Sequence[str], Sequence[str]]:
    """Return the beginnings of the newest documents, and the newest questions. Blocks; raises KnowledgeError."""
    return database.read_blocking(lambda db: (db.texts(_TEXTS, (_LOOKED_AT,)), db.texts(_QUESTIONS, (_LOOKED_AT,))))


class DiscoveredFile(NamedTuple):
    """A discovered file, as it can be searched."""

    source_id: SourceId
    type: str
    status: str
    path: str
    meta: str


def read_discovered_files(database: Database) -> tuple[DiscoveredFile, ...]:
    """Return all discovered files, by path. Blocks; raises KnowledgeError."""
    columns = ", ".join(DiscoveredFile._fields)
    statement = f"select {columns} from documents {OURS} and kind = 'file' order by path"
    return msgspec.convert(database.read_blocking(lambda db: db.rows(statement)), tuple[DiscoveredFile, ...])


async def write_heartbeat(db: Database, at: datetime) -> None:
    """Write a row, to learn whether the disk accepts writes."""
    statement = (
        "insert into heartbeat (community, at) values (:community, ?)"
        " on conflict (community) do update set at = excluded.at"
    )
    await db.write(lambda tx: tx.run(statement, (at.isoformat(),)))
