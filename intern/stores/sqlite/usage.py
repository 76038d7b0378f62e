"""The memory of endpoints: the form of requests that each accepts, calls and costs, vectors, and replies.

Counts are by UTC day and prompt. Vectors are stored by a hash of model and text, replies by a digest of the whole
request. So the same call is not paid for twice. Both are bounded, and made again if lost. Each reply knows the
questions that it was used for, and is dropped once anything speaks against an answer to one of these.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import astuple
from datetime import date, timedelta
from hashlib import sha256

import msgspec
from msgspec import Struct

from intern.core.clock import Clock
from intern.core.ids import MessageId
from intern.models.usage import UsageMeter, UsageTotal
from intern.stores.database import Database, Transaction
from intern.stores.sqlite.store import IN, Store, Table, bare_id_array, json_array, keep_first, reads, writes

_FORM_HOLDS = timedelta(days=7)
"""The time after which the form of an endpoint's requests is searched again: the server may take more by then."""


class RequestFormStore(Store):
    """Forms of requests in the database, as places of values, by address, model and structured output."""

    async def find_form(self, *endpoint: str) -> tuple[int, ...] | None:
        """Return the form that an endpoint took, if it is not old."""
        since = (self.clock.now() - _FORM_HOLDS).isoformat()
        row = await self.db.row(
            "select form from endpoint_forms where endpoint = ? and at > ?", (_hash_endpoint(endpoint), since)
        )
        return None if row is None else msgspec.json.decode(str(row[0]), type=tuple[int, ...])

    async def save_form(self, form: tuple[int, ...], *endpoint: str) -> None:
        """Replace the form of an endpoint."""
        await self.db.run(
            "insert into endpoint_forms (endpoint, form, at) values (?, ?, ?)"
            " on conflict (endpoint) do update set form = excluded.form, at = excluded.at",
            (_hash_endpoint(endpoint), json_array(form), self.now()),
        )


def _hash_endpoint(endpoint: tuple[str, ...]) -> str:
    """Return a hash: the query of an address may hold a secret."""
    return sha256(msgspec.json.encode(endpoint)).hexdigest()


class PromptUsage(Struct, frozen=True):
    """The usage and cost of a prompt on a day."""

    prompt: str
    calls: int
    prompt_tokens: int
    completion_tokens: int
    cost: float = 0.0
    """The cost in the currency of the prices that were set."""
    cached_tokens: int = 0
    """The prompts' tokens that the endpoint had in its cache, by its own count."""

    @property
    def tokens(self) -> int:
        """Prompts and replies together."""
        return self.prompt_tokens + self.completion_tokens


_USAGE = Table("usage", PromptUsage)


class UsageLog(Store):
    """Counts in the database."""

    async def add(self, day: date, prompt: str, counted: UsageMeter) -> None:
        """Add to the counts of a prompt on a day."""
        sums = ", ".join(f"{each} = usage.{each} + excluded.{each}" for each in _USAGE.names[1:])
        await self.db.run(
            f"insert into usage (community, day, {_USAGE.columns}) values (:community, ?, ?, ?, ?, ?, ?, ?)"
            f" on conflict (community, day, prompt) do update set {sums}",
            (day.isoformat(), prompt, *astuple(counted)),
        )

    async def read_spent(self, day: date, /) -> UsageTotal:
        """Return all tokens of a day, prompts and replies together, and all costs."""
        row = await self.db.row(
            "select cast(coalesce(sum(prompt_tokens + completion_tokens), 0) as bigint), coalesce(sum(cost), 0)"
            " from usage where community = :community and day = ?",
            (day.isoformat(),),
        )
        return msgspec.convert(row, UsageTotal)

    @reads
    def read_day(self, db: Transaction, day: date) -> tuple[PromptUsage, ...]:
        """Return the counts of a day, by prompt."""
        return _USAGE.all(db, "where community = :community and day = ? order by prompt", (day.isoformat(),))


_RECALL = f"select key, vector from vector_memory where community = :community and key {IN}"
_USED = f"update vector_memory set used_at = ? where community = :community and key {IN} and used_at < ?"
_REMEMBER = (
    "insert into vector_memory (community, key, vector, used_at) values (:community, ?, ?, ?)"
    " on conflict (community, key) do update set vector = excluded.vector, used_at = excluded.used_at"
)
_DAY = 86_400


class VectorMemory(Store):
    """Vectors by the hash of model and text."""

    most = 20_000
    """Vectors; of 1,536 numbers each they take 120 MB."""

    async def recall(self, keys: Sequence[str], /) -> Mapping[str, bytes]:
        """Return the known vectors."""
        known = dict(msgspec.convert(await self.db.rows(_RECALL, (json_array(keys),)), list[tuple[str, bytes]]))
        if known:
            now = int(self.clock.now().timestamp())
            # Once a day is enough, or each question would write.
            await self.db.run(_USED, (now, json_array(known), now - _DAY))
        return known

    async def forget(self, message_ids: Collection[MessageId]) -> None:
        """Delete all vectors: each says something about its text, and the author of that text is not stored."""
        if message_ids:
            await self.db.run("delete from vector_memory where community = :community")

    @writes
    def remember(self, db: Transaction, vectors: Mapping[str, bytes], /) -> None:
        """Keep vectors, and delete those that were used longest ago."""
        now = int(self.clock.now().timestamp())
        db.run_each(_REMEMBER, [(key, vector, now) for key, vector in vectors.items()])
        keep_first(db, "vector_memory", "key", "used_at desc", self.most)


KEPT_REPLIES = 1_000
"""Replies; a question takes two to four."""
MAX_AGE_REPLIES = timedelta(days=7)
"""A provider may put another model behind the same name."""


class ReplyLookup(Struct, frozen=True):
    """The result of looking up a request."""

    reply: bytes | None
    """None where there is no reply, or it is too old."""
    drops: int
    """The number of drops of replies so far; see `save`."""


class ReplyStore(Store):
    """The replies that were used last."""

    def __init__(self, db: Database, *, clock: Clock) -> None:
        super().__init__(db, clock=clock)
        self._undropped: set[MessageId] = set()
        """The questions of drops that failed: until they succeed, no reply is recalled or kept."""

    async def recall(self, key: str, question_id: MessageId | None) -> ReplyLookup:
        """Find the reply to a request, for one more question."""
        await self._drop_failed()
        found = await self.db.read(lambda db: self._find_reply(db, key))
        # Mostly there is none; then the answer does not wait for the disk.
        return found if found.reply is None else await self._use(key, question_id)

    def _find_reply(self, db: Transaction, key: str) -> ReplyLookup:
        statement = "select reply from model_replies where community = :community and key = ? and made_at >= ?"
        row = db.row(statement, (key, self._oldest()))
        return ReplyLookup(None if row is None else msgspec.convert(row, tuple[bytes])[0], _count_drops(db))

    @writes
    def _use(self, db: Transaction, key: str, question_id: MessageId | None) -> ReplyLookup:
        found = self._find_reply(db, key)
        if found.reply is not None:
            statement = "update model_replies set used_at = ? where community = :community and key = ?"
            db.run(statement, (self.now(), key))
            self._note_use(db, key, question_id)
        return found

    async def save(self, key: str, reply: bytes, question_id: MessageId | None, drops: int) -> None:
        """Keep a reply; those that were used longest ago make room.

        `drops` is from before the model was asked: if any reply was dropped since then, this one is not kept, because
        the drop may have been about its question.
        """
        await self._drop_failed()
        await self._save(key, reply, question_id, drops)

    @writes
    def _save(self, db: Transaction, key: str, reply: bytes, question_id: MessageId | None, drops: int) -> None:
        if _count_drops(db) == drops:
            stale = "delete from model_replies where community = :community and (key = ? or made_at < ?)"
            db.run(stale, (key, self._oldest()))
            db.run("delete from reply_uses where community = :community and at < ?", (self._oldest(),))
            now = self.now()
            db.run(
                "insert into model_replies (community, key, reply, made_at, used_at) values (:community, ?, ?, ?, ?)",
                (key, reply, now, now),
            )
            self._note_use(db, key, question_id)
            keep_first(db, "model_replies", "key", "used_at desc, key", KEPT_REPLIES)

    async def drop(self, message_ids: Collection[MessageId]) -> None:
        """Drop the replies that were used for these questions. Until a failed drop is repeated, none is recalled."""
        self._undropped.update(message_ids)
        await self._drop_failed()

    async def _drop_failed(self) -> None:
        if ids := frozenset(self._undropped):
            await self.db.write(lambda db: drop_replies(db, ids))
            self._undropped -= ids

    async def forget(self, message_ids: Collection[MessageId]) -> None:
        """Drop all replies: they may quote anybody."""
        if message_ids:
            await self._forget(message_ids)

    @writes
    def _forget(self, db: Transaction, message_ids: Collection[MessageId]) -> None:
        db.run("delete from model_replies where community = :community")
        db.run(_COUNT_DROP)
        uses = f"delete from reply_uses where community = :community and message_id {IN}"
        db.run(uses, (bare_id_array(message_ids),))

    def _oldest(self) -> str:
        return (self.clock.now() - MAX_AGE_REPLIES).isoformat()

    def _note_use(self, db: Transaction, key: str, question_id: MessageId | None) -> None:
        # It outlives the reply: a reason against an answer applies to a later one to the same request, too.
        if question_id is not None:
            db.run(
                "insert into reply_uses (community, message_id, key, at) values (:community, ?, ?, ?)"
                " on conflict do nothing",
                (question_id, key, self.now()),
            )


def drop_replies(db: Transaction, message_ids: Collection[MessageId]) -> None:
    """Drop the replies that were used for these questions, in the caller's own transaction."""
    db.run(
        "delete from model_replies where community = :community and key in"
        f" (select key from reply_uses where community = :community and message_id {IN})",
        (bare_id_array(message_ids),),
    )
    db.run(_COUNT_DROP)


def _count_drops(db: Transaction) -> int:
    return db.number("select count from reply_drops where community = :community")


_COUNT_DROP = (
    "insert into reply_drops (community, count) values (:community, 1)"
    " on conflict (community) do update set count = reply_drops.count + 1"
)
