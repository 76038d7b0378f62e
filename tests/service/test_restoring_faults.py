"""Restoring and adopting after earlier faults, or with faults meanwhile."""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import TypeVar

import pytest
from anyio import fail_after
from anyio.to_thread import run_sync
from msgspec.structs import replace

from intern.actors.activity import ActivityReporter
from intern.core.captures import CapturedPair
from intern.core.clock import SystemClock
from intern.core.errors import KnowledgeError
from intern.core.flow import FilingDecision, TopicChoice
from intern.learning.forgetting import ForgetRequest
from intern.models.prompt import OfflineModel
from intern.runtime.bot import open_sandbox
from intern.service.extraction import FOLLOWER
from intern.service.hidden_files import find_edited_files
from intern.service.models import collect_offline_rules
from intern.service.opening import open_intern
from intern.service.restoring import TopicAdoption, restore
from intern.service.status import describe_folder_problems
from intern.service.writer import Writer
from intern.settings.loading import load_settings
from intern.settings.settings import Settings
from intern.stores.archive import Archive
from intern.stores.database import Transaction
from intern.stores.engines.sqlite.copies import copy_database
from intern.stores.engines.sqlite.database import SqliteDatabase
from tests.service.test_forgetting import ANN, MIA, TOM, Shop
from tests.service.test_restoring import (
    SPOOL,
    Broken,
    filed,
    knowledge_of,
    lose_database,
    text_files,
)
from tests.service.writers import open_writer, settings_in, writer_in
from tests.worlds import samples
from tests.worlds.chat import Sandbox
from tests.worlds.clock import HandClock
from tests.worlds.disk import KilledError, tree

pytestmark = pytest.mark.anyio

T = TypeVar("T")


async def start(settings: Settings) -> None:
    async with open_sandbox(settings, Sandbox(HandClock()), events=ActivityReporter()):
        pass


async def restored(settings: Settings, folder: Path | None = None) -> None:
    async with open_intern(settings) as intern:
        await intern.restore(folder or settings.data.dir)


async def test_a_restore_that_is_killed_at_any_write_is_not_there_or_is_complete(tmp_path: Path) -> None:
    settings = settings_in(tmp_path)
    async with writer_in(settings) as writer:
        await filed(writer, 1)
    for survives in range(20):
        lose_database(settings)
        left, ended = survives, False

        class Dying(SqliteDatabase):
            async def write(self, work: Callable[[Transaction], T]) -> T:
                nonlocal left
                if left == 0:
                    raise KilledError
                left -= 1
                return await super().write(work)

        async with await Dying.open(settings.paths.database) as db:
            try:
                await restore(db, settings.paths, settings.paths, HandClock(), follower=FOLLOWER)
                ended = True
            except KilledError:
                pass
        async with await SqliteDatabase.open(settings.paths.database) as again:
            decided = await again.number("select count(*) from decisions")
            position = await again.number("select count(*) from positions where follower = 'extractor'")
            ours = await again.number("select count(*) from projected_files where file = 'topics/spool.txt'")
        assert (decided, position, ours) in {(0, 0, 0), (1, 1, 1)}, survives
        if ended:
            return
    pytest.fail("it never ends")


async def test_neither_an_index_nor_a_damaged_file_revives_what_was_forgotten(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    async with shop.open():
        await shop.taught("1", (1, MIA, "How do I purge the spool of my quokka farm?"), (2, ANN, "Run purge."))
        await shop.taught("2", (11, TOM, "How do I rotate the spool every night?"), (12, ANN, "Set rotate."))
        await shop.work.indexing.refresh()
        await shop.work.stores.files.catch_up()
    async with await SqliteDatabase.open(shop.settings.paths.database) as db:
        work = await run_sync(
            open_writer, shop.settings, db, OfflineModel(collect_offline_rules()), shop.clock, Broken()
        )
        with pytest.raises(KnowledgeError, match="no space"):
            await work.forget(ForgetRequest(user_id=MIA))
        [pair, _] = work.stores.archive.pairs_after(None)
    with (shop.settings.paths.topics / "spool.txt").open("a") as file:
        file.write(f"--- QA ---\nid: {pair.qa_id} (torn)\nUser: my quokka\n--- QA ---\nid: nonsense\n")
    lose_database(shop.settings)
    await restored(shop.settings)
    assert [name for name, data in tree(tmp_path).items() if b"quokka" in data and "raw" not in name] == []
    # The other piece is kept, and nothing else: no person wrote the index.
    assert [each.name for each in find_edited_files(shop.settings.paths)] == [".spool.txt.edited"]
    async with writer_in(shop.settings) as writer:
        found = await writer.stores.knowledge.db.rows("select source from sources")
        assert "quokka" not in str(found)


@pytest.mark.parametrize("erase", [False, True])
async def test_what_was_forgotten_here_is_not_revived_by_an_older_export(tmp_path: Path, *, erase: bool) -> None:
    settings = settings_in(tmp_path / "data")
    async with writer_in(settings) as writer:
        pair = await filed(writer, 1, "How do I feed the quokka?")
        other = await filed(writer, 2)
    async with open_intern(settings) as intern:
        await intern.export(tmp_path / "older")
    async with writer_in(settings) as writer:
        await writer.forget(ForgetRequest(message_ids=pair.message_ids, erase=erase))
    lose_database(settings)
    for week in settings.paths.raw.iterdir():
        week.unlink()
    await restored(settings, tmp_path / "older")
    knowledge = knowledge_of(settings)
    assert [block.qa_id for block in knowledge.read_topic(SPOOL)] == [other.qa_id]
    assert all(map(knowledge.is_withdrawn, pair.message_ids))
    found = [name for name, data in tree(settings.data.dir).items() if b"quokka" in data]
    assert found == [name for name in found if "/raw/" in name]


async def two_questions(writer: Writer) -> CapturedPair:
    """File a conversation with two questions: one of them can go."""
    capture = samples.capture("How do I feed the quokka?", "With leaves.", n=1)
    more = samples.capture("And the spool, how do I purge it?", "Purge it.", n=5)
    turns, ids = (*capture.turns, *more.turns), (*capture.message_ids, *more.message_ids)
    pair = await writer.learning.keep(replace(capture, turns=turns, message_ids=ids, author_ids=()))
    assert pair is not None
    await writer.learning.file(FilingDecision(pair=pair, choice=TopicChoice(name=SPOOL)))
    await writer.stores.files.catch_up()
    return pair


def damage_lines_after(lines: bytes, path: Path) -> None:
    new = path.read_bytes()[len(lines) :]
    path.write_bytes(lines + b"".join(b"{" + line for line in new.splitlines(keepends=True)))


@pytest.mark.parametrize("damaged", [False, True])
async def test_a_person_s_words_that_were_withdrawn_are_not_revived_by_older_files(
    tmp_path: Path, *, damaged: bool
) -> None:
    settings = settings_in(tmp_path)
    path = settings.paths.topics / "spool.txt"
    async with writer_in(settings) as writer:
        pair = await two_questions(writer)
        path.write_text(path.read_text().replace("With leaves", "With fresh leaves"))
        assert (await writer.adopt(SPOOL)).changed == (pair.qa_id,)
        await writer.stores.files.catch_up()
        older = path.read_text()
        assert "fresh" in older
    # No archive has a person's words: only their topic has them.
    lose_database(settings)
    await restored(settings)
    assert b"fresh" in knowledge_of(settings).read_topic_file(SPOOL)
    async with writer_in(settings) as writer:
        lines = settings.paths.decisions.read_bytes()
        await writer.forget(ForgetRequest(message_ids=pair.message_ids[:2], erase=True))
        assert b"quokka" not in writer.stores.knowledge.read_topic_file(SPOOL)
    if damaged:
        damage_lines_after(lines, settings.paths.decisions)
    path.write_text(older)
    lose_database(settings)
    await restored(settings)
    [block] = knowledge_of(settings).read_topic(SPOOL)
    assert [turn.text for turn in block.turns] == ["And the spool, how do I purge it?", "Purge it."]


async def test_a_damaged_topic_file_is_kept_beside_by_a_restore(tmp_path: Path) -> None:
    settings = settings_in(tmp_path)
    path = settings.paths.topics / "spool.txt"
    async with writer_in(settings) as writer:
        await filed(writer, 1)
    with path.open("a") as file:
        file.write("--- QA ---\nid: nonsense\nUser: a person's words\n")
    lose_database(settings)
    await restored(settings)
    assert "a person's words" in (settings.paths.topics / ".spool.txt.edited").read_text()


async def test_two_exports_of_the_same_are_the_same(tmp_path: Path) -> None:
    settings = settings_in(tmp_path / "data")
    settings.paths.sources.mkdir(parents=True)
    async with writer_in(settings) as writer:
        await filed(writer, 1)
        await writer.indexing.refresh()
    for name, clock in (("one", HandClock()), ("two", HandClock(SystemClock().now() + timedelta(days=1)))):
        async with open_intern(settings, clock=clock) as intern:
            await intern.export(tmp_path / name)
    assert text_files(tmp_path / "one") == text_files(tmp_path / "two")


async def test_an_empty_database_beside_an_archive_alone_is_refused_by_the_bot(tmp_path: Path) -> None:
    settings = load_settings(environ={}, overrides={"data": {"dir": str(tmp_path)}, "llm": {"provider": "offline"}})
    settings.paths.sources.mkdir(parents=True)
    Archive(settings.paths.raw, clock=HandClock()).append(samples.capture())
    with fail_after(20), pytest.raises(KnowledgeError, match="intern restore"):
        await start(settings)
    # Indexing documents does not make the database know the archive.
    async with open_intern(settings) as intern:
        await intern.index()
    with fail_after(20), pytest.raises(KnowledgeError, match="intern restore"):
        await start(settings)
    await restored(settings)
    with fail_after(20):
        await start(settings)


async def test_a_bot_that_was_killed_before_its_first_decision_starts_again(tmp_path: Path) -> None:
    settings = load_settings(environ={}, overrides={"data": {"dir": str(tmp_path)}, "llm": {"provider": "offline"}})
    async with writer_in(settings) as writer:
        assert await writer.learning.keep(samples.capture()) is not None
    with fail_after(20):
        await start(settings)


async def test_a_withdrawal_clears_the_edits_that_are_kept_and_adopting_them_takes_nothing_else_out(
    tmp_path: Path,
) -> None:
    settings = settings_in(tmp_path)
    path, edited = settings.paths.topics / "spool.txt", settings.paths.topics / ".spool.txt.edited"
    async with writer_in(settings) as writer:
        gone = await filed(writer, 1, "How do I feed the quokka?\nHow do I purge spool number 2?")
        other = await filed(writer, 2)
        last = await filed(writer, 3)
        path.write_text(path.read_text().replace("2 times", "twice"))
        await writer.stores.files.catch_up(SPOOL)
        assert "quokka" in edited.read_text()

        await writer.learning.withdraw(gone.message_ids[:1])
        # The same line is in another message, which stays.
        assert "quokka" not in edited.read_text()
        assert "How do I purge spool number 2?" in edited.read_text()
        fourth = await writer.learning.keep(samples.capture("How do I purge it?", "Purge it.", n=4))
        assert fourth is not None
        await writer.learning.file(FilingDecision(pair=fourth, choice=TopicChoice(name=SPOOL)))
        assert await writer.adopt(SPOOL) == TopicAdoption(topic=SPOOL, changed=(other.qa_id,), removed=())
        blocks = writer.stores.knowledge.read_topic(SPOOL)
        assert [block.qa_id for block in blocks] == [other.qa_id, last.qa_id, fourth.qa_id]


async def test_an_edit_that_is_noticed_after_a_withdrawal_is_kept_without_its_words(tmp_path: Path) -> None:
    settings = settings_in(tmp_path)
    path = settings.paths.topics / "spool.txt"
    async with writer_in(settings) as writer:
        shortened = await two_questions(writer)
        other = await filed(writer, 2)
        path.write_text(path.read_text().replace("2 times", "twice"))
        await writer.learning.withdraw(shortened.message_ids[:2])
        await writer.stores.files.catch_up()
        kept = (settings.paths.topics / ".spool.txt.edited").read_text()
        assert "twice" in kept
        assert "quokka" not in kept
        # No person removed the pair from the edit.
        assert await writer.adopt(SPOOL) == TopicAdoption(topic=SPOOL, changed=(other.qa_id,), removed=())


async def test_each_edit_is_kept_and_the_oldest_one_is_adopted_first(tmp_path: Path) -> None:
    settings = settings_in(tmp_path)
    path = settings.paths.topics / "spool.txt"
    async with writer_in(settings) as writer:
        await filed(writer, 1)
        for n, word in enumerate(("once", "twice", "twice")):  # the same edit again changes nothing
            path.write_text(path.read_text().replace("1 times", word))
            os.utime(path, (n, n))
            await writer.stores.files.catch_up(SPOOL)
        names = [".spool.txt.2.edited", ".spool.txt.edited"]
        assert [each.name for each in find_edited_files(settings.paths)] == names
        told = list(describe_folder_problems(settings.paths, writer.stores.knowledge))
        assert [("spool.txt was edited" in each, "`intern topics adopt spool`" in each) for each in told] == [
            (True, True),
            (True, True),
        ]
        for word in ("once", "twice"):
            await writer.adopt(SPOOL)
            assert writer.stores.knowledge.read_topic(SPOOL)[0].turns[-1].text == f"Purge it {word}."
        assert find_edited_files(settings.paths) == []


async def test_an_older_database_that_does_not_know_a_member_s_wish_is_refused(tmp_path: Path) -> None:
    settings = settings_in(tmp_path)
    async with writer_in(settings) as writer:
        await filed(writer, 1)
        await run_sync(copy_database, settings.paths.database, tmp_path / "older.db")
        await writer.forget(ForgetRequest(user_id=MIA))  # none of their messages was archived so far
    lose_database(settings)
    (tmp_path / "older.db").rename(settings.paths.database)
    with pytest.raises(KnowledgeError, match=r"does not know all that is forgotten"):
        async with writer_in(settings):
            pass


async def test_a_damaged_topic_without_a_pair_is_kept_beside_and_is_no_topic_any_more(tmp_path: Path) -> None:
    settings = settings_in(tmp_path)
    async with writer_in(settings) as writer:
        await filed(writer, 1)
    (settings.paths.topics / "drum.txt").write_text("a person's words\n")
    lose_database(settings)
    await restored(settings)
    assert sorted(each.name for each in settings.paths.topics.iterdir()) == [".drum.txt.edited", "spool.txt"]


@pytest.mark.parametrize("damaged", [False, True])
async def test_an_erased_pair_is_not_revived_by_older_files_even_where_its_tombstone_is_lost(
    tmp_path: Path, *, damaged: bool
) -> None:
    settings = settings_in(tmp_path)
    settings.paths.sources.mkdir(parents=True)
    files = [settings.paths.topics / "spool.txt", settings.paths.team_index_cache]
    async with writer_in(settings) as writer:
        pair = await filed(writer, 1, "How do I feed the quokka?")
        other = await filed(writer, 2)
        await writer.indexing.refresh()
        await writer.stores.files.catch_up()
        older, lines = [path.read_bytes() for path in files], settings.paths.decisions.read_bytes()
        await writer.forget(ForgetRequest(message_ids=pair.message_ids, erase=True))
    assert all(b"quokka" in data for data in older)
    if damaged:
        damage_lines_after(lines, settings.paths.decisions)
    for path, data in zip(files, older, strict=True):
        path.write_bytes(data)
    lose_database(settings)
    async with open_intern(settings) as intern:
        said = (await intern.restore(tmp_path)).damaged
    assert [block.qa_id for block in knowledge_of(settings).read_topic(SPOOL)] == [other.qa_id]
    assert [name for name, data in tree(tmp_path).items() if b"quokka" in data] == []
    unsure = f"spool.txt: {pair.qa_id} is not in the archive; a damaged decision may have erased it"
    assert (unsure in said) == damaged
