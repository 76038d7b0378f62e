"""What is known of the chat: how far each channel was read, threads with an answer, and members.

A channel without a checkpoint has that of its server. Losing the newest checkpoints costs reading again. Threads are
kept with who wrote what was read there, never with what they wrote.

The notice about private messages is sent to each member once. Roles let a restart recognise the team: Discord does not
send them with older messages. They are kept for a day; without them, members are looked up again. Names are taken from
captures, so that no model and no note needs to contain them. All of it is bounded, and forgotten with its member.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime, timedelta

import msgspec
from msgspec import Struct

from intern.core.clock import Clock
from intern.core.ids import ChannelId, GuildId, MessageId, UserId
from intern.core.messages import MemberRoles
from intern.core.text.words import likeness_key
from intern.stores.blocks import bare
from intern.stores.sqlite.columns import IN, Table, bare_ids, carried, keep_first, listed, millis, moment
from intern.stores.sqlite.database import Database, Row, Transaction


class Mark(Struct, frozen=True, kw_only=True):
    """A channel's mark."""

    guild_id: GuildId
    settled_to: MessageId
    """Nothing up to here needs to be read again."""


class Marks(Struct, frozen=True, kw_only=True):
    """Where servers and channels stand, or how that changed."""

    attended: Mapping[GuildId, MessageId] = {}
    """By server: nothing up to here needs to be read again, in any of its channels."""
    channels: Mapping[ChannelId, Mark] = {}
    """Channels that are further than their server."""

    def then(self, later: Marks) -> Marks:
        """Return these marks with later changes."""
        return Marks(attended={**self.attended, **later.attended}, channels={**self.channels, **later.channels})


class MarkStore:
    """Marks in the database. All methods raise KnowledgeError."""

    def __init__(self, db: Database) -> None:
        self._db = db

    async def open(self, guild_ids: Collection[GuildId], first: MessageId) -> Marks:
        """Return the stored marks. A server without one gets `first`."""

        def work(db: Transaction) -> Marks:
            db.run_each(
                "insert into attended (guild_id, until) values (?, ?) on conflict do nothing",
                [(guild_id, int(first)) for guild_id in guild_ids],
            )
            attended = msgspec.convert(db.rows("select guild_id, until from attended"), list[tuple[str, int]])
            marks = msgspec.convert(db.rows("select channel_id, guild_id, mark from marks"), list[tuple[str, str, int]])
            return Marks(
                attended={GuildId(guild_id): MessageId(str(until)) for guild_id, until in attended},
                channels={
                    ChannelId(channel_id): Mark(guild_id=GuildId(guild_id), settled_to=MessageId(str(mark)))
                    for channel_id, guild_id, mark in marks
                },
            )

        return await self._db.write(work)

    async def keep(self, moved: Marks) -> None:
        """Write down what changed. Channels that their server has caught up with need no mark any more."""

        def work(db: Transaction) -> None:
            db.run_each(
                "insert into marks (channel_id, guild_id, mark) values (?, ?, ?)"
                " on conflict (channel_id) do update set guild_id = excluded.guild_id, mark = excluded.mark",
                [(channel_id, mark.guild_id, int(mark.settled_to)) for channel_id, mark in moved.channels.items()],
            )
            until = [(guild_id, int(settled_to)) for guild_id, settled_to in moved.attended.items()]
            db.run_each(
                "insert into attended (guild_id, until) values (?, ?)"
                " on conflict (guild_id) do update set until = max(until, excluded.until)",
                until,
            )
            db.run_each("delete from marks where guild_id = ? and mark <= ?", until)

        if moved.attended or moved.channels:
            await self._db.write(work)


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


class Greeted:
    """Members, by id. All methods raise KnowledgeError."""

    def __init__(self, db: Database, *, clock: Clock) -> None:
        self._db = db
        self._clock = clock

    async def add(self, user_id: UserId) -> bool:
        """Add a member; return whether they were not among these before."""
        known = "select 1 from greeted where user_id = ?"
        if await self._db.row(known, (user_id,)):
            return False  # who goes on writing costs no write
        values = (user_id, self._clock.now().isoformat())
        added = "insert into greeted (user_id, at) values (?, ?) on conflict do nothing"
        return bool(await self._db.run(added, values))

    async def drop(self, user_id: UserId) -> None:
        """Take a member out: the notice was not sent after all."""
        await self._db.run("delete from greeted where user_id = ?", (user_id,))


MOST_MEMBERS = 10_000
"""Those that were seen longest ago go first. As many are held in memory."""

BELIEVED = timedelta(days=1)
"""A role that a member lost while the bot was away counts for at most this long."""

_FINE = timedelta(hours=1)  # a member who goes on writing costs one write in this time

_KEEP = (
    "insert into member_roles (guild_id, user_id, roles, seen_at) values (?1, ?2, ?3, ?4)"
    " on conflict (guild_id, user_id) do update set roles = excluded.roles, seen_at = excluded.seen_at"
    " where roles <> excluded.roles or seen_at < ?5"
)
_ROLES = Table("member_roles", MemberRoles, json=("roles",))


class RoleStore:
    """Members' roles, by server. All methods raise KnowledgeError."""

    def __init__(self, db: Database, *, clock: Clock, most: int = MOST_MEMBERS) -> None:
        self._db = db
        self._clock = clock
        self._most = most

    async def keep(self, seen: Collection[MemberRoles]) -> None:
        """Keep roles that were seen just now."""
        now = self._clock.now()
        values = [(each.guild_id, each.user_id, listed(each.roles), millis(now), millis(now - _FINE)) for each in seen]

        def work(db: Transaction) -> None:
            changed = sum(db.run(_KEEP, each) for each in values)
            if changed:
                db.run("delete from member_roles where seen_at < ?", (millis(now - BELIEVED),))
                keep_first(db, "member_roles", "guild_id, user_id", "seen_at desc", self._most)

        if values:
            await self._db.write(work)

    async def known(self) -> tuple[MemberRoles, ...]:
        """Return the roles that are not too old, the last seen last."""
        since = millis(self._clock.now() - BELIEVED)
        return tuple(
            map(_ROLES.struct, await self._db.rows(f"{_ROLES.select} where seen_at >= ? order by seen_at", (since,)))
        )

    async def forget_author(self, user_id: UserId) -> None:
        """Forget a member's roles."""
        await self._db.run("delete from member_roles where user_id = ?", (user_id,))


MOST_NAMES = 20_000
"""Those that were noted longest ago go first."""

_MOST_OF_ONE = 10
_LONGEST = 100  # signs; Discord's names have 32

_KNOWN_NAMES = "select 1 from member_names where author_id = ? and name = ?"
_NOTE = "insert into member_names (author_id, name, look) values (?, ?, ?)"
_PRUNE_ONE = (
    "delete from member_names where rid in"
    " (select rid from member_names where author_id = ? order by rid desc limit -1 offset ?)"
)
_OF = f"select author_id, name from member_names where author_id {IN} order by rid desc"
_IN_TEXT = "select author_id, name from member_names where instr(?, look) > 0 order by rid desc"


class NameStore:
    """Names by member. All methods raise KnowledgeError."""

    def __init__(self, db: Database, *, most: int = MOST_NAMES) -> None:
        self._db = db
        self._most = most

    async def note(self, names: Iterable[tuple[UserId, Collection[str]]]) -> None:
        """Add names of members; earlier ones are kept, up to a bound."""
        said = [(author, name) for author, known in names for name in map(_one_line, known) if author and name]
        wanted = [each for each in dict.fromkeys(said) if each[0] != each[1] and likeness_key(each[1])]

        def new(db: Transaction) -> list[tuple[UserId, str]]:
            return [each for each in wanted if db.row(_KNOWN_NAMES, each) is None]

        # Mostly there is nothing to write.
        if not wanted or not await self._db.read(new):
            return

        def work(db: Transaction) -> None:
            for author, name in new(db):
                db.run(_NOTE, (author, name, likeness_key(name)))
                db.run(_PRUNE_ONE, (author, _MOST_OF_ONE))
            keep_first(db, "member_names", "rid", "rid desc", self._most)

        await self._db.write(work)

    async def of(self, author_ids: Collection[UserId]) -> Mapping[UserId, tuple[str, ...]]:
        """Return the names of these members, the newest name first."""
        found: dict[UserId, tuple[str, ...]] = {}
        for author, name in _pairs(await self._db.rows(_OF, (listed(author_ids),))):
            found[author] = (*found.get(author, ()), name)
        return found

    async def in_text(self, text: str) -> tuple[tuple[UserId, str], ...]:
        """Return the members and names that occur in a text, within words or across them."""
        return tuple(_pairs(await self._db.rows(_IN_TEXT, (carried(likeness_key(text)),))))

    async def forget_author(self, user_id: UserId) -> None:
        """Forget a member's names."""
        await self._db.run("delete from member_names where author_id = ?", (user_id,))


def _pairs(rows: list[Row]) -> list[tuple[UserId, str]]:
    return msgspec.convert(rows, list[tuple[UserId, str]])


def _one_line(name: str) -> str:
    return carried(" ".join(name.split()))[:_LONGEST]
