"""Members: who has seen the notice about private messages, roles, and names.

The notice is sent to each member once. Roles let a restart recognise the team: Discord does not send them with older
messages. They are kept for a day; without them, members are looked up again, within the bound on a request's calls.
Names are taken from captures, so that no model and no note needs to contain them. All of it is bounded, and forgotten
with its member.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from datetime import timedelta

import msgspec

from intern.core.clock import Clock
from intern.core.ids import UserId
from intern.core.messages import MemberRoles
from intern.core.text.words import likeness_key
from intern.stores.sqlite.columns import IN, Table, carried, keep_first, listed, millis
from intern.stores.sqlite.database import Database, Row, Transaction


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
