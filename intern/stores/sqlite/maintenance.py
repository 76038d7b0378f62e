"""The database file as a whole: copying, checking, figures for `intern status`, documents left out, and forgetting.

Functions that take a path block. All raise KnowledgeError.

`PersonalDataStore` removes people's words from jobs, posted answers and traces. Pending captures do so themselves.
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Iterable, Iterator, Mapping, Sequence, Set as AbstractSet
from contextlib import contextmanager
from datetime import datetime
from itertools import islice
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar

import apsw
import msgspec
from msgspec import Struct

from intern.core.clock import Clock
from intern.core.errors import KnowledgeError
from intern.core.flow import CaptureRequest
from intern.core.ids import MessageId, SourceId, UserId
from intern.core.log import get_logger
from intern.core.progress import report_progress
from intern.core.records import Capture
from intern.core.text.masking import mask_secrets
from intern.stores.blocks import bare_message_id, select_messages
from intern.stores.database import Database, Transaction
from intern.stores.sqlite.database import explain_error, has_tables
from intern.stores.sqlite.outbox import COUNT_OUTDATED
from intern.stores.sqlite.store import IN, OURS, Store, reads, text_array, writes
from intern.stores.sqlite.work import RETRIES

_log = get_logger(__name__)


_PAGES = 4096
"""Copied at a time; 16 MB."""

_FULL_TEXT = "select name from sqlite_schema where sql like 'create virtual table%using fts5%' order by name"

_BUSY_SECONDS = 30  # copying may wait


@contextmanager
def _open_file(path: Path, flags: int = apsw.SQLITE_OPEN_READWRITE) -> Generator[Any]:
    try:
        db: Any = apsw.Connection(str(path), flags=flags)
        try:
            db.set_busy_timeout(_BUSY_SECONDS * 1000)
            yield db
        finally:
            db.close()
    except apsw.Error as error:
        raise explain_error(path, error) from error


@contextmanager
def _open_read_only(path: Path) -> Generator[Any]:
    if not path.is_file():
        raise KnowledgeError(f"there is no database {path}")
    with _open_file(path) as db:
        db.pragma("query_only", 1)
        yield db


@contextmanager
def _open_copy(source: Path, to: Path) -> Generator[Any]:
    """Write the content of the file at one moment to a new one, and open that."""
    with _open_read_only(source) as reading:
        # A reader's view does not change, however much is written meanwhile, so the copy need never start anew.
        reading.execute("begin; select count(*) from sqlite_schema").fetchall()
        with _open_file(to, apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_CREATE) as writing:
            with writing.backup("main", reading, "main") as copy:
                while not copy.done:
                    copy.step(_PAGES)
                    report_progress("Copying {total} database pages", copy.page_count - copy.remaining, copy.page_count)
            yield writing


def copy_database(source: Path, to: Path) -> None:
    """Write the database at one moment, without recordings, to a new file, without a log beside it."""
    with _open_copy(source, to) as copy:
        if has_tables(copy, to):
            # Where it takes the original's place, the search must not go on from the changes that came after.
            copy.execute("delete from identities")
            # A copy lasts longer than recordings may.
            copy.execute("delete from recording_messages")
            copy.execute("delete from recorded_texts")
            copy.execute("delete from recordings")
            if copy.changes():
                copy.execute("vacuum")
        copy.pragma("journal_mode", "delete")


def is_made(path: Path) -> bool:
    """Return whether the file has its tables, and is not empty yet."""
    with _open_read_only(path) as db:
        return has_tables(db, path)


def find_problems(path: Path, most: int) -> tuple[str, ...]:
    """Return the problems that SQLite finds in a file: pages and rows first, then dangling references; bounded."""
    with _open_read_only(path) as db:
        try:
            # SQLite does not say how far this is.
            report_progress("Checking {total} database pages", 0, int(db.pragma("page_count")))
            integrity = [str(row[0]) for row in db.execute(f"pragma integrity_check({most})").fetchall()]
            wrong = [] if integrity == ["ok"] else integrity
            for table, rid, parent, _ in db.execute("pragma foreign_key_check").fetchall()[:most]:
                wrong.append(f"{'a row' if rid is None else f'row {rid}'} of {table} points to nothing in {parent}")
            return tuple(wrong[:most])
        except (apsw.CorruptError, apsw.NotADBError) as error:
            return (str(error),)


def find_broken_indexes(path: Path) -> tuple[str, ...]:
    """Return the full-text tables that do not match the tables that they index.

    Checks a copy, since SQLite treats this as writing, and others write here. It needs room for that.
    """
    from tempfile import TemporaryDirectory  # noqa: PLC0415 `intern status` needs none

    with TemporaryDirectory(prefix="intern-") as folder, _open_copy(path, Path(folder) / "copy.db") as db:
        tables = [str(name) for (name,) in db.execute(_FULL_TEXT).fetchall()]
        return tuple(table for table in tables if not _is_sound(db, table))


def _is_sound(db: Any, table: str) -> bool:
    try:
        db.execute(f"insert into {table} ({table}, rank) values ('integrity-check', 1)").fetchall()
    except apsw.CorruptError:
        return False
    return True


_FIGURES = {
    "counts": f"select day, name, number from counts {OURS}",
    "retries": RETRIES,
    "spent": "select day, cast(sum(prompt_tokens + completion_tokens) as bigint), sum(cost) from usage"
    f" {OURS} group by day",
    "votes": f"select vote, count(*) from feedback {OURS} group by vote",
    "pending_images": f"select since, reason from pending_captures {OURS} order by rid",
    "attended": "select attended.guild_id, until, count(mark),"
    " case when max(mark) > until then max(mark) else until end"
    " from attended left join marks on marks.community = attended.community and marks.guild_id = attended.guild_id"
    " where attended.community = :community group by attended.guild_id, until order by attended.guild_id",
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
_QUESTIONS = (
    f"select text from (select texts as text, at from questions {OURS} union all"
    f" select asked as text, at from posted_answers {OURS}) as asked_for order by at desc limit ?"
)


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


LeftOutKind = Literal["document", "link"]

_MOST_LOGGED = 50  # at once; a folder of pictures has thousands

_ALL = f"select kind, place, reason, since from left_out {OURS} order by kind, place"


class SkippedSource(NamedTuple):
    """A file or line that is no source, though the operator may expect it to be one."""

    kind: LeftOutKind
    place: str
    """The path below the sources folder, or the name of the list and the number of its line."""
    reason: str
    since: datetime
    """When it was first skipped for this reason."""


class SkippedSourceStore(Store):
    """The sources that were skipped at the last scan."""

    def __init__(self, db: Database, *, clock: Clock) -> None:
        super().__init__(db, clock=clock)
        self._told: dict[LeftOutKind, Mapping[str, str]] = {}

    async def save(self, kind: LeftOutKind, skipped: Iterable[tuple[str, str]]) -> None:
        """Store all skipped sources of a kind, by place and reason. Nothing is written if nothing has changed.

        A source that the last scan did not skip, or for another reason, is logged; after a start, every one is.
        """
        found = dict(skipped)
        if kind == "link":  # these reasons quote the lines
            found = {place: mask_secrets(reason).text for place, reason in found.items()}
        self._log_new(kind, found)
        rows = await self.db.rows(f"select place, reason from left_out {OURS} and kind = ?", (kind,))
        if dict(msgspec.convert(rows, list[tuple[str, str]])) != found:
            await self._save(kind, found)

    @writes
    def _save(self, db: Transaction, kind: LeftOutKind, found: Mapping[str, str]) -> None:
        db.run(f"delete from left_out {OURS} and kind = ? and place not {IN}", (kind, text_array(found)))
        db.run_each(
            "insert into left_out (community, kind, place, reason, since) values (:community, ?, ?, ?, ?)"
            " on conflict (community, kind, place) do update set reason = excluded.reason, since = excluded.since"
            " where left_out.reason <> excluded.reason",
            [(kind, place, reason, self.now()) for place, reason in found.items()],
        )

    async def all(self) -> tuple[SkippedSource, ...]:
        """Return everything, by kind and place."""
        return msgspec.convert(await self.db.rows(_ALL), tuple[SkippedSource, ...])

    def _log_new(self, kind: LeftOutKind, found: Mapping[str, str]) -> None:
        told = self._told.get(kind, {})
        self._told[kind] = found
        fresh = [place for place, reason in found.items() if told.get(place) != reason]
        for place in islice(fresh, _MOST_LOGGED):
            _log.warning(f"{kind}_left_out", source_id=place, reason=found[place])
        if len(fresh) > _MOST_LOGGED:
            _log.warning(f"{kind}s_left_out", more=len(fresh) - _MOST_LOGGED)


def read_skipped_sources(database: Database) -> tuple[SkippedSource, ...]:
    """Return everything, by kind and place. Blocks; raises KnowledgeError."""
    return msgspec.convert(database.read_blocking(lambda db: db.rows(_ALL)), tuple[SkippedSource, ...])


S = TypeVar("S", bound=Struct)


_CAPTURES = f"select id, kind, state, payload, result from jobs {OURS} and kind in ('capture', 'import') order by id"


_NOTHING = b"null"


class PersonalDataStore(Store):
    """Traces, posts, jobs, votes and greetings."""

    @reads
    def find_messages_by(self, db: Transaction, user_id: UserId) -> frozenset[MessageId]:
        """Return a member's messages that are on their way to the archive, or were brought there by a command."""
        requests = _decode_rows(db, f"select request from pending_captures {OURS}", CaptureRequest)
        waiting = {each.id for request in requests for each in request.messages if each.author.id == user_id}
        captures = [each for job in _read_capture_jobs(db) for each in _decode_captures(job.payload) or ()]
        written = (pair for each in captures for pair in zip(each.message_ids, each.author_ids, strict=False))
        return frozenset(waiting.union(message_id for message_id, author in written if author == user_id))

    @reads
    def holds(self, db: Transaction, message_ids: Collection[MessageId]) -> bool:
        """Return whether anything here is about these messages."""
        gone = frozenset(map(bare_message_id, message_ids))
        return any(db.row(statement, (text_array(gone),) * statement.count("?")) for statement in _ABOUT) or any(
            _is_about(job.payload, gone) for job in _read_capture_jobs(db)
        )

    @writes
    def forget(self, db: Transaction, message_ids: Collection[MessageId]) -> None:
        """Remove messages.

        Replies to them are dropped if they are not on Discord yet. Of all replies that are posted or given
        up only the ids stay: they may quote any message, and their text is not needed any more.
        """
        gone = frozenset(map(bare_message_id, message_ids))
        for statement in _FORGETTING:
            db.run(statement, (text_array(gone),) * statement.count("?"))
        for job in _read_capture_jobs(db):
            if _is_about(job.payload, gone) or _is_about(job.result, gone):
                payload = _NOTHING if job.state == "finished" else _strip_payload(job, gone)
                # Of an import, the result is numbers; of a capture, it is the pair.
                result = job.result if job.kind == "import" else _NOTHING
                db.run(
                    f"update jobs set payload = ?, result = ? {OURS} and id = ?",
                    (payload, result if job.state == "finished" else None, job.id),
                )

    @writes
    def forget_member(self, db: Transaction, user_id: UserId) -> None:
        """Remove a member's votes, and the note that they were greeted."""
        for table in ("feedback", "greeted"):
            db.run(f"delete from {table} {OURS} and user_id = ?", (user_id,))


_POSTS = (
    f"community = :community and (question_id {IN} or question_id in"
    f" (select question_id from post_messages {OURS} and message_id {IN}))"
)


_TRACES = f"community = :community and rid in (select trace from trace_messages {OURS} and message_id {IN})"


_ABOUT = (
    f"select 1 from traces where {_TRACES}",
    f"select 1 from posts where {_POSTS}",
    f"select 1 from pending_messages {OURS} and message_id {IN}",
)


_ENDED = f"select question_id from posts {OURS} and state <> 'open'"


_FORGETTING = (
    f"delete from answer_judgements {OURS} and question_id {IN}",
    f"delete from traces where {_TRACES}",
    f"update posts set state = 'dropped', reason = 'forgotten' where state = 'open' and {_POSTS}",
    f"update post_parts set text = '' {OURS} and question_id in ({_ENDED})",
)


def _decode_rows(db: Transaction, statement: str, kind: type[S]) -> Iterator[S]:
    """Yield the values of a column of JSON; skip those that cannot be decoded, since their authors are unknown."""
    for (data,) in msgspec.convert(db.rows(statement), list[tuple[bytes]]):
        try:
            yield msgspec.json.decode(data, type=kind)
        except msgspec.MsgspecError:
            continue


class _CaptureJob(NamedTuple):
    """A job that holds captures."""

    id: int
    kind: str
    state: str
    payload: bytes
    result: bytes | None


def _read_capture_jobs(db: Transaction) -> list[_CaptureJob]:
    return msgspec.convert(db.rows(_CAPTURES), list[_CaptureJob])


_DECODER: msgspec.json.Decoder[Capture | list[Capture] | None] = msgspec.json.Decoder(Capture | list[Capture] | None)


def _decode_captures(data: bytes | None) -> Sequence[Capture] | None:
    """Return the captures in a payload or result; None where it cannot be decoded."""
    try:
        found = _DECODER.decode(data or b"[]")
    except msgspec.MsgspecError:
        return None
    return found if isinstance(found, list) else [found] if found else ()


def _is_about(data: bytes | None, gone: AbstractSet[str]) -> bool:
    """Return whether one of these messages is in a job's payload or result."""
    captures = _decode_captures(data)
    if captures is None:
        return data is not None and any(each.encode() in data for each in gone)
    return any(not gone.isdisjoint(map(bare_message_id, capture.message_ids)) for capture in captures)


def _strip_payload(job: _CaptureJob, gone: AbstractSet[str]) -> bytes:
    """Return a payload without these messages; none of a payload that cannot be decoded, since no one could do it."""
    captures = [_strip_capture(capture, gone) for capture in _decode_captures(job.payload) or ()]
    return msgspec.json.encode(captures if job.kind == "import" else captures[0] if captures else None)


def _strip_capture(capture: Capture, gone: AbstractSet[str]) -> Capture:
    aligned = len(capture.turns) == len(capture.message_ids)
    kept = [
        n for n, message_id in enumerate(capture.message_ids) if aligned and bare_message_id(message_id) not in gone
    ]
    return select_messages(capture, kept)
