"""What became of questions: an account of each, the questions without an answer, votes on answers, counts by day.

A question may consist of several messages, and each of these belongs to one account. The newest message that is left
names an account, so a later account replaces the older one for the messages that it names, and for no others. A trace
holds ids, numbers and the steps' short reasons; no message and no answer.

Secrets are masked and mentions taken out before a question without an answer is kept.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from datetime import date, datetime, timedelta
from typing import Any, cast

import msgspec
from msgspec import Struct

from intern.core.clock import Clock
from intern.core.errors import KnowledgeError
from intern.core.ids import ChannelId, MessageId, UserId
from intern.core.messages import ChatMessage
from intern.core.text.masking import mask_secrets, masked_start
from intern.stores.blocks import bare
from intern.stores.database import Database, Transaction
from intern.stores.sqlite.judgements import judge
from intern.stores.sqlite.store import IN, Store, Table, conditions, keep_first, keep_newest, listed, reads, writes
from intern.stores.sqlite.usage import drop_replies

KEPT = 5_000  # questions; with MAX_DEBUG_CHARS, 20 MB at the very most
MAX_DEBUG_CHARS = 4_000
_MAX_TEXT = 300  # a reason is a sentence
_MAX_ITEMS = 20
_MAX_DEPTH = 4


class Trace(Struct, frozen=True, kw_only=True):
    """What became of one question."""

    question_id: MessageId
    """The last message of the question."""
    channel_id: ChannelId
    """Where the question stands."""
    at: datetime
    """When it was last heard of (UTC)."""
    outcome: str
    reason: str
    debug: dict[str, Any]
    """What each step decided, and how long it took."""


class TraceStore(Store):
    """The newest KEPT questions."""

    @writes
    def keep(
        self,
        db: Transaction,
        message_ids: Sequence[MessageId],
        channel_id: ChannelId,
        *,
        outcome: str,
        reason: str = "",
        debug: Mapping[str, Any] | None = None,
        beside: bool = False,
    ) -> None:
        """Keep an account of these messages of a question (at least one, oldest first).

        It replaces earlier accounts of these messages, and of no others. `beside`: all but the last message keep the
        account that they have, if any. `debug` is cut to its bounds.
        """
        *others, question_id = message_ids
        _release(db, [question_id] if beside else message_ids)
        short = (outcome[:_MAX_TEXT], reason[:_MAX_TEXT], bounded(debug or {}))
        trace = db.number(f"{_TRACES.insert} returning rid", (question_id, channel_id, self.now(), *short))
        db.run_each(
            "insert into trace_messages (community, message_id, trace) values (:community, ?, ?)"
            " on conflict do nothing",
            [(each, trace) for each in (*others, question_id)],
        )
        keep_first(db, "traces", "rid", "rid desc", KEPT)

    async def ended(self, question_id: MessageId, *, outcome: str, reason: str = "") -> None:
        """Keep the outcome of the reply to a question; the reason stays where there is no new one.

        Harmless where nothing was kept of the question.
        """
        await self.db.run(
            "update traces set outcome = ?, reason = coalesce(nullif(?, ''), reason), at = ?"
            " where community = :community and question_id = ?",
            (outcome[:_MAX_TEXT], reason[:_MAX_TEXT], self.now(), question_id),
        )

    @reads
    def of(self, db: Transaction, message_id: MessageId) -> Trace | None:
        """Return the account of a question, by any of its messages or of the reply's."""
        asked = f"{_OURS} and rid = (select trace from trace_messages where community = :community and message_id = ?)"
        ours = "select question_id from post_parts where community = :community and message_id = ?"
        replied = f"{_OURS} and question_id = ({ours})"
        return _TRACES.first(db, asked, (message_id,)) or _TRACES.first(db, replied, (message_id,))

    @reads
    def newest_in(self, db: Transaction, channel_id: ChannelId) -> Trace | None:
        """Return the newest account in a channel or thread, or of the message that a thread hangs on."""
        # A thread that hangs on a message has the message's id.
        rest = "where community = :community and (channel_id = ? or question_id = ?) order by at desc, rid desc limit 1"
        return _TRACES.first(db, rest, (channel_id, channel_id))

    @reads
    def newest(self, db: Transaction, limit: int, offset: int = 0) -> tuple[Trace, ...]:
        """Return the newest accounts, newest first."""
        return _TRACES.all(db, f"{_OURS} order by at desc, rid desc limit ? offset ?", (limit, offset))

    async def count(self) -> int:
        """Return how many accounts there are."""
        return await self.db.number(f"select count(*) from traces {_OURS}")

    async def having(self, message_ids: Collection[MessageId]) -> frozenset[MessageId]:
        """Return those of these messages that an account covers."""
        statement = f"select message_id from trace_messages where community = :community and message_id {IN}"
        return frozenset(map(MessageId, await self.db.texts(statement, (listed(message_ids),))))


class Counts(Store):
    """What is counted by the UTC day, such as questions that were shed: in memory at once, on disk with `store`."""

    def __init__(self, db: Database, *, clock: Clock) -> None:
        super().__init__(db, clock=clock)
        self._fresh: Counter[tuple[str, str]] = Counter()

    def add(self, name: str, number: int = 1) -> None:
        """Count; never waits."""
        self._fresh[self.clock.now().date().isoformat(), name] += number

    async def store(self) -> None:
        """Bring to disk what was counted since the last time. Raises KnowledgeError; the counts are kept then."""
        fresh, self._fresh = self._fresh, Counter()
        try:
            if fresh:
                await self._store([(day, name, number) for (day, name), number in fresh.items()])
        except KnowledgeError:
            self._fresh.update(fresh)
            raise

    @writes
    def _store(self, db: Transaction, rows: Sequence[tuple[str, str, int]]) -> None:
        db.run_each(
            "insert into counts (community, day, name, number) values (:community, ?, ?, ?)"
            " on conflict (community, day, name) do update set number = counts.number + excluded.number",
            rows,
        )

    async def of(self, day: date) -> dict[str, int]:
        """Return the stored counts of a day, by name."""
        statement = "select name, number from counts where community = :community and day = ? order by name"
        rows = await self.db.rows(statement, (day.isoformat(),))
        return dict(msgspec.convert(rows, list[tuple[str, int]]))

    async def since(self, day: date) -> dict[date, dict[str, int]]:
        """Return the stored counts of each day from `day` on, by name; days without any are left out."""
        statement = "select day, name, number from counts where community = :community and day >= ?"
        rows = await self.db.rows(statement, (day.isoformat(),))
        days: dict[date, dict[str, int]] = {}
        for at, name, number in msgspec.convert(rows, list[tuple[date, str, int]]):
            days.setdefault(at, {})[name] = number
        return days


def bounded(debug: Mapping[str, Any]) -> str:
    """Return the steps as JSON of at most MAX_DEBUG_CHARS: long texts and lists cut, secrets masked.

    Steps that no longer fit are left out from the end; then `cut` is true.
    """
    kept: dict[str, Any] = {}
    for name, value in debug.items():
        longer = {**kept, _short(name): _bounded(value, _MAX_DEPTH)}
        if len(_json({**longer, "cut": True})) > MAX_DEBUG_CHARS:
            kept["cut"] = True
            break
        kept = longer
    return _json(kept)


def _bounded(value: object, depth: int) -> object:
    match value:
        case None | bool() | int() | float():
            return value
        case str():
            return _short(value)
        case Mapping() if depth:
            items = list(cast("Mapping[object, object]", value).items())[:_MAX_ITEMS]
            return {_short(str(key)): _bounded(each, depth - 1) for key, each in items}
        case list() | tuple() if depth:
            return [_bounded(each, depth - 1) for each in cast("Sequence[object]", value)[:_MAX_ITEMS]]
        case _:
            return _short(str(value))


def _short(text: str) -> str:
    return masked_start(text[: 4 * _MAX_TEXT + 1].encode("utf-8", "replace").decode(), _MAX_TEXT)


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()


_OURS = "where community = :community"
_TRACES = Table("traces", Trace, json=("debug",))
# Of snowflakes, the longer one is the newer one.
_RENAME = """
    update traces set question_id = (
        select message_id from trace_messages
        where community = :community and trace = traces.rid
        order by length(message_id) desc, message_id desc limit 1
    ) where community = :community and rid = ?
"""
_TAKE = "delete from trace_messages where community = :community and message_id = ? returning trace"


def _release(db: Transaction, message_ids: Sequence[MessageId]) -> None:
    """Take these messages out of their accounts. The newest message that is left names an account from now on."""
    for message_id in message_ids:
        for (trace,) in db.rows(_TAKE, (message_id,)):
            if db.row("select 1 from trace_messages where community = :community and trace = ?", (trace,)):
                db.run(_RENAME, (trace,))
            else:
                db.run("delete from traces where community = :community and rid = ?", (trace,))


KEPT_UNANSWERED = 2_000  # questions; a community that leaves more open within MAX_AGE finds its gaps among these, too
MAX_AGE = timedelta(days=90)  # a question that was not asked again since is no gap any more
MAX_CHARS = 500  # of a question: enough to see what it asks
_MOST_WAITING = 1_000  # that the disk has not taken yet

_MENTION = re.compile(r"<(?:@[!&]?|#)\d{1,20}>")


class UnansweredQuestion(Struct, frozen=True, kw_only=True):
    """A question without an answer."""

    question_id: MessageId
    """Its last message."""
    message_ids: tuple[MessageId, ...]
    author_id: UserId
    channel_id: ChannelId
    at: datetime
    """When that was found (UTC)."""
    reason: str
    text: str
    """Shortened, without secrets and mentions."""


_UNANSWERED = Table("unanswered", UnansweredQuestion, json=("message_ids",))


class Unanswered(Store):
    """The newest KEPT questions: in memory at once, on disk with `store`. `add` and `drop` never wait."""

    def __init__(self, db: Database, *, clock: Clock, emails: bool = False) -> None:
        """With `emails`, addresses are masked, too."""
        super().__init__(db, clock=clock)
        self._emails = emails
        self._fresh: dict[MessageId, UnansweredQuestion] = {}
        self._gone: set[MessageId] = set()

    def add(self, messages: Collection[ChatMessage], reason: str) -> None:
        """Note a question, the messages of one author, oldest first; never waits."""
        *_, last = messages
        text = "\n".join(message.text for message in messages)[: 4 * MAX_CHARS]
        question = UnansweredQuestion(
            question_id=last.id,
            message_ids=tuple(message.id for message in messages),
            author_id=last.author.id,
            channel_id=last.channel_id,
            at=self.clock.now(),
            reason=reason,
            text=presentable(text, emails=self._emails),
        )
        self._fresh.pop(last.id, None)
        self._fresh[last.id] = question
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
        try:
            if fresh:
                await self._store(fresh.values())
        except KnowledgeError:
            self._fresh = {**fresh, **self._fresh}
            raise

    @writes
    def _store(self, db: Transaction, questions: Collection[UnansweredQuestion]) -> None:
        db.run_each(_UNANSWERED.upsert("question_id"), map(_UNANSWERED.row, questions))
        keep_newest(db, "unanswered", KEPT_UNANSWERED)
        db.run(f"delete from unanswered {_OURS} and at < ?", (self._oldest(),))

    @reads
    def all(self, db: Transaction) -> tuple[UnansweredQuestion, ...]:
        """Return those on disk, newest first."""
        return _UNANSWERED.all(db, f"{_OURS} and at >= ? order by at desc, rid desc", (self._oldest(),))

    def _oldest(self) -> str:
        return (self.clock.now() - MAX_AGE).isoformat()

    async def written_by(self, user_id: UserId) -> frozenset[MessageId]:
        """Return a member's messages among these questions."""
        statement = "select message_ids from unanswered where community = :community and author_id = ?"
        held = map(_ids, await self.db.texts(statement, (user_id,)))
        fresh = (each.message_ids for each in self._fresh.values() if each.author_id == user_id)
        return frozenset[MessageId]().union(*held, *fresh)

    async def forget(self, message_ids: Collection[MessageId]) -> None:
        """Take questions out that hold any of these messages."""
        gone = frozenset(map(bare, message_ids))
        self._fresh = {key: each for key, each in self._fresh.items() if gone.isdisjoint(each.message_ids)}
        await self._forget(gone)

    @writes
    def _forget(self, db: Transaction, gone: Collection[str]) -> None:
        rows = db.rows("select question_id, message_ids from unanswered where community = :community")
        doomed = [str(question_id) for question_id, ids in rows if not _ids(str(ids)).isdisjoint(gone)]
        if doomed:
            statement = f"delete from unanswered where community = :community and question_id {IN}"
            db.run(statement, (listed(doomed),))


def _ids(array: str) -> frozenset[MessageId]:
    return msgspec.json.decode(array, type=frozenset[MessageId])


def presentable(text: str, *, emails: bool) -> str:
    """Return a question as it may be kept: at most MAX_CHARS, without secrets and mentions."""
    masked = mask_secrets(text.encode("utf-8", "replace").decode(), emails=emails).text
    shown = _MENTION.sub("@…", masked).strip()
    return shown if len(shown) <= MAX_CHARS else shown[: MAX_CHARS - 1] + "…"


class Votes(Struct, frozen=True, kw_only=True):
    """How many found an answer helpful, and how many did not."""

    up: int = 0
    down: int = 0


class FeedbackStore(Store):
    """One vote for each person and question; the latest counts."""

    @writes
    def vote(self, db: Transaction, question_id: MessageId, user_id: UserId, *, up: bool) -> None:
        """Keep a member's vote on the answer to a question. Voting the same again changes nothing.

        An answer with a vote against it is not repeated.
        """
        db.run(
            "insert into feedback (community, question_id, user_id, vote, at) values (:community, ?, ?, ?, ?)"
            " on conflict (community, question_id, user_id) do update set vote = excluded.vote, at = excluded.at"
            " where feedback.vote <> excluded.vote",
            (question_id, user_id, "up" if up else "down", self.now()),
        )
        if not up:
            drop_replies(db, [question_id])
        down, votes = db.row(
            "select sum(case vote when 'down' then 1 else 0 end), count(*) from feedback"
            " where community = :community and question_id = ?",
            (question_id,),
        ) or (0, 0)
        judge(db, question_id, "vote", wrong=2 * cast("int", down) >= cast("int", votes), at=self.clock.now())

    async def of(self, question_id: MessageId | None = None) -> Votes:
        """Return the votes on all answers, or on the answer to one question."""
        where, values = conditions(("question_id = ?", question_id))
        statement = f"select vote, count(*) from feedback where community = :community and {where} group by vote"
        rows = await self.db.rows(statement, values)
        return msgspec.convert(dict(msgspec.convert(rows, list[tuple[str, int]])), Votes)
