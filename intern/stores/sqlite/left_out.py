"""Documents and lines of the list of links that are no sources, each with its reason.

They are stored since only reading tells why some are none: another process would have to read them all again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from itertools import islice
from pathlib import Path
from typing import Literal, NamedTuple

import msgspec

from intern.core.clock import Clock
from intern.core.log import get_logger
from intern.core.text.masking import mask_secrets
from intern.stores.sqlite.database import Database, Transaction
from intern.stores.sqlite.maintenance import at_rest

_log = get_logger(__name__)

LeftOutKind = Literal["document", "link"]

_MOST_LOGGED = 50  # at once; a folder of pictures has thousands

_ALL = "select kind, place, reason, since from left_out order by kind, place"


class LeftOut(NamedTuple):
    """A file or line that is no source, though the operator may expect it to be one."""

    kind: LeftOutKind
    place: str
    """The path below the sources folder, or the name of the list and the number of its line."""
    reason: str
    since: datetime
    """When it was first left out for this reason."""


class LeftOutStore:
    """All that was left out at the last look. All methods raise KnowledgeError."""

    def __init__(self, db: Database, *, clock: Clock) -> None:
        self._db = db
        self._clock = clock
        self._told: dict[LeftOutKind, Mapping[str, str]] = {}

    async def keep(self, kind: LeftOutKind, skipped: Iterable[tuple[str, str]]) -> None:
        """Store all of a kind that is left out now, by place and reason. Nothing is written where nothing has changed.

        What was not left out at the last look, or for another reason, is logged; after a start, everything is.
        """
        found = dict(skipped)
        if kind == "link":  # these reasons quote the lines
            found = {place: mask_secrets(reason).text for place, reason in found.items()}
        self._tell(kind, found)
        rows = await self._db.rows("select place, reason from left_out where kind = ?", (kind,))
        stored = dict(msgspec.convert(rows, list[tuple[str, str]]))
        if stored == found:
            return
        now = self._clock.now().isoformat()

        def work(db: Transaction) -> None:
            db.run_each(
                "delete from left_out where kind = ? and place = ?",
                [(kind, each) for each in stored.keys() - found.keys()],
            )
            db.run_each(
                "insert into left_out (kind, place, reason, since) values (?, ?, ?, ?) on conflict (kind, place)"
                " do update set reason = excluded.reason, since = excluded.since where reason <> excluded.reason",
                [(kind, place, reason, now) for place, reason in found.items()],
            )

        await self._db.write(work)

    async def all(self) -> tuple[LeftOut, ...]:
        """Return everything, by kind and place."""
        return msgspec.convert(await self._db.rows(_ALL), tuple[LeftOut, ...])

    def _tell(self, kind: LeftOutKind, found: Mapping[str, str]) -> None:
        told = self._told.get(kind, {})
        self._told[kind] = found
        fresh = [place for place, reason in found.items() if told.get(place) != reason]
        for place in islice(fresh, _MOST_LOGGED):
            _log.warning(f"{kind}_left_out", source_id=place, reason=found[place])
        if len(fresh) > _MOST_LOGGED:
            _log.warning(f"{kind}s_left_out", more=len(fresh) - _MOST_LOGGED)


def left_out_in(path: Path) -> tuple[LeftOut, ...]:
    """Return everything, by kind and place, from a database as it is. Blocks; raises KnowledgeError."""
    with at_rest(path) as db:
        return msgspec.convert(db.rows(_ALL) if db else [], tuple[LeftOut, ...])
