"""Questions in their own words: kept as asked, without what must not be kept, and forgotten when asked to."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from intern.core.errors import KnowledgeError
from intern.core.ids import ChannelId, MessageId, SourceId, UserId
from intern.core.messages import Channel, Citation
from intern.stores.database import Database
from intern.stores.tables import answers as module
from intern.stores.tables.answers import MAX_AGE, MAX_CHARS, AnswerStore, QuestionChannel, QuestionFilter
from intern.stores.tables.citations import CitationStore
from intern.stores.tables.feedback import FeedbackStore
from intern.stores.tables.outbox import Outbox
from tests.engines import open_database
from tests.worlds.clock import HandClock
from tests.worlds.samples import author, message, reply, save_question

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("engine")]


@pytest.fixture
async def db(tmp_path: Path) -> AsyncGenerator[Database]:
    async with await open_database(tmp_path / "intern.db") as opened:
        yield opened


async def texts(store: AnswerStore) -> list[str]:
    return [each.text for each in await store.list_open()]


async def test_a_question_is_kept_whole_with_its_reason_newest_first(db: Database) -> None:
    clock = HandClock()
    store = AnswerStore(db, clock=clock)
    await save_question(store, [message("My relay stops.", n=1), message("How do I start it?", n=2)], "no_sources")
    clock.turn(minutes=1)
    await save_question(store, [message("Which port?", n=3)], "timeout")
    newest, oldest = await store.list_open()
    assert (newest.text, newest.reason) == ("Which port?", "timeout")
    assert (oldest.text, oldest.question_id) == ("My relay stops.\nHow do I start it?", message(n=2).id)


async def test_the_same_question_again_is_one(db: Database) -> None:
    store = AnswerStore(db, clock=HandClock())
    for reason in ("timeout", "no_sources"):
        await save_question(store, [message("Which port?", n=1)], reason)
    (only,) = await store.list_open()
    assert only.reason == "no_sources"


async def test_secrets_and_mentions_are_taken_out_and_long_ones_cut(db: Database) -> None:
    store = AnswerStore(db, clock=HandClock(), emails=True)
    key = "ghp_" + "a1B2" * 10
    told = f"<@123> and <@&9> in <#7>: why is {key} of a@example.org refused?"
    await save_question(store, [message(told, n=1)], "no_answer")
    await save_question(store, [message("x\ud800" + "y" * 5_000, n=2)], "no_answer")
    long, short = await texts(store)
    assert short == "@… and @… in @…: why is [masked github_token] of [masked email] refused?"
    assert long == "x?" + "y" * (MAX_CHARS - 3) + "…"


async def test_the_oldest_go_by_number_and_by_age(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "KEPT_WORDS", 3)
    clock = HandClock()
    store = AnswerStore(db, clock=clock)
    for n in range(5):
        await save_question(store, [message(f"Question {n}?", n=n)], "no_answer")
    assert await texts(store) == ["Question 4?", "Question 3?", "Question 2?"]
    clock.turn(seconds=MAX_AGE.total_seconds() + 1)
    assert await texts(store) == []
    await save_question(store, [message("Newer?", n=9)], "no_answer")
    rows = await db.read(lambda tx: tx.rows("select texts from answers where texts is not null"))
    assert rows == [('["Newer?"]',)]


async def test_forgetting_takes_it_out_of_memory_and_disk_by_any_of_its_messages(db: Database) -> None:
    store = AnswerStore(db, clock=HandClock())
    await save_question(store, [message("On disk, first.", n=1), message("Second?", n=2)], "no_answer")
    await save_question(store, [message("Stays?", n=3)], "no_answer")
    await save_question(store, [message("In memory?", n=4)], "no_answer")
    await store.forget([message(n=1).id, message(n=4).id])
    assert await texts(store) == ["Stays?"]


async def test_a_deleted_question_is_gone_with_the_next_store(db: Database) -> None:
    store = AnswerStore(db, clock=HandClock())
    await save_question(store, [message("Deleted?", n=1)], "no_answer")
    store.drop([message(n=1).id, MessageId("99")])
    await store.store()
    assert await texts(store) == []


async def test_a_member_s_questions_are_found_in_memory_and_on_disk(db: Database) -> None:
    store = AnswerStore(db, clock=HandClock())
    await save_question(store, [message("Mine?", n=1)], "no_answer")
    await save_question(store, [message("Bob's?", n=2, by=author("bob"))], "no_answer")
    await save_question(store, [message("Mine again?", n=3)], "no_answer")
    assert await store.find_messages_by(author().id) == {message(n=1).id, message(n=3).id}


async def test_questions_are_found_by_what_became_of_them(db: Database) -> None:
    clock = HandClock()
    store = AnswerStore(db, clock=clock)
    channel = Channel(id=message().channel_id, guild_id=None, kind="channel", name="help")
    thread = replace(channel, kind="thread", parent_id=ChannelId("7"), name="a member's words")
    await save_question(store, [message("Which port?", n=1)], "", channel, seconds=2.5, tokens=7, cost=0.25)
    await save_question(store, [message('Say "quota" again?', n=2)], "no_sources", thread)
    await save_question(store, [message("Withheld?", n=3)], "", channel)
    await save_question(store, [message("@bot hm", n=4)], "not_a_question")
    await store.save_outcome(message(n=3).id, outcome="answer withheld", reason="team_answered")
    await FeedbackStore(db, clock=clock).vote(message(n=1).id, UserId("5"), up=False)

    async def found(**wanted: Any) -> list[str]:
        rows, total = await store.list_questions(QuestionFilter(**wanted), 2)
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
    known = await store.find(message(n=1).id)
    assert known is not None
    assert (known.seconds, known.tokens, known.cost) == (2.5, 7, 0.25)
    assert await texts(store) == ['Say "quota" again?']  # no gap: what was withheld, and what asks nothing


@pytest.mark.parametrize("first", ["recorded", "not recorded yet"])
async def test_a_closed_gap_is_not_open_whenever_it_was_closed(db: Database, first: str) -> None:
    store, asked = AnswerStore(db, clock=HandClock()), [message("Which port?", n=1)]
    if first == "recorded":
        await save_question(store, asked, "no_answer")
    await store.close_gaps([asked[0].id], "answered")
    if first == "not recorded yet":
        await save_question(store, asked, "no_answer")
    await save_question(store, [message("Another?", n=2)], "no_answer")
    assert await texts(store) == ["Another?"]


async def test_a_deletion_that_the_disk_did_not_take_is_done_the_next_time(db: Database) -> None:
    store = AnswerStore(db, clock=HandClock())
    await save_question(store, [message("Which port?", n=1)], "no_answer")
    store.drop([message(n=1).id])
    real = db.write

    async def full(_: object) -> None:
        raise KnowledgeError("the disk is full")

    db.write = full  # type: ignore[method-assign,assignment]
    with pytest.raises(KnowledgeError):
        await store.store()
    db.write = real  # type: ignore[method-assign]
    await store.store()
    assert await texts(store) == []


async def test_the_words_of_a_message_that_is_asked_anew_are_kept_with_no_older_question(db: Database) -> None:
    store = AnswerStore(db, clock=HandClock())
    both = [message("My quokka stops.", n=1), message("How do I start it?", n=2)]
    for anew in both:
        await save_question(store, both, "no_answer")
        await save_question(store, [message("Which port?", n=0, by=anew.author)], "no_answer")
        await store.save([anew.id], anew.channel_id, outcome="silent", reason="not_a_question")
        store.drop([anew.id])
        await store.store()
        assert await texts(store) == ["Which port?"]


async def test_each_part_of_a_record_is_kept_for_its_own_time(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "KEPT_TRACES", 2)
    monkeypatch.setattr(module, "KEPT_WORDS", 3)
    clock = HandClock()
    store, posts = AnswerStore(db, clock=clock), Outbox(db, clock=clock)
    cited = Citation(source_id=SourceId("kb:a.md"), title="A")
    for n in range(6):
        clock.turn(seconds=1)
        asked = message(f"Question {n}?", n=n)
        await save_question(store, [asked])
        await store.save([message(n=100 + n).id], asked.channel_id, outcome="silent", reason="not_a_question")
        if n < 2:
            await posts.begin(reply(asked.id, asked.channel_id, "in_place", citations=(cited,)), ["so"])
            await posts.mark_finished(asked.id)
    rows = (
        "select debug is not null, texts is not null, retracted is not null from answers where community = :community"
    )
    assert await db.rows(f"{rows} order by at, rid") == [
        *[(0, 0, 1)] * 2,
        *[(0, 1, 0)] * 2,
        (1, 1, 0),
        (1, 0, 0),
    ]
    clock.turn(days=91)
    asked = message("Question 9?", n=9)
    await save_question(store, [asked])
    await posts.begin(reply(asked.id, asked.channel_id, "in_place", citations=(cited,)), ["so"])
    assert await db.rows(f"{rows} order by at, rid") == [(1, 0, 0), (1, 1, 1)]


async def test_a_posted_answer_stays_watched_when_its_question_is_recorded_anew_or_deleted(db: Database) -> None:
    store, posts, cited = AnswerStore(db, clock=HandClock()), Outbox(db, clock=HandClock()), CitationStore(db)
    asked, other = message("Which port?", n=1), message("And now?", n=2)
    citation = Citation(source_id=SourceId("kb:a.md"), title="A")
    await posts.begin(reply(asked.id, asked.channel_id, "in_place", citations=(citation,), asked="Which port?"), ["so"])
    await posts.mark_finished(asked.id)
    known = await store.find(asked.id)
    assert known is not None
    assert (known.text, known.debug) == ("Which port?", None)
    await save_question(store, [asked])
    await save_question(store, [other])
    store.drop([asked.id, other.id])
    await store.store()
    assert [each.source_id for each in (await cited.read_citations([asked.id]))[asked.id]] == ["kb:a.md"]
    # To be forgotten with its author.
    assert await store.find_messages_by(asked.author.id) == {asked.id}
    await store.withdraw([asked.id])
    assert await cited.read_citations([asked.id]) == {}
    assert await store.find_messages_by(asked.author.id) == set()


async def test_an_author_is_kept_with_their_words_or_a_watched_answer_alone(db: Database) -> None:
    clock = HandClock()
    store, posts = AnswerStore(db, clock=clock), Outbox(db, clock=clock)
    citations = (Citation(source_id=SourceId("kb:a.md"), title="A"),)
    for n, name in enumerate(("alice", "bob")):
        asked = message("Which port?", n=n, by=author(name))
        await save_question(store, [asked])
        await posts.begin(reply(asked.id, asked.channel_id, "in_place", citations=citations), ["so"])
        store.drop([asked.id])
        await store.store()
        assert await store.find_messages_by(author(name).id) == {asked.id}
        clock.turn(days=91)
    assert await store.find_messages_by(author("alice").id) == set()
    assert await store.find(message(n=0).id) is not None
