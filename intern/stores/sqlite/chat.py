"""The state of the chat: the checkpoint of each channel, threads with an answer, and members.

A channel without a checkpoint has that of its server. Losing the newest checkpoints costs reading again. A
thread is stored with the authors of its messages, never with their words.

The notice about private messages is sent to each member once. Roles let a restart recognise the team: Discord does not
send them with older messages. They are kept for a day; without them, members are looked up again. Names are taken from
captures, so that no model and no note needs to contain them. All of it is bounded, and forgotten with its member.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from datetime import datetime, timedelta

import msgspec
from msgspec import Struct

from intern.core.ids import ChannelId, GuildId, MessageId, UserId
from intern.core.messages import MemberRoles
from intern.core.text.words import lookalike_key
from intern.stores.blocks import bare_message_id
from intern.stores.database import Database, Transaction
from intern.stores.sqlite.store import (
    IN,
    NO_LIMIT,
    OURS,
    Store,
    Table,
    bare_id_array,
    from_millis,
    keep_first,
    reads,
    sanitize_text,
    text_array,
    to_millis,
    writes,
)


class Checkpoint(Struct, frozen=True, kw_only=True):
    """The checkpoint of a channel."""

    guild_id: GuildId
    settled_to: MessageId
    """Nothing up to here needs to be read again."""


class StoredCheckpoints(Struct, frozen=True, kw_only=True):
    """The checkpoints of servers and channels, or how they changed."""

    attended: Mapping[GuildId, MessageId] = {}
    """By server: nothing up to here needs to be read again, in any of its channels."""
    channels: Mapping[ChannelId, Checkpoint] = {}
    """Channels that are further than their server."""

    def merge(self, later: StoredCheckpoints) -> StoredCheckpoints:
        """Return these checkpoints with later changes."""
        return StoredCheckpoints(
            attended={**self.attended, **later.attended}, channels={**self.channels, **later.channels}
        )


def read_checkpoints(db: Transaction) -> StoredCheckpoints:
    """Return the stored checkpoints of a community as they are."""
    rows = db.rows(
        f"select guild_id, cast(until as text), null from attended {OURS} union all"
        f" select guild_id, cast(mark as text), channel_id from marks {OURS}"
    )
    attended, channels = dict[GuildId, MessageId](), dict[ChannelId, Checkpoint]()
    for guild_id, settled_to, channel_id in msgspec.convert(rows, list[tuple[GuildId, MessageId, ChannelId | None]]):
        if channel_id is None:
            attended[guild_id] = settled_to
        else:
            channels[channel_id] = Checkpoint(guild_id=guild_id, settled_to=settled_to)
    return StoredCheckpoints(attended=attended, channels=channels)


class CheckpointStore(Store):
    """Checkpoints in the database."""

    @writes
    def load_or_create(self, db: Transaction, guild_ids: Collection[GuildId], first: MessageId) -> StoredCheckpoints:
        """Return the stored checkpoints. A server without one gets `first`."""
        db.run_each(
            "insert into attended (community, guild_id, until) values (:community, ?, ?) on conflict do nothing",
            [(guild_id, int(first)) for guild_id in guild_ids],
        )
        return read_checkpoints(db)

    async def save(self, moved: StoredCheckpoints) -> None:
        """Store changes. Channels that their server has caught up with need none any more."""
        if moved.attended or moved.channels:
            await self._save(moved)

    @writes
    def _save(self, db: Transaction, moved: StoredCheckpoints) -> None:
        db.run_each(
            "insert into marks (community, channel_id, guild_id, mark) values (:community, ?, ?, ?)"
            " on conflict (community, channel_id) do update set guild_id = excluded.guild_id, mark = excluded.mark",
            [(channel_id, mark.guild_id, int(mark.settled_to)) for channel_id, mark in moved.channels.items()],
        )
        until = [(guild_id, int(settled_to)) for guild_id, settled_to in moved.attended.items()]
        db.run_each(
            "insert into attended (community, guild_id, until) values (:community, ?, ?)"
            " on conflict (community, guild_id) do update set until = excluded.until"
            " where attended.until < excluded.until",
            until,
        )
        db.run_each(f"delete from marks {OURS} and guild_id = ? and mark <= ?", until)


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
            await self._schedule(stirred)
            for each, at in stirred.items():
                if self._stirred.get(each) == at:
                    del self._stirred[each]

    @writes
    def _schedule(self, db: Transaction, threads: Mapping[ChannelId, datetime]) -> None:
        db.run_each(_LOOK_AT, [(to_millis(at), each) for each, at in threads.items()])

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
        statement = (
            f"select message_id from thread_messages {OURS} and thread_id = ? and is_held = 1 order by message_id"
        )
        return tuple(map(MessageId, await self.db.texts(statement, (thread_id,))))

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


class GreetedMembers(Store):
    """Members that have seen the notice about private messages, by id."""

    async def add(self, user_id: UserId) -> bool:
        """Add a member; return whether they were not among these before."""
        if await self.db.row(f"select 1 from greeted {OURS} and user_id = ?", (user_id,)):
            return False  # a member who goes on writing costs no write
        added = "insert into greeted (community, user_id, at) values (:community, ?, ?) on conflict do nothing"
        return bool(await self.db.run(added, (user_id, self.now())))

    async def drop(self, user_id: UserId) -> None:
        """Remove a member: the notice was not sent after all."""
        await self.db.run(f"delete from greeted {OURS} and user_id = ?", (user_id,))


BELIEVED = timedelta(days=1)
"""A role that a member lost while the bot was away counts for at most this long."""

_FINE = timedelta(hours=1)  # a member who goes on writing costs one write in this time

_KEEP = (
    "insert into member_roles (community, guild_id, user_id, roles, seen_at) values (:community, ?, ?, ?, ?)"
    " on conflict (community, guild_id, user_id) do update set roles = excluded.roles, seen_at = excluded.seen_at"
    " where member_roles.roles <> excluded.roles or member_roles.seen_at < ?"
)
_ROLES = Table("member_roles", MemberRoles, json=("roles",))


class RoleStore(Store):
    """Members' roles, by server."""

    most = 10_000
    """Members; those that were seen longest ago go first. As many are held in memory."""

    async def save(self, seen: Collection[MemberRoles]) -> None:
        """Keep roles that were seen just now."""
        if seen:
            await self._save(seen)

    @writes
    def _save(self, db: Transaction, seen: Collection[MemberRoles]) -> None:
        now = self.clock.now()
        fine = (to_millis(now), to_millis(now - _FINE))
        if sum(db.run(_KEEP, (each.guild_id, each.user_id, text_array(each.roles), *fine)) for each in seen):
            db.run(f"delete from member_roles {OURS} and seen_at < ?", (to_millis(now - BELIEVED),))
            keep_first(db, "member_roles", "guild_id, user_id", "seen_at desc", self.most)

    @reads
    def read_recent(self, db: Transaction) -> tuple[MemberRoles, ...]:
        """Return the roles that are not too old, the last seen last."""
        return _ROLES.all(db, f"{OURS} and seen_at >= ? order by seen_at", (to_millis(self.clock.now() - BELIEVED),))

    async def forget_author(self, user_id: UserId) -> None:
        """Forget a member's roles."""
        await self.db.run(f"delete from member_roles {OURS} and user_id = ?", (user_id,))


_MOST_OF_ONE = 10
_LONGEST = 100  # signs; Discord's names have 32

_NOTE = "insert into member_names (community, author_id, name, look) values (:community, ?, ?, ?)"
_PRUNE_ONE = (
    f"delete from member_names {OURS} and rid in (select rid from member_names"
    f" {OURS} and author_id = ? order by rid desc limit ? offset ?)"
)
_TEAM = f"update member_names set is_team = 1 {OURS} and author_id {IN}"
_NO_TEAM = f"select 1 from member_names {OURS} and author_id {IN} and is_team = 0"
_NAMES = f"select author_id, name from member_names {OURS} and"


class NameStore(Store):
    """Names by member."""

    most = 20_000
    """Names; those that were noted longest ago go first."""

    async def add(self, names: Iterable[tuple[UserId, Collection[str]]], team: Collection[UserId] = ()) -> None:
        """Add names of members, and note who answered as the team; earlier ones are kept, up to a bound."""
        said = dict.fromkeys((author, name) for author, known in names for name in map(_clean_name, known))
        wanted = [(author, name) for author, name in said if author and name != author and lookalike_key(name)]
        # Mostly there is nothing to write.
        if not wanted:
            return
        is_news = await self.db.read(
            lambda db: bool(_select_unknown(db, wanted) or db.row(_NO_TEAM, (text_array(team),)))
        )
        if is_news:
            await self._add(wanted, team)

    @writes
    def _add(self, db: Transaction, wanted: Iterable[tuple[UserId, str]], team: Collection[UserId]) -> None:
        for author, name in _select_unknown(db, wanted):
            db.run(_NOTE, (author, name, lookalike_key(name)))
            db.run(_PRUNE_ONE, (author, NO_LIMIT, _MOST_OF_ONE))
        db.run(_TEAM, (text_array(team),))
        keep_first(db, "member_names", "rid", "rid desc", self.most)

    async def read_team_ids(self) -> tuple[UserId, ...]:
        """Return those who answered as the team."""
        return tuple(dict.fromkeys(author for author, _ in await self._select("is_team = 1")))

    async def read_names(self, author_ids: Collection[UserId]) -> Mapping[UserId, tuple[str, ...]]:
        """Return the names of these members, the newest name first."""
        found: dict[UserId, tuple[str, ...]] = {}
        for author, name in await self._select(f"author_id {IN}", text_array(author_ids)):
            found[author] = (*found.get(author, ()), name)
        return found

    async def find_in_text(self, text: str) -> tuple[tuple[UserId, str], ...]:
        """Return the members and names that occur in a text, within words or across them."""
        sought = sanitize_text(lookalike_key(text))
        return await self._select("replace(?, look, '') <> ?", sought, sought)

    async def forget_author(self, user_id: UserId) -> None:
        """Forget a member's names."""
        await self.db.run(f"delete from member_names {OURS} and author_id = ?", (user_id,))

    async def _select(self, condition: str, *values: str) -> tuple[tuple[UserId, str], ...]:
        rows = await self.db.rows(f"{_NAMES} {condition} order by rid desc", values)
        return msgspec.convert(rows, tuple[tuple[UserId, str], ...])


def _select_unknown(db: Transaction, names: Iterable[tuple[UserId, str]]) -> list[tuple[UserId, str]]:
    return [each for each in names if db.row(f"{_NAMES} author_id = ? and name = ?", each) is None]


def _clean_name(name: str) -> str:
    return sanitize_text(" ".join(name.split()))[:_LONGEST]
