"""Documents and lines of the list of links that are left out, each with its reason: for the log, and for whoever looks.

A store, since only reading tells why some are: another process would have to read them all again.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from itertools import islice
from typing import Any, Literal, NamedTuple

import msgspec

from intern.knowledge.database import Database, Transaction
from intern.knowledge.sources import SkippedFile, is_set_aside
from intern.observe.clock import Clock
from intern.observe.log import get_logger
from intern.text.masking import mask_secrets

_log = get_logger(__name__)

LeftOutKind = Literal["document", "link"]

_MOST_LOGGED = 50  # at once; a folder of pictures has thousands

ALL_LEFT_OUT = "select kind, place, reason, since from left_out order by kind, place"


class LeftOut(NamedTuple):
    """What is no source, though somebody may think that it is."""

    kind: LeftOutKind
    place: str
    """The path below the sources folder, or the name of the list and the number of its line."""
    reason: str
    since: datetime
    """When it was first left out for this reason."""


def left_out_of(rows: Collection[Sequence[Any]]) -> tuple[LeftOut, ...]:
    """What the rows of `ALL_LEFT_OUT` tell."""
    return msgspec.convert(tuple(rows), tuple[LeftOut, ...])


class LeftOutStore:
    """What was left out when somebody looked last. Hidden and temporary files are none of it: nobody misses them."""

    def __init__(self, db: Database, *, clock: Clock) -> None:
        self._db = db
        self._clock = clock
        self._told: dict[LeftOutKind, Mapping[str, str]] = {}

    async def keep(self, kind: LeftOutKind, skipped: Collection[SkippedFile]) -> None:
        """All of a kind that is left out now. Nothing is written where nothing has changed. Raises KnowledgeError.

        What was not left out at the last look, or for another reason, is logged; after a start, everything is.
        """
        found = {each.rel_path: each.reason for each in skipped if not is_set_aside(each.rel_path)}
        if kind == "link":  # these reasons quote what stands there
            found = {place: mask_secrets(reason).text for place, reason in found.items()}
        self._tell(kind, found)
        known = "select place, reason from left_out where kind = ?"
        rows = await self._db.read(lambda db: db.rows(known, (kind,)))
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
        """Everything, by kind and place. Raises KnowledgeError."""
        return left_out_of(await self._db.read(lambda db: db.rows(ALL_LEFT_OUT)))

    def _tell(self, kind: LeftOutKind, found: Mapping[str, str]) -> None:
        told = self._told.get(kind, {})
        self._told[kind] = found
        fresh = [place for place, reason in found.items() if told.get(place) != reason]
        for place in islice(fresh, _MOST_LOGGED):
            _log.warning(f"{kind}_left_out", source_id=place, reason=found[place])
        if len(fresh) > _MOST_LOGGED:
            _log.warning(f"{kind}s_left_out", more=len(fresh) - _MOST_LOGGED)
