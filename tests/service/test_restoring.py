"""A restore from text files makes the database anew; people's edits are kept, and adopted only on request."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from itertools import islice
from pathlib import Path
from random import Random

import pytest
from anyio import fail_after
from anyio.to_thread import run_sync
from msgspec.structs import replace

from intern.actors.job_worker import do_all_jobs
from intern.chat.conversations import build_capture
from intern.core.captures import CapturedPair
from intern.core.decisions import PairFiled, PairRemoved
from intern.core.errors import ConfigError, KnowledgeError
from intern.core.flow import FilingDecision, TopicChoice
from intern.core.ids import MessageId, TopicName
from intern.core.messages import AnswerResult, Conversation, Message
from intern.learning.forgetting import ForgetRequest
from intern.models.prompt import OfflineModel
from intern.service.intern import Intern
from intern.service.job_kinds import ADOPT
from intern.service.models import collect_offline_rules
from intern.service.opening import open_intern
from intern.service.restoring import TopicAdoption
from intern.service.status import describe_folder_problems
from intern.service.text_files import TextFiles
from intern.service.writer import Writer
from intern.settings.loading import load_settings
from intern.settings.settings import Settings
from intern.stores.engines.sqlite.copies import copy_database
from intern.stores.engines.sqlite.database import ReadOnlySqliteDatabase, SqliteDatabase
from intern.stores.files import FileLayer
from intern.stores.tables.knowledge import KnowledgeChange, KnowledgeStore
from tests.service.writers import open_writer, settings_in, writer_in
from tests.worlds import samples
from tests.worlds.clock import HandClock
from tests.worlds.disk import KilledError, MortalDisk
from tests.worlds.history import Community, Deleted, Forgotten, Taught, Told
from tests.worlds.model import ScriptedModel

pytestmark = pytest.mark.anyio

SPOOL = TopicName("spool")


async def filed(writer: Writer, n: int, question: str = "", topic: str = SPOOL) -> CapturedPair:
    """Archive and file the `n`th pair, and write the text files."""
    capture = samples.capture(question or f"How do I purge spool number {n}?", f"Purge it {n} times.", n=n)
    pair = await writer.learning.keep(capture)
    assert pair is not None
    await writer.learning.file(FilingDecision(pair=pair, choice=TopicChoice(name=TopicName(topic))))
    await writer.stores.files.catch_up()
    return pair


def knowledge_of(settings: Settings) -> KnowledgeStore:
    return KnowledgeStore(ReadOnlySqliteDatabase(settings.paths.database))


def text_files(folder: Path) -> dict[str, bytes]:
    """Return the files that can be exported."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not path.name.startswith(("intern.db", "."))
    }


def lose_database(settings: Settings) -> None:
    for path in settings.data.dir.glob("intern.db*"):
        path.unlink()


async def live(writer: Writer, seed: int) -> Told:
    """Some weeks of a community: answers, edits, deletions, forgetting, and a regeneration."""
    told = Told()
    for n, act in enumerate(Community(Random(seed)).acts_after(told, 30)):
        match act:
            case Taught():
                await writer.learning.keep(build_capture(act.request()))
            case Deleted(message_ids=ids):
                await writer.learning.withdraw(ids)
            case Forgotten(message_ids=ids):
                await writer.forget(ForgetRequest(message_ids=ids, erase=n % 2 == 0))
            case _:
                raise AssertionError(act)
        told.hear(act)
        await writer.learning.catch_up()
        if n == 20:
            await writer.learning.regenerate()
    await writer.indexing.refresh()
    await writer.stores.files.catch_up()
    return told


@pytest.mark.parametrize("seed", [1, *(pytest.param(each, marks=pytest.mark.rest) for each in (2, 3))])
async def test_a_lost_database_is_restored_without_a_model_and_exports_the_same_bytes(
    tmp_path: Path, seed: int
) -> None:
    settings = settings_in(tmp_path / "data", max_topic_chars=1500)  # so that topics are split
    settings.paths.sources.mkdir(parents=True)
    async with writer_in(settings) as writer:
        told = await live(writer, seed)
        conversations = len(told.messages)
    async with open_intern(settings, clock=HandClock()) as intern:
        await intern.export(tmp_path / "before")
    lose_database(settings)

    async with open_intern(settings, clock=HandClock()) as intern:
        restored = await intern.restore(settings.data.dir)
        await intern.export(tmp_path / "after")
    before = text_files(tmp_path / "before")
    assert text_files(tmp_path / "after") == before
    assert len(before) > 5
    assert (restored.damaged, restored.topics > 1, conversations > 5) == ((), True, True)
    assert list(settings.data.dir.rglob(".*.edited")) == []

    elsewhere = settings_in(tmp_path / "elsewhere")
    async with open_intern(elsewhere, clock=HandClock()) as intern:
        assert await intern.restore(tmp_path / "after") == restored
        await intern.export(tmp_path / "again")
    assert text_files(tmp_path / "again") == before
    # No work is left, so no model is asked: this one would fail.
    model = ScriptedModel()
    async with writer_in(settings, model) as writer:
        assert (await writer.indexing.refresh()).changed == ()
        assert (await writer.learning.catch_up()).filed == 0
        assert await writer.extraction.catch_up() == 0
    assert model.asked == []


async def test_decisions_are_newer_than_the_topic_files_of_a_killed_process(tmp_path: Path) -> None:
    settings = settings_in(tmp_path)
    async with writer_in(settings) as writer:
        first = await filed(writer, 1)
        second = await filed(writer, 2)
        text = (settings.paths.topics / "spool.txt").read_bytes()
        third = await filed(writer, 3, topic="drum")

        def remove(change: KnowledgeChange) -> None:
            change.remove_blocks([first.qa_id])
            change.decide(PairRemoved(qa_id=first.qa_id, at=HandClock().now(), reason=""))

        await writer.stores.knowledge.change(remove)
        await writer.stores.files.catch_up()
    # The state of a process that was killed after it wrote the decisions.
    (settings.paths.topics / "spool.txt").write_bytes(text)
    (settings.paths.topics / "drum.txt").unlink()
    lose_database(settings)
    async with open_intern(settings) as intern:
        await intern.restore(tmp_path)
    knowledge = knowledge_of(settings)
    assert [knowledge.find_topic(pair.qa_id) for pair in (first, second, third)] == [None, "spool", "drum"]
    assert (settings.paths.topics / "spool.txt").read_bytes() == knowledge.read_topic_file(SPOOL)


async def test_a_pair_whose_decision_was_lost_stays_where_it_stands(tmp_path: Path) -> None:
    settings = settings_in(tmp_path)
    async with writer_in(settings) as writer:
        pairs = [await filed(writer, n) for n in (1, 2)]
    lines = settings.paths.decisions.read_bytes().splitlines(keepends=True)
    settings.paths.decisions.write_bytes(b"{torn\n" + lines[1])
    lose_database(settings)
    async with open_intern(settings) as intern:
        restored = await intern.restore(tmp_path)
    assert len(restored.damaged) == 1
    assert "decisions.jsonl, line 1" in restored.damaged[0]
    knowledge = knowledge_of(settings)
    assert [type(knowledge.last_decision(pair.qa_id)) for pair in pairs] == [PairFiled, PairFiled]
    assert [block.qa_id for block in knowledge.read_topic(SPOOL)] == [pair.qa_id for pair in pairs]


async def test_a_pair_whose_removal_was_lost_does_not_come_back_from_the_archive(tmp_path: Path) -> None:
    settings = settings_in(tmp_path)
    async with writer_in(settings) as writer:
        first, second = await filed(writer, 1), await filed(writer, 2)
        await writer.learning.withdraw(first.message_ids)
        await filed(writer, 3)
    lines = settings.paths.decisions.read_bytes().splitlines(keepends=True)
    damaged = [b"?" + line if b'"removed"' in line[:20] or b'"withdrawn"' in line[:25] else line for line in lines]
    assert damaged != lines
    for last in (b"", b'{"action":"fil'):  # a torn last line changes nothing
        settings.paths.decisions.write_bytes(b"".join(damaged) + last)
        lose_database(settings)
        async with open_intern(settings) as intern:
            assert len((await intern.restore(tmp_path)).damaged) >= 1
        knowledge = knowledge_of(settings)
        assert [knowledge.find_topic(pair.qa_id) for pair in (first, second)] == [None, SPOOL]


async def test_what_was_forgotten_does_not_come_back_from_older_files(tmp_path: Path) -> None:
    settings = settings_in(tmp_path / "data")
    async with writer_in(settings) as writer:
        pair = await filed(writer, 1, "How do I feed the quokka?")
        await filed(writer, 2)
        files = (settings.paths.topics / "spool.txt", *settings.paths.raw.iterdir())
        older = {path: path.read_bytes() for path in files}
        assert any(b"quokka" in data for data in older.values())
        await writer.forget(ForgetRequest(message_ids=tuple(map(MessageId, pair.message_ids))))
    for path, data in older.items():
        path.write_bytes(data)
    lose_database(settings)
    async with open_intern(settings) as intern:
        await intern.restore(settings.data.dir)
        assert b"quokka" not in knowledge_of(settings).read_topic_file(SPOOL)
    assert "quokka" not in "".join(path.read_text() for path in settings.paths.topics.rglob("*") if path.is_file())
    async with writer_in(settings) as writer:
        await writer.learning.regenerate()
        assert all(
            "quokka" not in writer.stores.knowledge.read_text(name) for name in writer.stores.knowledge.topic_names()
        )


class Broken(FileLayer):
    """A disk that takes only the decisions."""

    def write_atomically(self, path: Path, data: bytes) -> None:
        raise KnowledgeError(f"{path}: no space is left")


async def test_a_tombstone_is_on_disk_before_anything_else_is_cleared(tmp_path: Path) -> None:
    settings = settings_in(tmp_path)
    async with writer_in(settings) as writer:
        pair = await filed(writer, 1)
    with fail_after(20):
        async with await SqliteDatabase.open(settings.paths.database) as db:
            make = partial(open_writer, settings, db, OfflineModel(collect_offline_rules()), HandClock(), Broken())
            writer = await run_sync(make)
            with pytest.raises(KnowledgeError, match="no space"):
                await writer.forget(ForgetRequest(message_ids=tuple(map(MessageId, pair.message_ids))))
    assert '"action":"forgotten"' in settings.paths.decisions.read_text()


async def test_an_empty_database_beside_a_known_archive_is_refused_and_told_what_to_do(tmp_path: Path) -> None:
    settings = settings_in(tmp_path)
    async with writer_in(settings) as writer:
        await filed(writer, 1)
    lose_database(settings)
    with pytest.raises(KnowledgeError, match=f"run: intern restore {tmp_path}$"):
        async with writer_in(settings):
            pass


async def test_nothing_is_restored_over_or_exported_into_what_is_there(tmp_path: Path) -> None:
    settings = settings_in(tmp_path / "data")
    async with writer_in(settings) as writer:
        await filed(writer, 1)
    other = settings_in(tmp_path / "other")
    async with open_intern(settings) as intern:
        with pytest.raises(ConfigError, match="holds decisions or topics already"):
            await intern.restore(settings.data.dir)
        with pytest.raises(ConfigError, match="is not empty"):
            await intern.export(settings.data.dir)
        await intern.export(tmp_path / "copy")
    shutil.copytree(settings.paths.raw, other.paths.raw)
    async with open_intern(other) as intern:
        with pytest.raises(ConfigError, match=r"the archive .*other.* is not empty"):
            await intern.restore(tmp_path / "copy")
        assert intern._knowledge.read_decisions() == []


async def test_an_edited_topic_is_kept_beside_and_taken_in_when_a_person_says_so(tmp_path: Path) -> None:
    settings, clock = settings_in(tmp_path), HandClock()
    path, edited = settings.paths.topics / "spool.txt", settings.paths.topics / ".spool.txt.edited"
    async with writer_in(settings, clock=clock) as writer:
        pairs = [await filed(writer, n) for n in (1, 2)]
        # One block has another answer, the other one is gone. The edit lacks the pair that is filed later.
        path.write_text(path.read_text().split("--- QA ---")[1].join(["--- QA ---", ""]).replace("1 times", "once"))
        at = HandClock().now().timestamp() + 1
        os.utime(path, (at, at))
        clock.turn(minutes=1)
        third = await filed(writer, 3)
        assert "Purge it once." in edited.read_text()
        assert "Purge it 1 times." in path.read_text()
        [told] = describe_folder_problems(settings.paths, writer.stores.knowledge)
        assert told.endswith(f"the edit is kept as {edited}: run `intern topics adopt spool`, or delete it")

        assert await writer.adopt("Spool") == TopicAdoption(
            topic=SPOOL, changed=(pairs[0].qa_id,), removed=(pairs[1].qa_id,)
        )
        first, last = writer.stores.knowledge.read_topic(SPOOL)
        assert (first.turns[-1].text, last.qa_id) == ("Purge it once.", third.qa_id)
        assert isinstance(writer.stores.knowledge.last_decision(pairs[1].qa_id), PairRemoved)
        assert not edited.exists()
        await writer.stores.files.catch_up()
        assert "Purge it once." in path.read_text()
        with pytest.raises(ConfigError, match="there is no edited topic"):
            await writer.adopt("spool")


async def test_an_edit_brings_back_nothing_that_was_withdrawn_since(tmp_path: Path) -> None:
    settings = settings_in(tmp_path)
    async with writer_in(settings) as writer:
        pairs = [await filed(writer, n) for n in (1, 2, 3)]
        path = settings.paths.topics / "spool.txt"
        path.write_text(path.read_text().replace("1 times", "once").replace("2 times", "twice"))
        await writer.learning.withdraw(pairs[0].message_ids)
        await writer.learning.withdraw([MessageId("no answer to anything"), *pairs[1].message_ids[:1]])
        assert await writer.adopt("spool") == TopicAdoption(topic=SPOOL, changed=(), removed=())
        assert [block.qa_id for block in writer.stores.knowledge.read_topic(SPOOL)] == [pairs[2].qa_id]


async def test_an_older_database_that_knows_less_of_what_is_forgotten_is_refused(tmp_path: Path) -> None:
    settings = settings_in(tmp_path)
    async with writer_in(settings) as writer:
        pair = await filed(writer, 1)
        await run_sync(copy_database, settings.paths.database, tmp_path / "older.db")
        await writer.forget(ForgetRequest(message_ids=tuple(map(MessageId, pair.message_ids))))
    lose_database(settings)
    (tmp_path / "older.db").rename(settings.paths.database)
    with pytest.raises(KnowledgeError, match=r"intern\.db is older than .*decisions\.jsonl.* run: intern restore"):
        async with writer_in(settings):
            pass


async def test_an_edit_is_taken_in_before_anything_else_notices_it(tmp_path: Path) -> None:
    settings = settings_in(tmp_path)
    async with writer_in(settings) as writer:
        pair = await filed(writer, 1)
        path = settings.paths.topics / "spool.txt"
        path.write_text(path.read_text().replace("1 times", "once"))
        assert (await writer.adopt("spool")).changed == (pair.qa_id,)
        await writer.stores.files.catch_up()
        assert "Purge it once." in path.read_text()


@pytest.mark.parametrize(
    ("was", "is_now", "told"),
    [("2026", "2020", "the archive does not; take it out"), ("id: ", "ID: ", r"\.spool\.txt\.edited, line 1")],
)
async def test_an_edit_that_cannot_be_taken_in_is_told_and_changes_nothing(
    tmp_path: Path, was: str, is_now: str, told: str
) -> None:
    settings = settings_in(tmp_path)
    async with writer_in(settings) as writer:
        await filed(writer, 1)
        path = settings.paths.topics / "spool.txt"
        text = path.read_text()
        path.write_text(text.replace(was, is_now))
        with pytest.raises(ConfigError, match=told):
            await writer.adopt("spool")
        assert writer.stores.knowledge.read_topic_file(SPOOL).decode() == text
        assert (settings.paths.topics / ".spool.txt.edited").exists()


@pytest.mark.rest
async def test_text_files_that_were_half_written_are_finished_and_taken_for_nobody_s_edits(tmp_path: Path) -> None:
    steps = 0
    for steps in range(99):
        settings, disk = settings_in(tmp_path / str(steps)), MortalDisk(steps)
        async with writer_in(settings) as writer:
            first, second = await filed(writer, 1), await filed(writer, 2, topic="drum")
            await writer.learning.withdraw(first.message_ids)
            await writer.learning.withdraw(second.message_ids[:1])
            third = await writer.learning.keep(samples.capture("How do I oil the wheel?", "With oil.", n=3))
            assert third is not None
            await writer.learning.file(FilingDecision(pair=third, choice=TopicChoice(name=TopicName("wheel"))))
            knowledge = writer.stores.knowledge
            with suppress(KilledError):
                await TextFiles(knowledge, settings.paths, disk).catch_up()
            await TextFiles(knowledge, settings.paths).catch_up()
        assert {path.name: path.read_bytes() for path in settings.paths.topics.iterdir()} == {
            f"{name}.txt": knowledge_of(settings).read_topic_file(name) for name in knowledge_of(settings).topic_names()
        }
        assert settings.paths.decisions.read_bytes().count(b"\n") == len(knowledge_of(settings).read_decisions())
        if disk.left:
            break
    assert 10 < steps < 98


async def test_beside_a_process_that_works_in_the_folder_it_takes_the_edit_in(tmp_path: Path) -> None:
    settings = settings_in(tmp_path)
    async with writer_in(settings) as writer:
        await filed(writer, 1)
        path = settings.paths.topics / "spool.txt"
        path.write_text(path.read_text().replace("1 times", "once"))
        await writer.stores.jobs.submit(ADOPT, "spool")
        await do_all_jobs(writer.stores.jobs, writer.handlers)
        assert b"Purge it once." in writer.stores.knowledge.read_topic_file(SPOOL)


_SAMPLE = Path(__file__).parents[2] / "sample"
_ASKED = re.compile(r"\w[^\n#]{30,60}(?= )")
_TAUGHT = (
    ("How do I purge the spool of a relay?", "Run `lumen spool purge`, then wait for a minute."),
    ("Can I move the thumbnails to another disk?", "Set `thumbs.path` and restart the worker."),
    ("Why does the drum squeak at night?", "Oil its left bearing; the cold makes it dry."),
    ("Which clock does the beacon follow?", "The one of the harbour, with a delay of two seconds."),
    ("May two gardeners share one greenhouse key?", "Yes, ask the steward for a second copy of the key."),
)


async def _answers(intern: Intern, questions: Sequence[str]) -> list[AnswerResult]:
    answers = [await intern.answer(Conversation((Message(role="user", text=each),))) for each in questions]
    return [replace(each, debug=None) for each in answers]


@pytest.mark.rest
async def test_after_a_restore_fifty_questions_have_their_answers_again(tmp_path: Path) -> None:
    overrides = {
        "data": {"dir": str(tmp_path)},
        "llm": {"provider": "offline"},
        "kb": {"sources_dir": str(_SAMPLE)},
    }
    settings = load_settings(environ={}, overrides=overrides)
    told = (found for path in sorted(_SAMPLE.rglob("*.md")) for found in _ASKED.findall(path.read_text()))
    questions = [question for question, _ in _TAUGHT] + [f"Is it so? {each}" for each in islice(told, 45)]
    assert len(questions) == 50
    with fail_after(60):
        async with open_intern(settings) as intern:
            for n, (question, answer) in enumerate(_TAUGHT, 1):
                await intern.capture(samples.capture(question, answer, n=n))
            await intern.index()
            before = await _answers(intern, questions)
        lose_database(settings)
        async with open_intern(settings) as intern:
            await intern.restore(tmp_path)
        async with open_intern(settings) as intern:
            await intern.index()
            assert await _answers(intern, questions) == before
            # Nuggets and facts are in no text file.
            assert (await intern.facts.list_nuggets()).rows == ()
            await intern.extract()
            assert (await intern.facts.list_nuggets()).rows != ()
            assert await _answers(intern, questions) == before
    answered = [each.citations[0].source_id for each in before if each.should_reply]
    assert sum(each.startswith("team:") for each in answered) == len(_TAUGHT)
    assert len(answered) > 40
