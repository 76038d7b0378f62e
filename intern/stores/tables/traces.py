"""The trace of each question.

A question may consist of several messages, and each of these belongs to one trace. The newest message that is left
names a trace. So a later trace replaces the older one only for the messages that it names. A trace
holds ids, names and numbers, and nothing that anybody said, a model included: the words are in `questions`, and for
some days in the flight recorder.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, cast

from msgspec import Struct

from intern.core.ids import ChannelId, MessageId
from intern.core.text.encoding import encode_json
from intern.core.text.masking import mask_start
from intern.stores.database import Transaction
from intern.stores.tables.store import OURS, Store, Table, keep_first, reads, writes

KEPT = 5_000  # questions; with MAX_DEBUG_CHARS, 20 MB at the very most
MAX_DEBUG_CHARS = 4_000
_MAX_TEXT = 300
_MAX_ITEMS = 20
# The fields of steps that hold ids and names of ours. Other fields may hold words of people.
_NAMES = frozenset("by citations facts kind links nuggets_shown prompt setup shown source_ids verdict".split())


class QuestionTrace(Struct, frozen=True, kw_only=True):
    """The outcome of one question."""

    question_id: MessageId
    """The last message of the question."""
    channel_id: ChannelId
    """The channel or thread of the question."""
    at: datetime
    """When it was last heard of (UTC)."""
    outcome: str
    reason: str
    debug: dict[str, Any]
    """The decision of each step, and its seconds."""


class TraceStore(Store):
    """The newest KEPT questions."""

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
        beside: bool = False,
    ) -> None:
        """Save a trace of these messages of a question (at least one, oldest first).

        It replaces earlier traces of these messages, and of no others. `beside`: all but the last message keep the
        trace that they have, if any. `debug` is cut to its bounds.
        """
        *others, question_id = message_ids
        _release_messages(db, [question_id] if beside else message_ids)
        short = (outcome[:_MAX_TEXT], reason[:_MAX_TEXT], encode_steps(debug or {}))
        trace = db.number(f"{_TRACES.insert} returning rid", (question_id, channel_id, self.now(), *short))
        db.run_each(
            "insert into trace_messages (community, message_id, trace) values (:community, ?, ?)"
            " on conflict do nothing",
            [(each, trace) for each in (*others, question_id)],
        )
        keep_first(db, "traces", "rid", "rid desc", KEPT)

    async def save_outcome(self, question_id: MessageId, *, outcome: str, reason: str = "") -> None:
        """Save the outcome of the reply to a question; the reason stays if there is no new one.

        Harmless if the question has no trace.
        """
        await self.db.run(
            "update traces set outcome = ?, reason = coalesce(nullif(?, ''), reason), at = ?"
            f" {OURS} and question_id = ?",
            (outcome[:_MAX_TEXT], reason[:_MAX_TEXT], self.now(), question_id),
        )

    @reads
    def find_trace(self, db: Transaction, message_id: MessageId) -> QuestionTrace | None:
        """Return the trace of a question, by any of its messages or of the reply's."""
        asked = f"{OURS} and rid = (select trace from trace_messages {OURS} and message_id = ?)"
        replied = f"{OURS} and question_id = (select question_id from post_parts {OURS} and message_id = ?)"
        return _TRACES.first(db, asked, (message_id,)) or _TRACES.first(db, replied, (message_id,))

    @reads
    def find_newest_in(self, db: Transaction, channel_id: ChannelId) -> QuestionTrace | None:
        """Return the newest trace in a channel or thread, or of the message that a thread hangs on."""
        # A thread that hangs on a message has the message's id.
        rest = f"{OURS} and (channel_id = ? or question_id = ?) order by at desc, rid desc limit 1"
        return _TRACES.first(db, rest, (channel_id, channel_id))


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


_TRACES = Table("traces", QuestionTrace, json=("debug",))
# Of snowflakes, the longer one is the newer one.
_RENAME = """
    update traces set question_id = (
        select message_id from trace_messages
        where community = :community and trace = traces.rid
        order by length(message_id) desc, message_id desc limit 1
    ) where community = :community and rid = ?
"""
_TAKE = f"delete from trace_messages {OURS} and message_id = ? returning trace"


def _release_messages(db: Transaction, message_ids: Sequence[MessageId]) -> None:
    """Remove these messages from their traces. The newest message that is left names a trace from now on."""
    for message_id in message_ids:
        for (trace,) in db.rows(_TAKE, (message_id,)):
            if db.row(f"select 1 from trace_messages {OURS} and trace = ?", (trace,)):
                db.run(_RENAME, (trace,))
            else:
                db.run(f"delete from traces {OURS} and rid = ?", (trace,))
