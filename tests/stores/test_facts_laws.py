"""The laws of facts, in any order of saying, repeating, replacing, retiring, withdrawing and forgetting."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import count
from pathlib import Path
from typing import NamedTuple

import anyio
import pytest
from anyio import fail_after
from hypothesis import example, given, settings, strategies as st

from intern.core.ids import FactId, MessageId
from intern.core.knowledge import Fact, RefusedFact, Visibility
from intern.facts.reconciliation import FactProposal, decide_proposals
from intern.facts.visibility import FactOptions
from intern.search.terms import split_search_terms
from intern.stores.database import Database
from intern.stores.search_file.word_matches import match_any
from intern.stores.tables.extractions import ExtractionLog
from intern.stores.tables.facts import FactFilter, FactStore
from tests.engines import open_database
from tests.examples import examples
from tests.stores.taught import AGENT, Beliefs, at, conversation, outcome
from tests.worlds.clock import HandClock

pytestmark = pytest.mark.usefixtures("engine")

_stories = count(1)  # a community for each example: to make tables takes longer than to live through it
CONTENTS = (
    "The relay listens on port 7480.",
    "The relay listens on port 7481.",
    "The relay listens on port 9000 behind the proxy.",
    "Deploys happen on Friday mornings.",
    "Deploys happen on Monday mornings.",
    "Nadia looks after the invoices.",
)
CONVERSATIONS = 4


class Said(NamedTuple):
    """A proposal; `link` counts through the facts that there are, and beyond them."""

    content: int
    link: int
    kind: str
    visibility: Visibility


class Learn(NamedTuple):
    conversation: int
    minutes: int
    said: tuple[Said, ...]


class Retire(NamedTuple):
    fact: int


class Withdraw(NamedTuple):
    conversation: int


class Forget(NamedTuple):
    conversation: int


class Vacuum(NamedTuple):
    pass


Step = Learn | Retire | Withdraw | Forget | Vacuum

_said = st.builds(
    Said,
    st.integers(0, len(CONTENTS) - 1),
    st.integers(0, 7),
    st.sampled_from(["", "", "duplicate_of", "supersedes", "supersedes"]),
    st.sampled_from(["shared", "shared", "shared", "secret"]),
)
_learn = st.builds(Learn, st.integers(0, CONVERSATIONS - 1), st.integers(0, 9), st.lists(_said, max_size=3).map(tuple))
_steps = st.lists(
    st.one_of(
        _learn,
        _learn,
        _learn,
        _learn,
        st.builds(Retire, st.integers(0, 7)),
        st.builds(Withdraw, st.integers(0, CONVERSATIONS - 1)),
        st.builds(Forget, st.integers(0, CONVERSATIONS - 1)),
        st.just(Vacuum()),
    ),
    max_size=12,
)


def _one(conversation_: int, minutes: int, content: int, kind: str = "", link: int = 0) -> Learn:
    return Learn(conversation_, minutes, (Said(content, link, kind, "shared"),))


CHAIN = (_one(0, 1, 0), _one(1, 2, 1, "supersedes"), _one(2, 3, 2, "supersedes", 1))


@pytest.mark.rest
@given(_steps)
@example([*CHAIN, Forget(1)])
@example([*CHAIN, Forget(2), Vacuum()])
@example([*CHAIN, Withdraw(1), Withdraw(2), _one(2, 3, 2)])
@example([*CHAIN, _one(1, 2, 3), _one(0, 1, 0), _one(0, 1, 1, "supersedes")])
@example([*CHAIN[:2], _one(3, 0, 1)])
@example([_one(0, 1, 0), _one(1, 5, 0), Forget(0)])
@example([_one(0, 1, 0), _one(1, 3, 1, "supersedes"), _one(2, 7, 1), Forget(1)])
@example([*CHAIN[:2], _one(1, 2, 2)])
@example([*CHAIN[:2], Forget(1), _one(2, 5, 2, "supersedes")])
@example([*CHAIN, Retire(2), Forget(2), _one(3, 4, 1)])
@settings(max_examples=examples(40), deadline=None)
def test_any_story_keeps_chains_whole_occurrences_counted_and_the_past_as_it_was(
    tmp_path_factory: pytest.TempPathFactory, steps: list[Step]
) -> None:
    anyio.run(_live_through, tmp_path_factory.getbasetemp(), steps, backend="trio")


async def _live_through(folder: Path, steps: Sequence[Step]) -> None:
    with fail_after(60):
        clock = HandClock(at(1000))
        async with await open_database(folder / "intern.db") as db:
            story = Story(db.for_community(f"story {next(_stories)}"), clock)
            for step in steps:
                clock.turn(minutes=1)
                await story.take(step)
                await story.stands()
            await story.holds()


class Story:
    """A store that lives through the steps, and the same story as events."""

    def __init__(self, db: Database, clock: HandClock) -> None:
        self._db, self._clock = db, clock
        self._facts = FactStore(db, clock=clock)
        self._log = ExtractionLog(db, clock=clock)
        self._told = Beliefs()
        self._ids = iter(f"{number:04}" for number in range(10_000))

    async def take(self, step: Step) -> None:
        now = self._clock.now()
        match step:
            case Learn():
                await self._learn(step)
            case Retire(fact=index):
                if (fact := self._nth(await self._all(), index)) is not None:
                    await self._facts.retire(fact.id, "nobody believes it")
                    self._told.retire(fact.id, now)
            case Withdraw(conversation=number):
                await self._log.withdraw([conversation(number).id])
                self._told.withdraw(conversation(number).id)
            case Forget(conversation=number):
                await self._log.forget([MessageId(f"{number}1")])
                self._told.forget(conversation(number).id)
            case Vacuum():
                await self._db.scrub()

    async def _learn(self, step: Learn) -> None:
        facts, where = await self._all(), conversation(step.conversation, step.minutes)
        proposals = [self._proposal(each, facts) for each in step.said]
        named = [name for each in proposals for name in (each.duplicate_of, each.supersedes) if name]
        known = await self._facts.read_known_facts(where, [each.content for each in proposals], named)
        decisions = decide_proposals(
            proposals, where, known, FactOptions(keep_secret=True), new_id=lambda: next(self._ids)
        )
        now = self._clock.now()
        applied = await self._log.apply(outcome(where, decisions, minutes=(now - at(0)).seconds // 60))
        refused = [each.reason for each in decisions if isinstance(each, RefusedFact)]
        assert list(applied.refused) == refused, "what was decided holds a moment later"
        self._told.learn(where, decisions, now)

    def _proposal(self, said: Said, facts: Sequence[Fact]) -> FactProposal:
        fact = self._nth(facts, said.link)
        name = fact.id if fact is not None else "nobody"
        return FactProposal(
            category="technical",
            content=CONTENTS[said.content],
            visibility=said.visibility,
            duplicate_of=name if said.kind == "duplicate_of" else None,
            supersedes=name if said.kind == "supersedes" else None,
        )

    async def stands(self) -> None:
        """Check the laws after each step."""
        facts = {fact.id: fact for fact in await self._all()}
        assert set(facts) == set(self._told.before)
        self._chains_are_whole(facts)

    async def holds(self) -> None:
        """Check the laws at the end; each step is the end of a shorter story."""
        facts = {fact.id: fact for fact in await self._all()}
        await self._occurrences_are_counted(facts)
        for minute in (*range(-1, 11), *range(1000, 1014), 99_999):
            believed = await self._facts.all(FactFilter(as_of=at(minute), secret=True))
            assert {fact.id for fact in believed} == self._told.believed(at(minute)), minute
        for content in {fact.content for fact in facts.values()}:
            found = await self._facts.search_facts(
                match_any(split_search_terms(content).words), FactFilter(active=None, secret=True), 100
            )
            alike = {fact.id for fact in facts.values() if fact.content == content}
            assert alike <= {each.id for each in found}

    def _chains_are_whole(self, facts: dict[FactId, Fact]) -> None:
        assert {fact.id: fact.supersedes for fact in facts.values()} == self._told.before
        replaced = Counter(fact.supersedes for fact in facts.values() if fact.supersedes)
        assert not [name for name, times in replaced.items() if times > 1]
        for fact in facts.values():
            seen, link = {fact.id}, fact.supersedes
            while link is not None:
                assert link not in seen, "a cycle"
                assert not facts[link].is_active, "two heads"
                seen.add(link)
                link = facts[link].supersedes
            assert fact.is_active == (fact.id not in self._told.retired) == (fact.retired_at is None)

    async def _occurrences_are_counted(self, facts: dict[FactId, Fact]) -> None:
        for fact in facts.values():
            history = await self._facts.read_chain(fact.id)
            assert [link.fact for link in history if link.fact.id == fact.id] == [fact]
            assert [link.fact.supersedes for link in history] == [None, *(link.fact.id for link in history[:-1])]
            said = next(link.occurrences for link in history if link.fact.id == fact.id)
            stand = [each for each in said if not each.is_withdrawn]
            where = [each.conversation_id for each in stand]
            assert sorted(where) == sorted(self._told.said[fact.id])
            assert {each.conversation_id for each in said} == set(self._told.ever[fact.id])
            assert fact.occurrence_count == len(stand)
            if stand:
                assert fact.first_seen_at == min(each.timestamp for each in stand)
                assert fact.last_seen_at == max(each.timestamp for each in stand)
            else:
                assert not fact.is_active

    async def _all(self) -> list[Fact]:
        every = await self._facts.all(FactFilter(agent_id=AGENT, active=None, secret=True))
        return sorted(every, key=lambda fact: fact.id)

    @staticmethod
    def _nth(facts: Sequence[Fact], index: int) -> Fact | None:
        return facts[index] if index < len(facts) else None


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_the_laws_are_looked_at_with_stories_in_which_something_happens(tmp_path: Path) -> None:
    clock = HandClock(at(1000))
    with fail_after(10):
        async with await open_database(tmp_path / "intern.db") as db:
            story = Story(db, clock)
            for step in CHAIN:
                await story.take(step)
            facts = await FactStore(db, clock=clock).all(FactFilter(active=None))
            assert [(fact.supersedes is not None, fact.is_active) for fact in reversed(facts)] == [
                (False, False),
                (True, False),
                (True, True),
            ]
