"""What roles members have, so that a restart knows the team again: Discord does not say it with an older message.

Derived and bounded; forgotten with its member, and after a day. Lost, members are looked up again, within the bound on
a request's calls.
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import timedelta

import msgspec

from intern.domain import GuildId, MemberRoles, RoleId, UserId
from intern.knowledge.columns import listed, millis, parts
from intern.knowledge.database import Database, Transaction
from intern.observe.clock import Clock

MOST_MEMBERS = 10_000
"""Those that were seen longest ago go first. As many are held in memory."""

BELIEVED = timedelta(days=1)
"""Whoever lost a role while the bot was away is of the team no longer than this, where nobody tells otherwise."""

_FINE = timedelta(hours=1)  # a member who goes on writing costs one write in this time

_KEEP = (
    "insert into member_roles (guild_id, user_id, roles, seen_at) values (?1, ?2, ?3, ?4)"
    " on conflict (guild_id, user_id) do update set roles = excluded.roles, seen_at = excluded.seen_at"
    " where roles <> excluded.roles or seen_at < ?5"
)
_PRUNE = (
    "delete from member_roles where seen_at < ?1 or (guild_id, user_id) in"
    " (select guild_id, user_id from member_roles order by seen_at desc limit -1 offset ?2)"
)
_KNOWN = "select guild_id, user_id, roles from member_roles where seen_at >= ? order by seen_at"


class RoleStore:
    """Members' roles, by server. All methods raise KnowledgeError."""

    def __init__(self, db: Database, *, clock: Clock, most: int = MOST_MEMBERS) -> None:
        self._db = db
        self._clock = clock
        self._most = most

    async def keep(self, seen: Collection[MemberRoles]) -> None:
        """These were seen just now."""
        now = self._clock.now()
        values = [(each.guild_id, each.user_id, listed(each.roles), millis(now), millis(now - _FINE)) for each in seen]

        def work(db: Transaction) -> None:
            changed = sum(db.run(_KEEP, each) for each in values)
            if changed:
                db.run(_PRUNE, (millis(now - BELIEVED), self._most))

        if values:
            await self._db.write(work)

    async def known(self) -> tuple[MemberRoles, ...]:
        """What can be believed yet; who was seen last comes last."""
        since = millis(self._clock.now() - BELIEVED)
        rows = await self._db.read(lambda db: db.rows(_KNOWN, (since,)))
        found = msgspec.convert(rows, list[tuple[GuildId, UserId, str]])
        return tuple(
            MemberRoles(guild_id, user_id, tuple(map(RoleId, parts(roles)))) for guild_id, user_id, roles in found
        )

    async def forget_author(self, user_id: UserId) -> None:
        """Nobody knows what roles they have."""
        await self._db.write(lambda db: db.run("delete from member_roles where user_id = ?", (user_id,)))
