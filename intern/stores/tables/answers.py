"""The record of each question: its outcome and trace, its words, and what hangs on it.

A question may consist of several messages, and each of these belongs to one record. The newest message that is left
names a record. So a later record replaces the older one only for the messages that it names.

A record has parts that are kept for different times: the trace, the words, and the citations of the posted answer
(`citations.py`). A trace holds ids, names and numbers, and nothing that anybody said, a model included. Secrets are
masked and mentions taken out before words are kept: those of questions that were answered, that were searched for, or
that called the bot.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final, Literal, cast

import msgspec
from msgspec import Struct, structs

from intern.core.clock import Clock
from intern.core.flow import Reply
from intern.core.ids import ChannelId, GuildId, MessageId, UserId
from intern.core.messages import Channel, ChatMessage
from intern.core.text.encoding import encode_json
from intern.core.text.masking import mask_secrets, mask_start
from intern.stores.database import Database, Transaction, Value
from intern.stores.tables.judgements import judge_deleted
from intern.stores.tables.store import (
    IN,
    NO_LIMIT,
    NUMBER_IN,
    OURS,
    Store,
    Table,
    bare_id_array,
    join_conditions,
    json_array,
    reads,
    sanitize_text,
    text_array,
    writes,
)

KEPT_TRACES = 5_000  # with MAX_DEBUG_CHARS, 20 MB at the very most
KEPT_WORDS = 10_000  # questions; with MAX_CHARS, 8 MB at most
KEPT_CITED = 5_000
"""The newest answers that are watched."""
MAX_AGE = timedelta(days=90)
"""The age of words and citations: a question that was not asked again since is no gap any more."""
MAX_OPEN = 2_000  # gaps that are read; grouping them takes a second where no two are alike
MAX_CHARS = 500  # of a question: enough to understand it
MAX_DEBUG_CHARS = 4_000
_MAX_TEXT = 300
_MAX_ITEMS = 20
_MOST_CLOSED = 1_000
# The fields of steps that hold ids and names of ours. Other fields may hold words of people.
_NAMES = frozenset("by citations facts kind links nuggets_shown prompt setup shown source_ids verdict".split())

NOT_ASKED = "not_a_question"
"""The reason of a message that turned out to ask nothing: it is no gap."""

_MENTION = re.compile(r"<(?:@[!&]?|#)\d{1,20}>")

GapState = Literal["", "open", "answered", "dismissed"]
"""`answered`: by the team, since. Empty: it is no gap."""


class AnswerRecord(Struct, frozen=True, kw_only=True):
    """A question and its outcome."""

    question_id: MessageId
    """The last message of the question."""
    channel_id: ChannelId
    """The channel or thread of the question."""
    at: datetime
    """When the outcome was found (UTC)."""
    changed_at: datetime
    """When it was last heard of."""
    outcome: str
    reason: str
    """Why there is no answer; empty where there is one."""
    debug: Mapping[str, Any] | None
    """The trace: the decision of each step, and its seconds. None if it is too old, or left out."""
    author_id: UserId | None = None
    """None where words are not kept; so are the fields below."""
    guild_id: GuildId | None = None
    place_id: ChannelId = ChannelId("")
    """The channel, or the one that its thread hangs in."""
    place: str = ""
    """The name of a channel; empty of a thread, whose name is a member's words."""
    message_ids: tuple[MessageId, ...] = ()
    texts: tuple[str, ...] | None = None
    """The text of each message, shortened, without secrets and mentions; None where they are not kept."""
    seconds: float = 0.0
    """Seconds from its last message to the answer, or to the decision against one; the batch wait counts, too."""
    tokens: int = 0
    cost: float = 0.0
    gap: GapState = ""

    @property
    def text(self) -> str:
        """All of its words."""
        return "\n".join(filter(None, self.texts or ()))


class QuestionWords(Struct, frozen=True, kw_only=True):
    """The messages of a question, of one author, oldest first, and what its answer took."""

    messages: tuple[ChatMessage, ...]
    channel: Channel | None = None
    """The channel or thread."""
    seconds: float = 0.0
    tokens: int = 0
    cost: float = 0.0


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


_ANSWERS = Table("answers", AnswerRecord, json=("debug", "message_ids", "texts"))


def _keep_names_with(part: str) -> str:
    # An answer that is watched needs its server for a link, and its author to be forgotten with them.
    return ", ".join(
        f"{name} = case when {part} is null then null else {name} end" for name in ("author_id", "guild_id")
    )


_NO_WORDS = f"place = '', message_ids = '[]', texts = null, gap = '', {_keep_names_with('retracted')}"
_NO_CITATIONS = f"retracted = null, {_keep_names_with('texts')}"
# Each part of a record by the column that is null once it is not kept, with what is cleared then.
_PARTS: Final = {"debug": "debug = null", "texts": _NO_WORDS, "retracted": _NO_CITATIONS}
_BARE = " and ".join(f"{part} is null" for part in _PARTS)
_HOLDING = f"question_id in (select question_id from answer_messages {OURS} and message_id {IN})"
_DISLIKED = (
    "exists (select 1 from feedback where feedback.community = :community"
    " and feedback.question_id = answers.question_id and vote = 'down')"
)
_WITH_TRACE = f"{OURS} and debug is not null"
_WITH_WORDS = f"{OURS} and texts is not null"


class AnswerStore(Store):
    """The records of the newest questions. `drop` never waits."""

    def __init__(self, db: Database, *, clock: Clock | None = None, emails: bool = False) -> None:
        """Open the store. With `emails`, addresses are masked, too."""
        super().__init__(db, clock=clock)
        self._emails = emails
        self._gone: set[MessageId] = set()
        self._closed: dict[MessageId, GapState] = {}
        """The gaps that were closed last: the team may answer while the bot still looks."""

    @writes
    def save(
        self,
        db: Transaction,
        message_ids: Sequence[MessageId],
        channel_id: ChannelId,
        *,
        outcome: str,
        reason: str = "",
        debug: Mapping[str, Any] | None = None,
        words: QuestionWords | None = None,
        beside: bool = False,
    ) -> None:
        """Save the record of these messages of a question (at least one, oldest first).

        It replaces earlier records of these messages, and of no others. `beside`: all but the last message keep the
        record that they have, if any. `debug` is cut to its bounds.
        """
        *others, question_id = message_ids
        _release_messages(db, [question_id] if beside else message_ids, question_id)
        now = self.now()
        short = (outcome[:_MAX_TEXT], reason[:_MAX_TEXT], encode_steps(debug or {}))
        gap = "" if words is None or reason in {"", NOT_ASKED} else self._closed.get(question_id, "open")
        row = (question_id, channel_id, now, now, *short, *_build_word_columns(words, gap, emails=self._emails))
        db.run(_ANSWERS.upsert("question_id"), row)
        _add_messages(db, question_id, (*others, question_id))
        expire_part(db, "debug", KEPT_TRACES)
        if words is not None:
            expire_part(db, "texts", KEPT_WORDS, self._oldest())

    async def save_outcome(self, question_id: MessageId, *, outcome: str, reason: str = "") -> None:
        """Save the outcome of the reply to a question; the reason stays if there is no new one.

        Harmless if the question has no record.
        """
        await self.db.run(
            "update answers set outcome = ?, reason = coalesce(nullif(?, ''), reason), changed_at = ?"
            f" {OURS} and question_id = ?",
            (outcome[:_MAX_TEXT], reason[:_MAX_TEXT], self.now(), question_id),
        )

    @reads
    def find(self, db: Transaction, message_id: MessageId) -> AnswerRecord | None:
        """Return the record of a question, by any of its messages or of the reply's."""
        for table in ("answer_messages", "post_parts"):
            named = f"{OURS} and question_id = (select question_id from {table} {OURS} and message_id = ?)"
            if found := _ANSWERS.first(db, named, (message_id,)):
                return found
        return None

    @reads
    def find_newest_in(self, db: Transaction, channel_id: ChannelId) -> AnswerRecord | None:
        """Return the newest record with a trace in a channel or thread, or of the message that a thread hangs on."""
        # A thread that hangs on a message has the id of the message. One condition for each index.
        newest = f"{_WITH_TRACE} and channel_id = ? order by changed_at desc, rid desc limit 1"
        of_thread = _ANSWERS.first(db, f"{_WITH_TRACE} and question_id = ?", (channel_id,))
        found = filter(None, (_ANSWERS.first(db, newest, (channel_id,)), of_thread))
        return max(found, key=lambda each: each.changed_at, default=None)

    @reads
    def list_open(self, db: Transaction) -> tuple[AnswerRecord, ...]:
        """Return the newest MAX_OPEN gaps, newest first: open questions without an answer. Traces are left out."""
        newest = f"{_WITH_WORDS} and gap = 'open' and at >= ? order by at desc, rid desc limit ?"
        # To decode so many traces takes longer than all else.
        columns = _ANSWERS.columns.replace("debug", "null")
        rows = db.rows(f"select {columns} from answers {newest}", (self._oldest(), MAX_OPEN))
        return tuple(map(_ANSWERS.from_row, rows))

    @reads
    def list_questions(
        self, db: Transaction, wanted: QuestionFilter, limit: int, offset: int = 0
    ) -> tuple[tuple[AnswerRecord, ...], int]:
        """Return some of the questions with words, newest first, and how many there are."""
        where, values = _build_where(wanted, self._oldest())
        page = f"{_WITH_WORDS} and {where} order by at desc, rid desc limit ? offset ?"
        total = db.number(f"select count(*) from answers {_WITH_WORDS} and {where}", values)
        return _ANSWERS.all(db, page, (*values, limit, offset)), total

    @reads
    def count_reasons(self, db: Transaction) -> dict[str, int]:
        """Return the reasons of silence, each with the number of its questions, the most frequent first."""
        statement = f"select reason, count(*) from answers {_WITH_WORDS} group by reason order by count(*) desc, reason"
        return dict(msgspec.convert(db.rows(statement), list[tuple[str, int]]))

    @reads
    def list_channels(self, db: Transaction) -> tuple[QuestionChannel, ...]:
        """Return the channels with questions, those with the most first."""
        each = f"select place_id, max(place), count(*) from answers {_WITH_WORDS} group by place_id order by 3 desc, 1"
        return tuple(QuestionChannel(*row) for row in msgspec.convert(db.rows(each), list[tuple[ChannelId, str, int]]))

    async def close_gaps(self, question_ids: Collection[MessageId], how: GapState) -> None:
        """Close these questions, as gaps."""
        self._closed |= dict.fromkeys(question_ids, how)
        for old in list(self._closed)[:-_MOST_CLOSED]:
            del self._closed[old]
        closing = f"update answers set gap = ? {OURS} and gap <> '' and question_id {IN}"
        await self.db.run(closing, (how, text_array(question_ids)))

    async def find_messages_by(self, user_id: UserId) -> frozenset[MessageId]:
        """Return a member's messages in questions that were answered, or whose words are kept."""
        written = (
            f"select message_id from answer_messages {OURS} and question_id in"
            f" (select question_id from answers {OURS} and author_id = ?)"
        )
        return frozenset(map(MessageId, await self.db.texts(written, (user_id,))))

    def drop(self, message_ids: Collection[MessageId]) -> None:
        """Note deleted messages, for the next `store`: it removes their questions' words, and judges their answers."""
        self._gone.update(message_ids)

    async def store(self) -> None:
        """Handle the deletions since the last time. Raises KnowledgeError; the next time tries again."""
        if gone := frozenset(self._gone):
            await self._drop(gone)
            self._gone -= gone

    @writes
    def _drop(self, db: Transaction, message_ids: Collection[MessageId]) -> None:
        judge_deleted(db, message_ids, self.clock.now())
        _run_each(db, _DROPPING, message_ids)

    @writes
    def withdraw(self, db: Transaction, message_ids: Collection[MessageId]) -> None:
        """Remove words and citations of questions that hold any of these messages. The traces stay."""
        _run_each(db, _WITHDRAWING, message_ids)

    @writes
    def forget(self, db: Transaction, message_ids: Collection[MessageId]) -> None:
        """Delete the records of these messages with all that hangs on them, and all quotes of people."""
        _run_each(db, _FORGETTING, message_ids)

    def _oldest(self) -> str:
        return (self.clock.now() - MAX_AGE).isoformat()


_DROPPING: Final = (
    f"update answers set {_NO_WORDS} {OURS} and {_HOLDING}",
    f"delete from answers {OURS} and {_HOLDING} and {_BARE}",
)
_WITHDRAWING: Final = (
    f"delete from answer_citations {OURS} and {_HOLDING}",
    f"update answers set {_NO_CITATIONS} {OURS} and {_HOLDING}",
    *_DROPPING,
)
_UNWATCHING: Final = (
    f"delete from answer_citations {OURS} and question_id = ?",
    f"update answers set {_NO_CITATIONS} {OURS} and question_id = ? and retracted is not null",
    f"delete from answers {OURS} and question_id = ? and {_BARE}",
)
_UNQUOTE = (
    f"update answer_citations set quote = '', title = '' {OURS}"
    " and (substr(source_id, 1, 5) in ('team:', 'fact:') or substr(source_id, 1, 7) = 'nugget:')"
)
_FORGETTING: Final = (
    f"delete from answer_judgements {OURS} and (question_id {IN} or {_HOLDING})",
    f"delete from answers {OURS} and {_HOLDING}",
    _UNQUOTE,
)


def _run_each(db: Transaction, statements: Collection[str], message_ids: Collection[MessageId]) -> None:
    for statement in statements:
        db.run(statement, (bare_id_array(message_ids),) * statement.count("?"))


def ensure_record(db: Transaction, reply: Reply, *, at: str, emails: bool) -> None:
    """Make a record for a reply that is about to be posted, if saving it failed before."""
    question, covered = structs.replace(reply.question, text=reply.asked), (*reply.settles, reply.question.id)
    words = _build_word_columns(QuestionWords(messages=(question,)), "", emails=emails)
    row = (question.id, question.channel_id, at, at, "answer", "", None, *words)
    if db.run(f"{_ANSWERS.insert} on conflict do nothing", row):
        _release_messages(db, covered, question.id)
        _add_messages(db, question.id, covered)


def unwatch_answer(db: Transaction, question_id: MessageId) -> None:
    """Remove the citations of an answer that is not posted after all, and its record if nothing else is kept."""
    for statement in _UNWATCHING:
        db.run(statement, (question_id,))


def _build_word_columns(words: QuestionWords | None, gap: GapState, *, emails: bool) -> tuple[Value, ...]:
    if words is None:
        return (None, None, "", "", "[]", None, 0.0, 0, 0.0, gap)
    *_, last = words.messages
    channel, in_thread = words.channel, words.channel is not None and words.channel.is_thread
    return (
        last.author.id,
        last.guild_id,
        (channel.parent_id if channel is not None and in_thread else None) or last.channel_id,
        "" if channel is None or in_thread else sanitize_text(channel.name),
        text_array(each.id for each in words.messages),
        text_array(_redact_messages([each.text for each in words.messages], emails=emails)),
        words.seconds,
        words.tokens,
        words.cost,
        gap,
    )


def expire_part(db: Transaction, part: str, most: int, oldest: str = "") -> None:
    """Remove a part of all records but the newest `most`, and from before a time; whole records without another part.

    An index by community and age makes this a walk over `most` entries where nothing is to be removed.
    """
    kept = f"from answers {OURS} and {part} is not null"
    beyond = f"select rid from (select rid {kept} order by at desc, rid desc limit ? offset ?) as older"
    if doomed := db.rows(f"{beyond} union select rid {kept} and at < ?", (NO_LIMIT, most, oldest)):
        rids = (json_array(rid for (rid,) in doomed),)
        bare = " and ".join(f"{other} is null" for other in _PARTS if other != part)
        db.run(f"delete from answers {OURS} and rid {NUMBER_IN} and {bare}", rids)
        db.run(f"update answers set {_PARTS[part]} {OURS} and rid {NUMBER_IN}", rids)
        if part == "retracted":
            unwatched = f"select question_id from answers {OURS} and rid {NUMBER_IN}"
            db.run(f"delete from answer_citations {OURS} and question_id in ({unwatched})", rids)


def encode_steps(debug: Mapping[str, Any]) -> str:
    """Return the steps as JSON of at most MAX_DEBUG_CHARS: their numbers, ids and names.

    Steps that no longer fit are left out from the end; then `cut` is true.
    """
    kept: dict[str, Any] = {}
    for name, value in debug.items():
        longer = {**kept, _shorten(name): _filter_value(name, value)}
        if len(encode_json({**longer, "cut": True})) > MAX_DEBUG_CHARS:
            kept["cut"] = True
            break
        kept = longer
    return encode_json(kept).decode()


def _filter_value(name: str, value: object) -> object:
    match value:
        case Mapping():
            items = [*cast("Mapping[str, object]", value).items()][:_MAX_ITEMS]
            return {_shorten(field): held for field, each in items if (held := _filter_value(field, each)) is not None}
        case str() if name in _NAMES:
            return _shorten(value)
        case list() | tuple() if name in _NAMES:
            return [_shorten(str(each)) for each in cast("Sequence[object]", value)[:_MAX_ITEMS]]
        case bool() | int() | float():
            return value
        case _:
            return None


def _shorten(text: str) -> str:
    return mask_start(text, _MAX_TEXT)


def redact_question(text: str, *, emails: bool, most: int = MAX_CHARS) -> str:
    """Return a question as it may be kept: at most `most` characters, without secrets and mentions."""
    start = text[: 4 * MAX_CHARS].encode("utf-8", "replace").decode()
    shown = _MENTION.sub("@…", mask_secrets(start, emails=emails).text).strip()
    return shown if len(shown) <= most else shown[: most - 1] + "…"


def _redact_messages(texts: Collection[str], *, emails: bool) -> tuple[str, ...]:
    """Return the messages of a question as they may be kept, together at most MAX_CHARS."""
    shown, left = list[str](), MAX_CHARS
    for text in texts:
        shown.append(redact_question(text, emails=emails, most=left) if left > 0 else "")
        left -= len(shown[-1])
    return tuple(shown)


def _build_where(wanted: QuestionFilter, oldest: str) -> tuple[str, tuple[Value, ...]]:
    since = None if wanted.since is None else wanted.since.isoformat()
    where, values = join_conditions(
        ("at >= ?", max(since or oldest, oldest)),
        ("reason = ?", wanted.reason or None),
        ("place_id = ?", wanted.place_id),
        ("instr(lower(texts), ?) > 0", _escape_words(wanted.words.lower())),
    )
    if wanted.answered is not None:
        where += f" and reason {'=' if wanted.answered else '<>'} ''"
    return f"{where} and {_DISLIKED}" if wanted.disliked else where, values


def _escape_words(words: str) -> str | None:
    """Return words as a JSON text contains them; None if there are none."""
    return msgspec.json.encode(words).decode()[1:-1] or None


# Of snowflakes, the longer one is the newer one.
_NEWEST_LEFT = (
    f"select message_id from answer_messages {OURS} and question_id = ?"
    " order by length(message_id) desc, message_id desc limit 1"
)


def _release_messages(db: Transaction, message_ids: Collection[MessageId], question_id: MessageId) -> None:
    """Remove these messages from other records than the question's. The newest message that is left names a record.

    What was asked with a message that is asked anew is not kept without it.
    """
    ids = bare_id_array(message_ids)
    losing = db.texts(f"select distinct question_id from answer_messages {OURS} and message_id {IN}", (ids,))
    db.run(f"delete from answer_messages {OURS} and message_id {IN}", (ids,))
    for name in losing:
        if left := db.texts(_NEWEST_LEFT, (name,)):
            db.run(f"update answers set question_id = ?, {_NO_WORDS} {OURS} and question_id = ?", (left[0], name))
            db.run(f"delete from answers {OURS} and question_id = ? and {_BARE}", (left[0],))
        elif name != question_id:
            db.run(f"delete from answers {OURS} and question_id = ?", (name,))


def _add_messages(db: Transaction, question_id: MessageId, message_ids: Sequence[MessageId]) -> None:
    db.run_each(
        "insert into answer_messages (community, message_id, question_id) values (:community, ?, ?)"
        " on conflict do nothing",
        [(each, question_id) for each in message_ids],
    )
