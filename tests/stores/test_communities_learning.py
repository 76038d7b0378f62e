"""No community reads or forgets the knowledge and the work of another."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest
from anyio.to_thread import run_sync

from intern.core.ids import FactId, MessageId, NuggetId, QAId
from intern.core.knowledge import NewFact
from intern.service.job_kinds import INDEX
from intern.stores.database import Database as Handle
from intern.stores.search_file.word_matches import match_any
from intern.stores.tables.attempts import AttemptStore
from intern.stores.tables.extractions import ExtractionLog
from intern.stores.tables.facts import FactFilter, FactStore
from intern.stores.tables.jobs import JobQueue
from intern.stores.tables.nuggets import NuggetStore
from intern.stores.tables.personal_data import PersonalDataStore
from intern.stores.tables.skipped_sources import SkippedSourceStore, read_skipped_sources
from tests.engines import open_database
from tests.stores.taught import at, conversation, fact, nugget, outcome, said
from tests.worlds.clock import HandClock

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("engine")]

CLOCK = HandClock(at(100))
ASKED, TALK = [MessageId("11")], conversation(1, 1)
ALL = FactFilter(active=None, secret=True)


async def plant(db: Handle, word: str) -> None:
    """Write with every store, under the same ids."""
    log = ExtractionLog(db, clock=CLOCK)
    learned = NewFact(fact=fact("a", f"The port is {word}.", 1), occurrence=said("a", 1, 1, snippet=word))
    await log.apply(outcome(TALK, [learned], [nugget("n", 1, word)]))
    await log.save_position("extractor", word)
    await AttemptStore(db, clock=CLOCK).begin(QAId("q"))
    await SkippedSourceStore(db, clock=CLOCK).save("document", [("a.bin", word)])


async def everything(db: Handle) -> dict[str, object]:
    facts, log, nuggets = FactStore(db, clock=CLOCK), ExtractionLog(db, clock=CLOCK), NuggetStore(db)
    return {
        "all": await facts.all(ALL),
        "as of": await facts.all(FactFilter(as_of=at(50))),
        "states": await facts.read_states(),
        "by_ids": await facts.by_ids([FactId("a")]),
        "beginning": await facts.find_by_prefix("a"),
        "of_conversation": await facts.read_for_conversation(TALK.id),
        "words": await facts.search_facts(match_any(["port"]), ALL, 9),
        "parts": await facts.search_facts(None, ALL, 9, holding=["port"]),
        "history": await facts.read_chain(FactId("a")),
        "known_for": (await facts.read_known_facts(TALK, [], ["a"])).facts,
        "nuggets": await nuggets.all(),
        "nuggets of": await nuggets.read_for_conversation(TALK.id),
        "nugget ids": await nuggets.by_ids([NuggetId("n")]),
        "nugget prefix": await nuggets.find_by_prefix("n"),
        "nugget stamps": await nuggets.stamps(),
        "count": await nuggets.count(),
        "entry": await log.read_entry(TALK.id),
        "entries": await log.list_entries(),
        "conversation": await log.read_conversation(TALK.id),
        "holding": await log.find_conversations(ASKED),
        "touched": (await log.find_distilled(ASKED)).facts,
        "position": await log.read_position("extractor"),
        "left out": await run_sync(read_skipped_sources, db),
    }


async def test_a_community_reads_and_forgets_nothing_of_another(tmp_path: Path) -> None:
    with anyio.fail_after(20):
        async with await open_database(tmp_path / "intern.db") as db:
            one, other = db.for_community("one"), db.for_community("other")
            empty = await everything(other)
            await plant(one, "4711")
            planted = await everything(one)
            assert [name for name, found in planted.items() if found == empty[name]] == []
            assert await everything(other) == empty
            await plant(other, "815")
            assert "4711" not in repr(await everything(other))
            assert await AttemptStore(other, clock=CLOCK).begin(QAId("q")) == 2

            await ExtractionLog(other, clock=CLOCK).forget(ASKED)
            await PersonalDataStore(other, clock=CLOCK).forget(ASKED)
            await SkippedSourceStore(other, clock=CLOCK).save("document", [])
            assert await ExtractionLog(one, clock=CLOCK).next_due() is None
            assert await everything(one) == planted


async def test_a_community_takes_its_own_jobs_only(tmp_path: Path) -> None:
    with anyio.fail_after(20):
        async with await open_database(tmp_path / "intern.db") as db:
            one, other = JobQueue(db.for_community("one")), JobQueue(db.for_community("other"))
            number = await one.submit(INDEX, None)
            assert await other.claim() is None
            with pytest.raises(LookupError):
                await other.result(number)
            assert await other.submit(INDEX, None) != number
            claimed = await one.claim()
            assert claimed is not None
            assert (claimed.id, await other.reclaim()) == (number, 0)
