"""Recordings are found by their messages, and go with age, for room, or with what is forgotten, on both engines."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Collection
from pathlib import Path

import pytest

from intern.core.errors import KnowledgeError
from intern.stores.database import Database
from intern.stores.tables.recordings import RecordingStore, StoredRecording, compress_data
from tests.engines import open_database
from tests.worlds.clock import HandClock

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("engine")]

DAY = "2026-02-0{}T00:00:00+00:00"


@pytest.fixture
async def db(tmp_path: Path) -> AsyncGenerator[Database]:
    async with await open_database(tmp_path / "intern.db") as opened:
        yield opened


def recording(
    n: int, *, heard: Collection[str] = (), about: Collection[str] = (), texts: Collection[str] = (), size: int = 100
) -> StoredRecording:
    return StoredRecording(
        kind="answer",
        subject=str(n),
        at=DAY.format(n),
        outcome="answered",
        unfit="",
        about=(*(f"message:{each}" for each in (n, *heard)), *about),
        texts=tuple(texts),
        size=size,
        recording=compress_data(b'{"digest":"%d"}' % n),
    )


async def kept(db: Database, *recordings: StoredRecording) -> RecordingStore:
    store = RecordingStore(db, clock=HandClock())
    texts = {digest: compress_data(f"text {digest}".encode()) for each in recordings for digest in each.texts}
    await store.save(recordings, texts)
    return store


async def left(store: RecordingStore) -> list[str]:
    return [each.subject for each in reversed(await store.list_newest(100))]


async def test_a_recording_is_found_by_the_messages_that_it_is_about_alone(db: Database) -> None:
    store = await kept(db, recording(1, heard=["7"]), recording(2, heard=["1"]))
    (found,) = await store.find_recordings("1")
    assert (found.subject, found.unfit, found.about) == ("1", "", ("message:1", "message:7"))
    assert await store.find_recordings("7") == ()
    assert [each.subject for each in await store.list_since(DAY.format(2), "answer")] == ["2"]
    assert await store.list_since(DAY.format(1), "classify") == ()


async def test_a_recording_is_found_by_its_reply(db: Database) -> None:
    store = await kept(db, recording(1))
    await db.run(
        "insert into posts (community, question_id, channel_id, target, state, reason, changed_at)"
        " values (:community, '1', '9', 'in_place', 'finished', '', '')"
    )
    await db.run(
        "insert into post_parts (community, question_id, n, text, nonce, message_id)"
        " values (:community, '1', 0, '', '', '88')"
    )
    assert [each.subject for each in await store.find_recordings("88")] == ["1"]


async def test_forgetting_takes_what_holds_a_message_or_names_a_person_or_a_topic(db: Database) -> None:
    store = await kept(
        db,
        recording(1, heard=["7"]),
        recording(2, about=["user:5", "team:gpu.txt"]),
        recording(3, about=["team:cpu.txt"]),
        recording(4, about=["user:55"]),
    )
    assert await store.forget(["message:7"])
    assert await left(store) == ["2", "3", "4"]
    assert await store.forget(["user:5", "team:c"])
    assert await left(store) == ["3", "4"]
    assert not await store.forget(["message:2", "user:5"])


async def test_a_shared_text_goes_with_the_last_recording_that_names_it(db: Database) -> None:
    store = await kept(db, recording(1, texts=["a", "b"]), recording(2, texts=["b"]))
    both = recording(1, texts=["a", "c", "b"])
    assert await store.read_texts(both) == {"0": "text a", "2": "text b"}
    await store.forget(["message:1"])
    assert await store.read_texts(both) == {"2": "text b"}


async def test_the_oldest_recordings_go_for_their_age_and_for_room(db: Database) -> None:
    store = await kept(db, *(recording(n, texts=[str(n)], size=1_000) for n in range(1, 6)))
    await store.trim(DAY.format(2), 1_000_000)
    assert await left(store) == ["2", "3", "4", "5"]
    shared = 4 * 400
    await store.trim(DAY.format(1), 2_500 + shared)
    assert await left(store) == ["4", "5"]
    assert list(await store.read_texts(recording(1, texts="12345"))) == ["3", "4"]


async def test_another_community_sees_and_loses_nothing(db: Database) -> None:
    store = await kept(db, recording(1, about=["anyone"], texts=["a"]))
    other = RecordingStore(db.for_community("other"))
    assert await other.find_recordings("1") == ()
    (found,) = await store.find_recordings("1")
    assert await other.read_texts(found) == {}
    await other.trim(DAY.format(9), 0)
    await other.forget(["message:1", "anyone"])
    assert await left(store) == ["1"]
    assert await store.read_texts(found) == {"0": "text a"}


async def test_a_recording_that_is_damaged_or_shares_a_damaged_text_is_a_clear_error(db: Database) -> None:
    store = await kept(db, recording(1, texts=["a"]))
    (found,) = await store.find_recordings("1")
    told = "the recording of 1 cannot be read .*; check the disk, and the database with: intern doctor"
    with pytest.raises(KnowledgeError, match=told):
        found.unpack(StoredRecording)
    await db.run("update recordings set recording = ? where community = :community", (b"not packed",))
    await db.run("update recorded_texts set text = ? where community = :community", (compress_data(b"\xff"),))
    (found,) = await store.find_recordings("1")
    with pytest.raises(KnowledgeError, match=told):
        found.unpack(StoredRecording)
    with pytest.raises(KnowledgeError, match=told):
        await store.read_texts(found)
