"""Erasing: the one way in which anything leaves the archive, at any moment of a kill and with any readers."""

from __future__ import annotations

import tracemalloc
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st
from msgspec.structs import replace
from structlog.testing import capture_logs

from intern.core.captures import Capture, CapturedPair, Turn
from intern.core.errors import KnowledgeError
from intern.core.ids import ConversationId, MessageId, UserId
from intern.stores.archive import Archive, ArchiveErasure
from intern.stores.block_format import format_pair_block, remove_blocks
from tests.examples import examples
from tests.worlds.clock import HandClock
from tests.worlds.disk import KilledError, MortalDisk

NOW = datetime(2026, 2, 1, 3, 10, 56, tzinfo=UTC)


def capture(*messages: str, conversation: str = "thread_1") -> Capture:
    return Capture(
        conversation_id=ConversationId(conversation),
        turns=tuple(Turn("Team" if n % 2 else "User", f"text {each}.") for n, each in enumerate(messages)),
        message_ids=tuple(map(MessageId, messages)),
        author_ids=tuple(UserId(f"9{each}") for each in messages),
        answered_at=NOW,
    )


def archive_of(folder: Path, *captures: Capture) -> tuple[Archive, list[CapturedPair]]:
    """Return an archive of these captures, each in a week of its own."""
    clock = HandClock(NOW)
    archive = Archive(folder, clock=clock)
    pairs: list[CapturedPair] = []
    for each in captures:
        pairs.append(archive.append(each))
        clock.turn(days=7)
    return archive, pairs


def less(pair: CapturedPair, *messages: str) -> CapturedPair:
    kept = [n for n, each in enumerate(pair.message_ids) if each not in messages]
    return replace(
        pair,
        turns=tuple(pair.turns[n] for n in kept),
        message_ids=tuple(pair.message_ids[n] for n in kept),
        author_ids=tuple(pair.author_ids[n] for n in kept),
    )


def ids(*messages: str) -> list[MessageId]:
    return list(map(MessageId, messages))


def bytes_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_a_message_leaves_every_capture_that_held_it_and_all_else_stays_to_the_byte(tmp_path: Path) -> None:
    archive, [first, other, fuller] = archive_of(
        tmp_path, capture("1", "2"), capture("8", "9", conversation="thread_8"), capture("1", "2", "msg_3")
    )
    before = bytes_of(tmp_path)
    assert archive.erase(ids("2", "3")) == ArchiveErasure(captures=2, gone=0, messages=3)

    for opened in (archive, Archive(tmp_path)):
        assert list(opened.pairs_after(None)) == [less(first, "2"), other, less(fuller, "2", "msg_3")]
        assert opened.get(fuller.qa_id) == opened.latest_capture(first.conversation_id) == less(fuller, "2", "msg_3")
        assert opened.find_conversations(MessageId("2")) == ()
        assert opened.find_conversations(MessageId("1")) == ("thread_1",)
    assert bytes_of(tmp_path)["2026-W06.txt"] == before["2026-W06.txt"]
    assert archive.erase(ids("2", "3")) == ArchiveErasure()


def test_a_pair_of_which_nothing_is_left_disappears_and_so_does_its_empty_week(tmp_path: Path) -> None:
    archive, [_, other] = archive_of(tmp_path, capture("1", "2"), capture("8", "9", conversation="thread_8"))
    assert archive.erase(ids("1", "2")) == ArchiveErasure(captures=1, gone=1, messages=2)
    assert list(archive.pairs_after(None)) == list(Archive(tmp_path).pairs_after(None)) == [other]
    assert list(bytes_of(tmp_path)) == ["2026-W06.txt"]
    assert archive.latest_capture(ConversationId("thread_1")) is None


def test_a_week_is_never_in_memory_as_a_whole(tmp_path: Path) -> None:
    archive = Archive(tmp_path, clock=HandClock(NOW))
    long = Turn("Team", "word " * 20_000)
    for n in range(0, 60, 2):
        held = capture(str(n), str(n + 1), conversation=f"thread_{n}")
        archive.append(replace(held, turns=(held.turns[0], long)))
    week = sum(map(len, bytes_of(tmp_path).values()))
    tracemalloc.start()
    try:
        assert archive.erase(ids("5")) == ArchiveErasure(captures=1, messages=1)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < week / 2
    assert len(archive) == 30


def test_a_pair_that_does_not_tell_whose_turn_is_whose_goes_as_a_whole(tmp_path: Path) -> None:
    archive, _ = archive_of(tmp_path, replace(capture("1", "2"), message_ids=(MessageId("1"),), author_ids=()))
    assert archive.erase(ids("1")) == ArchiveErasure(captures=1, gone=1, messages=1)
    assert len(archive) == 0


def test_a_damaged_piece_goes_where_it_names_the_message_and_stays_where_it_does_not(tmp_path: Path) -> None:
    archive, [pair] = archive_of(tmp_path, capture("8", "9"))
    torn = [
        format_pair_block(replace(pair, message_ids=(MessageId(each),), author_ids=()))[:-3]
        for each in ("1001", "1005")
    ]
    file = tmp_path / "2026-W05.txt"
    file.write_text(file.read_text() + "\n".join(torn) + "\n")
    with capture_logs():
        assert archive.erase(ids("1001")) == ArchiveErasure(damaged=1)
    assert torn[0] not in file.read_text()
    assert torn[1] in file.read_text()
    assert list(archive.pairs_after(None)) == [pair]


def test_who_reads_meanwhile_goes_on_with_what_is_left(tmp_path: Path) -> None:
    archive, pairs = archive_of(tmp_path, capture("1", "2"), capture("3", "4"), capture("5", "6"))
    reader = archive.pairs_after(None)
    assert next(reader) == pairs[0]
    archive.erase(ids("1", "2", "3"))
    assert list(reader) == [less(pairs[1], "3"), pairs[2]]


def test_what_another_process_erased_is_never_taken_for_another_pair(tmp_path: Path) -> None:
    clock = HandClock(NOW)
    archive = Archive(tmp_path, clock=clock)
    pairs = [archive.append(capture(f"{n}1", f"{n}2", conversation=f"thread_{n}")) for n in range(1, 5)]
    reader = Archive(tmp_path)
    assert len(reader) == len(pairs)
    archive.erase(ids("11", "12"))
    with capture_logs():
        assert {pair.qa_id: reader.get(pair.qa_id) for pair in pairs} == dict.fromkeys([pair.qa_id for pair in pairs])


def test_a_disk_that_refuses_leaves_old_weeks_whole_and_the_next_call_does_the_rest(tmp_path: Path) -> None:
    _, pairs = archive_of(tmp_path, capture("1", "2"), capture("1", "2", "3"))
    archive = Archive(tmp_path, files=MortalDisk(5, error=lambda: PermissionError(13, "Permission denied")))
    with pytest.raises(KnowledgeError, match="could not be written"):
        archive.erase(ids("2"))
    assert list(archive.pairs_after(None)) == [less(pairs[0], "2"), pairs[1]]
    assert Archive(tmp_path).erase(ids("2")) == ArchiveErasure(captures=1, messages=1)


def test_killed_at_any_step_each_week_is_the_old_or_the_new_one_and_the_next_call_ends_it(tmp_path: Path) -> None:
    for steps in range(100):
        folder = tmp_path / str(steps)
        _, pairs = archive_of(folder, capture("1", "2"), capture("1", "2", "3"), capture("1", "4"))
        old, new = pairs, [less(pair, "1") for pair in pairs]
        archive = Archive(folder, files=MortalDisk(steps))
        killed = False
        try:
            archive.erase(ids("1"))
        except KilledError:
            killed = True
            found = list(Archive(folder).pairs_after(None))
            assert all(each in {old[n], new[n]} for n, each in enumerate(found))
            assert len(found) == len(old)
            Archive(folder).erase(ids("1"))
        assert list(Archive(folder).pairs_after(None)) == new
        assert b"text 1." not in b"".join(bytes_of(folder).values())
        if not killed:
            break
    else:
        pytest.fail("it never came to its end")
    assert steps > 5


_NAMES = [str(n) for n in range(1, 9)]


@settings(max_examples=examples(60), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    held=st.lists(st.lists(st.sampled_from(_NAMES), min_size=1, max_size=4, unique=True), max_size=5),
    doomed=st.sets(st.sampled_from(_NAMES)),
)
def test_what_is_left_is_every_other_message_under_the_same_ids(held: list[list[str]], doomed: set[str]) -> None:
    with TemporaryDirectory() as folder:
        archive, pairs = archive_of(Path(folder), *(capture(*names) for names in held))
        archive.erase(ids(*doomed))
        expected = [left for pair in pairs if (left := less(pair, *doomed)).turns]
        expected = [replace(left, author_ids=left.author_ids if any(left.author_ids) else ()) for left in expected]
        assert list(archive.pairs_after(None)) == list(Archive(Path(folder)).pairs_after(None)) == expected
        assert archive.append(capture("99")).timestamp > max(
            (pair.timestamp for pair in pairs), default=NOW.replace(year=1)
        )


def test_pieces_of_any_file_can_be_left_out() -> None:
    data = b"text before\n--- QA ---\nid: one\n\n--- QA ---\nid: two\nUser: \xc3"
    assert remove_blocks(data, lambda piece: b"one" in piece) == b"text before\n--- QA ---\nid: two\nUser: \xc3"
    assert remove_blocks(data, lambda _: True) == b""
