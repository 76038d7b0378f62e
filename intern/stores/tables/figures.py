"""The data for the figures of the page: costs, votes and times by the UTC day, and sources by their citations."""

from __future__ import annotations

from datetime import date

import msgspec

from intern.core.ids import SourceId
from intern.stores.database import Transaction
from intern.stores.tables.feedback import VOTES, Votes
from intern.stores.tables.store import GIVEN, OURS, Store, reads


class FigureStore(Store):
    """Read-only sums over the other stores' tables."""

    async def read_votes(self, since: date) -> dict[date, Votes]:
        """Return the votes by the day on which they were last changed."""
        statement = f"select substr(at, 1, 10), {VOTES} from feedback {OURS} and at >= ? group by substr(at, 1, 10)"
        rows = msgspec.convert(await self.db.rows(statement, (since.isoformat(),)), list[tuple[date, int, int]])
        return {day: Votes(up=up, down=down) for day, up, down in rows}

    async def read_answer_seconds(self, since: date) -> dict[date, list[float]]:
        """Return how long members waited for each answer, by day. Questions whose words are not kept are missing."""
        statement = (
            f"select substr(at, 1, 10), seconds from answers {OURS} and at >= ? and texts is not null and reason = ''"
        )
        days: dict[date, list[float]] = {}
        for day, seconds in msgspec.convert(
            await self.db.rows(statement, (since.isoformat(),)), list[tuple[date, float]]
        ):
            days.setdefault(day, []).append(seconds)
        return days

    @reads
    def count_citations(self, db: Transaction, since: date) -> dict[SourceId, int]:
        """Return how many answers cite each source, whole or a part of it, the most cited first."""
        # A topic's answers and a document's sections are cited as "source#part".
        whole = "substr(source_id || '#', 1, instr(source_id || '#', '#') - 1)"
        rows = db.rows(
            f"select {whole}, count(distinct question_id) from answer_citations"
            " join answers using (community, question_id) join posts using (community, question_id)"
            f" {OURS} and at >= ? and {GIVEN}"
            f" group by {whole} order by 2 desc, 1",
            (since.isoformat(),),
        )
        return dict(msgspec.convert(rows, list[tuple[SourceId, int]]))

    @reads
    def count_knowledge(self, db: Transaction) -> dict[str, int]:
        """Return the numbers of active facts that are not secret, nuggets, and entries of the search."""
        kinds = {
            "facts": "facts where is_active = 1 and visibility <> 'secret' and",
            "nuggets": "nuggets where",
            "search entries": "documents where",
        }
        return {kind: db.number(f"select count(*) from {rest} community = :community") for kind, rest in kinds.items()}
