"""The texts of questions: those that were answered, that were searched for, or that called the bot.

Secrets are masked and mentions taken out before a question is kept. An open question is one without an answer that
neither the team has answered since nor an operator has dismissed.
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime, timedelta
from typing import Literal

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from intern.core.clock import Clock
from intern.core.errors import KnowledgeError
from intern.core.ids import ChannelId, GuildId, MessageId, UserId
from intern.core.messages import Channel, ChatMessage
from intern.core.text.masking import mask_secrets
from intern.core.text.patterns import regex
from intern.stores.database import Database, Transaction, Value
from intern.stores.qa_ids import bare_message_id
from intern.stores.tables.feedback import VOTES, Votes
from intern.stores.tables.store import IN, OURS, Store, Table, join_conditions, keep_newest, reads, text_array, writes

KEPT = 10_000  # questions; with MAX_CHARS, 8 MB at most
MAX_OPEN = 2_000  # open questions that are read; grouping them takes a second where no two are alike
MAX_AGE = timedelta(days=90)  # a question that was not asked again since is no gap any more
MAX_CHARS = 500  # of a question: enough to understand it
_MOST_WAITING = 1_000  # not on disk yet

NOT_ASKED = "not_a_question"
"""The reason of a message that turned out to ask nothing: it is no gap."""

_MENTION = regex(r"<(?:@[!&]?|#)\d{1,20}>")

GapState = Literal["", "answered", "dismissed"]
"""`answered`: by the team, since. Empty: not settled."""


class Question(Struct, frozen=True, kw_only=True):
    """A question and its outcome."""

    question_id: MessageId
    """Its last message."""
    message_ids: tuple[MessageId, ...]
    author_id: UserId
    guild_id: GuildId | None
    channel_id: ChannelId
    """Its channel or thread."""
    place_id: ChannelId
    """The channel, or the one that its thread hangs in."""
    place: str
    """The name of a channel; empty of a thread, whose name is a member's words."""
    at: datetime
    """When this was found (UTC)."""
    reason: str
    """Why there is no answer; empty where there is one."""
    texts: tuple[str, ...]
    """The text of each message, shortened, without secrets and mentions."""
    seconds: float = 0.0
    """Seconds from its last message to the answer, or to the decision against one; the batch wait counts, too."""
    tokens: int = 0
    cost: float = 0.0
    settled: GapState = ""

    @property
    def text(self) -> str:
        """All of its words."""
        return "\n".join(filter(None, self.texts))


class QuestionFilter(Struct, frozen=True, kw_only=True):
    """A filter of questions. A field that is None or empty lets all pass."""

    answered: bool | None = None
    reason: str = ""
    disliked: bool = False
    """With a vote that the answer does not help."""
    place_id: ChannelId | None = None
    since: datetime | None = None
    words: str = ""
    """A part of its text."""


class QuestionChannel(Struct, frozen=True):
    """A channel in which questions were asked."""

    id: ChannelId
    name: str
    """Empty where only threads of it are known."""
    questions: int


_TABLE = Table("questions", Question, json=("message_ids", "texts"))
# The reply may have been withheld since, with a reason of its own.
_REASON = "coalesce(traces.reason, questions.reason)"
_COLUMNS = ", ".join(_REASON if each == "reason" else f"questions.{each}" for each in _TABLE.names)
_FROM = f"from questions left join traces using (community, question_id) {OURS}"
_DISLIKED = (
    "exists (select 1 from feedback where feedback.community = :community"
    " and feedback.question_id = questions.question_id and vote = 'down')"
)


class QuestionStore(Store):
    """The newest KEPT questions: in memory at once, on disk with `store`. `add` and `drop` never wait."""

    def __init__(self, db: Database, *, clock: Clock, emails: bool = False) -> None:
        """Open the store. With `emails`, addresses are masked, too."""
        super().__init__(db, clock=clock)
        self._emails = emails
        self._fresh: dict[MessageId, Question] = {}
        self._gone: set[MessageId] = set()
        self._settled: dict[MessageId, GapState] = {}
        """The last ones: the team may answer while the bot still looks, or before the disk has the question."""

    def add(
        self,
        messages: Collection[ChatMessage],
        reason: str,
        channel: Channel | None = None,
        *,
        seconds: float = 0.0,
        tokens: int = 0,
        cost: float = 0.0,
    ) -> None:
        """Note a question, the messages of one author, oldest first; never waits. `channel` may be a thread."""
        *_, last = messages
        in_thread = channel is not None and channel.is_thread
        question = Question(
            question_id=last.id,
            message_ids=tuple(message.id for message in messages),
            author_id=last.author.id,
            guild_id=last.guild_id,
            channel_id=last.channel_id,
            place_id=(channel.parent_id if channel is not None and in_thread else None) or last.channel_id,
            place="" if channel is None or in_thread else channel.name,
            at=self.clock.now(),
            reason=reason,
            texts=_redact_messages([message.text for message in messages], emails=self._emails),
            seconds=seconds,
            tokens=tokens,
            cost=cost,
            settled=self._settled.get(last.id, ""),
        )
        self._fresh.pop(last.id, None)
        self._fresh[last.id] = question
        if len(self._fresh) > _MOST_WAITING:
            del self._fresh[next(iter(self._fresh))]

    def drop(self, message_ids: Collection[MessageId]) -> None:
        """Remove questions that hold any of these messages, with the next `store`; never waits."""
        self._gone.update(message_ids)

    async def store(self) -> None:
        """Write to disk the changes since the last time. Changes that the disk does not take wait for the next time."""
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
    def _store(self, db: Transaction, questions: Collection[Question]) -> None:
        db.run_each(_TABLE.upsert("question_id"), map(_TABLE.to_row, questions))
        keep_newest(db, "questions", KEPT)
        db.run(f"delete from questions {OURS} and at < ?", (self._oldest(),))

    @reads
    def list_open(self, db: Transaction) -> tuple[Question, ...]:
        """Return the newest MAX_OPEN open questions on disk, newest first."""
        wanted = f"{OURS} and reason not in ('', ?) and settled = '' and at >= ? order by at desc, rid desc limit ?"
        return _TABLE.all(db, wanted, (NOT_ASKED, self._oldest(), MAX_OPEN))

    @reads
    def find(
        self, db: Transaction, wanted: QuestionFilter, limit: int, offset: int = 0
    ) -> tuple[tuple[Question, ...], int]:
        """Return some of the questions on disk, newest first, and how many there are."""
        where, values = _build_where(wanted, self._oldest())
        rows = db.rows(
            f"select {_COLUMNS} {_FROM} and {where} order by questions.at desc, questions.rid desc limit ? offset ?",
            (*values, limit, offset),
        )
        return tuple(map(_TABLE.from_row, rows)), db.number(f"select count(*) {_FROM} and {where}", values)

    @reads
    def count_reasons(self, db: Transaction) -> dict[str, int]:
        """Return the reasons of silence, each with the number of its questions, the most frequent first."""
        statement = f"select {_REASON} as why, count(*) {_FROM} group by why order by count(*) desc, why"
        return dict(msgspec.convert(db.rows(statement), list[tuple[str, int]]))

    @reads
    def list_channels(self, db: Transaction) -> tuple[QuestionChannel, ...]:
        """Return the channels with questions, those with the most first."""
        statement = f"select place_id, max(place), count(*) from questions {OURS} group by place_id order by 3 desc, 1"
        return tuple(
            QuestionChannel(*row) for row in msgspec.convert(db.rows(statement), list[tuple[ChannelId, str, int]])
        )

    @reads
    def read_question(self, db: Transaction, question_id: MessageId) -> Question | None:
        """Return a question by its last message."""
        for row in db.rows(f"select {_COLUMNS} {_FROM} and question_id = ?", (question_id,)):
            return _TABLE.from_row(row)
        return None

    @reads
    def read_votes(self, db: Transaction, question_ids: Collection[MessageId]) -> dict[MessageId, Votes]:
        """Return the votes on answers to these questions; those without any are missing."""
        statement = f"select question_id, {VOTES} from feedback {OURS} and question_id {IN} group by question_id"
        rows = msgspec.convert(db.rows(statement, (text_array(question_ids),)), list[tuple[MessageId, int, int]])
        return {question_id: Votes(up=up, down=down) for question_id, up, down in rows}

    async def close_gaps(self, question_ids: Collection[MessageId], how: GapState) -> None:
        """Close these questions, as gaps."""
        self._settled |= dict.fromkeys(question_ids, how)
        for old in list(self._settled)[:-_MOST_WAITING]:
            del self._settled[old]
        self._fresh = {
            key: replace(each, settled=how) if key in question_ids else each for key, each in self._fresh.items()
        }
        await self.db.run(
            f"update questions set settled = ? {OURS} and question_id {IN}", (how, text_array(question_ids))
        )

    def _oldest(self) -> str:
        return (self.clock.now() - MAX_AGE).isoformat()

    async def find_messages_by(self, user_id: UserId) -> frozenset[MessageId]:
        """Return a member's messages among these questions."""
        held = map(
            _decode_ids, await self.db.texts(f"select message_ids from questions {OURS} and author_id = ?", (user_id,))
        )
        fresh = (each.message_ids for each in self._fresh.values() if each.author_id == user_id)
        return frozenset[MessageId]().union(*held, *fresh)

    async def forget(self, message_ids: Collection[MessageId]) -> None:
        """Remove questions that hold any of these messages."""
        gone = frozenset(map(bare_message_id, message_ids))
        self._fresh = {key: each for key, each in self._fresh.items() if gone.isdisjoint(each.message_ids)}
        await self._forget(gone)

    @writes
    def _forget(self, db: Transaction, gone: Collection[str]) -> None:
        rows = db.rows(f"select question_id, message_ids from questions {OURS}")
        doomed = [str(question_id) for question_id, ids in rows if not _decode_ids(str(ids)).isdisjoint(gone)]
        if doomed:
            db.run(f"delete from questions {OURS} and question_id {IN}", (text_array(doomed),))


def _build_where(wanted: QuestionFilter, oldest: str) -> tuple[str, tuple[Value, ...]]:
    since = None if wanted.since is None else wanted.since.isoformat()
    where, values = join_conditions(
        ("questions.at >= ?", max(since or oldest, oldest)),
        (f"{_REASON} = ?", wanted.reason or None),
        ("place_id = ?", wanted.place_id),
        ("instr(lower(texts), ?) > 0", _escape_words(wanted.words.lower())),
    )
    if wanted.answered is not None:
        where += f" and {_REASON} {'=' if wanted.answered else '<>'} ''"
    return f"{where} and {_DISLIKED}" if wanted.disliked else where, values


def _escape_words(words: str) -> str | None:
    """Return words as a JSON text contains them; None if there are none."""
    return msgspec.json.encode(words).decode()[1:-1] or None


def _decode_ids(array: str) -> frozenset[MessageId]:
    return msgspec.json.decode(array, type=frozenset[MessageId])


def _redact_messages(texts: Collection[str], *, emails: bool) -> tuple[str, ...]:
    """Return the messages of a question as they may be kept, together at most MAX_CHARS."""
    shown, left = list[str](), MAX_CHARS
    for text in texts:
        shown.append(redact_question(text, emails=emails, most=left) if left > 0 else "")
        left -= len(shown[-1])
    return tuple(shown)


def redact_question(text: str, *, emails: bool, most: int = MAX_CHARS) -> str:
    """Return a question as it may be kept: at most `most` characters, without secrets and mentions."""
    start = text[: 4 * MAX_CHARS].encode("utf-8", "replace").decode()
    shown = _MENTION.sub("@…", mask_secrets(start, emails=emails).text).strip()
    return shown if len(shown) <= most else shown[: most - 1] + "…"
