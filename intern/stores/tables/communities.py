"""The registry of a process that hosts many communities, each with its own settings.

It belongs to the whole database and to no community. A server that comes back finds its community as it left it.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Collection, Iterator, Mapping
from datetime import datetime, timedelta
from itertools import count
from typing import Any, Final, Literal

from msgspec import Struct
from msgspec.structs import replace

from intern.core.clock import Clock
from intern.core.errors import ConfigError
from intern.core.ids import GuildId
from intern.stores.database import DEFAULT_COMMUNITY, Database, Transaction
from intern.stores.tables.store import (
    NUMBER_IN,
    Store,
    Table,
    json_array,
    json_items,
    reads,
    sanitize_text,
    to_millis,
    writes,
)

REGISTRY: Final = "*"
"""The name that the store binds, so that its writers take turns; no community has this name."""
KEPT_FOR: Final = timedelta(days=7)
"""The time for which the data of a server is kept after it removed the bot."""
_LONGEST_NAME = 40
"""Characters of a name that is made from a server's; a number may follow."""


class RegisteredCommunity(Struct, frozen=True, kw_only=True):
    """A community in the registry."""

    name: str
    """The name of its rows and its folder."""
    guild_ids: tuple[GuildId, ...]
    title: str = ""
    """Its server's name on Discord when the bot was invited."""
    chosen: Mapping[str, Mapping[str, Any]] = {}
    """Its own settings and limits, in the shape of the file."""
    state: Literal["active", "suspended", "left"] = "active"
    joined_at: datetime
    left_at: datetime | None = None
    """The time since when no server of it has the bot. A suspended one stays suspended."""

    def with_departure(self, at: datetime) -> RegisteredCommunity:
        """Return a copy that notes that its servers removed the bot at that time."""
        return replace(self, state="left" if self.state == "active" else self.state, left_at=at)


_TABLE = Table("hosted_communities", RegisteredCommunity, millis=("joined_at", "left_at"), json=("guild_ids", "chosen"))
_INSERT = f"insert into hosted_communities ({_TABLE.columns}, changed_at) values ({'?, ' * len(_TABLE.names)}?)"
_REPLACE = f"{_INSERT} on conflict (name) do update set {_TABLE.assignments('name')}, changed_at = excluded.changed_at"


class CommunityStore(Store):
    """The registry in the database."""

    def __init__(self, db: Database, *, clock: Clock | None = None) -> None:
        super().__init__(db.for_community(REGISTRY), clock=clock)

    @reads
    def all(self, db: Transaction) -> tuple[RegisteredCommunity, ...]:
        """Return all communities, by name."""
        return _TABLE.all(db, "order by name")

    @reads
    def list_on_shards(self, db: Transaction, shards: Collection[int], of: int) -> tuple[RegisteredCommunity, ...]:
        """Return the communities with a server on one of these shards, by name."""
        shard = "(cast(value as bigint) >> 22) % ?"  # as Discord counts them
        where = f"where exists (select 1 from json_each(guild_ids) where {shard} {NUMBER_IN}) order by name"
        return _TABLE.all(db, where, (of, json_array([*shards])))

    @reads
    def get(self, db: Transaction, name: str) -> RegisteredCommunity:
        """Return a community. Raises ConfigError where there is none of that name."""
        return _require_community(db, name)

    @reads
    def has_server(self, db: Transaction, guild_id: GuildId) -> bool:
        """Return whether a server is one of a community, also of one that it left."""
        return _find_by_guild(db, guild_id) is not None

    @reads
    def list_departed(self, db: Transaction, moment: datetime) -> tuple[RegisteredCommunity, ...]:
        """Return the communities whose servers removed the bot by then."""
        return _TABLE.all(db, "where left_at <= ? order by name", (to_millis(moment),))

    async def revision(self) -> tuple[int, int]:
        """Return a value that every change of the registry changes."""
        changes = "cast(coalesce(sum(changed_at), 0) as bigint)"
        [[number, total]] = await self.db.rows(f"select count(*), {changes} from hosted_communities")
        return int(str(number)), int(str(total))

    async def mark_open(self, name: str, *, is_open: bool) -> None:
        """Note that a community is open, or was closed with nothing left to do."""
        await self.db.run("update hosted_communities set is_open = ? where name = ?", (int(is_open), name))

    async def list_open(self) -> list[str]:
        """Return the communities that are open, or that a process left in the middle of its work."""
        return await self.db.texts("select name from hosted_communities where is_open = 1 order by name")

    async def list_with_jobs(self) -> list[str]:
        """Return the communities that have jobs waiting."""
        return await self.db.texts("select distinct community from jobs where state = 'waiting' order by community")

    @writes
    def add_server(
        self, db: Transaction, guild_id: GuildId, title: str, chosen: Mapping[str, Mapping[str, Any]] | None = None
    ) -> tuple[RegisteredCommunity, bool]:
        """Return the community of a server that has the bot, and whether it is new: made with these settings.

        One that had removed the bot is active again, unless it is suspended, or its data is being erased.
        """
        known = _find_by_guild(db, guild_id)
        if known is not None:
            if known.left_at is None or known.left_at <= self.clock.now() - KEPT_FOR:
                return known, False
            state = "active" if known.state == "left" else known.state
            return self._upsert(db, replace(known, state=state, left_at=None)), False
        taken = {DEFAULT_COMMUNITY, *db.texts("select name from hosted_communities")}
        name = next(each for each in _candidate_names(title) if each not in taken)
        guilds, now = (guild_id,), self.clock.now()
        made = RegisteredCommunity(name=name, guild_ids=guilds, title=title[:100], chosen=chosen or {}, joined_at=now)
        return self._upsert(db, made), True

    @writes
    def mark_departed(self, db: Transaction, guild_id: GuildId) -> RegisteredCommunity | None:
        """Note that a server removed the bot, and return its community; None where none is known."""
        known = _find_by_guild(db, guild_id)
        if known is None or known.left_at is not None:
            return known
        return self._upsert(db, known.with_departure(self.clock.now()))

    @writes
    def change(
        self, db: Transaction, name: str, work: Callable[[RegisteredCommunity], RegisteredCommunity]
    ) -> RegisteredCommunity:
        """Replace a community by the result of `work`, and return that. Raises ConfigError as `get` does.

        `work` may be run again. An error from it leaves the community unchanged.
        """
        return self._upsert(db, work(_require_community(db, name)))

    @writes
    def import_communities(self, db: Transaction, known: Collection[RegisteredCommunity]) -> None:
        """Import the communities of another registry."""
        for each in known:
            self._upsert(db, each)

    @writes
    def remove(self, db: Transaction, name: str) -> None:
        """Remove a community from the registry, unless its server has come back. Its own rows are not touched."""
        db.run("delete from hosted_communities where name = ? and left_at is not null", (sanitize_text(name),))

    def _upsert(self, db: Transaction, value: RegisteredCommunity) -> RegisteredCommunity:
        # Two changes within a millisecond, or a clock that lags, must not look like none.
        last = db.number("select changed_at from hosted_communities where name = ?", (value.name,))
        row = _TABLE.to_row(value)
        db.run(_REPLACE, (*row, max(to_millis(self.clock.now()), last + 1)))
        return _TABLE.from_row(row)


def _require_community(db: Transaction, name: str) -> RegisteredCommunity:
    found = _TABLE.first(db, "where name = ?", (sanitize_text(name),))
    if found is None:
        raise ConfigError(f"there is no community {name[:80]!r}; `intern community list` names all")
    return found


def _find_by_guild(db: Transaction, guild_id: GuildId) -> RegisteredCommunity | None:
    return _TABLE.first(db, f"where ? in {json_items('guild_ids')}", (guild_id,))


def _candidate_names(title: str) -> Iterator[str]:
    """Yield names for a server, the plainest first."""
    plain = unicodedata.normalize("NFKD", title).encode("ascii", "ignore").decode().lower()
    name = re.sub(r"[^a-z0-9]+", "-", plain)[:_LONGEST_NAME].strip("-") or "server"
    yield name
    yield from (f"{name}-{n}" for n in count(2))
