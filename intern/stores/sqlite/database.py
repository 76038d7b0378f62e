"""The one SQLite file: a single writer thread that commits in groups, and readers beside it.

A write that returned is on disk (WAL, `synchronous=FULL`); a write that raised left no trace. Works on asyncio and
on trio, and several processes may hold the file open at once. The tables of every store are declared here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Thread
from types import TracebackType
from typing import Any, Generic, Protocol, Self, TypeAlias, TypeVar, cast

import anyio
import apsw
from anyio import CapacityLimiter, RunFinishedError, from_thread, to_thread
from anyio.lowlevel import EventLoopToken, current_token

from intern.core.errors import KnowledgeError
from intern.core.log import get_logger

_log = get_logger(__name__)

T = TypeVar("T")
Value: TypeAlias = str | int | float | bytes | None
Row: TypeAlias = tuple[Value, ...]


class Transaction:
    """What a piece of work may do inside its transaction. Statements are run to their end, so none outlives it."""

    def __init__(self, db: _Connection) -> None:
        self._db = db

    def rows(self, statement: str, values: Sequence[Value] = ()) -> list[Row]:
        """All rows that the statement gives."""
        return self._db.execute(statement, values).fetchall()

    def row(self, statement: str, values: Sequence[Value] = ()) -> Row | None:
        """The first row that the statement gives, or None."""
        return next(iter(self.rows(statement, values)), None)

    def run(self, statement: str, values: Sequence[Value] = ()) -> int:
        """How many rows the statement (insert, update or delete) touched."""
        self.rows(statement, values)
        return self._db.changes()

    def run_each(self, statement: str, values: Iterable[Sequence[Value]]) -> None:
        """Run the statement once for each set of values."""
        self._db.executemany(statement, values).fetchall()


Migration: TypeAlias = str | Callable[[Transaction], None]

MIGRATIONS: tuple[Migration, ...] = (
    # 1: replies in work, jobs for the process that holds the folder, attempts at pairs, tokens spent.
    """
    create table posts (
        rid integer primary key,
        question_id text not null unique,
        channel_id text not null,
        target text not null,
        thread_id text,
        state text not null check (state in ('open', 'finished', 'dropped')),
        reason text not null,
        changed_at text not null
    ) strict;
    create index posts_of_thread on posts (thread_id) where state = 'finished';
    create index posts_in_work on posts (rid) where state = 'open';
    create table post_parts (
        question_id text not null references posts (question_id) on delete cascade,
        n integer not null,
        text text not null,
        nonce text not null,
        message_id text,
        primary key (question_id, n)
    ) strict, without rowid;
    create table jobs (
        id integer primary key autoincrement,
        kind text not null,
        key text not null,
        payload blob not null,
        state text not null check (state in ('waiting', 'claimed', 'finished')),
        claims integer not null default 0,
        result blob,
        error text,
        exit_code integer
    ) strict;
    create index jobs_by_state on jobs (state, id);
    create table attempts (
        qa_id text primary key,
        begun integer not null
    ) strict, without rowid;
    create table usage (
        day text not null,
        prompt text not null,
        calls integer not null,
        prompt_tokens integer not null,
        completion_tokens integer not null,
        primary key (day, prompt)
    ) strict, without rowid;
    """,
    # 2: what a resend needs, which messages a reply is for; votes; why a question was answered or not; counts by day.
    """
    alter table posts add column notice integer not null default 0;
    alter table posts add column buttons text not null default '[]';
    alter table posts add column mention_role text;
    create table post_messages (
        message_id text primary key,
        question_id text not null references posts (question_id) on delete cascade
    ) strict, without rowid;
    create index messages_of_post on post_messages (question_id);
    create index parts_by_message on post_parts (message_id) where message_id is not null;
    create table feedback (
        question_id text not null,
        user_id text not null,
        vote text not null check (vote in ('up', 'down')),
        at text not null,
        primary key (question_id, user_id)
    ) strict, without rowid;
    create table traces (
        rid integer primary key,
        question_id text not null unique,
        channel_id text not null,
        at text not null,
        outcome text not null,
        reason text not null,
        debug text not null
    ) strict;
    create index traces_of_channel on traces (channel_id, at);
    create table counts (
        day text not null,
        name text not null,
        number integer not null,
        primary key (day, name)
    ) strict, without rowid;
    """,
    # 3: how far servers and channels were read and settled.
    """
    create table attended (
        guild_id text primary key,
        until integer not null
    ) strict, without rowid;
    create table marks (
        channel_id text primary key,
        guild_id text not null,
        mark integer not null
    ) strict, without rowid;
    """,
    # 4: captures that wait for a word on their images; members who were told that intern reads no private messages;
    # pairs that were parked, to be tried again; whether a reply's asker called the bot.
    """
    create table pending_captures (
        rid integer primary key autoincrement,
        conversation_id text not null,
        request blob not null,
        reason text not null,
        attempts integer not null,
        next_at text not null,
        since text not null,
        version integer not null default 0
    ) strict;
    create index pending_by_conversation on pending_captures (conversation_id);
    create table pending_messages (
        message_id text not null,
        capture integer not null references pending_captures (rid) on delete cascade,
        primary key (message_id, capture)
    ) strict, without rowid;
    create index messages_of_pending on pending_messages (capture);
    create table image_texts (
        rid integer primary key autoincrement,
        message_id text not null,
        attachment_id text not null,
        text text not null,
        unique (message_id, attachment_id)
    ) strict;
    create table greeted (
        user_id text primary key,
        at text not null
    ) strict, without rowid;
    create table retries (
        qa_id text primary key,
        tries integer not null,
        next_at text
    ) strict, without rowid;
    alter table posts add column called integer not null default 0;
    """,
    # 5: what can be searched. The full-text tables hold no text of their own: triggers keep them true, and VACUUM
    # leaves `rid` alone. With `secure-delete`, nothing of a deleted document stays in their pages.
    """
    create table search_documents (
        rid integer primary key,
        id text not null unique,
        source_id text not null,
        kind text not null,
        part text not null,
        type text not null,
        status text not null,
        path text not null,
        title text not null,
        text text not null,
        unspaced text not null,
        meta text not null,
        stamp text not null,
        at text not null
    ) strict;
    create index documents_of_source on search_documents (source_id);
    create virtual table search_words using fts5 (
        title, path, text, content = 'search_documents', content_rowid = 'rid',
        tokenize = 'porter unicode61 remove_diacritics 2'
    );
    create virtual table search_trigrams using fts5 (
        unspaced, content = 'search_documents', content_rowid = 'rid', tokenize = 'trigram'
    );
    insert into search_words (search_words, rank) values ('secure-delete', 1);
    insert into search_trigrams (search_trigrams, rank) values ('secure-delete', 1);
    create trigger document_added after insert on search_documents begin
        insert into search_words (rowid, title, path, text) values (new.rid, new.title, new.path, new.text);
        insert into search_trigrams (rowid, unspaced) values (new.rid, new.unspaced);
    end;
    create trigger document_removed after delete on search_documents begin
        insert into search_words (search_words, rowid, title, path, text)
            values ('delete', old.rid, old.title, old.path, old.text);
        insert into search_trigrams (search_trigrams, rowid, unspaced) values ('delete', old.rid, old.unspaced);
    end;
    create trigger document_changed after update on search_documents begin
        insert into search_words (search_words, rowid, title, path, text)
            values ('delete', old.rid, old.title, old.path, old.text);
        insert into search_words (rowid, title, path, text) values (new.rid, new.title, new.path, new.text);
        insert into search_trigrams (search_trigrams, rowid, unspaced) values ('delete', old.rid, old.unspaced);
        insert into search_trigrams (rowid, unspaced) values (new.rid, new.unspaced);
    end;
    """,
    # 6: what is distilled from conversations (times in milliseconds since 1970, UTC), and vectors of what can be
    # searched. `search_changes` tells whoever holds vectors in memory, in whichever process, which of them to read
    # again; whoever slept through the last 8,192 reads all of them. A vector goes with the text that it is of.
    """
    create table conversations (
        rid integer primary key,
        id text not null unique,
        agent_id text not null,
        origin text not null check (origin in ('capture', 'answer', 'note')),
        guild_id text,
        channel_id text,
        message_ids text not null,
        last_message_at integer not null,
        content_hash text not null,
        is_withdrawn integer not null default 0
    ) strict;
    create table facts (
        rid integer primary key,
        id text not null unique,
        agent_id text not null,
        category text not null,
        content text not null,
        summary text not null,
        visibility text not null check (visibility in ('shared', 'private', 'secret')),
        confidence real not null,
        first_seen_at integer not null,
        last_seen_at integer not null,
        occurrence_count integer not null,
        supersedes text references facts (id),
        is_active integer not null,
        retired_at integer,
        retired_why text not null default '',
        wording text not null
    ) strict;
    create unique index facts_by_supersedes on facts (supersedes) where supersedes is not null;
    create index facts_by_wording on facts (wording);
    create table fact_beliefs (
        rid integer primary key,
        fact_id text not null unique references facts (id),
        since integer not null,
        until integer
    ) strict;
    create index facts_by_category on facts (category);
    create index facts_by_agent on facts (agent_id);
    create index facts_by_visibility on facts (visibility);
    create table fact_occurrences (
        rid integer primary key,
        id text not null unique,
        fact_id text not null references facts (id),
        conversation_id text not null references conversations (id),
        timestamp integer not null,
        context_snippet text not null,
        sentiment text not null,
        is_withdrawn integer not null default 0,
        first_at integer not null -- the first time that the conversation said so, however often it was read since
    ) strict;
    create index occurrences_of_fact on fact_occurrences (fact_id);
    create index occurrences_of_conversation on fact_occurrences (conversation_id);
    create virtual table facts_fts using fts5 (
        content, summary, content = 'facts', content_rowid = 'rid', tokenize = 'porter unicode61 remove_diacritics 2'
    );
    insert into facts_fts (facts_fts, rank) values ('secure-delete', 1);
    create trigger fact_added after insert on facts begin
        insert into facts_fts (rowid, content, summary) values (new.rid, new.content, new.summary);
    end;
    create trigger fact_removed after delete on facts begin
        insert into facts_fts (facts_fts, rowid, content, summary) values ('delete', old.rid, old.content, old.summary);
    end;
    create trigger fact_changed after update of content, summary on facts begin
        insert into facts_fts (facts_fts, rowid, content, summary) values ('delete', old.rid, old.content, old.summary);
        insert into facts_fts (rowid, content, summary) values (new.rid, new.content, new.summary);
    end;
    create table extractions_due (
        rid integer primary key,
        conversation_id text not null unique
    ) strict;
    create table extraction_log (
        conversation_id text primary key references conversations (id),
        content_hash text not null,
        extracted_at integer not null,
        model_used text not null,
        facts_extracted integer not null default 0,
        facts_updated integer not null default 0,
        facts_deduplicated integer not null default 0,
        facts_secret integer not null default 0,
        nuggets_extracted integer not null default 0,
        attempts integer not null default 0,
        next_at integer,
        error text
    ) strict, without rowid;
    create table nuggets (
        rid integer primary key,
        id text not null unique,
        conversation_id text not null references conversations (id),
        topic text not null,
        timestamp integer not null,
        topic_summary text not null,
        detailed_analysis text not null,
        status text not null check (status in ('FACT', 'SPECULATION', 'COMMUNITY_OPINION')),
        keywords text not null,
        source_message_ids text not null,
        user_ids_involved text not null,
        guild_id text,
        channel_id text
    ) strict;
    create index nuggets_of_conversation on nuggets (conversation_id);
    create table positions (
        follower text primary key,
        position text not null
    ) strict, without rowid;
    alter table search_documents
        add column visibility text not null default 'shared' check (visibility in ('shared', 'private'));
    alter table search_documents add column guild_id text not null default '';
    create index stamps_of_kind on search_documents (kind, source_id, stamp);
    create table search_vectors (
        rid integer primary key references search_documents (rid) on delete cascade,
        model text not null,
        vector blob not null
    ) strict;
    create index vectors_of_model on search_vectors (model);
    create table search_changes (
        n integer primary key autoincrement,
        rid integer not null
    ) strict;
    create trigger vector_added after insert on search_vectors begin
        insert into search_changes (rid) values (new.rid);
    end;
    create trigger vector_changed after update on search_vectors begin
        insert into search_changes (rid) values (new.rid);
    end;
    create trigger vector_removed after delete on search_vectors begin
        insert into search_changes (rid) values (old.rid);
    end;
    create trigger document_of_vector_changed
        after update of source_id, kind, part, type, status, visibility, guild_id, at on search_documents
        when exists (select 1 from search_vectors where rid = new.rid) begin
        insert into search_changes (rid) values (new.rid);
    end;
    create trigger text_of_vector_changed after update of title, text on search_documents
        when old.title <> new.title or old.text <> new.text begin
        delete from search_vectors where rid = new.rid;
    end;
    create trigger change_noted after insert on search_changes begin
        delete from search_changes where n <= new.n - 8192;
    end;
    create table vector_memory (
        key text primary key,
        vector blob not null,
        used_at integer not null
    ) strict, without rowid;
    create index vectors_by_use on vector_memory (used_at);
    """,
    # 7: questions that found no answer, in their own words, for the operator; and a row to try whether the disk takes
    # what is written.
    """
    create table unanswered (
        rid integer primary key,
        question_id text not null unique,
        message_ids text not null,
        author_id text not null,
        channel_id text not null,
        at text not null,
        reason text not null,
        text text not null
    ) strict;
    create index unanswered_of_author on unanswered (author_id);
    create table heartbeat (
        one integer primary key check (one = 1),
        at text not null
    ) strict;
    """,
    # 8: what calls cost, in the currency of the prices that were set then.
    "alter table usage add column cost real not null default 0",
    # 9: threads that were answered in: when to look at them (milliseconds since 1970), and who wrote what was read
    # there.
    """
    create table answered_threads (
        rid integer primary key,
        thread_id text not null unique,
        look_at integer
    ) strict;
    create index answered_by_look on answered_threads (look_at) where look_at is not null;
    create table thread_messages (
        thread_id text not null,
        message_id text not null,
        author_id text not null,
        is_outside integer not null,
        is_held integer not null,
        primary key (thread_id, message_id)
    ) strict, without rowid;
    create index thread_messages_by_id on thread_messages (message_id);
    create index thread_messages_by_author on thread_messages (author_id);
    create index posts_by_end on posts (changed_at, rid) where state = 'finished';
    """,
    # 10: what members are called, so that a model is told none of it; `look` is the name as it is searched for.
    """
    create table member_names (
        rid integer primary key,
        author_id text not null,
        name text not null,
        look text not null,
        unique (author_id, name)
    ) strict;
    """,
    # 11: what roles members have, as last seen (milliseconds since 1970), so that a restart knows the team again.
    """
    create table member_roles (
        guild_id text not null,
        user_id text not null,
        roles text not null,
        seen_at integer not null,
        primary key (guild_id, user_id)
    ) strict, without rowid;
    create index roles_by_age on member_roles (seen_at);
    """,
    # 12: descriptions lie behind all texts, from 2^40 on: whoever wants texts need not have them weighed. The full-text
    # tables are made anew, which takes less than a change of each document.
    """
    pragma defer_foreign_keys = on;
    drop trigger document_changed;
    update search_vectors set rid = rid + (1 << 40)
        where rid in (select rid from search_documents where part = 'description');
    update search_documents set rid = rid + (1 << 40) where part = 'description';
    -- A topic that grew is put whole: what stayed as it was is not indexed anew.
    create trigger document_changed after update on search_documents
        when (old.title, old.path, old.text, old.unspaced) is not (new.title, new.path, new.text, new.unspaced) begin
        insert into search_words (search_words, rowid, title, path, text)
            values ('delete', old.rid, old.title, old.path, old.text);
        insert into search_words (rowid, title, path, text) values (new.rid, new.title, new.path, new.text);
        insert into search_trigrams (search_trigrams, rowid, unspaced) values ('delete', old.rid, old.unspaced);
        insert into search_trigrams (rowid, unspaced) values (new.rid, new.unspaced);
    end;
    create trigger document_put_in_its_range after insert on search_documents
        when (new.part = 'description') <> (new.rid >= 1 << 40) begin
        select raise(abort, 'a document lies where none of its part is looked for: is an older intern at work?');
    end;
    create trigger document_moved_to_its_range after update of rid, part on search_documents
        when (new.part = 'description') <> (new.rid >= 1 << 40) begin
        select raise(abort, 'a document lies where none of its part is looked for: is an older intern at work?');
    end;
    insert into search_words (search_words) values ('rebuild');
    insert into search_trigrams (search_trigrams) values ('rebuild');
    """,
    """
    create table left_out (
        kind text not null,
        place text not null,
        reason text not null,
        since text not null,
        primary key (kind, place)
    ) strict, without rowid;
    """,
    # Which account tells what became of a message.
    """
    create table trace_messages (
        message_id text primary key,
        trace integer not null references traces (rid) on delete cascade
    ) strict, without rowid;
    create index messages_of_trace on trace_messages (trace);
    """,
    # Tokens of prompts that the endpoint says it had in its cache.
    "alter table usage add column cached_tokens integer not null default 0",
    # What posted answers cite, to tell whether it still stands.
    """
    create table posted_answers (
        rid integer primary key autoincrement,
        question_id text not null unique references posts (question_id) on delete cascade,
        author_id text not null,
        asked text not null,
        at text not null,
        retracted text not null check (retracted in ('', 'open', 'retracted', 'dropped'))
    ) strict;
    create index answers_of_author on posted_answers (author_id);
    create table posted_citations (
        question_id text not null references posted_answers (question_id) on delete cascade,
        n integer not null,
        source_id text not null,
        title text not null,
        quote text not null,
        digest text not null,
        state text not null check (state in ('', 'changed', 'extended', 'gone')),
        since text,
        primary key (question_id, n)
    ) strict, without rowid;
    create index citations_of_source on posted_citations (source_id);
    """,
    # What the model replied to whole requests, and the questions that these replies were used for.
    """
    create table model_replies (
        key text primary key,
        reply blob not null,
        made_at text not null,
        used_at text not null
    ) strict, without rowid;
    create index replies_by_use on model_replies (used_at);
    create table reply_uses (
        message_id text not null,
        key text not null,
        at text not null,
        primary key (message_id, key)
    ) strict, without rowid;
    create index uses_by_age on reply_uses (at);
    create table reply_forgettings (count integer not null) strict;
    insert into reply_forgettings values (0);
    """,
    # What endpoints take of a request, so that a restart does not repeat what they refuse.
    """
    create table endpoint_forms (
        endpoint text primary key,
        streaming integer not null check (streaming between 0 and 2),
        temperature integer not null,
        bounds integer not null
    ) strict, without rowid;
    """,
)
"""Step n leads from schema n-1 to schema n. A step that was released is never changed again."""

# The longest commit we know is a checkpoint of some hundred ms; whoever holds the file longer than this is stuck.
_BUSY_SECONDS = 5

# The first caller of a group waits for the last: 256 operations are 3 ms, against 0.2 ms for the commit itself.
_LARGEST_GROUP = 256

# Reads are short; two cores gain nothing from more, and each connection keeps a page cache of 2 MB.
_READERS = 4

# Closing waits this long for what is queued. SQLite undoes what a process that ends earlier had not committed.
_CLOSE_SECONDS = 30


class Database:
    """One open file. Belongs to the event loop that opened it; close it there, also after an error."""

    def __init__(self, path: Path, writer: _Connection, token: EventLoopToken) -> None:
        self._path = path
        self._token = token
        # Holds no more than one operation per task, as each waits for its own.
        self._queue: SimpleQueue[_Operation[object] | None] = SimpleQueue()
        self._idle_readers: list[_Connection] = []
        self._limiter = CapacityLimiter(_READERS)
        self._watcher: _Connection | None = None
        self._closed = False
        self._ended = anyio.Event()
        # A daemon, so that a loop that died without `close` does not keep the process alive.
        Thread(target=self._work_off, args=(writer,), name="database writer", daemon=True).start()

    @classmethod
    async def open(cls, path: Path, *, migrations: Sequence[Migration] = MIGRATIONS) -> Self:
        """Open the file, made with its folders where it is missing, and bring its schema up to date.

        Raises KnowledgeError when it is damaged, unwritable, held by another program, or of a newer intern.
        """
        writer = await to_thread.run_sync(_opened, path, migrations)
        return cls(path, writer, current_token())

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def write(self, work: Callable[[Transaction], T]) -> T:
        """Run `work` in a transaction on the writer thread; once this returns, its changes survive any crash.

        Other callers' work may share the commit, never the fate: what `work` raises undoes its own changes only and
        is raised here. Where the caller is cancelled, the work is still done, or not at all. `work` does not commit.
        Raises KnowledgeError when the file is busy, damaged, full or unwritable.
        """
        operation = _Operation(work)
        self._submit(operation)
        await operation.done.wait()
        return self._unless_broken(operation)

    async def read(self, work: Callable[[Transaction], T], *, steady: bool = True) -> T:
        """Run `work` on a worker thread against one unchanging view of what is committed. It cannot write.

        Unless it is `steady`, what it reads may change between two statements: one alone needs no more, and a
        transaction takes as long as a look at some rows. Raises KnowledgeError when the file is damaged or cannot be
        read.
        """
        if self._closed:
            raise RuntimeError(f"{self._path} is closed")
        return await to_thread.run_sync(self._read, work, steady, limiter=self._limiter)

    async def version(self) -> int | None:
        """A number that is another one after each commit, whoever made it; None where that cannot be told now.

        It stands in memory, so once it was asked for, it takes microseconds. Raises KnowledgeError.
        """
        if self._watcher is None:
            opened = await to_thread.run_sync(self._watching)
            # One for all, since those of two connections cannot be compared.
            if self._watcher is None and not self._closed:
                self._watcher = opened
            else:
                opened.close()
        if self._closed or self._watcher is None:
            raise RuntimeError(f"{self._path} is closed")
        try:
            return int(str(self._watcher.pragma("data_version")))
        except apsw.BusyError:
            return None
        except apsw.Error as error:
            raise explained(self._path, error) from error

    async def scrub(self) -> None:
        """Leave nothing on disk of what was deleted or overwritten, in the file or in its log.

        Takes as long as writing the file anew; other writes wait. Raises KnowledgeError, also where somebody reads for
        so long that the log could not be emptied; what was deleted may be found in it then.
        """
        operation = _Scrubbing(self._path.parent)
        self._submit(operation)
        await operation.done.wait()
        self._unless_broken(operation)

    async def close(self) -> None:
        """Finish what is queued, then let the file go. Harmless when repeated."""
        if not self._closed:
            self._closed = True
            if self._watcher is not None:
                self._watcher.close()
            self._queue.put(None)
        with anyio.move_on_after(_CLOSE_SECONDS, shield=True):
            await self._ended.wait()
            return
        _log.warning("database_close_timed_out", path=str(self._path), seconds=_CLOSE_SECONDS)

    def _submit(self, operation: _Operation[T]) -> None:
        if self._closed:
            raise RuntimeError(f"{self._path} is closed")
        self._queue.put(cast("_Operation[object]", operation))

    def _unless_broken(self, operation: _Operation[T]) -> T:
        error = operation.error
        if isinstance(error, apsw.Error):
            raise explained(self._path, error) from error
        if error is not None:
            raise error
        return cast("T", operation.value)

    # From here on: worker threads.

    def _watching(self) -> _Connection:
        try:
            watcher = _connected(self._path, read_only=True)
            watcher.set_busy_timeout(0)  # it is asked on the event loop's thread
        except apsw.Error as error:
            raise explained(self._path, error) from error
        return watcher

    def _read(self, work: Callable[[Transaction], T], steady: bool) -> T:  # noqa: FBT001 by position into a thread
        try:
            reader = self._idle_reader() or _connected(self._path, read_only=True)
            try:
                if steady:
                    reader.execute("begin")
                return work(Transaction(reader))
            finally:
                if reader.in_transaction:
                    reader.execute("rollback")
                self._idle_readers.append(reader)
                if self._closed:
                    self._close_readers()
        except apsw.Error as error:
            raise explained(self._path, error) from error

    def _idle_reader(self) -> _Connection | None:
        try:
            return self._idle_readers.pop()
        except IndexError:
            return None

    def _close_readers(self) -> None:
        while reader := self._idle_reader():
            reader.close()

    def _work_off(self, writer: _Connection) -> None:
        try:
            while group := self._next_group():
                _run(writer, group)
                self._wake(group)
        finally:
            self._close_readers()
            writer.close()
            self._in_loop(self._ended.set)

    def _next_group(self) -> list[_Operation[object]]:
        """Everything that waits, in order; at least one operation, or nothing once the database is closed."""
        first = self._queue.get()
        if first is None:
            return []
        group = [first]
        while len(group) < _LARGEST_GROUP:
            try:
                operation = self._queue.get_nowait()
            except Empty:
                break
            if operation is None:  # keep the mark for the next round: this group comes first
                self._queue.put(None)
                break
            group.append(operation)
        return group

    def _wake(self, group: Sequence[_Operation[object]]) -> None:
        def wake() -> None:
            for operation in group:
                operation.done.set()

        self._in_loop(wake)

    def _in_loop(self, call: Callable[[], None]) -> None:
        with suppress(RunFinishedError):  # the loop is gone, and with it everybody who waited
            from_thread.run_sync(call, token=self._token)


class _Operation(Generic[T]):
    """One caller's work, and what came of it."""

    def __init__(self, work: Callable[[Transaction], T]) -> None:
        self.done = anyio.Event()
        self.value: T | None = None
        self.error: BaseException | None = None
        self._work = work

    def run(self, db: _Connection) -> None:
        """Do the work under a savepoint. Raises only when the whole transaction is lost."""
        db.execute("savepoint operation")
        try:
            self.value = self._work(Transaction(db))
            db.execute("release operation")
        except BaseException as error:  # whatever it is, it belongs to the caller, not to this thread
            self.error = error
            if not db.in_transaction:  # SQLite itself rolls back all of it on some errors, such as a full disk
                raise
            db.execute("rollback to operation")
            db.execute("release operation")


class _Scrubbing(_Operation[None]):
    """SQLite does this outside of any transaction."""

    def __init__(self, folder: Path) -> None:
        super().__init__(lambda _: None)
        self._folder = folder

    def run(self, db: _Connection) -> None:
        try:
            # VACUUM copies what is there into the log, and the checkpoint over what was there; then the log is cut.
            # The copy may be too large for memory. The folder holds for the whole process, and only while this runs.
            db.pragma("temp_store_directory", str(self._folder))
            db.pragma("temp_store", "file")
            try:
                db.execute("vacuum").fetchall()
            finally:
                db.pragma("temp_store", "memory")
            [(busy, _, _)] = db.execute("pragma wal_checkpoint(truncate)").fetchall()
            if busy:
                self.error = apsw.BusyError("somebody reads")
        except Exception as error:  # noqa: BLE001 - raised to the caller, who would wait for ever otherwise
            self.error = error


def _run(db: _Connection, group: Sequence[_Operation[object]]) -> None:
    """Do the work of a group. Each operation knows afterwards how it ended; nothing is raised."""
    together = [operation for operation in group if not isinstance(operation, _Scrubbing)]
    if together:
        _run_together(db, together)
    for operation in group:
        if isinstance(operation, _Scrubbing):
            operation.run(db)


def _run_together(db: _Connection, group: Sequence[_Operation[object]]) -> None:
    """One transaction for the group."""
    try:
        db.execute("begin immediate")
        for operation in group:
            operation.run(db)
        db.execute("commit")
    except BaseException as error:  # noqa: BLE001 - raised to each caller, who would wait for ever otherwise
        if db.in_transaction:
            db.execute("rollback")
        for operation in group:
            operation.error = operation.error or error


def _opened(path: Path, migrations: Sequence[Migration]) -> _Connection:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        db = _connected(path)
        try:
            _migrate(db, path, migrations)
        except BaseException:
            db.close()
            raise
    except apsw.Error as error:
        raise explained(path, error) from error
    except OSError as error:
        raise KnowledgeError(f"{path.parent} cannot be made or opened ({error.strerror}); check its rights") from error
    return db


def _connected(path: Path, *, read_only: bool = False) -> _Connection:
    db = cast("_Connection", apsw.Connection(str(path)))
    try:
        db.set_busy_timeout(_BUSY_SECONDS * 1000)
        db.pragma("journal_mode", "wal")
        db.pragma("synchronous", "full")
        db.pragma("foreign_keys", 1)
        db.pragma("temp_store", "memory")  # nothing is written outside of the data folder
        db.pragma("query_only", int(read_only))
    except BaseException:
        db.close()
        raise
    return db


def _migrate(db: _Connection, path: Path, migrations: Sequence[Migration]) -> None:
    if db.pragma("user_version") == len(migrations):  # the usual case takes no lock
        return
    db.execute("begin immediate")
    try:
        version = _known_version(db, path, len(migrations))
        for step in migrations[version:]:
            if isinstance(step, str):
                db.execute(step).fetchall()
            else:
                step(Transaction(db))
        db.pragma("user_version", len(migrations))
        db.execute("commit")
    except BaseException:
        if db.in_transaction:
            db.execute("rollback")
        raise


def _known_version(db: _Connection, path: Path, newest: int) -> int:
    version = int(db.pragma("user_version"))
    if version > newest:
        raise KnowledgeError(
            f"{path} has schema {version}, and this intern knows schemas up to {newest}: "
            "install a newer intern, or give it another data folder"
        )
    return version


def explained(path: Path, error: apsw.Error) -> Exception:
    """What the operator can do about it. An error that only wrong SQL can cause is a bug and stays as it is."""
    match error:
        case apsw.BusyError() | apsw.LockedError() | apsw.ProtocolError():
            return KnowledgeError(f"{path} is held by another program for over {_BUSY_SECONDS} s; end it and try again")
        case apsw.CorruptError() | apsw.NotADBError() | apsw.FormatError():
            return KnowledgeError(
                f"{path} is damaged ({error}); move it away with its -wal and -shm files and start again "
                "(archive, decisions and topics are kept elsewhere)"
            )
        case apsw.FullError():
            return KnowledgeError(f"no space is left for {path}; free some and try again")
        case apsw.ReadOnlyError() | apsw.CantOpenError() | apsw.PermissionsError() | apsw.AuthError():
            return KnowledgeError(f"{path} cannot be opened for writing ({error}); check the rights of file and folder")
        case apsw.IOError() | apsw.NoLFSError() | apsw.NoMemError() | apsw.InterruptError():
            return KnowledgeError(f"{path} could not be read or written ({error}); check disk and memory")
        case _:
            return error


class _Cursor(Protocol):
    def fetchall(self) -> list[Row]: ...


class _Connection(Protocol):
    """The part of `apsw.Connection` used here. Its own stubs need Python 3.12 for their `Buffer`."""

    @property
    def in_transaction(self) -> bool: ...
    def execute(self, statements: str, bindings: Sequence[Value] = ()) -> _Cursor: ...
    def executemany(self, statements: str, bindings: Iterable[Sequence[Value]]) -> _Cursor: ...
    def changes(self) -> int: ...
    def pragma(self, name: str, value: str | int | None = None) -> Any: ...
    def set_busy_timeout(self, milliseconds: int) -> None: ...
    def close(self) -> None: ...
