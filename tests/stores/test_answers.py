"""Records of questions: found by any of their messages, bounded, and without secrets."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from datetime import date
from pathlib import Path
from typing import Any

import anyio
import pytest
from hypothesis import given, settings, strategies as st

from intern.core.errors import KnowledgeError
from intern.core.ids import ChannelId, MessageId
from intern.stores.database import Database, Transaction
from intern.stores.tables.answers import KEPT_TRACES, MAX_DEBUG_CHARS, AnswerRecord, AnswerStore, encode_steps
from intern.stores.tables.daily_counts import DailyCounts
from intern.stores.tables.outbox import Outbox
from tests.engines import ON_SQLITE, open_database
from tests.examples import examples
from tests.worlds import samples
from tests.worlds.clock import HandClock

CHANNEL, OTHER = ChannelId("200"), ChannelId("201")
FIRST, SECOND, THIRD = MessageId("10"), MessageId("11"), MessageId("12")


@pytest.fixture
def clock() -> HandClock:
    return HandClock()


@pytest.fixture
async def db(tmp_path: Path, engine: None, anyio_backend: str) -> AsyncIterator[Database]:
    async with await open_database(tmp_path / "intern.db") as opened:
        yield opened


@pytest.fixture
def store(db: Database, clock: HandClock) -> AnswerStore:
    return AnswerStore(db, clock=clock)


@pytest.mark.anyio
@pytest.mark.usefixtures("engine")
class TestRecords:
    async def test_a_question_is_found_by_any_of_its_messages(self, store: AnswerStore, clock: HandClock) -> None:
        with anyio.fail_after(5):
            debug = {"gate": {"kind": "question", "seconds": 0.5}, "seconds": 1.5}
            await store.save([FIRST, SECOND], CHANNEL, outcome="silent", reason="no_sources", debug=debug)
            kept = AnswerRecord(
                question_id=SECOND,
                channel_id=CHANNEL,
                at=clock.now(),
                changed_at=clock.now(),
                outcome="silent",
                reason="no_sources",
                debug=debug,
            )
            assert await store.find(FIRST) == kept
            assert await store.find(SECOND) == kept
            assert await store.find(THIRD) is None

    async def test_a_question_is_found_by_the_reply_to_it(
        self, store: AnswerStore, db: Database, clock: HandClock
    ) -> None:
        with anyio.fail_after(5):
            ledger = Outbox(db, clock=clock)
            await store.save([FIRST], CHANNEL, outcome="answer")
            await ledger.begin(samples.reply(FIRST, CHANNEL, "new_thread"), ["one", "two"])
            await ledger.save_sent_part(FIRST, 1, MessageId("99"))
            found = await store.find(MessageId("99"))
            assert found is not None
            assert found.question_id == FIRST

    async def test_what_became_of_the_reply_is_added_and_the_reason_stays_unless_there_is_a_new_one(
        self, store: AnswerStore
    ) -> None:
        with anyio.fail_after(5):
            await store.save([FIRST], CHANNEL, outcome="notice", reason="no_sources", debug={"seconds": 1})
            await store.save_outcome(FIRST, outcome="notice posted")
            posted = await store.find(FIRST)
            assert posted is not None
            assert (posted.outcome, posted.reason, posted.debug) == ("notice posted", "no_sources", {"seconds": 1})
            await store.save_outcome(FIRST, outcome="notice dropped", reason="team_answered")
            dropped = await store.find(FIRST)
            assert dropped is not None
            assert (dropped.outcome, dropped.reason) == ("notice dropped", "team_answered")
            await store.save_outcome(THIRD, outcome="answer posted")
            assert await store.find(THIRD) is None

    async def test_a_question_takes_the_place_of_its_parts(self, store: AnswerStore) -> None:
        with anyio.fail_after(5):
            await store.save([FIRST], CHANNEL, outcome="answer")
            await store.save([FIRST, SECOND], CHANNEL, outcome="silent", reason="no_sources")
            found = await store.find(FIRST)
            assert found is not None
            assert (found.question_id, found.outcome) == (SECOND, "silent")

    async def test_a_record_replaces_the_older_one_for_the_messages_that_it_names_and_for_no_others(
        self, store: AnswerStore
    ) -> None:
        with anyio.fail_after(5):
            await store.save([FIRST, SECOND], CHANNEL, outcome="silent", reason="no_sources")
            await store.save([SECOND], CHANNEL, outcome="silent", reason="not_a_question")
            await store.save([SECOND, THIRD], CHANNEL, outcome="answer")
            await store.save_outcome(SECOND, outcome="answer recalled")
            await store.save_outcome(THIRD, outcome="answer posted")
            found = [await store.find(each) for each in (FIRST, SECOND, THIRD)]
            assert [each and (each.question_id, each.outcome, each.reason) for each in found] == [
                (FIRST, "silent", "no_sources"),
                (THIRD, "answer posted", ""),
                (THIRD, "answer posted", ""),
            ]
            assert await store.db.number("select count(*) from answers where community = :community") == 2

    async def test_a_record_beside_others_leaves_them_as_they_are(self, store: AnswerStore) -> None:
        with anyio.fail_after(5):
            await store.save([FIRST], CHANNEL, outcome="silent")
            await store.save([FIRST, THIRD], CHANNEL, outcome="answered for one member", beside=True)
            await store.save([SECOND, MessageId("13")], CHANNEL, outcome="silent for one member", beside=True)
            found = [await store.find(each) for each in (FIRST, SECOND, THIRD)]
            assert [each and each.outcome for each in found] == [
                "silent",
                "silent for one member",
                "answered for one member",
            ]
            await store.save([SECOND], CHANNEL, outcome="answer")
            found = [await store.find(each) for each in (SECOND, MessageId("13"))]
            assert [each and each.outcome for each in found] == ["answer", "silent for one member"]

    async def test_the_newest_of_a_channel_is_the_one_heard_of_last(self, store: AnswerStore, clock: HandClock) -> None:
        with anyio.fail_after(5):
            for message_id, channel_id in ((FIRST, CHANNEL), (SECOND, CHANNEL), (THIRD, OTHER)):
                await store.save([message_id], channel_id, outcome="silent")
                clock.turn(seconds=0.5)
            newest = await store.find_newest_in(CHANNEL)
            assert newest is not None
            assert newest.question_id == SECOND
            await store.save_outcome(FIRST, outcome="answer posted")
            newest = await store.find_newest_in(CHANNEL)
            assert newest is not None
            assert newest.question_id == FIRST
            assert await store.find_newest_in(ChannelId("9")) is None

    async def test_in_the_thread_of_a_question_the_newest_is_that_question(self, store: AnswerStore) -> None:
        with anyio.fail_after(5):
            await store.save([FIRST], CHANNEL, outcome="answer")
            found = await store.find_newest_in(ChannelId(FIRST))
            assert found is not None
            assert found.question_id == FIRST

    async def test_only_the_newest_are_kept(self, store: AnswerStore, db: Database) -> None:
        def fill(tx: Transaction) -> None:
            tx.run_each(
                "insert into answers (community, question_id, channel_id, at, changed_at, outcome, reason, debug,"
                " place_id, place, message_ids, seconds, tokens, cost, gap) values (:community, ?, '200',"
                " '2026-01-01T00:00:00+00:00', '2026-01-01T00:00:00+00:00', 'silent', '', '{}', '', '', '[]', 0.0, 0,"
                " 0.0, '')",
                [(str(n),) for n in range(1000, 1000 + KEPT_TRACES)],
            )
            tx.run("insert into answer_messages select community, question_id, question_id from answers")

        with anyio.fail_after(20):
            await db.write(fill)
            await store.save([FIRST], CHANNEL, outcome="silent")
            assert await db.read(lambda tx: tx.row("select count(*) from answers")) == (KEPT_TRACES,)
            assert await store.find(MessageId("1000")) is None
            assert await store.find(MessageId("1001")) is not None


@pytest.mark.anyio
@pytest.mark.usefixtures("engine")
class TestCounts:
    async def test_what_is_counted_adds_up_by_day(self, db: Database, clock: HandClock) -> None:
        with anyio.fail_after(5):
            counts = DailyCounts(db, clock=clock)
            counts.add("questions_shed")
            counts.add("questions_shed", 2)
            await counts.store()
            await counts.store()
            counts.add("questions_shed")
            clock.turn(days=1)
            counts.add("questions_shed")
            await counts.store()
            again = DailyCounts(db, clock=clock)
            assert await again.read_day(date(2026, 2, 1)) == {"questions_shed": 4}
            assert await again.read_day(date(2026, 2, 2)) == {"questions_shed": 1}
            assert await again.read_day(date(2026, 2, 3)) == {}

    @ON_SQLITE
    async def test_what_the_disk_refused_is_stored_later(self, db: Database, clock: HandClock) -> None:
        with anyio.fail_after(5):
            counts, name = DailyCounts(db, clock=clock), "x" * 1_000_000
            counts.add(name)
            await db.write(lambda tx: tx.rows("pragma max_page_count = 1"))
            with pytest.raises(KnowledgeError):
                await counts.store()
            counts.add(name)
            await db.write(lambda tx: tx.rows("pragma max_page_count = 100000"))
            await counts.store()
            assert await counts.read_day(clock.now().date()) == {name: 2}


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=30) | st.dictionaries(st.text(), inner, max_size=30),
    max_leaves=60,
)


@pytest.mark.rest
@settings(max_examples=examples(40))  # large ones: to think one up takes longer than the test
@given(st.dictionaries(st.text(), _JSON, max_size=30))
def test_whatever_the_steps_say_fits(debug: dict[str, Any]) -> None:
    kept = encode_steps(debug)
    assert len(kept) <= MAX_DEBUG_CHARS
    assert isinstance(json.loads(kept), dict)


def test_the_first_steps_are_kept_whole_and_the_cut_is_told() -> None:
    steps = {f"step{n}": {"source_ids": ["x" * 280] * 5} for n in range(10)}
    kept = json.loads(encode_steps(steps))
    assert kept["cut"]
    assert kept["step0"] == steps["step0"]
    assert "step9" not in kept


# Finding I1.
def test_nothing_that_was_said_is_kept() -> None:
    said = {"error": "zork", "answer": "zork", "quotes": ["zork"], "told": "zork", "deeper": {"asked": ("zork",)}}
    kept = encode_steps(
        {"error": "zork", "generation": {**said, "citations": ["kb:a.md"], "quotes_count": 1, "by": "model"}}
    )
    assert "zork" not in kept
    told = json.loads(kept)["generation"]
    assert (told["citations"], told["quotes_count"], told["by"]) == (["kb:a.md"], 1, "model")


def test_a_secret_in_an_id_and_a_long_one_are_not_kept_whole() -> None:
    kept = encode_steps({"load": {"shown": ["kb:https://a.example/?key=" + "a1B2c3D4e5F6g7H8", "y" * 5000]}})
    assert "a1B2" not in kept
    assert "y" * 299 in kept
    assert "y" * 300 not in kept
