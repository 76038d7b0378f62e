"""Who was told that intern reads no private messages. Nobody is told twice, however often the program starts."""

from __future__ import annotations

from intern.domain import UserId
from intern.knowledge.database import Database
from intern.observe.clock import Clock


class Greeted:
    """Members, by id. All methods raise KnowledgeError."""

    def __init__(self, db: Database, *, clock: Clock) -> None:
        self._db = db
        self._clock = clock

    async def add(self, user_id: UserId) -> bool:
        """Whether they were not told before; from now on they were."""
        known = "select 1 from greeted where user_id = ?"
        if await self._db.read(lambda db: db.row(known, (user_id,))):
            return False  # who goes on writing costs no write
        values = (user_id, self._clock.now().isoformat())
        added = "insert into greeted (user_id, at) values (?, ?) on conflict do nothing"
        return bool(await self._db.write(lambda db: db.run(added, values)))

    async def drop(self, user_id: UserId) -> None:
        """They were not told after all."""
        await self._db.write(lambda db: db.run("delete from greeted where user_id = ?", (user_id,)))
