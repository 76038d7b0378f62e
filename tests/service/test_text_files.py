"""The text files contain decisions soon and completely; a person's edit is kept and reported."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from pathlib import Path

import pytest
from anyio import fail_after, sleep
from anyio.to_thread import run_sync
from structlog.testing import capture_logs

from intern.actors.activity import ActivityReporter
from intern.core.decisions import PairFiled
from intern.core.errors import KnowledgeError
from intern.core.ids import TopicName
from intern.runtime.bot import open_sandbox
from intern.service.hidden_files import find_edited_files
from intern.service.opening import open_intern
from intern.service.status import describe_folder_problems
from intern.service.stores import Stores
from intern.service.text_files import TextFiles
from intern.settings.loading import load_settings
from intern.settings.settings import Paths
from intern.stores.engines.sqlite.database import SqliteDatabase
from intern.stores.files import FileLayer
from intern.stores.tables.knowledge import KnowledgeChange, KnowledgeStore
from intern.stores.tables.projected_files import read_projected_files
from tests.service.writers import settings_in, writer_in
from tests.stores.test_knowledge import block, qa
from tests.worlds import samples
from tests.worlds.chat import Sandbox
from tests.worlds.clock import HandClock
from tests.worlds.disk import KilledError, MortalDisk, tree
from tests.worlds.knowledge import knowledge_in
from tests.worlds.samples import START

pytestmark = pytest.mark.anyio

GPU, NODE = TopicName("gpu"), TopicName("node")


@pytest.fixture
def paths(tmp_path: Path) -> Paths:
    return Paths(tmp_path)


@pytest.fixture
async def knowledge(tmp_path: Path) -> AsyncGenerator[KnowledgeStore]:
    async with knowledge_in(tmp_path) as knowledge:
        yield knowledge


def file_into(topic: TopicName, *numbers: int, text: str = "So.") -> Callable[[KnowledgeChange], None]:
    def work(change: KnowledgeChange) -> None:
        change.file_blocks(topic, *(block(n, text=text) for n in numbers))
        change.decide(*(PairFiled(qa_id=qa(n), topic=topic, at=START) for n in numbers))

    return work


def projector(knowledge: KnowledgeStore, paths: Paths, files: FileLayer | None = None) -> TextFiles:
    return TextFiles(knowledge, paths, files)


async def test_what_is_decided_is_in_the_files_and_what_is_gone_is_in_none(
    knowledge: KnowledgeStore, paths: Paths
) -> None:
    files = projector(knowledge, paths)
    await knowledge.change(file_into(GPU, 0, 1))
    await files.catch_up()
    assert (paths.topics / "gpu.txt").read_bytes() == knowledge.read_topic_file(GPU)
    assert paths.state.read_text() == f'{{"last_processed_qa_id":"{qa(1)}"}}\n'
    assert len(paths.decisions.read_text().splitlines()) == 2

    await knowledge.change(lambda change: change.file_blocks(NODE, block(0), block(1)))
    await files.catch_up()
    assert sorted(each.name for each in paths.topics.iterdir()) == ["node.txt"]


@pytest.mark.rest
async def test_a_projection_that_loses_power_at_any_step_is_caught_up_with(tmp_path: Path) -> None:
    trees: list[dict[str, bytes]] = []
    for step in range(200):
        folder = tmp_path / str(step)
        paths = Paths(folder)
        async with knowledge_in(folder) as knowledge:
            await knowledge.change(file_into(GPU, 0, 1))
            await projector(knowledge, paths).catch_up()
            (paths.topics / "gpu.txt").write_text("a person's words")
            await knowledge.change(file_into(NODE, 1, 2))
            await knowledge.change(file_into(GPU, 3))
            ended = True
            try:
                await projector(knowledge, paths, MortalDisk(step)).catch_up()
            except KilledError:
                ended = False
            with fail_after(5):
                await projector(knowledge, paths).catch_up()
        for left in folder.rglob("*.tmp"):  # the next start clears them away
            left.unlink()
        trees.append(tree(folder))
        if ended:
            break
    else:
        pytest.fail("it never ends")
    assert len(trees) > 10
    assert trees[0]["team-knowledge/topics/.gpu.txt.edited"] == b"a person's words"
    assert all(each == trees[0] for each in trees)


async def test_a_reader_sees_each_file_as_it_was_or_as_it_is_and_never_in_between(
    knowledge: KnowledgeStore, paths: Paths
) -> None:
    await knowledge.change(file_into(GPU, 0, 1))
    await projector(knowledge, paths).catch_up()
    before, seen = tree(paths.data), dict[str, set[bytes]]()

    def look() -> None:
        for name, data in tree(paths.data).items():
            if not name.endswith(".tmp"):
                seen.setdefault(name, set()).add(data)

    await knowledge.change(file_into(GPU, 2, text="So.\n" * 100))
    await knowledge.change(file_into(NODE, 1, 3))
    await projector(knowledge, paths, MortalDisk(look=look)).catch_up()
    look()
    after = tree(paths.data)
    assert {name: {before.get(name), after.get(name)} - {None} for name in seen} == seen
    assert len(seen["team-knowledge/topics/gpu.txt"]) == 2


async def test_the_decisions_are_on_disk_before_the_topics_that_they_made(
    knowledge: KnowledgeStore, paths: Paths
) -> None:
    def look() -> None:
        if (paths.topics / "gpu.txt").exists():
            assert qa(0) in paths.decisions.read_text()

    await knowledge.change(file_into(GPU, 0))
    await projector(knowledge, paths, MortalDisk(look=look)).catch_up()
    assert (paths.topics / "gpu.txt").exists()


async def test_an_edit_is_kept_once_and_told(knowledge: KnowledgeStore, paths: Paths) -> None:
    await knowledge.change(file_into(GPU, 0))
    await projector(knowledge, paths).catch_up()
    edited = paths.topics / "gpu.txt"
    edited.write_text("a person's words")
    with capture_logs() as logs:
        for _ in range(3):
            await projector(knowledge, paths).catch_up()
    assert [log["event"] for log in logs] == ["edited_file_set_aside"]
    assert edited.read_bytes() == knowledge.read_topic_file(GPU)
    [kept] = find_edited_files(paths)
    assert kept.read_text() == "a person's words"
    paths.raw.mkdir()
    [told] = describe_folder_problems(paths, knowledge)
    assert str(kept) in told
    assert "intern topics adopt gpu" in told

    await knowledge.change(file_into(GPU, 1))
    with capture_logs() as logs:
        await projector(knowledge, paths).catch_up()
    assert logs == []
    assert kept.read_text() == "a person's words"


async def test_edited_decisions_are_kept_and_told_too(knowledge: KnowledgeStore, paths: Paths) -> None:
    await knowledge.change(file_into(GPU, 0))
    files = projector(knowledge, paths)
    await files.catch_up()
    whole = paths.decisions.read_bytes()
    paths.decisions.write_bytes(b"{}\n" + whole)
    await files.catch_up()
    assert paths.decisions.read_bytes() == whole
    [kept] = find_edited_files(paths)
    assert kept.read_bytes() == b"{}\n" + whole
    paths.raw.mkdir()
    [told] = describe_folder_problems(paths, knowledge)
    assert "adopt" not in told


async def test_a_disk_that_refuses_loses_nothing(knowledge: KnowledgeStore, paths: Paths) -> None:
    class Full(FileLayer):
        full = True

        def write(self, fd: int, data: bytes | memoryview) -> int:
            if self.full:
                raise OSError(28, "No space left on device")
            return super().write(fd, data)

    files = projector(knowledge, paths, disk := Full())
    await knowledge.change(file_into(GPU, 0))
    with pytest.raises(KnowledgeError, match="No space"):
        await files.catch_up()
    disk.full = False
    await files.catch_up()
    assert (paths.topics / "gpu.txt").read_bytes() == knowledge.read_topic_file(GPU)
    assert len(paths.decisions.read_text().splitlines()) == 1


async def test_the_bot_writes_a_change_long_before_it_compares_all_files(tmp_path: Path) -> None:
    settings = load_settings(environ={}, overrides={"data": {"dir": str(tmp_path)}, "llm": {"provider": "offline"}})
    assert settings.kb.scan_interval_seconds > 60
    with fail_after(20):
        async with (
            open_sandbox(settings, Sandbox(HandClock()), events=ActivityReporter()),
            open_intern(settings, clock=HandClock()) as beside,
        ):
            await beside.capture(samples.capture("How do I purge the spool of the relay?", "Run purge, then wait."))
            while not any(settings.paths.topics.glob("*.txt")):  # noqa: ASYNC110 - a file sets no event
                await sleep(0.01)
            assert settings.paths.decisions.exists()


class Reading(FileLayer):
    """Knows which files were read."""

    def __init__(self) -> None:
        self.read_files: list[str] = []

    def read(self, path: Path) -> bytes | None:
        self.read_files.append(path.name)
        return super().read(path)


async def test_a_start_reads_only_files_that_are_not_as_they_were_left(tmp_path: Path) -> None:
    settings = settings_in(tmp_path)
    async with writer_in(settings) as writer:
        await writer.stores.knowledge.change(file_into(GPU, 0))
        await writer.stores.knowledge.change(file_into(NODE, 1))
        await writer.indexing.index_changed_topics(describe=False)
        await writer.stores.files.catch_up()
    before = tree(tmp_path)
    async with await SqliteDatabase.open(settings.paths.database) as db:
        stores = await run_sync(Stores, settings, db, HandClock(), disk := Reading())
        await stores.files.catch_up()
        assert disk.read_files == []
        (settings.paths.topics / "gpu.txt").write_text("a person's words")
        (settings.paths.topics / "node.txt").unlink()
        settings.paths.state.unlink()
        settings.paths.decisions.write_bytes(b"{}\n" + settings.paths.decisions.read_bytes())
        stores = await run_sync(Stores, settings, db, HandClock(), disk)
        await stores.files.catch_up()
    assert {"gpu.txt", "node.txt", "state.json", "decisions.jsonl"} <= set(disk.read_files)
    assert "index-team.txt" not in disk.read_files
    topics = "team-knowledge/topics"
    kept = {f"{topics}/.gpu.txt.edited", "team-knowledge/.decisions.jsonl.edited"}
    assert {name: data for name, data in tree(tmp_path).items() if name not in kept} == before
    assert (settings.paths.topics / ".gpu.txt.edited").read_text() == "a person's words"


async def test_nothing_is_recorded_of_the_file_of_a_topic_that_is_gone(knowledge: KnowledgeStore, paths: Paths) -> None:
    files = projector(knowledge, paths)
    await knowledge.change(file_into(GPU, 0))
    await files.catch_up()
    await knowledge.change(lambda change: change.file_blocks(NODE, block(0)))
    await files.catch_up()
    assert sorted(knowledge.db.read_blocking(read_projected_files)) == ["decisions", "state", "topics/node.txt"]


async def test_two_indices_may_have_the_same_name_in_two_folders(tmp_path: Path) -> None:
    kb = {"index_path": str(tmp_path / "a" / "index.txt"), "team_index_path": str(tmp_path / "b" / "index.txt")}
    settings = settings_in(tmp_path, **kb)
    settings.paths.sources.mkdir(parents=True)
    (settings.paths.sources / "drum.md").write_text("# Drums\n\nHow to oil a drum.")
    async with writer_in(settings) as writer:
        await writer.stores.knowledge.change(file_into(GPU, 0))
        with capture_logs() as logs:
            for n in range(1, 3):
                await writer.indexing.refresh()
                await writer.stores.files.catch_up()
                await writer.stores.knowledge.change(file_into(GPU, n))
    assert [log for log in logs if log["event"] == "edited_file_set_aside"] == []
    assert "kb:drum.md" in settings.paths.index.read_text()
    assert "team:gpu.txt" in settings.paths.team_index.read_text()
