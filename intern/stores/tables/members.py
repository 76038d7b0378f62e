"""Members: who got the notice about private messages, roles, and names.

Each member gets the notice once. Roles let a restart recognise the team: Discord does not send them with older
messages. They are kept for a day; without them, members are looked up again. Names are taken from captures, so that no
model and no note needs to contain them. All of it is bounded, and forgotten with its member.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from datetime import timedelta

import msgspec

from intern.core.ids import UserId
from intern.core.messages import MemberRoles
from intern.core.text.lookalikes import lookalike_key
from intern.stores.database import Transaction
from intern.stores.tables.store import (
    IN,
    NO_LIMIT,
    OURS,
    Store,
    Table,
    keep_first,
    reads,
    sanitize_text,
    text_array,
    to_millis,
    writes,
)


class GreetedMembers(Store):
    """Members that have seen the notice about private messages, by id."""

    async def add(self, user_id: UserId) -> bool:
        """Add a member; return whether they were not among these before."""
        if await self.db.row(f"select 1 from greeted_members {OURS} and user_id = ?", (user_id,)):
            return False  # a member who goes on writing costs no write
        added = "insert into greeted_members (community, user_id, at) values (:community, ?, ?) on conflict do nothing"
        return bool(await self.db.run(added, (user_id, self.now())))

    async def drop(self, user_id: UserId) -> None:
        """Remove a member: the notice was not sent after all."""
        await self.db.run(f"delete from greeted_members {OURS} and user_id = ?", (user_id,))


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
