"""Threads that were answered, and are read again.

A thread is stored with the authors of its messages, never with their words. Bounded, and forgotten with its member.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from datetime import datetime

import msgspec
from msgspec import Struct

from intern.core.ids import ChannelId, MessageId, UserId
from intern.stores.database import Database, Transaction
from intern.stores.qa_ids import bare_message_id
from intern.stores.tables.store import IN, OURS, Store, bare_id_array, from_millis, to_millis, writes

_NOW = from_millis(0)  # long due
_LOOK_AT = f"update answered_threads set look_at = ? {OURS} and thread_id = ?"
_LET_GO = f"update thread_messages set is_held = 0 {OURS} and thread_id = ?"


class ThreadMessage(Struct, frozen=True, kw_only=True):
    """A message that was read with a thread."""

    id: MessageId
    author_id: UserId
    is_outside: bool = False
    """It is in the parent channel of the thread: the question."""


class AnsweredThreads(Store):
    """The threads to read again, and when. It belongs to one event loop.

    `note_event` is called for each event of a thread and may not wait, so it changes memory; `store` writes the changes
    to disk.
    """

    def __init__(self, db: Database) -> None:
        super().__init__(db)
        self._read: set[ChannelId] = set()
        self._outside: dict[MessageId, ChannelId] = {}
        self._stirred: dict[ChannelId, datetime] = {}

    async def load(self) -> None:
        """Learn which threads were read before; until then, none was."""
        self._read.update(map(ChannelId, await self.db.texts(f"select distinct thread_id from thread_messages {OURS}")))
        outside = await self.db.rows(f"select message_id, thread_id from thread_messages {OURS} and is_outside = 1")
        self._outside.update(msgspec.convert(outside, list[tuple[MessageId, ChannelId]]))

    def holds(self, channel_id: ChannelId, message_id: MessageId) -> bool:
        """Return whether a message is in a thread that was read, or was read with one. From memory."""
        return channel_id in self._read or message_id in self._outside

    def note_event(self, channel_id: ChannelId, message_id: MessageId, at: datetime | None = None) -> None:
        """Note that something happened to a message: its thread must be read again, `at` that time or now.

        Nothing happens where the thread was never read.
        """
        thread_id = channel_id if channel_id in self._read else self._outside.get(message_id)
        if thread_id is not None:
            self._stirred[thread_id] = at or _NOW

    def has_events(self, thread_id: ChannelId) -> bool:
        """Return whether something happened in a thread since the last `store`."""
        return thread_id in self._stirred

    def find_thread_with_events(self) -> ChannelId | None:
        """Return one of the threads with events since the last `store`."""
        return next(iter(self._stirred), None)

    async def store(self, only: ChannelId | None = None) -> None:
        """Write to disk the threads to read again; changes that the disk does not take are kept."""
        stirred = {each: at for each, at in self._stirred.items() if only in {None, each}}
        if stirred:
            looks = [(to_millis(at), each) for each, at in stirred.items()]
            await self.db.write(lambda db: db.run_each(_LOOK_AT, looks))
            for each, at in stirred.items():
                if self._stirred.get(each) == at:
                    del self._stirred[each]

    @writes
    def add(self, db: Transaction, threads: Mapping[ChannelId, datetime]) -> None:
        """Add threads with an answer, each with the time to read it. A known time can only become later."""
        db.run_each(
            "insert into answered_threads (community, thread_id, look_at) values (:community, ?, ?)"
            " on conflict (community, thread_id) do update set look_at = excluded.look_at"
            " where answered_threads.look_at is null or answered_threads.look_at < excluded.look_at",
            [(each, to_millis(at)) for each, at in threads.items()],
        )

    async def next_due(self) -> tuple[ChannelId, datetime] | None:
        """Return the thread to read first, and when; None if no thread waits."""
        row = await self.db.row(
            f"select thread_id, look_at from answered_threads {OURS} and look_at is not null"
            " order by look_at, rid limit 1"
        )
        return None if row is None else (ChannelId(str(row[0])), from_millis(msgspec.convert(row[1], int)))

    async def reschedule(self, thread_id: ChannelId, again_at: datetime | None) -> None:
        """Note that a thread was read, and when to read it again; None: only when something happens there."""
        await self.db.run(_LOOK_AT, (None if again_at is None else to_millis(again_at), thread_id))

    async def replace_messages(self, thread_id: ChannelId, messages: Iterable[ThreadMessage]) -> None:
        """Replace the messages of a thread. The authors of earlier ones are kept: these may have taught something."""
        held = list(messages)
        # In memory at once: from here on a deletion concerns us.
        self._read.add(thread_id)
        self._outside.update((each.id, thread_id) for each in held if each.is_outside)
        await self._replace_messages(thread_id, held)

    @writes
    def _replace_messages(self, db: Transaction, thread_id: ChannelId, held: Iterable[ThreadMessage]) -> None:
        db.run(_LET_GO, (thread_id,))
        db.run_each(
            "insert into thread_messages (community, thread_id, message_id, author_id, is_outside, is_held)"
            " values (:community, ?, ?, ?, ?, 1) on conflict (community, thread_id, message_id) do update"
            " set author_id = excluded.author_id, is_outside = excluded.is_outside, is_held = 1",
            [(thread_id, each.id, each.author_id, int(each.is_outside)) for each in held],
        )

    async def mark_unread(self, thread_id: ChannelId) -> None:
        """Count no message of a thread as read, until it is read again."""
        await self.db.run(_LET_GO, (thread_id,))

    async def read_message_ids(self, thread_id: ChannelId) -> tuple[MessageId, ...]:
        """Return the messages that a thread held when it was read last."""
        held = f"from thread_messages {OURS} and thread_id = ? and is_held = 1"
        ids = await self.db.texts(f"select message_id {held} order by message_id", (thread_id,))
        return tuple(map(MessageId, ids))

    async def find_threads(self, message_ids: Collection[MessageId]) -> tuple[ChannelId, ...]:
        """Return the threads that hold, or once held, one of these messages."""
        statement = f"select distinct thread_id from thread_messages {OURS} and message_id {IN} order by thread_id"
        return tuple(map(ChannelId, await self.db.texts(statement, (bare_id_array(message_ids),))))

    async def find_messages_by(self, user_id: UserId) -> frozenset[MessageId]:
        """Return a member's messages that were ever read with a thread."""
        statement = f"select message_id from thread_messages {OURS} and author_id = ?"
        return frozenset(map(MessageId, await self.db.texts(statement, (user_id,))))

    async def forget(self, message_ids: Collection[MessageId]) -> None:
        """Delete all data of these messages, and have their threads read again."""
        threads = await self.find_threads(message_ids)
        # Before the write: a task that reads one of them right now sees this in time.
        self._stirred.update(dict.fromkeys(threads, _NOW))
        await self._forget(threads, message_ids)
        for each in map(bare_message_id, message_ids):
            self._outside.pop(MessageId(each), None)

    @writes
    def _forget(self, db: Transaction, threads: Iterable[ChannelId], message_ids: Collection[MessageId]) -> None:
        db.run_each(_LOOK_AT, [(to_millis(_NOW), each) for each in threads])
        db.run(f"delete from thread_messages {OURS} and message_id {IN}", (bare_id_array(message_ids),))
