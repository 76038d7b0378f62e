"""What members are called, so that no model and no note of intern's own needs to be told: it holds names, and no words.

Derived from what was captured, bounded, and forgotten with its member.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

import msgspec

from intern.domain import UserId
from intern.knowledge.columns import carried, listed
from intern.knowledge.database import Database, Transaction
from intern.text.looks import likeness_key

MOST_NAMES = 20_000
"""Those that were noted longest ago go first."""

_MOST_OF_ONE = 10
_LONGEST = 100  # signs; Discord's names have 32

_KNOWN = "select 1 from member_names where author_id = ? and name = ?"
_NOTE = "insert into member_names (author_id, name, look) values (?, ?, ?)"
_PRUNE_ONE = (
    "delete from member_names where rid in"
    " (select rid from member_names where author_id = ? order by rid desc limit -1 offset ?)"
)
_PRUNE = "delete from member_names where rid in (select rid from member_names order by rid desc limit -1 offset ?)"
_OF = "select author_id, name from member_names where author_id in (select value from json_each(?)) order by rid desc"
_IN_TEXT = "select author_id, name from member_names where instr(?, look) > 0 order by rid desc"


class NameStore:
    """Names by member. All methods raise KnowledgeError."""

    def __init__(self, db: Database, *, most: int = MOST_NAMES) -> None:
        self._db = db
        self._most = most

    async def note(self, names: Iterable[tuple[UserId, Collection[str]]]) -> None:
        """Members are called so; what they were called before stays known, up to a bound."""
        said = [(author, name) for author, known in names for name in map(_one_line, known) if author and name]
        wanted = [each for each in dict.fromkeys(said) if each[0] != each[1] and likeness_key(each[1])]

        def new(db: Transaction) -> list[tuple[UserId, str]]:
            return [each for each in wanted if db.row(_KNOWN, each) is None]

        # Mostly there is nothing to write.
        if not wanted or not await self._db.read(new):
            return

        def work(db: Transaction) -> None:
            for author, name in new(db):
                db.run(_NOTE, (author, name, likeness_key(name)))
                db.run(_PRUNE_ONE, (author, _MOST_OF_ONE))
            db.run(_PRUNE, (self._most,))

        await self._db.write(work)

    async def of(self, author_ids: Collection[UserId]) -> Mapping[UserId, tuple[str, ...]]:
        """What these are called, the newest name first."""
        rows = await self._db.read(lambda db: db.rows(_OF, (listed(author_ids),)))
        found: dict[UserId, tuple[str, ...]] = {}
        for author, name in msgspec.convert(rows, list[tuple[UserId, str]]):
            found[author] = (*found.get(author, ()), name)
        return found

    async def in_text(self, text: str) -> tuple[tuple[UserId, str], ...]:
        """Whose names occur in a text, be it within or across words."""
        rows = await self._db.read(lambda db: db.rows(_IN_TEXT, (carried(likeness_key(text)),)))
        return tuple(msgspec.convert(rows, list[tuple[UserId, str]]))

    async def forget_author(self, user_id: UserId) -> None:
        """Nobody knows what they are called."""
        await self._db.write(lambda db: db.run("delete from member_names where author_id = ?", (user_id,)))


def _one_line(name: str) -> str:
    return carried(" ".join(name.split()))[:_LONGEST]
