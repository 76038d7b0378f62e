"""Questions that found no answer: kept as asked, without what must not be kept, and forgotten when asked to."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from intern.core.errors import KnowledgeError
from intern.core.ids import MessageId
from intern.stores.database import Database
from intern.stores.sqlite import traces as module
from intern.stores.sqlite.traces import MAX_AGE, MAX_CHARS, Unanswered
from tests.engines import open_database
from tests.fakes import HandClock
from tests.samples import author, message

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("engine")]


@pytest.fixture
async def db(tmp_path: Path) -> AsyncGenerator[Database]:
    async with await open_database(tmp_path / "intern.db") as opened:
        yield opened


async def texts(store: Unanswered) -> list[str]:
    return [each.text for each in await store.all()]


async def test_a_question_is_kept_whole_with_its_reason_newest_first(db: Database) -> None:
    clock = HandClock()
    store = Unanswered(db, clock=clock)
    store.add([message("My relay stops.", n=1), message("How do I start it?", n=2)], "no_sources")
    assert await store.all() == ()
    await store.store()
    clock.turn(minutes=1)
    store.add([message("Which port?", n=3)], "timeout")
    await store.store()
    newest, oldest = await store.all()
    assert (newest.text, newest.reason) == ("Which port?", "timeout")
    assert (oldest.text, oldest.question_id) == ("My relay stops.\nHow do I start it?", message(n=2).id)


async def test_the_same_question_again_is_one(db: Database) -> None:
    store = Unanswered(db, clock=HandClock())
    for reason in ("timeout", "no_sources"):
        store.add([message("Which port?", n=1)], reason)
        await store.store()
    (only,) = await store.all()
    assert only.reason == "no_sources"


async def test_secrets_and_mentions_are_taken_out_and_long_ones_cut(db: Database) -> None:
    store = Unanswered(db, clock=HandClock(), emails=True)
    key = "ghp_" + "a1B2" * 10
    store.add([message(f"<@123> and <@&9> in <#7>: why is {key} of a@example.org refused?", n=1)], "no_answer")
    store.add([message("x\ud800" + "y" * 5_000, n=2)], "no_answer")
    await store.store()
    long, short = await texts(store)
    assert short == "@… and @… in @…: why is [masked github_token] of [masked email] refused?"
    assert long == "x?" + "y" * (MAX_CHARS - 3) + "…"


async def test_the_oldest_go_by_number_and_by_age(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "KEPT_UNANSWERED", 3)
    clock = HandClock()
    store = Unanswered(db, clock=clock)
    for n in range(5):
        store.add([message(f"Question {n}?", n=n)], "no_answer")
    await store.store()
    assert await texts(store) == ["Question 4?", "Question 3?", "Question 2?"]
    clock.turn(seconds=MAX_AGE.total_seconds() + 1)
    assert await texts(store) == []
    store.add([message("Newer?", n=9)], "no_answer")
    await store.store()
    rows = await db.read(lambda tx: tx.rows("select text from unanswered"))
    assert rows == [("Newer?",)]


async def test_forgetting_takes_it_out_of_memory_and_disk_by_any_of_its_messages(db: Database) -> None:
    store = Unanswered(db, clock=HandClock())
    store.add([message("On disk, first.", n=1), message("Second?", n=2)], "no_answer")
    store.add([message("Stays?", n=3)], "no_answer")
    await store.store()
    store.add([message("In memory?", n=4)], "no_answer")
    await store.forget([message(n=1).id, message(n=4).id])
    await store.store()
    assert await texts(store) == ["Stays?"]


async def test_a_deleted_question_is_gone_with_the_next_store(db: Database) -> None:
    store = Unanswered(db, clock=HandClock())
    store.add([message("Deleted?", n=1)], "no_answer")
    store.drop([message(n=1).id, MessageId("99")])
    await store.store()
    assert await texts(store) == []


async def test_a_member_s_questions_are_found_in_memory_and_on_disk(db: Database) -> None:
    store = Unanswered(db, clock=HandClock())
    store.add([message("Mine?", n=1)], "no_answer")
    store.add([message("Bob's?", n=2, by=author("bob"))], "no_answer")
    await store.store()
    store.add([message("Mine again?", n=3)], "no_answer")
    assert await store.written_by(author().id) == {message(n=1).id, message(n=3).id}


async def test_what_the_disk_did_not_take_is_kept_for_the_next_time(db: Database) -> None:
    store = Unanswered(db, clock=HandClock())
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
