"""Threads that intern answered in: when to look at each, and who wrote what was read there. Never what they wrote."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime

import msgspec
from msgspec import Struct

from intern.core.ids import ChannelId, MessageId, UserId
from intern.stores.blocks import bare
from intern.stores.sqlite.columns import IN, bare_ids, listed, millis, moment
from intern.stores.sqlite.database import Database, Transaction

_NOW = moment(0)  # long due
_LET_GO = "update thread_messages set is_held = 0 where thread_id = ?"


class ThreadMessage(Struct, frozen=True, kw_only=True):
    """A message that was read with a thread."""

    id: MessageId
    author_id: UserId
    is_outside: bool = False
    """It stands in the channel that the thread hangs in: the question."""


class AnsweredThreads:
    """Which threads are to be looked at, and when. All but `stir`, `is_stirred`, `holds` raise KnowledgeError.

    It belongs to one event loop. `stir` is called for each event of a thread and may not wait, so it changes memory;
    `store` brings the changes to disk.
    """

    def __init__(self, db: Database) -> None:
        self._db = db
        self._read: set[ChannelId] = set()
        self._outside: dict[MessageId, ChannelId] = {}
        self._stirred: dict[ChannelId, datetime] = {}

    async def load(self) -> None:
        """Learn which threads were read before; until then, none was."""
        self._read.update(map(ChannelId, await self._db.texts("select distinct thread_id from thread_messages")))
        outside = await self._db.rows("select message_id, thread_id from thread_messages where is_outside = 1")
        self._outside.update((MessageId(str(one)), ChannelId(str(thread))) for one, thread in outside)

    def holds(self, channel_id: ChannelId, message_id: MessageId) -> bool:
        """Whether a message stands in a thread that was read, or was read with one. From memory."""
        return channel_id in self._read or message_id in self._outside

    def stir(self, channel_id: ChannelId, message_id: MessageId, at: datetime | None = None) -> None:
        """Note that something happened to a message: its thread is to be looked at again, `at` that time or now.

        Nothing happens where the thread was never read.
        """
        thread_id = channel_id if channel_id in self._read else self._outside.get(message_id)
        if thread_id is not None:
            self._stirred[thread_id] = at or _NOW

    def is_stirred(self, thread_id: ChannelId) -> bool:
        """Whether something happened in a thread since the last `store`."""
        return thread_id in self._stirred

    def stirred(self) -> ChannelId | None:
        """Return one of the threads with events since the last `store`."""
        return next(iter(self._stirred), None)

    async def store(self, only: ChannelId | None = None) -> None:
        """Bring to disk which threads are to be looked at again; what the disk does not take is kept."""
        stirred = {each: at for each, at in self._stirred.items() if only in {None, each}}
        if stirred:
            await self._db.write(
                lambda db: db.run_each(
                    "update answered_threads set look_at = ? where thread_id = ?",
                    [(millis(at), each) for each, at in stirred.items()],
                )
            )
            for each, at in stirred.items():
                if self._stirred.get(each) == at:
                    del self._stirred[each]

    async def add(self, threads: Mapping[ChannelId, datetime]) -> None:
        """Add threads with an answer, each with the time to look at it. A known time can only become later."""
        await self._db.write(
            lambda db: db.run_each(
                "insert into answered_threads (thread_id, look_at) values (?, ?) on conflict (thread_id) do update"
                " set look_at = max(coalesce(look_at, 0), excluded.look_at)",
                [(each, millis(at)) for each, at in threads.items()],
            )
        )

    async def next(self) -> tuple[ChannelId, datetime] | None:
        """Return the thread to look at first, and when; None where no thread waits."""
        statement = "select thread_id, look_at from answered_threads where look_at is not null order by look_at, rid"
        row = await self._db.row(f"{statement} limit 1")
        return None if row is None else (ChannelId(str(row[0])), moment(msgspec.convert(row[1], int)))

    async def looked(self, thread_id: ChannelId, again_at: datetime | None) -> None:
        """Note that a thread was looked at, and when to do so again; None: only when something happens there."""
        await self._db.run(
            "update answered_threads set look_at = ? where thread_id = ?",
            (None if again_at is None else millis(again_at), thread_id),
        )

    async def keep(self, thread_id: ChannelId, messages: Iterable[ThreadMessage]) -> None:
        """Replace the messages that a thread holds. The authors of earlier ones are kept: these may have taught."""
        held = list(messages)
        # Told at once: from here on a deletion concerns us.
        self._read.add(thread_id)
        self._outside.update((each.id, thread_id) for each in held if each.is_outside)

        def work(db: Transaction) -> None:
            db.run(_LET_GO, (thread_id,))
            db.run_each(
                "insert into thread_messages (thread_id, message_id, author_id, is_outside, is_held)"
                " values (?, ?, ?, ?, 1) on conflict (thread_id, message_id) do update"
                " set author_id = excluded.author_id, is_outside = excluded.is_outside, is_held = 1",
                [(thread_id, each.id, each.author_id, int(each.is_outside)) for each in held],
            )

        await self._db.write(work)

    async def let_go(self, thread_id: ChannelId) -> None:
        """Count no message of a thread as read, until it is read again."""
        await self._db.run(_LET_GO, (thread_id,))

    async def held(self, thread_id: ChannelId) -> tuple[MessageId, ...]:
        """Return the messages that a thread held when it was read last."""
        statement = "select message_id from thread_messages where thread_id = ? and is_held = 1"
        return tuple(map(MessageId, await self._db.texts(statement, (thread_id,))))

    async def holding(self, message_ids: Collection[MessageId]) -> tuple[ChannelId, ...]:
        """Return the threads that hold, or once held, one of these messages."""
        statement = f"select distinct thread_id from thread_messages where message_id {IN} order by thread_id"
        return tuple(map(ChannelId, await self._db.texts(statement, (bare_ids(message_ids),))))

    async def written_by(self, user_id: UserId) -> frozenset[MessageId]:
        """Return a member's messages that were ever read with a thread."""
        statement = "select message_id from thread_messages where author_id = ?"
        return frozenset(map(MessageId, await self._db.texts(statement, (user_id,))))

    async def forget(self, message_ids: Collection[MessageId]) -> None:
        """Leave nothing of these messages, and have their threads looked at again."""
        threads: Sequence[ChannelId] = await self.holding(message_ids)

        def work(db: Transaction) -> None:
            statement = f"update answered_threads set look_at = ? where thread_id {IN}"
            db.run(statement, (millis(_NOW), listed(threads)))
            db.run(f"delete from thread_messages where message_id {IN}", (bare_ids(message_ids),))

        # Before the write: a look at one of them right now learns of it in time.
        self._stirred.update(dict.fromkeys(threads, _NOW))
        await self._db.write(work)
        for each in map(bare, message_ids):
            self._outside.pop(MessageId(each), None)
