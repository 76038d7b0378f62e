"""What is known as facts and nuggets, to be read."""

from __future__ import annotations

from intern.core.clock import Clock
from intern.core.errors import ConfigError
from intern.core.records import Fact, Nugget, NuggetStatus
from intern.facts.reconciling import Retirement
from intern.search.finding import any_of, terms_of
from intern.stores.sqlite.database import Database
from intern.stores.sqlite.extractions import NuggetStore
from intern.stores.sqlite.facts import FactFilter, FactStore, Link

__all__ = ["FactFilter", "Known", "Link", "Retirement"]


class Known:
    """Facts and nuggets. The beginning of an id is enough; all methods raise KnowledgeError."""

    def __init__(self, db: Database, clock: Clock) -> None:
        self._facts = FactStore(db, clock=clock)
        self._nuggets = NuggetStore(db)

    async def facts(self, wanted: FactFilter, limit: int) -> tuple[Fact, ...]:
        """Facts, what was said last first."""
        return await self._facts.all(wanted, limit)

    async def search_facts(self, text: str, wanted: FactFilter, limit: int) -> tuple[Fact, ...]:
        """Facts that hold words of a text, best first."""
        terms = terms_of(text)
        unspaced = [each for each in (*terms.grams, *terms.short) if not each.isascii()]
        return await self._facts.search_facts(any_of(terms.words), wanted, limit, holding=unspaced)

    async def fact(self, prefix: str, *, secret: bool) -> Fact:
        """The fact whose id begins like that; a secret one only with `secret`. Raises ConfigError where none does."""
        found = (
            await self._facts.beginning(prefix.strip().removeprefix("fact:"), secret=secret) if prefix.strip() else ()
        )
        if len(found) == 1:
            return found[0]
        if found:
            raise ConfigError(f"{prefix} is the beginning of {len(found)} facts' ids; name more of it")
        raise ConfigError(f"there is no fact {prefix}; `intern facts list --all` tells their ids")

    async def history(self, prefix: str, *, secret: bool) -> tuple[Fact, tuple[Link, ...]]:
        """A fact as `fact` finds it, and its chain, oldest first."""
        fact = await self.fact(prefix, secret=secret)
        links = await self._facts.history(fact.id)
        return fact, tuple(each for each in links if secret or each.fact.visibility != "secret")

    async def nuggets(self, status: NuggetStatus | None = None, *, limit: int = 100) -> tuple[Nugget, ...]:
        """Nuggets, newest first."""
        return await self._nuggets.all(status, limit=limit)

    async def nugget(self, prefix: str) -> Nugget:
        """The nugget whose id begins like that. Raises ConfigError where none does."""
        start = prefix.strip().removeprefix("nugget:")
        found = await self._nuggets.beginning(start) if start else ()
        if len(found) == 1:
            return found[0]
        if found:
            raise ConfigError(f"{prefix} is the beginning of {len(found)} nuggets' ids; name more of it")
        raise ConfigError(f"there is no nugget {prefix}; `intern nuggets list` tells their ids")
