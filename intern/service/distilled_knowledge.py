"""Facts and nuggets of a database, for commands."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeVar

from intern.core.clock import Clock
from intern.core.errors import ConfigError
from intern.core.knowledge import Fact, Nugget, NuggetStatus
from intern.search.terms import split_search_terms
from intern.stores.database import Database
from intern.stores.search_file.word_matches import match_any
from intern.stores.tables.extractions import ExtractionLog
from intern.stores.tables.facts import FactChainLink, FactFilter, FactStore
from intern.stores.tables.nuggets import NuggetStore

if TYPE_CHECKING:
    pass

T = TypeVar("T")


class DistilledKnowledge:
    """Facts and nuggets of a database."""

    def __init__(self, db: Database, clock: Clock) -> None:
        self._facts = FactStore(db, clock=clock)
        self._nuggets = NuggetStore(db)
        self.extractions = ExtractionLog(db, clock=clock)
        """The lessons of each conversation."""

    async def facts(self, wanted: FactFilter, limit: int) -> tuple[Fact, ...]:
        """Return facts, the last stated first. Raises KnowledgeError."""
        return await self._facts.all(wanted, limit)

    async def search_facts(self, text: str, wanted: FactFilter, limit: int) -> tuple[Fact, ...]:
        """Return facts that contain words of a text, best first. Raises KnowledgeError."""
        terms = split_search_terms(text)
        unspaced = [each for each in (*terms.grams, *terms.short) if not each.isascii()]
        return await self._facts.search_facts(match_any(terms.words), wanted, limit, holding=unspaced)

    async def fact(self, prefix: str, *, secret: bool) -> Fact:
        """Return the fact with this prefix of its id. Raises ConfigError for none or several, and KnowledgeError."""
        start = prefix.strip()
        found = await self._facts.find_by_prefix(start.removeprefix("fact:"), secret=secret) if start else ()
        return _require_one(found, "fact", prefix, "`intern facts list --all`")

    async def fact_history(self, prefix: str, *, secret: bool) -> tuple[Fact, tuple[FactChainLink, ...]]:
        """Return a fact found as by `fact`, and its chain, oldest first."""
        fact = await self.fact(prefix, secret=secret)
        links = await self._facts.read_chain(fact.id)
        return fact, tuple(each for each in links if secret or each.fact.visibility != "secret")

    async def nuggets(self, status: NuggetStatus | None, limit: int) -> tuple[Nugget, ...]:
        """Return nuggets, newest first. Raises KnowledgeError."""
        return await self._nuggets.all(status, limit=limit)

    async def nugget(self, prefix: str) -> Nugget:
        """Return the nugget whose id begins with this text. Raises as `fact` does."""
        start = prefix.strip().removeprefix("nugget:")
        found = await self._nuggets.find_by_prefix(start) if start else ()
        return _require_one(found, "nugget", prefix, "`intern nuggets list`")


def _require_one(found: Sequence[T], kind: str, prefix: str, listed_by: str) -> T:
    if not found:
        raise ConfigError(f"there is no {kind} {prefix}; {listed_by} tells their ids")
    if len(found) > 1:
        raise ConfigError(f"{prefix} is the beginning of {len(found)} {kind}s' ids; name more of it")
    return found[0]
