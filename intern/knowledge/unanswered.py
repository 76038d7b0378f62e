"""Questions that found no answer, in the words they were asked in: what the documents should tell and do not.

Secrets are masked and mentions taken out before a question is kept; the oldest go, and all that is forgotten does.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from datetime import datetime, timedelta

import msgspec
from msgspec import Struct

from intern.domain import ChannelId, ChatMessage, MessageId, UserId
from intern.errors import KnowledgeError
from intern.knowledge.blocks import bare
from intern.knowledge.database import Database, Transaction
from intern.observe.clock import Clock
from intern.text.masking import mask_secrets

KEPT = 2_000  # questions; a community that leaves more open within MAX_AGE finds its gaps among these as well
MAX_AGE = timedelta(days=90)  # what nobody asked since is no gap any more
MAX_CHARS = 500  # of a question: enough to see what it asks
_MOST_WAITING = 1_000  # that the disk has not taken yet

_MENTION = re.compile(r"<(?:@[!&]?|#)\d{1,20}>")


class UnansweredQuestion(Struct, frozen=True, kw_only=True):
    """A question without an answer."""

    question_id: MessageId
    """Its last message."""
    channel_id: ChannelId
    at: datetime
    """When that was found (UTC)."""
    reason: str
    text: str
    """Shortened, without secrets and mentions."""


class _Row(Struct, frozen=True):
    question_id: str
    message_ids: str
    author_id: str
    channel_id: str
    at: str
    reason: str
    text: str


class Unanswered:
    """The newest KEPT questions: in memory at once, on disk with `store`. All but `add` raise KnowledgeError."""

    def __init__(self, db: Database, *, clock: Clock, emails: bool = False) -> None:
        """With `emails`, addresses are masked, too."""
        self._db = db
        self._clock = clock
        self._emails = emails
        self._fresh: dict[str, _Row] = {}
        self._gone: set[MessageId] = set()

    def add(self, messages: Collection[ChatMessage], reason: str) -> None:
        """Note a question, the messages of one author, oldest first; never waits."""
        *_, last = messages
        text = "\n".join(message.text for message in messages)[: 4 * MAX_CHARS]
        row = _Row(
            question_id=last.id,
            message_ids=msgspec.json.encode([message.id for message in messages]).decode(),
            author_id=last.author.id,
            channel_id=last.channel_id,
            at=self._clock.now().isoformat(),
            reason=reason,
            text=presentable(text, emails=self._emails),
        )
        self._fresh.pop(row.question_id, None)
        self._fresh[row.question_id] = row
        if len(self._fresh) > _MOST_WAITING:
            del self._fresh[next(iter(self._fresh))]

    def drop(self, message_ids: Collection[MessageId]) -> None:
        """Take questions out that hold any of these messages, with the next `store`; never waits."""
        self._gone.update(message_ids)

    async def store(self) -> None:
        """Bring to disk what was noted since the last time. What the disk does not take is kept for the next time."""
        if gone := frozenset(self._gone):
            await self.forget(gone)
            self._gone -= gone
        fresh, self._fresh = self._fresh, {}
        if not fresh:
            return
        rows = [msgspec.structs.astuple(row) for row in fresh.values()]
        oldest = (self._clock.now() - MAX_AGE).isoformat()

        def work(db: Transaction) -> None:
            db.run_each(
                "insert into unanswered (question_id, message_ids, author_id, channel_id, at, reason, text)"
                " values (?, ?, ?, ?, ?, ?, ?) on conflict (question_id) do update set"
                " message_ids = excluded.message_ids, at = excluded.at, reason = excluded.reason,"
                " text = excluded.text",
                rows,
            )
            db.run("delete from unanswered where rid <= (select max(rid) from unanswered) - ?", (KEPT,))
            db.run("delete from unanswered where at < ?", (oldest,))

        try:
            await self._db.write(work)
        except KnowledgeError:
            self._fresh = {**fresh, **self._fresh}
            raise

    async def all(self) -> tuple[UnansweredQuestion, ...]:
        """Those on disk, newest first."""
        oldest = (self._clock.now() - MAX_AGE).isoformat()
        rows = await self._db.read(
            lambda db: db.rows(
                "select question_id, channel_id, at, reason, text from unanswered where at >= ?"
                " order by at desc, rid desc",
                (oldest,),
            )
        )
        names = UnansweredQuestion.__struct_fields__
        return tuple(msgspec.convert(dict(zip(names, row, strict=True)), UnansweredQuestion) for row in rows)

    async def written_by(self, user_id: UserId) -> frozenset[MessageId]:
        """A member's messages among these questions."""
        rows = await self._db.read(
            lambda db: db.rows("select message_ids from unanswered where author_id = ?", (user_id,))
        )
        held = [str(row[0]) for row in rows]
        held += [row.message_ids for row in self._fresh.values() if row.author_id == user_id]
        return frozenset(each for ids in held for each in msgspec.json.decode(ids, type=list[MessageId]))

    async def forget(self, message_ids: Collection[MessageId]) -> None:
        """Take questions out that hold any of these messages."""
        gone = frozenset(map(bare, message_ids))
        if not gone:
            return
        listed = msgspec.json.encode(sorted(gone)).decode()

        def concerned(row: _Row) -> bool:
            return not gone.isdisjoint(msgspec.json.decode(row.message_ids, type=list[str]))

        self._fresh = {key: row for key, row in self._fresh.items() if not concerned(row)}
        await self._db.write(
            lambda db: db.run(
                "delete from unanswered where exists (select 1 from json_each(message_ids) as each"
                " where each.value in (select value from json_each(?)))",
                (listed,),
            )
        )


def presentable(text: str, *, emails: bool) -> str:
    """A question as it may be kept: at most MAX_CHARS, without secrets and mentions."""
    masked = mask_secrets(text.encode("utf-8", "replace").decode(), emails=emails).text
    shown = _MENTION.sub("@…", masked).strip()
    return shown if len(shown) <= MAX_CHARS else shown[: MAX_CHARS - 1] + "…"
