"""Facts and nuggets of a database, for people to read."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, pairwise
from typing import Literal, TypeVar

from msgspec import Struct

from intern.core.clock import Clock
from intern.core.errors import ConfigError
from intern.core.ids import FactId, NuggetId
from intern.core.knowledge import Fact, FactCategory, FactOccurrence, Nugget, NuggetStatus
from intern.search.terms import split_search_terms
from intern.service.paging import ROWS, PagedList
from intern.service.text_diff import DiffPiece, diff_texts
from intern.stores.database import Database
from intern.stores.search_file.word_matches import match_any
from intern.stores.tables.extractions import ExtractionLog
from intern.stores.tables.facts import FactChainLink, FactFilter, FactStore
from intern.stores.tables.nuggets import NuggetStore

T = TypeVar("T")

_NUGGETS = 25  # on a page
_OLD_NUGGETS = 5  # conversations of a fact that are shown with nuggets
FactListing = Literal["held", "gone", "all"]


class FactPage(Struct, frozen=True, kw_only=True):
    """A fact with its chain, and the conversations that state it."""

    fact: Fact
    chain: tuple[tuple[Fact, tuple[DiffPiece, ...]], ...]
    """Newest first, each with its difference to the one before it."""
    occurrences: tuple[FactOccurrence, ...]
    nuggets: tuple[Nugget, ...]


class LearnedFacts:
    """Reads facts and nuggets. Methods raise KnowledgeError."""

    def __init__(self, db: Database, clock: Clock) -> None:
        self._facts = FactStore(db, clock=clock)
        self._nuggets = NuggetStore(db)
        self.extractions = ExtractionLog(db, clock=clock)
        """The lessons of each conversation."""

    async def list_all(self, wanted: FactFilter, limit: int) -> tuple[Fact, ...]:
        """Return facts, the last stated first."""
        return await self._facts.all(wanted, limit)

    async def list_page(
        self, held: FactListing = "held", category: FactCategory | None = None, offset: int = 0
    ) -> PagedList[Fact]:
        """List facts except secret ones, the last stated first."""
        wanted = FactFilter(active={"held": True, "gone": False, "all": None}[held], category=category)
        found = await self._facts.all(wanted, offset + ROWS)
        return PagedList(rows=found[offset:], total=await self._facts.count(wanted), offset=offset)

    async def search(self, text: str, wanted: FactFilter, limit: int) -> tuple[Fact, ...]:
        """Return facts that contain words of a text, best first."""
        terms = split_search_terms(text)
        unspaced = [each for each in (*terms.grams, *terms.short) if not each.isascii()]
        return await self._facts.search_facts(match_any(terms.words), wanted, limit, holding=unspaced)

    async def find(self, prefix: str, *, secret: bool) -> Fact:
        """Return the fact whose id begins with this text. Raises ConfigError for none or several."""
        start = prefix.strip()
        found = await self._facts.find_by_prefix(start.removeprefix("fact:"), secret=secret) if start else ()
        return _require_one(found, "fact", prefix, "`intern facts list --all`")

    async def find_history(self, prefix: str, *, secret: bool) -> tuple[Fact, tuple[FactChainLink, ...]]:
        """Return a fact found as by `find`, and its chain, oldest first."""
        fact = await self.find(prefix, secret=secret)
        links = await self._facts.read_chain(fact.id)
        return fact, tuple(each for each in links if secret or each.fact.visibility != "secret")

    async def read_page(self, fact_id: FactId) -> FactPage:
        """Return one fact with what else is known of it. Raises ConfigError if its id is unknown or it is secret."""
        links = [link for link in await self._facts.read_chain(fact_id) if link.fact.visibility != "secret"]
        link = next((link for link in links if link.fact.id == fact_id), None)
        if link is None:
            raise ConfigError(f"there is no fact {fact_id[:80]!r}")
        latest = link.occurrences[::-1]
        said_in = list(dict.fromkeys(each.conversation_id for each in latest))[:_OLD_NUGGETS]
        nuggets = chain.from_iterable([await self._nuggets.read_for_conversation(each) for each in said_in])
        later = ((new.fact, diff_texts(old.fact.content, new.fact.content)) for old, new in pairwise(links))
        facts = ((links[0].fact, ()), *later)[::-1]
        return FactPage(fact=link.fact, chain=facts, occurrences=latest[:ROWS], nuggets=tuple(nuggets))

    async def list_nuggets(
        self, status: NuggetStatus | None = None, offset: int = 0, size: int = _NUGGETS
    ) -> PagedList[Nugget]:
        """List nuggets, newest first."""
        found = await self._nuggets.all(status, limit=size, offset=offset)
        return PagedList(rows=found, total=await self._nuggets.count(status), offset=offset, size=size)

    async def read_nugget(self, nugget_id: NuggetId) -> Nugget:
        """Return one nugget. Raises ConfigError if the id is unknown."""
        for found in await self._nuggets.by_ids((nugget_id,)):
            return found
        raise ConfigError(f"there is no nugget {nugget_id[:80]!r}")

    async def find_nugget(self, prefix: str) -> Nugget:
        """Return the nugget whose id begins with this text. Raises ConfigError for none or several."""
        start = prefix.strip().removeprefix("nugget:")
        found = await self._nuggets.find_by_prefix(start) if start else ()
        return _require_one(found, "nugget", prefix, "`intern nuggets list`")


def _require_one(found: Sequence[T], kind: str, prefix: str, listed_by: str) -> T:
    if not found:
        raise ConfigError(f"there is no {kind} {prefix}; {listed_by} tells their ids")
    if len(found) > 1:
        raise ConfigError(f"{prefix} is the beginning of {len(found)} {kind}s' ids; name more of it")
    return found[0]
