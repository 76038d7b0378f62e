"""Topic files are whole at every moment, and what is no topic is left alone."""

from __future__ import annotations

import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st
from structlog.testing import capture_logs

from intern.core.errors import KnowledgeError, SourceError
from intern.core.ids import ConversationId, QAId, TopicName
from intern.core.records import TopicBlock, Turn
from intern.stores.blocks import format_topic, qa_id_of
from intern.stores.files import FileLayer
from intern.stores.library import TopicLibrary

NOW = datetime(2026, 2, 1, 3, 10, 56, tzinfo=UTC)
GPU, NODE = TopicName("gpu"), TopicName("node-startup")


def block(n: int, *, conversation: str | None = None, answered: int | None = None) -> TopicBlock:
    at = NOW + timedelta(seconds=n)
    return TopicBlock(
        qa_id=qa_id_of(at),
        timestamp=at,
        turns=(Turn("User", f"how {n}?"), Turn("Team", "so\n\nor --- QA ---")),
        conversation_id=ConversationId(conversation) if conversation else None,
        answered_at=None if answered is None else NOW + timedelta(seconds=answered),
    )


def test_a_topic_file_is_the_text_of_the_specification(tmp_path: Path) -> None:
    library = TopicLibrary(tmp_path / "topics")
    library.update(GPU, block(0, conversation="thread_7", answered=-5))

    assert (tmp_path / "topics" / "gpu.txt").read_text() == library.text(GPU) == (
        "--- QA ---\n"
        "id: qa_20260201_031056.000000\n"
        "timestamp: 2026-02-01T03:10:56.000000Z\n"
        "conversation_id: thread_7\n"
        "answered_at: 2026-02-01T03:10:51.000000Z\n"
        "User: how 0?\n"
        "Team: so\n"
        "  \n"
        "  or --- QA ---\n"
        "\n"
    )  # fmt: skip


def test_blocks_stand_in_the_order_in_which_they_were_answered(tmp_path: Path) -> None:
    library = TopicLibrary(tmp_path)
    newest, imported, plain, twin = block(5, answered=4), block(6, answered=-100), block(2), block(7, answered=4)
    for added in (twin, newest, imported, plain):
        library.update(GPU, added)

    assert library.read(GPU) == (imported, plain, newest, twin)


def test_blocks_go_and_come_in_one_step(tmp_path: Path) -> None:
    library = TopicLibrary(tmp_path)
    for n in range(3):
        library.update(GPU, block(n))

    removed = library.update(
        GPU, block(3), [block(0).qa_id, QAId("qa_20260201_031057"), QAId("nonsense"), block(9).qa_id]
    )
    assert removed == (block(0).qa_id, block(1).qa_id)
    assert library.read(GPU) == (block(2), block(3))


def test_a_block_that_is_added_again_stands_once(tmp_path: Path) -> None:
    library = TopicLibrary(tmp_path)
    library.update(GPU, block(0))
    library.update(GPU, block(0, conversation="thread_7"))

    assert library.read(GPU) == (block(0, conversation="thread_7"),)


def test_a_topic_without_blocks_is_gone(tmp_path: Path) -> None:
    library = TopicLibrary(tmp_path)
    library.update(GPU, block(0))

    assert library.update(GPU, None, [block(0).qa_id]) == (block(0).qa_id,)
    assert library.names() == ()
    assert [path.name for path in tmp_path.iterdir()] == []
    assert library.update(GPU, None, [block(0).qa_id]) == ()


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(
        st.tuples(
            st.sampled_from([GPU, NODE]),
            st.none() | st.tuples(st.integers(0, 5), st.sampled_from([None, "thread_1", "reply_2"])),
            st.sets(st.integers(0, 5)),
        ),
        max_size=10,
    )
)
def test_what_is_known_in_memory_is_what_a_restart_would_read(
    updates: list[tuple[TopicName, tuple[int, str | None] | None, set[int]]],
) -> None:
    with TemporaryDirectory() as folder:
        library = TopicLibrary(Path(folder))
        for name, add, remove in updates:
            added = None if add is None else block(add[0], conversation=add[1])
            library.update(name, added, [block(n).qa_id for n in remove])

        again = TopicLibrary(Path(folder))
        assert library.names() == again.names()
        for n in range(6):
            topic = library.topic_of(block(n).qa_id)
            assert topic == again.topic_of(block(n).qa_id)
            assert topic is None or block(n).qa_id in {found.qa_id for found in again.read(topic)}
        for conversation in map(ConversationId, ("thread_1", "reply_2")):
            assert library.of_conversation(conversation) == again.of_conversation(conversation)
            assert len(library.of_conversation(conversation)) == sum(
                found.conversation_id == conversation for name in again.names() for found in again.read(name)
            )


def test_a_pair_is_found_however_its_fraction_is_written(tmp_path: Path) -> None:
    library = TopicLibrary(tmp_path)
    library.update(NODE, block(0, conversation="thread_7"))

    assert library.topic_of(QAId("qa_20260201_031056")) == NODE
    assert library.topic_of(QAId("qa_20260201_031057")) is None
    assert library.topic_of(QAId("../gpu")) is None
    assert library.of_conversation(ConversationId("thread_7")) == [(NODE, block(0).qa_id)]
    assert library.of_conversation(ConversationId("thread_8")) == []


def test_temporary_hidden_and_foreign_files_are_no_topics(tmp_path: Path) -> None:
    text = format_topic(block(0))
    for name in (".gpu.txt.tmp", ".gpu.txt", "gpu.txt~", "gpu.md", "GPU.txt", "g p u.txt", "#gpu#.txt", "gpu.txt.bak"):
        (tmp_path / name).write_text(text)
    (tmp_path / "folder.txt").mkdir()
    (tmp_path / "link.txt").symlink_to(tmp_path / "gpu.md")
    (tmp_path / "node-startup.txt").write_text(text)

    assert TopicLibrary(tmp_path).names() == (NODE,)
    assert TopicLibrary(tmp_path / "not yet").names() == ()


@pytest.mark.parametrize("name", ["../gpu", "", "a/b", "GPU", "gpu.txt", "x" * 65, ".hidden", "a\n"])
def test_a_name_that_is_no_slug_never_becomes_a_path(tmp_path: Path, name: str) -> None:
    library = TopicLibrary(tmp_path)

    for use in (library.read, library.text, library.update):
        with pytest.raises(ValueError, match="no topic name"):
            use(TopicName(name))


def test_a_topic_that_is_not_there_reads_as_empty_but_has_no_text(tmp_path: Path) -> None:
    library = TopicLibrary(tmp_path)

    assert library.read(GPU) == ()
    with pytest.raises(SourceError, match="no topic gpu"):
        library.text(GPU)


def test_a_damaged_block_costs_itself_and_its_text_is_kept_aside(tmp_path: Path) -> None:
    file = tmp_path / "gpu.txt"
    damaged = format_topic(block(0)) + "--- QA ---\nid: qa_oops\nUser: by hand\n\n" + format_topic(block(2))
    file.write_text(damaged)

    with capture_logs() as logs:
        library = TopicLibrary(tmp_path)
    assert [(log["event"], log["file"], log["line"]) for log in logs] == [("topic_block_damaged", "gpu.txt", 9)]
    assert library.read(GPU) == (block(0), block(2))

    library.update(GPU, block(3))
    assert library.read(GPU) == (block(0), block(2), block(3))
    assert (tmp_path / ".gpu.txt.damaged").read_text() == damaged
    assert TopicLibrary(tmp_path).names() == (GPU,)


def test_nothing_is_written_where_nothing_changes(tmp_path: Path) -> None:
    class NoWrites(FileLayer):
        def write(self, fd: int, data: bytes | memoryview) -> int:
            raise AssertionError("nothing was to be written")

    TopicLibrary(tmp_path).update(GPU, block(0))
    library = TopicLibrary(tmp_path, NoWrites())

    assert library.update(GPU, block(0)) == ()
    assert library.update(GPU, None, [block(5).qa_id]) == ()


def test_a_topic_that_cannot_be_written_stays_as_it_was(tmp_path: Path) -> None:
    class NoRename(FileLayer):
        def rename(self, old: Path, new: Path) -> None:
            raise PermissionError(13, "Permission denied")

    TopicLibrary(tmp_path).update(GPU, block(0))
    library = TopicLibrary(tmp_path, NoRename())

    with pytest.raises(KnowledgeError, match=r"gpu\.txt could not be written \(Permission denied\)"):
        library.update(GPU, block(1), [block(0).qa_id])
    assert library.read(GPU) == (block(0),)
    assert library.topic_of(block(1).qa_id) is None
    assert [path.name for path in tmp_path.iterdir()] == ["gpu.txt"]


def test_whoever_asks_while_a_topic_is_rewritten_sees_it_stand(tmp_path: Path) -> None:
    library = TopicLibrary(tmp_path)
    (tmp_path / "gpu.txt").write_text("".join(format_topic(block(n, conversation="thread_7")) for n in range(200)))
    library.reload()
    last, conversation = block(199), ConversationId("thread_7")
    unseen: list[str] = []
    done = threading.Event()

    def look() -> None:
        while not done.is_set():
            if library.topic_of(last.qa_id) != GPU:
                unseen.append("topic")
            if len(library.of_conversation(conversation)) != 200:
                unseen.append("conversation")
            if library.names() != (GPU,):
                unseen.append("names")

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(2) as pool:
            looking = [pool.submit(look) for _ in range(2)]
            try:
                for _ in range(5):
                    library.update(GPU, block(3, conversation="thread_7"))
                    library.reload()
            finally:
                done.set()
            for each in looking:
                each.result(5)
    finally:
        sys.setswitchinterval(interval)
    assert unseen == []
