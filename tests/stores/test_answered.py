"""Answered threads: each is looked at in its time and again when something happens there, and its authors are known."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from intern.core.ids import ChannelId, MessageId, UserId
from intern.stores.database import Database
from intern.stores.tables.answered_threads import AnsweredThreads, ThreadMessage
from intern.stores.tables.outbox import Outbox
from tests.engines import open_database
from tests.worlds import samples
from tests.worlds.clock import HandClock

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("engine")]

ONE, TWO = ChannelId("101"), ChannelId("201")
GENERAL = ChannelId("7")
MIA, TOM = UserId("501"), UserId("502")
NOON = HandClock().now()
LATER = NOON + timedelta(hours=1)


@pytest.fixture
async def db(tmp_path: Path, anyio_backend: str) -> AsyncIterator[Database]:
    async with await open_database(tmp_path / "intern.db") as opened:
        yield opened


@pytest.fixture
def threads(db: Database) -> AnsweredThreads:
    return AnsweredThreads(db)


def said(n: int, author: UserId = MIA, *, outside: bool = False) -> ThreadMessage:
    return ThreadMessage(id=MessageId(str(n)), author_id=author, is_outside=outside)


async def read(threads: AnsweredThreads, thread: ChannelId, *messages: ThreadMessage) -> None:
    await threads.add({thread: NOON})
    await threads.replace_messages(thread, messages)
    await threads.reschedule(thread, None)


async def times(threads: AnsweredThreads) -> list[tuple[ChannelId, datetime]]:
    found: list[tuple[ChannelId, datetime]] = []
    while (following := await threads.next_due()) is not None:
        found.append(following)
        await threads.reschedule(following[0], None)
    return found


async def test_the_thread_that_is_due_first_comes_first_and_another_answer_puts_it_off(
    threads: AnsweredThreads,
) -> None:
    await threads.add({TWO: NOON, ONE: NOON})
    await threads.add({TWO: LATER})
    await threads.add({ONE: NOON - timedelta(days=1)})
    assert await times(threads) == [(ONE, NOON), (TWO, LATER)]
    assert await threads.next_due() is None


async def test_a_stir_counts_at_once_and_on_disk_with_the_next_store(db: Database, threads: AnsweredThreads) -> None:
    await read(threads, ONE, said(101, outside=True), said(102))
    threads.note_event(ONE, MessageId("109"), LATER)
    assert threads.has_events(ONE)
    assert await threads.next_due() is None
    await threads.store()
    assert not threads.has_events(ONE)
    assert await AnsweredThreads(db).next_due() == (ONE, LATER)


async def test_of_several_stirred_threads_one_can_be_stored_alone(threads: AnsweredThreads) -> None:
    await read(threads, ONE, said(102))
    await read(threads, TWO, said(202))
    threads.note_event(ONE, MessageId("102"), LATER)
    threads.note_event(TWO, MessageId("202"), LATER)
    await threads.store(TWO)
    assert threads.find_thread_with_events() == ONE
    assert await times(threads) == [(TWO, LATER)]


async def test_the_question_in_the_channel_stirs_its_thread_and_what_nobody_read_stirs_nothing(
    db: Database, threads: AnsweredThreads
) -> None:
    await read(threads, ONE, said(101, outside=True), said(102))
    await threads.add({TWO: NOON})
    again = AnsweredThreads(db)
    await again.load()
    for known in (threads, again):
        assert known.holds(GENERAL, MessageId("101"))
        assert known.holds(ONE, MessageId("999"))
        assert not known.holds(GENERAL, MessageId("102"))
        assert not known.holds(TWO, MessageId("202"))
        known.note_event(GENERAL, MessageId("102"))
        known.note_event(TWO, MessageId("202"))
        assert known.find_thread_with_events() is None
        known.note_event(GENERAL, MessageId("101"))
        assert known.find_thread_with_events() == ONE


async def test_who_wrote_what_a_thread_once_held_stays_known_until_it_is_forgotten(threads: AnsweredThreads) -> None:
    await read(threads, ONE, said(101, outside=True), said(102, TOM))
    await read(threads, ONE, said(101, outside=True), said(103))
    assert await threads.read_message_ids(ONE) == ("101", "103")
    assert await threads.find_messages_by(TOM) == {"102"}
    assert await threads.find_threads([MessageId("102"), MessageId("5")]) == (ONE,)
    await threads.mark_unread(ONE)
    assert await threads.read_message_ids(ONE) == ()
    assert await threads.find_messages_by(MIA) == {"101", "103"}

    await threads.forget([MessageId("102"), MessageId("101")])
    assert await threads.find_messages_by(TOM) == frozenset()
    assert await threads.find_messages_by(MIA) == {"103"}
    assert not threads.holds(GENERAL, MessageId("101"))
    # What is left of it is read anew.
    found = await threads.next_due()
    assert found is not None
    assert found[0] == ONE
    assert threads.has_events(ONE)


async def test_the_ledger_gives_answers_in_the_order_in_which_they_were_finished(db: Database) -> None:
    clock = HandClock()
    ledger = Outbox(db, clock=clock)
    first, second, third, notice, open_ = (MessageId(str(1000 + n)) for n in range(5))
    for question in (first, second, third, open_):
        await ledger.begin(
            samples.reply(question, GENERAL, "new_thread", covers=[MessageId(f"{question}9")]), ["Like this."]
        )
    await ledger.begin(samples.reply(notice, GENERAL, "new_thread", notice=True), ["I cannot tell."])
    for n, question in enumerate((second, notice, first, third)):
        await ledger.save_thread(question, ChannelId(question))
        clock.turn(seconds=min(n, 2) % 2)  # two of them in the same moment
        await ledger.mark_finished(question)

    [(one, position)] = await ledger.list_finished_after(None, 1)
    rest = await ledger.list_finished_after(position, 10)
    assert [one.question_id, *(each.question_id for each, _ in rest)] == [second, first, third]
    assert await ledger.list_finished_after(rest[-1][1], 10) == ()
    assert await ledger.find_questions_in(ChannelId(first)) == ((GENERAL, first), (GENERAL, MessageId(f"{first}9")))
    assert await ledger.find_questions_in(ChannelId(notice)) == ()

    clock.turn(hours=1)
    await ledger.save_thread(open_, ChannelId(open_))
    await ledger.mark_finished(open_)
    assert [each.question_id for each, _ in await ledger.list_finished_after(rest[-1][1], 10)] == [open_]
