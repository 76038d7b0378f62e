"""The archive keeps everything, in order, for any clock, text and fault of the disk."""

from __future__ import annotations

import errno
import os
import tracemalloc
from datetime import UTC, datetime, timedelta
from itertools import islice, pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import get_args

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st
from msgspec.structs import asdict, replace
from structlog.testing import capture_logs

from intern.core.captures import Capture, CapturedPair, Speaker, Turn
from intern.core.clock import to_microseconds
from intern.core.errors import KnowledgeError
from intern.core.ids import ChannelId, ConversationId, GuildId, MessageId, QAId
from intern.stores.archive import Archive
from intern.stores.block_format import format_pair_block
from intern.stores.files import FileLayer
from intern.stores.qa_ids import make_qa_id, qa_id_time
from tests.examples import examples
from tests.worlds.clock import HandClock

NOW = datetime(2026, 2, 1, 3, 10, 56, tzinfo=UTC)
THREAD = ConversationId("thread_1")

captures = st.builds(
    Capture,
    conversation_id=st.sampled_from(["thread_1", "reply_2", "reply_3"]).map(ConversationId),
    turns=st.lists(st.builds(Turn, st.sampled_from(get_args(Speaker)), st.text()), min_size=1, max_size=3).map(tuple),
    message_ids=st.lists(st.integers(1, 2**63).map(lambda n: MessageId(str(n))), max_size=3).map(tuple),
    answered_at=st.datetimes(timezones=st.just(UTC)),
    guild_id=st.none() | st.just(GuildId("7")),
    channel_id=st.none() | st.just(ChannelId("8")),
    replaces=st.none() | st.just(QAId("qa_20260201_031056")),
)


def capture(text: str = "how?", *, conversation: str = THREAD, messages: tuple[str, ...] = ("11", "12")) -> Capture:
    return Capture(
        conversation_id=ConversationId(conversation),
        turns=(Turn("User", text), Turn("Team", "so")),
        message_ids=tuple(map(MessageId, messages)),
        answered_at=NOW,
    )


def as_capture(pair: CapturedPair) -> Capture:
    return Capture(**{name: value for name, value in asdict(pair).items() if name in Capture.__struct_fields__})


def archived_at(*moments: datetime) -> bytes:
    return b"".join(
        format_pair_block(
            CapturedPair(
                **asdict(capture(messages=(str(moment.timestamp()),))), qa_id=make_qa_id(moment), timestamp=moment
            )
        ).encode()
        for moment in moments
    )


@settings(max_examples=examples(50), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.tuples(captures, st.timedeltas(timedelta(days=-20), timedelta(days=20))), max_size=8))
def test_all_that_was_appended_is_read_back_in_order_live_and_after_a_restart(
    work: list[tuple[Capture, timedelta]],
) -> None:
    with TemporaryDirectory() as folder:
        clock = HandClock(NOW)
        archive = Archive(Path(folder), clock=clock)
        written: list[CapturedPair] = []
        for given_capture, pause in work:
            clock.turn(seconds=pause.total_seconds())
            written.append(archive.append(given_capture))

        assert [as_capture(pair) for pair in written] == [given_capture for given_capture, _ in work]
        assert all(qa_id_time(one.qa_id) < qa_id_time(other.qa_id) for one, other in pairwise(written))
        for opened in (archive, Archive(Path(folder))):
            assert list(opened.pairs_after(None)) == written
            assert len(opened) == len(written)
            for n, pair in enumerate(written):
                assert opened.get(pair.qa_id) == pair
                assert list(opened.pairs_after(pair.qa_id)) == written[n + 1 :]
                assert list(opened.times_after(pair.qa_id)) == [
                    to_microseconds(each.timestamp) for each in written[n + 1 :]
                ]


def test_where_time_ends_the_archive_says_so(tmp_path: Path) -> None:
    archive = Archive(tmp_path, clock=HandClock(NOW))
    archive.reserve_ids_up_to(QAId("qa_99991231_235959.999998"))
    last = archive.append(capture())
    for opened in (archive, Archive(tmp_path, clock=HandClock(NOW))):
        assert opened.newest_time() == last.timestamp == datetime.max.replace(tzinfo=UTC)
        with pytest.raises(KnowledgeError, match=r"qa_99991231_235959\.999999 is the last id"):
            opened.append(capture())
        assert list(opened.pairs_after(None)) == [last]


def test_a_clock_that_stands_still_or_goes_back_gives_one_microsecond_more(tmp_path: Path) -> None:
    clock = HandClock(NOW)
    archive = Archive(tmp_path, clock=clock)
    ids = [archive.append(capture()).qa_id, archive.append(capture()).qa_id]
    clock.turn(days=-400)
    ids += [archive.append(capture()).qa_id, Archive(tmp_path, clock=clock).append(capture()).qa_id]

    assert ids == [f"qa_20260201_031056.00000{n}" for n in range(4)]


@pytest.mark.parametrize(
    ("moment", "file"),
    [
        (datetime(2026, 2, 1, 23, 59, 59, 999999, tzinfo=UTC), "2026-W05.txt"),
        (datetime(2026, 2, 2, tzinfo=UTC), "2026-W06.txt"),
        # ISO weeks belong to the year of their Thursday.
        (datetime(2027, 1, 3, 23, 59, 59, tzinfo=UTC), "2026-W53.txt"),
        (datetime(2027, 1, 4, tzinfo=UTC), "2027-W01.txt"),
        (datetime(2024, 12, 30, tzinfo=UTC), "2025-W01.txt"),
        # In Tokyo it is Monday already; the archive uses UTC.
        (datetime.fromisoformat("2026-02-02T08:00:00+09:00"), "2026-W05.txt"),
    ],
)
def test_a_pair_stands_in_the_file_of_its_iso_week_in_utc(tmp_path: Path, moment: datetime, file: str) -> None:
    Archive(tmp_path / "raw", clock=HandClock(moment)).append(capture())

    assert [path.name for path in (tmp_path / "raw").iterdir()] == [file]


def test_following_crosses_weeks_and_years(tmp_path: Path) -> None:
    clock = HandClock(datetime(2026, 12, 1, tzinfo=UTC))
    archive = Archive(tmp_path, clock=clock)
    written: list[QAId] = []
    for _ in range(12):
        clock.turn(days=5)
        written.append(archive.append(capture()).qa_id)

    assert len(list(tmp_path.iterdir())) > 5
    assert [pair.qa_id for pair in Archive(tmp_path).pairs_after(written[2])] == written[3:]


def test_a_follower_sees_what_is_appended_while_it_reads(tmp_path: Path) -> None:
    archive = Archive(tmp_path)
    first = archive.append(capture())
    follower = archive.pairs_after(None)

    assert next(follower) == first
    second = archive.append(capture("and now?"))
    assert list(follower) == [second]


def test_a_cursor_need_not_be_in_the_archive_nor_carry_a_fraction(tmp_path: Path) -> None:
    archive = Archive(tmp_path, clock=HandClock(NOW))
    first, second = archive.append(capture()), archive.append(capture())

    assert list(archive.pairs_after(QAId("qa_20260101_000000"))) == [first, second]
    assert list(archive.pairs_after(QAId("qa_20260201_031056"))) == [second]
    assert list(archive.pairs_after(QAId("qa_20270101_000000"))) == []
    assert archive.get(QAId("qa_20260201_031056")) == first
    assert archive.get(QAId("qa_20260201_031057")) is None
    assert archive.get(QAId("qa_from_a_model")) is None
    with pytest.raises(ValueError, match="no id of a pair"):
        next(archive.pairs_after(QAId("yesterday")))


def test_a_torn_tail_costs_one_block_and_the_next_append_starts_afresh(tmp_path: Path) -> None:
    first = Archive(tmp_path, clock=HandClock(NOW)).append(capture("first"))
    file = tmp_path / "2026-W05.txt"
    torn = archived_at(NOW + timedelta(seconds=1)).replace(b"how?", "hów".encode()[:2])
    file.write_bytes(file.read_bytes() + torn[: torn.index(b"h\xc3") + 2])

    with capture_logs() as logs:
        archive = Archive(tmp_path, clock=HandClock(NOW + timedelta(seconds=2)))
        assert len(archive) == 1
    assert [(log["event"], log["file"], log["line"]) for log in logs] == [("archive_block_damaged", "2026-W05.txt", 18)]
    assert [(each.file, each.line) for each in archive.damaged] == [("2026-W05.txt", 18)]
    assert list(archive.pairs_after(None)) == [first]

    second = archive.append(capture("second"))
    assert list(archive.pairs_after(None)) == [first, second]
    assert list(Archive(tmp_path).pairs_after(None)) == [first, second]


@pytest.mark.parametrize("trimmed", [1, 2])
def test_an_archive_whose_last_empty_line_an_editor_trimmed_loses_nothing_and_goes_on(
    tmp_path: Path, trimmed: int
) -> None:
    file = tmp_path / "2026-W05.txt"
    file.write_bytes(archived_at(NOW, NOW + timedelta(seconds=1))[:-trimmed])

    archive = Archive(tmp_path, clock=HandClock(NOW + timedelta(seconds=2)))
    assert (len(archive), archive.damaged) == (2, ())
    pair = archive.append(capture())
    again = Archive(tmp_path)
    assert (len(again), again.damaged, again.get(pair.qa_id)) == (3, (), pair)


@pytest.mark.parametrize("lost", range(3, 60, 7))
def test_a_block_that_was_torn_stays_torn_when_others_follow(tmp_path: Path, lost: int) -> None:
    file = tmp_path / "2026-W05.txt"
    file.write_bytes(archived_at(NOW)[:-lost])
    archive = Archive(tmp_path, clock=HandClock(NOW + timedelta(seconds=1)))
    assert len(archive) == 0

    pair = archive.append(capture())
    assert list(Archive(tmp_path).pairs_after(None)) == [pair]


class FullDisk(FileLayer):
    """Takes 50 bytes of a block, then nothing; whether it can be undone is another matter."""

    def __init__(self, *, undo: bool) -> None:
        self.undo = undo
        self.full = True
        self.writes = 0

    def write(self, fd: int, data: bytes | memoryview) -> int:
        if not self.full:
            return super().write(fd, data)
        self.writes += 1
        if self.writes == 1:
            return super().write(fd, data[:50])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def truncate(self, fd: int, length: int) -> None:
        if not self.undo:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        super().truncate(fd, length)


@pytest.mark.parametrize("undo", [True, False])
def test_a_full_disk_fails_loudly_and_breaks_nothing_that_comes_later(tmp_path: Path, *, undo: bool) -> None:
    first = Archive(tmp_path, clock=HandClock(NOW)).append(capture("first"))
    before = (tmp_path / "2026-W05.txt").read_bytes()
    disk = FullDisk(undo=undo)
    archive = Archive(tmp_path, clock=HandClock(NOW), files=disk)

    with pytest.raises(KnowledgeError, match=r"2026-W05\.txt could not be written"):
        archive.append(capture("lost"))
    assert list(archive.pairs_after(None)) == [first]
    assert ((tmp_path / "2026-W05.txt").read_bytes() == before) is undo
    disk.full = False
    second = archive.append(capture("second"))
    assert list(archive.pairs_after(None)) == list(Archive(tmp_path).pairs_after(None)) == [first, second]
    assert second.qa_id != first.qa_id


def test_a_capture_that_no_block_can_hold_is_refused_and_the_next_one_is_not(tmp_path: Path) -> None:
    archive = Archive(tmp_path)

    with pytest.raises(ValueError, match="needs a turn"):
        archive.append(replace(capture(), turns=()))
    with pytest.raises(ValueError, match="cannot stand"):
        archive.append(capture(messages=("1\nTeam: x",)))
    pair = archive.append(capture())
    assert list(Archive(tmp_path).pairs_after(None)) == [pair]


def test_half_surrogates_do_not_stop_a_capture(tmp_path: Path) -> None:
    archive = Archive(tmp_path)

    pair = archive.append(capture("half \ud83d of it"))
    assert pair.turns[0].text == "half \ufffd of it"
    assert archive.get(pair.qa_id) == pair


def test_the_newest_capture_of_a_conversation_is_found_after_a_restart_too(tmp_path: Path) -> None:
    archive = Archive(tmp_path, clock=HandClock(NOW))
    archive.append(capture())
    other = archive.append(capture(conversation="reply_9", messages=("91",)))
    fuller = archive.append(capture(messages=("11", "12", "13")))

    for opened in (archive, Archive(tmp_path)):
        assert opened.latest_capture(THREAD) == fuller
        assert opened.latest_capture(ConversationId("reply_9")) == other
        assert opened.latest_capture(ConversationId("reply_10")) is None


def test_a_captured_message_remembers_its_conversation(tmp_path: Path) -> None:
    archive = Archive(tmp_path)
    archive.append(capture(messages=("11", "msg_12")))
    archive.append(capture(conversation="reply_9", messages=("12", "13")))

    for opened in (archive, Archive(tmp_path)):
        assert opened.find_conversations(MessageId("13")) == ("reply_9",)
        assert opened.find_conversations(MessageId("14")) == ()
        assert opened.find_conversations(MessageId("11")) == (THREAD,)
        assert opened.find_conversations(MessageId("msg_12")) == (THREAD, "reply_9")
        assert opened.find_conversations(MessageId("14")) == ()


def test_foreign_files_are_no_archive(tmp_path: Path) -> None:
    for name in (".2026-W05.txt.tmp", "2026-W05.txt~", "notes.txt", "2026-W5.txt", "2026-W05.txt.bak"):
        (tmp_path / name).write_bytes(archived_at(NOW))
    (tmp_path / "2026-W06.txt").mkdir()

    assert len(Archive(tmp_path)) == 0
    assert len(Archive(tmp_path / "not yet")) == 0


def test_pairs_that_another_program_wrote_out_of_order_are_followed_in_order(tmp_path: Path) -> None:
    moments = [NOW + timedelta(seconds=n) for n in (3, 1, 2, 1)]
    (tmp_path / "2026-W05.txt").write_bytes(archived_at(*moments))

    with capture_logs() as logs:
        archive = Archive(tmp_path, clock=HandClock(NOW))
        assert len(archive) == 3
    assert [log["event"] for log in logs] == ["archive_id_repeated"]
    assert [pair.timestamp for pair in archive.pairs_after(None)] == sorted({*moments})
    assert archive.append(capture()).timestamp > moments[0]


def test_an_unreadable_week_is_an_error_and_not_an_empty_one(tmp_path: Path) -> None:
    archive = Archive(tmp_path, clock=HandClock(NOW))
    pair = archive.append(capture())
    (tmp_path / "2026-W05.txt").unlink()

    with pytest.raises(KnowledgeError, match=r"2026-W05\.txt could not be read"):
        archive.get(pair.qa_id)
    with pytest.raises(KnowledgeError, match=r"2026-W05\.txt could not be read"):
        next(archive.pairs_after(None))


@pytest.mark.rest
def test_a_long_archive_is_read_in_a_stream(tmp_path: Path) -> None:
    big = 100_000
    moments = [NOW + timedelta(seconds=n) for n in range(100)]
    blocks = [archived_at(moment).replace(b"how?", b"x" * big) for moment in moments]
    (tmp_path / "2026-W05.txt").write_bytes(b"".join(blocks))

    tracemalloc.start()
    try:
        archive = Archive(tmp_path)
        assert sum(1 for _ in archive.pairs_after(None)) == 100
        assert len(list(islice(archive.pairs_after(make_qa_id(moments[50])), 3))) == 3
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 20 * big


@pytest.mark.rest
def test_a_long_archive_costs_memory_for_places_and_not_for_pairs(tmp_path: Path) -> None:
    pairs = 1_000  # of 100,000, benchmarks/archive.py tells
    with (tmp_path / "2026-W05.txt").open("wb") as file:
        for n in range(pairs):
            at = NOW + timedelta(milliseconds=n)
            # Of ten conversations, and without ids of messages: what is measured is what a pair costs.
            one = capture("x" * 1_000, conversation=f"thread_{n % 10}", messages=())
            file.write(format_pair_block(CapturedPair(**asdict(one), qa_id=make_qa_id(at), timestamp=at)).encode())

    assert len(Archive(tmp_path)) == pairs  # so that expressions are compiled
    tracemalloc.start()
    try:
        archive = Archive(tmp_path)
        assert len(archive) == pairs
        held, _ = tracemalloc.get_traced_memory()
        assert sum(1 for _ in archive.pairs_after(None)) == pairs
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < 200_000  # four numbers of eight bytes each; the pairs themselves are over 1 MB
    assert peak < held + 100_000
