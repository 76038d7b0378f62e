"""Sources that are not indexed, with the reason."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from itertools import islice
from typing import Literal, NamedTuple

import msgspec

from intern.core.clock import Clock
from intern.core.log import get_logger
from intern.core.text.masking import mask_secrets
from intern.stores.database import Database, Transaction
from intern.stores.tables.store import IN, OURS, Store, text_array, writes

_log = get_logger(__name__)

SkippedKind = Literal["document", "link"]

_MOST_LOGGED = 50  # at once; a folder of pictures has thousands


class SkippedSource(NamedTuple):
    """A file or line that is no source, though the operator may expect it to be one."""

    kind: SkippedKind
    place: str
    """The path below the sources folder, or the name of the list and the number of its line."""
    reason: str
    since: datetime
    """When it was first skipped for this reason."""


class SkippedSourceStore(Store):
    """The sources that were skipped at the last scan."""

    def __init__(self, db: Database, *, clock: Clock) -> None:
        super().__init__(db, clock=clock)
        self._told: dict[SkippedKind, Mapping[str, str]] = {}

    async def save(self, kind: SkippedKind, skipped: Iterable[tuple[str, str]]) -> None:
        """Store all skipped sources of a kind, by place and reason. Nothing is written if nothing has changed.

        A source that the last scan did not skip, or for another reason, is logged; after a start, every one is.
        """
        found = dict(skipped)
        if kind == "link":  # these reasons quote the lines
            found = {place: mask_secrets(reason).text for place, reason in found.items()}
        self._log_new(kind, found)
        rows = await self.db.rows(f"select place, reason from skipped_sources {OURS} and kind = ?", (kind,))
        if dict(msgspec.convert(rows, list[tuple[str, str]])) != found:
            await self._save(kind, found)

    @writes
    def _save(self, db: Transaction, kind: SkippedKind, found: Mapping[str, str]) -> None:
        db.run(f"delete from skipped_sources {OURS} and kind = ? and place not {IN}", (kind, text_array(found)))
        db.run_each(
            "insert into skipped_sources (community, kind, place, reason, since) values (:community, ?, ?, ?, ?)"
            " on conflict (community, kind, place) do update set reason = excluded.reason, since = excluded.since"
            " where skipped_sources.reason <> excluded.reason",
            [(kind, place, reason, self.now()) for place, reason in found.items()],
        )

    def _log_new(self, kind: SkippedKind, found: Mapping[str, str]) -> None:
        told = self._told.get(kind, {})
        self._told[kind] = found
        fresh = [place for place, reason in found.items() if told.get(place) != reason]
        for place in islice(fresh, _MOST_LOGGED):
            _log.warning(f"{kind}_left_out", source_id=place, reason=found[place])
        if len(fresh) > _MOST_LOGGED:
            _log.warning(f"{kind}s_left_out", more=len(fresh) - _MOST_LOGGED)


def read_skipped_sources(database: Database) -> tuple[SkippedSource, ...]:
    """Return everything, by kind and place. Blocks; raises KnowledgeError."""
    statement = f"select kind, place, reason, since from skipped_sources {OURS} order by kind, place"
    return msgspec.convert(database.read_blocking(lambda db: db.rows(statement)), tuple[SkippedSource, ...])
