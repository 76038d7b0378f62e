"""What posted answers cite: the quoted text and a digest of each source, to tell later whether they still stand.

The ledger keeps them together with the reply (see `intern.stores.sqlite.outbox`). Questions and quotes are masked.

What people thought of the answers: the votes of the buttons under each.

What the model replied to questions, by a digest of the whole request, so that a repeated question costs no call.

Each reply knows the questions that it was used for. It is let go of once anything speaks against one of these.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime, timedelta
from typing import Literal

import msgspec
from msgspec import Struct

from intern.core.clock import Clock
from intern.core.ids import ChannelId, MessageId, SourceId, UserId
from intern.core.messages import Citation
from intern.core.text.masking import mask_secrets
from intern.stores.sqlite.columns import IN, Table, bare_ids, keep_first, keep_newest
from intern.stores.sqlite.database import Database, Transaction, Value
from intern.stores.sqlite.traces import presentable

KEPT = 5_000
"""The newest answers that are watched."""
MAX_AGE = timedelta(days=90)
_MAX_TEXT = 400  # characters; a quote is a sentence

State = Literal["", "changed", "extended", "gone"]
"""`changed`: the source does not say it any more. `extended`: the quote stands, in a conversation that went on since.
`gone`: the source was withdrawn. Empty: it stands."""

Retracted = Literal["", "open", "retracted", "dropped"]
"""`open`: its edit was begun. `dropped`: it could not be edited."""


class Watched(Struct, frozen=True, kw_only=True):
    """A source that some posted answers cite."""

    source_id: SourceId
    is_new: bool
    """Some citation of it was never compared with it."""


class Cited(Struct, frozen=True, kw_only=True):
    """One citation of a posted answer."""

    question_id: MessageId
    n: int
    source_id: SourceId
    title: str
    quote: str
    """What the answer stood on; empty where nothing was quoted, or what was is forgotten."""
    digest: str
    """Of the source when the citation was first compared with it; empty before."""
    state: State
    since: datetime | None
    """When it was first seen in that state (UTC); None where it stands."""


class OutdatedAnswer(Struct, frozen=True, kw_only=True):
    """A posted answer, some of whose citations do not stand any more."""

    question_id: MessageId
    place: ChannelId
    """The channel or thread that holds the answer."""
    message_id: MessageId
    """The first message of the answer."""
    asked: str
    at: datetime
    """When it was posted (UTC)."""
    retracted: Retracted
    citations: tuple[Cited, ...]
    """Those that do not stand."""


class Compared(Struct, frozen=True, kw_only=True):
    """What came of comparing a citation with its source."""

    question_id: MessageId
    n: int
    source_id: SourceId
    """Where the text stands now."""
    digest: str
    state: State


class CitedStore:
    """The citations of the newest KEPT answers, for MAX_AGE. All methods raise KnowledgeError."""

    def __init__(self, db: Database, *, clock: Clock) -> None:
        self._db = db
        self._clock = clock

    async def sources(self) -> tuple[Watched, ...]:
        """Return every source that a posted answer cites."""
        statement = f"select source_id, max(digest = '') from posted_citations where {_POSTED} group by source_id"
        rows = await self._db.rows(statement)
        return tuple(Watched(source_id=SourceId(str(each)), is_new=bool(is_new)) for each, is_new in rows)

    async def citing(self, source_id: SourceId) -> tuple[Cited, ...]:
        """Return the citations of a source."""
        rows = await self._db.rows(f"{_CITED.select} where source_id = ? and {_POSTED}", (source_id,))
        return tuple(map(_CITED.struct, rows))

    async def compared(self, results: Sequence[Compared]) -> None:
        """Keep what came of comparisons, and since when."""
        now = self._clock.now().isoformat()
        rows = [
            (each.source_id, each.digest, each.state, each.state, now, each.state, each.question_id, each.n)
            for each in results
        ]
        await self._db.write(
            lambda db: db.run_each(
                "update posted_citations set source_id = ?, digest = ?,"
                " since = case when ? = '' then null when state = ? then since else ? end, state = ?"
                " where question_id = ? and n = ?",
                rows,
            )
        )

    async def count(self) -> int:
        """Return how many answers have outdated citations."""
        return await self._db.number(COUNT_OUTDATED)

    async def outdated(self, limit: int) -> tuple[OutdatedAnswer, ...]:
        """Return the answers with outdated citations, newest first."""

        def work(db: Transaction) -> tuple[OutdatedAnswer, ...]:
            return tuple(_outdated(db, row) for row in db.rows(_OUTDATED_ANSWERS, (limit,)))

        return await self._db.read(work)

    async def to_retract(self, before: datetime) -> tuple[MessageId, ...]:
        """Answers whose retraction was begun, or that a source has not backed since `before`; oldest first.

        A conversation that merely went on is no reason.
        """
        statement = (
            "select question_id from posted_answers join posts using (question_id)"
            " where state = 'finished' and (retracted = 'open' or (retracted = '' and exists"
            " (select 1 from posted_citations where posted_citations.question_id = posted_answers.question_id"
            " and posted_citations.state in ('changed', 'gone') and since <= ?))) order by at"
        )
        return tuple(map(MessageId, await self._db.texts(statement, (before.isoformat(),))))

    async def retract(self, question_id: MessageId, how: Retracted) -> None:
        """Keep how far the retraction of an answer is."""
        await self._db.run("update posted_answers set retracted = ? where question_id = ?", (how, question_id))

    async def written_by(self, user_id: UserId) -> frozenset[MessageId]:
        """Return a member's messages that were answered."""
        statement = (
            "select message_id from post_messages where question_id in"
            " (select question_id from posted_answers where author_id = ?)"
        )
        return frozenset(map(MessageId, await self._db.texts(statement, (user_id,))))

    async def drop(self, message_ids: Collection[MessageId]) -> None:
        """Keep nothing of the answers to these messages."""
        gone = bare_ids(message_ids)
        await self._db.run(_DROP, (gone, gone))

    async def forget(self, message_ids: Collection[MessageId]) -> None:
        """Keep nothing of the answers to these messages, and no quote of anybody's: it may be of one of them."""
        gone = bare_ids(message_ids)

        def work(db: Transaction) -> None:
            db.run(_DROP, (gone, gone))
            db.run(_UNQUOTE)

        await self._db.write(work)


def keep_cited(
    db: Transaction,
    question_id: MessageId,
    author_id: UserId | None,
    asked: str,
    citations: Sequence[Citation],
    *,
    now: datetime,
    emails: bool,
) -> None:
    """Keep what an answer cites, together with the reply itself; the oldest answers make room."""
    values = (question_id, author_id or "", presentable(asked, emails=emails), now.isoformat())
    db.run("insert into posted_answers (question_id, author_id, asked, at, retracted) values (?, ?, ?, ?, '')", values)
    rows: list[tuple[Value, ...]] = [
        (
            question_id,
            n,
            each.source_id,
            _masked(each.title, emails=emails),
            _masked(each.quote or "", emails=emails),
        )
        for n, each in enumerate(citations)
    ]
    db.run_each(
        "insert into posted_citations (question_id, n, source_id, title, quote, digest, state)"
        " values (?, ?, ?, ?, ?, '', '')",
        rows,
    )
    db.run("delete from posted_answers where at < ?", ((now - MAX_AGE).isoformat(),))
    keep_newest(db, "posted_answers", KEPT)


def _masked(text: str, *, emails: bool) -> str:
    # Cut without a sign of it, so that it still reads as a part of its source.
    shown = text[:_MAX_TEXT].encode("utf-8", "replace").decode()
    return mask_secrets(shown, emails=emails).text


_POSTED = "question_id in (select question_id from posts where state = 'finished')"
_OUTDATED = (
    "posts.state = 'finished' and exists (select 1 from posted_citations"
    " where posted_citations.question_id = posted_answers.question_id and posted_citations.state <> '')"
)
COUNT_OUTDATED = f"select count(*) from posted_answers join posts using (question_id) where {_OUTDATED}"
"""A retracted answer counts as long as it is watched."""
_OUTDATED_ANSWERS = (
    "select question_id, coalesce(thread_id, channel_id), (select message_id from post_parts"
    " where post_parts.question_id = posts.question_id and message_id is not null order by n limit 1),"
    " asked, at, retracted from posted_answers join posts using (question_id)"
    f" where {_OUTDATED} order by at desc, question_id desc limit ?"
)
_UNQUOTE = (
    "update posted_citations set quote = '', title = ''"
    " where source_id glob 'team:*' or source_id glob 'nugget:*' or source_id glob 'fact:*'"
)
_CITED = Table("posted_citations", Cited)
_DROP = (
    f"delete from posted_answers where question_id {IN} or question_id in"
    f" (select question_id from post_messages where message_id {IN})"
)


def _outdated(db: Transaction, row: Sequence[Value]) -> OutdatedAnswer:
    names = ("question_id", "place", "message_id", "asked", "at", "retracted")
    rows = db.rows(f"{_CITED.select} where question_id = ? and state <> '' order by n", (row[0],))
    fields = dict(zip(names, row, strict=True))
    fields["message_id"] = fields["message_id"] or row[0]
    return msgspec.convert({**fields, "citations": tuple(map(_CITED.struct, rows))}, OutdatedAnswer)


KEPT_REPLIES = 1_000
"""Replies; a question takes two to four."""
MAX_AGE_REPLIES = timedelta(days=7)
"""A provider may put another model behind the same name."""


class Recalled(Struct, frozen=True):
    """What is known of a request."""

    reply: bytes | None
    """None where there is no reply, or it is too old."""
    drops: int
    """How often replies were dropped by then; see `keep`."""


class ReplyStore:
    """The replies that were used last. All methods raise KnowledgeError."""

    def __init__(self, db: Database, *, clock: Clock) -> None:
        self._db = db
        self._clock = clock
        self._undropped: set[MessageId] = set()
        """The questions of drops that failed: until they are made up for, no reply is recalled or kept."""

    async def recall(self, key: str, question_id: MessageId | None) -> Recalled:
        """Look for the reply to a request, for one more question."""
        await self._drop_failed()
        now = self._clock.now()
        oldest = (now - MAX_AGE_REPLIES).isoformat()

        def look(db: Transaction) -> Recalled:
            row = db.row("select reply from model_replies where key = ? and made_at >= ?", (key, oldest))
            return Recalled(None if row is None else msgspec.convert(row, tuple[bytes])[0], _drops(db))

        def use(db: Transaction) -> Recalled:
            found = look(db)
            if found.reply is not None:
                db.run("update model_replies set used_at = ? where key = ?", (now.isoformat(), key))
                _use(db, key, question_id, now)
            return found

        found = await self._db.read(look)
        # Mostly there is none; then the answer does not wait for the disk.
        return found if found.reply is None else await self._db.write(use)

    async def keep(self, key: str, reply: bytes, question_id: MessageId | None, drops: int) -> None:
        """Keep a reply; those that were used longest ago make room.

        `drops` is from before the model was asked: if any reply was dropped since then, this one is not kept, because
        the drop may have been about its question.
        """
        await self._drop_failed()
        now = self._clock.now()
        oldest = (now - MAX_AGE_REPLIES).isoformat()

        def work(db: Transaction) -> None:
            if _drops(db) != drops:
                return
            db.run("delete from model_replies where key = ? or made_at < ?", (key, oldest))
            db.run("delete from reply_uses where at < ?", (oldest,))
            values = (key, reply, now.isoformat(), now.isoformat())
            db.run("insert into model_replies (key, reply, made_at, used_at) values (?, ?, ?, ?)", values)
            _use(db, key, question_id, now)
            keep_first(db, "model_replies", "key", "used_at desc, key", KEPT_REPLIES)

        await self._db.write(work)

    async def drop(self, message_ids: Collection[MessageId]) -> None:
        """Drop the replies that were used for these questions. Until a failed drop is repeated, none is recalled."""
        self._undropped.update(message_ids)
        await self._drop_failed()

    async def _drop_failed(self) -> None:
        if ids := frozenset(self._undropped):
            await self._db.write(lambda db: drop_replies(db, ids))
            self._undropped -= ids

    async def forget(self, message_ids: Collection[MessageId]) -> None:
        """Drop all replies: they may quote anybody."""
        if not message_ids:
            return

        def work(db: Transaction) -> None:
            db.run("delete from model_replies")
            db.run(_COUNT_DROP)
            db.run(f"delete from reply_uses where message_id {IN}", (bare_ids(message_ids),))

        await self._db.write(work)


def drop_replies(db: Transaction, message_ids: Collection[MessageId]) -> None:
    """Drop the replies that were used for these questions, in the caller's own transaction."""
    db.run(_DROP_REPLIES, (bare_ids(message_ids),))
    db.run(_COUNT_DROP)


def _drops(db: Transaction) -> int:
    return db.number("select count from reply_drops")


def _use(db: Transaction, key: str, question_id: MessageId | None, now: datetime) -> None:
    # It outlives the reply: what speaks against an answer speaks against a later one to the same request, too.
    if question_id is not None:
        statement = "insert into reply_uses (message_id, key, at) values (?, ?, ?) on conflict do nothing"
        db.run(statement, (question_id, key, now.isoformat()))


_COUNT_DROP = "update reply_drops set count = count + 1"
_DROP_REPLIES = f"delete from model_replies where key in (select key from reply_uses where message_id {IN})"


class Votes(Struct, frozen=True, kw_only=True):
    """How many found an answer helpful, and how many did not."""

    up: int = 0
    down: int = 0


class FeedbackStore:
    """One vote for each person and question; the latest counts. All methods raise KnowledgeError."""

    def __init__(self, db: Database, *, clock: Clock) -> None:
        self._db = db
        self._clock = clock

    async def vote(self, question_id: MessageId, user_id: UserId, *, up: bool) -> None:
        """Keep a member's vote on the answer to a question. Voting the same again changes nothing.

        An answer with a vote against it is not repeated.
        """
        values = (question_id, user_id, "up" if up else "down", self._clock.now().isoformat())

        def work(db: Transaction) -> None:
            db.run(
                "insert into feedback (question_id, user_id, vote, at) values (?, ?, ?, ?)"
                " on conflict (question_id, user_id) do update set vote = excluded.vote, at = excluded.at"
                " where vote <> excluded.vote",
                values,
            )
            if not up:
                drop_replies(db, [question_id])

        await self._db.write(work)

    async def of(self, question_id: MessageId) -> Votes:
        """Return the votes on the answer to a question."""
        return await self._db.read(lambda db: _counted(db, "where question_id = ?", question_id))

    async def all(self) -> Votes:
        """Return the votes on all answers."""
        return await self._db.read(lambda db: _counted(db, ""))


def _counted(db: Transaction, condition: str, *values: str) -> Votes:
    rows = db.rows(f"select vote, count(*) from feedback {condition} group by vote", values)
    return msgspec.convert(dict(msgspec.convert(rows, list[tuple[str, int]])), Votes)
