"""Questions in their own words: kept as asked, without what must not be kept, and forgotten when asked to."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from intern.core.errors import KnowledgeError
from intern.core.ids import ChannelId, MessageId, UserId
from intern.core.messages import Channel
from intern.stores.database import Database
from intern.stores.tables import questions as module
from intern.stores.tables.feedback import FeedbackStore
from intern.stores.tables.questions import MAX_AGE, MAX_CHARS, QuestionChannel, QuestionFilter, QuestionStore
from intern.stores.tables.traces import TraceStore
from tests.engines import open_database
from tests.worlds.clock import HandClock
from tests.worlds.samples import author, message

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("engine")]


@pytest.fixture
async def db(tmp_path: Path) -> AsyncGenerator[Database]:
    async with await open_database(tmp_path / "intern.db") as opened:
        yield opened


async def texts(store: QuestionStore) -> list[str]:
    return [each.text for each in await store.list_open()]


async def test_a_question_is_kept_whole_with_its_reason_newest_first(db: Database) -> None:
    clock = HandClock()
    store = QuestionStore(db, clock=clock)
    store.add([message("My relay stops.", n=1), message("How do I start it?", n=2)], "no_sources")
    assert await store.list_open() == ()
    await store.store()
    clock.turn(minutes=1)
    store.add([message("Which port?", n=3)], "timeout")
    await store.store()
    newest, oldest = await store.list_open()
    assert (newest.text, newest.reason) == ("Which port?", "timeout")
    assert (oldest.text, oldest.question_id) == ("My relay stops.\nHow do I start it?", message(n=2).id)


async def test_the_same_question_again_is_one(db: Database) -> None:
    store = QuestionStore(db, clock=HandClock())
    for reason in ("timeout", "no_sources"):
        store.add([message("Which port?", n=1)], reason)
        await store.store()
    (only,) = await store.list_open()
    assert only.reason == "no_sources"


async def test_secrets_and_mentions_are_taken_out_and_long_ones_cut(db: Database) -> None:
    store = QuestionStore(db, clock=HandClock(), emails=True)
    key = "ghp_" + "a1B2" * 10
    store.add([message(f"<@123> and <@&9> in <#7>: why is {key} of a@example.org refused?", n=1)], "no_answer")
    store.add([message("x\ud800" + "y" * 5_000, n=2)], "no_answer")
    await store.store()
    long, short = await texts(store)
    assert short == "@… and @… in @…: why is [masked github_token] of [masked email] refused?"
    assert long == "x?" + "y" * (MAX_CHARS - 3) + "…"


async def test_the_oldest_go_by_number_and_by_age(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "KEPT", 3)
    clock = HandClock()
    store = QuestionStore(db, clock=clock)
    for n in range(5):
        store.add([message(f"Question {n}?", n=n)], "no_answer")
    await store.store()
    assert await texts(store) == ["Question 4?", "Question 3?", "Question 2?"]
    clock.turn(seconds=MAX_AGE.total_seconds() + 1)
    assert await texts(store) == []
    store.add([message("Newer?", n=9)], "no_answer")
    await store.store()
    rows = await db.read(lambda tx: tx.rows("select texts from questions"))
    assert rows == [('["Newer?"]',)]


async def test_forgetting_takes_it_out_of_memory_and_disk_by_any_of_its_messages(db: Database) -> None:
    store = QuestionStore(db, clock=HandClock())
    store.add([message("On disk, first.", n=1), message("Second?", n=2)], "no_answer")
    store.add([message("Stays?", n=3)], "no_answer")
    await store.store()
    store.add([message("In memory?", n=4)], "no_answer")
    await store.forget([message(n=1).id, message(n=4).id])
    await store.store()
    assert await texts(store) == ["Stays?"]


async def test_a_deleted_question_is_gone_with_the_next_store(db: Database) -> None:
    store = QuestionStore(db, clock=HandClock())
    store.add([message("Deleted?", n=1)], "no_answer")
    store.drop([message(n=1).id, MessageId("99")])
    await store.store()
    assert await texts(store) == []


async def test_a_member_s_questions_are_found_in_memory_and_on_disk(db: Database) -> None:
    store = QuestionStore(db, clock=HandClock())
    store.add([message("Mine?", n=1)], "no_answer")
    store.add([message("Bob's?", n=2, by=author("bob"))], "no_answer")
    await store.store()
    store.add([message("Mine again?", n=3)], "no_answer")
    assert await store.find_messages_by(author().id) == {message(n=1).id, message(n=3).id}


async def test_questions_are_found_by_what_became_of_them(db: Database) -> None:
    clock = HandClock()
    store, traces = QuestionStore(db, clock=clock), TraceStore(db, clock=clock)
    channel = Channel(id=message().channel_id, guild_id=None, kind="channel", name="help")
    thread = replace(channel, kind="thread", parent_id=ChannelId("7"), name="a member's words")
    store.add([message("Which port?", n=1)], "", channel, seconds=2.5, tokens=7, cost=0.25)
    store.add([message('Say "quota" again?', n=2)], "no_sources", thread)
    store.add([message("Withheld?", n=3)], "", channel)
    store.add([message("@bot hm", n=4)], "not_a_question")
    await store.store()
    await traces.save([message(n=3).id], channel.id, outcome="answer withheld", reason="team_answered")
    await FeedbackStore(db, clock=clock).vote(message(n=1).id, UserId("5"), up=False)

    async def found(**wanted: Any) -> list[str]:
        rows, total = await store.find(QuestionFilter(**wanted), 2)
        assert total >= len(rows)
        return [each.text for each in rows]

    assert await found() == ["@bot hm", "Withheld?"]
    assert await found(answered=True) == ["Which port?"]
    assert await found(answered=False) == ["@bot hm", "Withheld?"]
    assert await found(reason="team_answered") == ["Withheld?"]
    assert await found(disliked=True) == ["Which port?"]
    assert await found(words='"QUOTA"') == ['Say "quota" again?']
    assert await found(place_id=ChannelId("7")) == ['Say "quota" again?']
    assert await found(since=clock.now() + timedelta(seconds=1)) == []
    assert await store.count_reasons() == {"": 1, "no_sources": 1, "not_a_question": 1, "team_answered": 1}
    assert await store.list_channels() == (
        QuestionChannel(channel.id, "help", 3),
        QuestionChannel(ChannelId("7"), "", 1),
    )
    known = await store.read_question(message(n=1).id)
    assert known is not None
    assert (known.seconds, known.tokens, known.cost) == (2.5, 7, 0.25)
    assert await texts(store) == ['Say "quota" again?']  # no gap: what was withheld, and what asks nothing


@pytest.mark.parametrize("first", ["on disk", "in memory", "not asked yet"])
async def test_a_settled_question_is_not_open_wherever_it_was_then(db: Database, first: str) -> None:
    store = QuestionStore(db, clock=HandClock())
    if first != "not asked yet":
        store.add([message("Which port?", n=1)], "no_answer")
    if first == "on disk":
        await store.store()
    await store.close_gaps([message(n=1).id], "answered")
    if first == "not asked yet":
        store.add([message("Which port?", n=1)], "no_answer")
    store.add([message("Another?", n=2)], "no_answer")
    await store.store()
    assert await texts(store) == ["Another?"]


async def test_what_the_disk_did_not_take_is_kept_for_the_next_time(db: Database) -> None:
    store = QuestionStore(db, clock=HandClock())
    store.add([message("Which port?", n=1)], "no_answer")
    real = db.write

    async def full(_: object) -> None:
        raise KnowledgeError("the disk is full")

    db.write = full  # type: ignore[method-assign,assignment]
    with pytest.raises(KnowledgeError):
        await store.store()
    db.write = real  # type: ignore[method-assign]
    await store.store()
    assert await texts(store) == ["Which port?"]
