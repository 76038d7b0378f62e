"""No decision is forgotten, and the cursor can always be had from them."""

from __future__ import annotations

import errno
import os
import stat
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from time import process_time

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st
from structlog.testing import capture_logs

from intern.core.errors import KnowledgeError
from intern.core.ids import MessageId, QAId, TopicName, UserId, position_at
from intern.core.records import (
    Approved,
    AwaitingReview,
    Decision,
    Filed,
    Forgotten,
    Moved,
    Parked,
    Rejected,
    Removed,
    Replaced,
    Skipped,
    Withdrawn,
)
from intern.stores.blocks import qa_id_of, time_of
from intern.stores.decisions import DecisionLog, read_state, recover_state, write_state
from intern.stores.files import FileLayer

NOW = datetime(2026, 2, 1, 3, 10, 56, tzinfo=UTC)
FIRST, SECOND, THIRD = (QAId(f"qa_20260201_03105{n}.000000") for n in (6, 7, 8))


def filed(qa_id: QAId = FIRST) -> Filed:
    return Filed(qa_id=qa_id, topic=TopicName("gpu"), removed=(FIRST,), at=NOW, reason="it\nfits\u2028 ü")


decisions = st.one_of(
    st.builds(filed, st.sampled_from([FIRST, SECOND, THIRD])),
    st.builds(Skipped, qa_id=st.sampled_from([FIRST, SECOND, THIRD]), at=st.just(NOW), reason=st.text()),
    st.builds(Parked, qa_id=st.sampled_from([FIRST, SECOND, THIRD]), at=st.just(NOW), reason=st.text()),
    st.builds(Replaced, qa_id=st.sampled_from([FIRST, SECOND]), by=st.just(THIRD), at=st.just(NOW)),
    st.builds(Removed, qa_id=st.sampled_from([FIRST, SECOND]), at=st.just(NOW)),
    st.builds(Moved, qa_id=st.sampled_from([FIRST, SECOND]), topic=st.just(TopicName("cpu")), at=st.just(NOW)),
    st.builds(AwaitingReview, qa_id=st.sampled_from([FIRST, SECOND, THIRD]), at=st.just(NOW)),
    st.builds(Approved, qa_id=st.sampled_from([FIRST, SECOND, THIRD]), by=st.just("9"), at=st.just(NOW)),
    st.builds(Rejected, qa_id=st.sampled_from([FIRST, SECOND, THIRD]), by=st.just("9"), at=st.just(NOW)),
    st.builds(Withdrawn, message_ids=st.lists(st.sampled_from("123").map(MessageId)).map(tuple), at=st.just(NOW)),
    st.builds(
        Forgotten,
        message_ids=st.lists(st.sampled_from("123").map(MessageId)).map(tuple),
        user_id=st.sampled_from([None, UserId("9")]),
        at=st.just(NOW),
    ),
)


@settings(deadline=None, max_examples=50, suppress_health_check=[HealthCheck.too_slow])
@given(taken=st.lists(decisions, max_size=6))
def test_all_that_was_decided_is_known_live_and_after_a_restart(
    tmp_path_factory: pytest.TempPathFactory, taken: list[Decision]
) -> None:
    path = tmp_path_factory.mktemp("team") / "decisions.jsonl"
    log = DecisionLog(path)
    for decision in taken:
        log.append(decision)

    about_pairs = [decision for decision in taken if not isinstance(decision, Withdrawn | Forgotten)]
    gone = [each for decision in taken if isinstance(decision, Withdrawn | Forgotten) for each in decision.message_ids]
    last_of = {decision.qa_id: decision for decision in about_pairs}
    said_of = {decision.qa_id: decision for decision in about_pairs if isinstance(decision, Approved | Rejected)}
    forgotten = any(isinstance(decision, Forgotten) and decision.user_id for decision in taken)
    for opened in (log, DecisionLog(path)):
        assert list(opened.all()) == taken
        assert list(opened.withdrawn()) == gone
        assert list(opened.withdrawn(2)) == gone[2:]
        assert {each for each in map(MessageId, "123") if opened.is_withdrawn(each)} == set(gone)
        for qa_id in (FIRST, SECOND, THIRD):
            assert opened.of(qa_id) == last_of.get(qa_id)
            assert opened.decided(qa_id) == (qa_id in last_of)
            assert opened.review_of(qa_id) == said_of.get(qa_id)
        for kind, told in ((Approved, opened.due()), (Parked, opened.parked()), (AwaitingReview, opened.awaiting())):
            assert list(told) == [last for _, last in sorted(last_of.items()) if isinstance(last, kind)]
        assert opened.is_forgotten(UserId("9"), position_at(NOW).id) == forgotten
        assert opened.cursor() == max((decision.qa_id for decision in about_pairs), default=None)


def test_many_are_written_down_at_once_or_none(tmp_path: Path) -> None:
    class Full(FileLayer):
        def fsync(self, fd: int) -> None:
            if os.fstat(fd).st_size > 150 and not stat.S_ISDIR(os.fstat(fd).st_mode):
                raise OSError(errno.ENOSPC, "No space left on device")
            super().fsync(fd)

    path = tmp_path / "decisions.jsonl"
    with pytest.raises(KnowledgeError, match="No space left"):
        DecisionLog(path, Full()).extend([filed(FIRST), filed(SECOND)])
    assert list(DecisionLog(path).all()) == []

    log = DecisionLog(path)
    log.extend([filed(FIRST), filed(SECOND)])
    log.extend([])
    assert list(log.all()) == list(DecisionLog(path).all()) == [filed(FIRST), filed(SECOND)]
    assert log.cursor() == SECOND


def test_a_decision_is_a_line_that_people_can_read(tmp_path: Path) -> None:
    DecisionLog(tmp_path / "decisions.jsonl").append(filed())

    assert (tmp_path / "decisions.jsonl").read_text() == (
        '{"action":"filed","at":"2026-02-01T03:10:56Z","reason":"it\\nfits\u2028 ü",'
        '"qa_id":"qa_20260201_031056.000000","topic":"gpu","removed":["qa_20260201_031056.000000"]}\n'
    )


def test_a_message_is_met_however_its_id_is_written(tmp_path: Path) -> None:
    log = DecisionLog(tmp_path / "decisions.jsonl")
    log.append(Withdrawn(message_ids=(MessageId("11"), MessageId("msg_12")), at=NOW))

    assert all(map(log.is_withdrawn, map(MessageId, ("11", "msg_11", "12", "msg_12"))))
    assert not log.is_withdrawn(MessageId("13"))


def test_what_a_member_wrote_before_the_wish_to_be_forgotten_is_and_what_comes_later_is_not(tmp_path: Path) -> None:
    log, member, other = DecisionLog(tmp_path / "decisions.jsonl"), UserId("9"), UserId("10")
    before, at, later = (position_at(NOW + timedelta(seconds=n)).id for n in (-1, 0, 1))
    log.append(Forgotten(message_ids=(MessageId("11"),), user_id=member, at=NOW))
    log.append(Forgotten(message_ids=(), user_id=member, at=NOW - timedelta(days=1)))

    for opened in (log, DecisionLog(tmp_path / "decisions.jsonl")):
        assert [opened.is_forgotten(member, each) for each in (before, at, later)] == [True, True, False]
        assert opened.is_forgotten(member, MessageId(f"msg_{before}"))
        assert not opened.is_forgotten(other, before)
        # An id that tells no time may be of any time.
        assert opened.is_forgotten(member, MessageId("from-elsewhere"))
        assert opened.is_withdrawn(MessageId("msg_11"))
        assert not opened.is_withdrawn(before)


def test_the_few_that_wait_are_found_without_a_look_at_all_that_was_decided(tmp_path: Path) -> None:
    log = DecisionLog(tmp_path / "decisions.jsonl")
    times = [NOW + timedelta(seconds=n) for n in range(20_000)]
    log.extend([filed(qa_id_of(time)) for time in times])
    waiting = [Parked(qa_id=qa_id_of(time), at=NOW, reason="") for time in times[9:6:-1]]
    log.extend(waiting)
    log.append(filed(waiting[0].qa_id))
    began = process_time()
    for _ in range(50):
        assert log.parked() == waiting[:0:-1]
    assert process_time() - began < 0.1


def test_deciding_anew_about_an_older_pair_leaves_the_cursor_where_it_is(tmp_path: Path) -> None:
    log = DecisionLog(tmp_path / "decisions.jsonl")
    log.extend([Parked(qa_id=FIRST, at=NOW), filed(THIRD)])
    for decision in (Approved(qa_id=FIRST, at=NOW), Moved(qa_id=FIRST, topic=TopicName("cpu"), at=NOW)):
        log.append(decision)
        assert log.cursor() == DecisionLog(tmp_path / "decisions.jsonl").cursor() == THIRD


def test_threads_that_decide_at_once_tear_no_line(tmp_path: Path) -> None:
    log = DecisionLog(tmp_path / "decisions.jsonl")

    def withdraw(start: int) -> None:
        for n in range(start, start + 50):
            log.append(Withdrawn(message_ids=(MessageId(str(n)),), at=NOW))

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(withdraw, range(0, 200, 50)))
    assert sorted(DecisionLog(tmp_path / "decisions.jsonl").withdrawn()) == sorted(map(str, range(200)))


def test_ids_are_compared_as_times(tmp_path: Path) -> None:
    log = DecisionLog(tmp_path / "decisions.jsonl")
    log.append(Skipped(qa_id=QAId("qa_20260201_031056.000001"), at=NOW))
    log.append(Parked(qa_id=QAId("qa_20260201_031056"), at=NOW, reason="no model"))

    assert log.cursor() == "qa_20260201_031056.000001"
    assert log.decided(QAId("qa_20260201_031056.000000"))
    assert not log.decided(QAId("qa_20260201_031057"))
    assert not log.decided(QAId("nonsense"))


def test_a_torn_or_damaged_line_costs_that_line(tmp_path: Path) -> None:
    path = tmp_path / "decisions.jsonl"
    DecisionLog(path).append(filed(FIRST))
    good = path.read_bytes()
    later = b'{"action":"dreamt_of","at":"2026-02-01T03:10:56Z","qa_id":"qa_20260201_031057"}\n'
    strange = good.replace(b'"qa_id":"qa_2026', b'"qa_id":"qq_2026')
    path.write_bytes(b"\0\0\n\n" + good + b"\xff\xfe{\n" + later + strange + good[:-20])

    with capture_logs() as logs:
        log = DecisionLog(path)
    assert [(entry["event"], entry["line"]) for entry in logs] == [("decision_damaged", n) for n in (1, 4, 5, 6, 7)]
    assert list(log.all()) == [filed(FIRST)]

    log.append(filed(SECOND))
    assert list(DecisionLog(path).all()) == [filed(FIRST), filed(SECOND)]


def test_a_decision_that_could_not_be_written_was_not_taken(tmp_path: Path) -> None:
    class BadDisk(FileLayer):
        def fsync(self, fd: int) -> None:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    (tmp_path / "decisions.jsonl").write_text("\n")
    log = DecisionLog(tmp_path / "decisions.jsonl", BadDisk())

    with pytest.raises(KnowledgeError, match=r"decisions\.jsonl could not be written"):
        log.append(filed())
    assert not log.decided(FIRST)
    assert not DecisionLog(tmp_path / "decisions.jsonl").decided(FIRST)


def test_a_reason_may_hold_anything(tmp_path: Path) -> None:
    log = DecisionLog(tmp_path / "decisions.jsonl")
    log.append(Skipped(qa_id=FIRST, at=NOW, reason="half \ud83d"))

    assert list(log.all()) == [Skipped(qa_id=FIRST, at=NOW, reason="half \ufffd")]


def test_an_unreadable_log_is_an_error_and_not_an_empty_one(tmp_path: Path) -> None:
    with pytest.raises(KnowledgeError, match="could not be read"):
        DecisionLog(tmp_path)


def test_the_state_is_what_the_specification_calls_it(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    write_state(path, FIRST)

    assert path.read_text() == '{"last_processed_qa_id":"qa_20260201_031056.000000"}\n'
    assert read_state(path) == FIRST
    write_state(path, None)
    assert path.read_text() == '{"last_processed_qa_id":""}\n'
    assert read_state(path) is None
    assert read_state(tmp_path / "nothing") is None


@pytest.mark.parametrize("content", [None, b"", b"{", b"[]", b"{}", b"\xff", b'{"last_processed_qa_id": "yesterday"}'])
def test_a_missing_or_damaged_state_is_rebuilt_from_the_decisions(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "state.json"
    log = DecisionLog(tmp_path / "decisions.jsonl")
    log.append(filed(SECOND))
    log.append(Replaced(qa_id=FIRST, by=SECOND, at=NOW))
    if content is not None:
        path.write_bytes(content)

    with capture_logs() as logs:
        assert recover_state(path, log) == SECOND
    assert [entry["event"] for entry in logs] == ([] if content is None else ["state_damaged"])
    assert read_state(path) == SECOND


times = st.integers(0, 10**15).map(lambda micros: NOW + timedelta(microseconds=micros))


@settings(deadline=None, max_examples=50, suppress_health_check=[HealthCheck.too_slow])
@given(
    taken=st.lists(st.tuples(times, st.booleans())), stated=st.none() | times, damage=st.binary(max_size=3) | st.none()
)
def test_the_cursor_is_the_newest_time_of_all_that_is_known_and_never_goes_back(
    tmp_path_factory: pytest.TempPathFactory,
    taken: list[tuple[datetime, bool]],
    stated: datetime | None,
    damage: bytes | None,
) -> None:
    folder = tmp_path_factory.mktemp("team")
    path, log = folder / "state.json", DecisionLog(folder / "decisions.jsonl")
    seen: list[datetime] = []
    for time, bare in taken:
        # Other programs leave the fraction out where it is zero.
        qa_id = QAId(qa_id_of(time).removesuffix(".000000")) if bare else qa_id_of(time)
        log.append(Skipped(qa_id=qa_id, at=NOW))
        seen.append(time)
        assert time_of(log.cursor() or FIRST) == max(seen)
    if stated is not None:
        write_state(path, qa_id_of(stated))
    if damage is not None:
        path.write_bytes(damage)
    known = [*seen, *([stated] if stated is not None and damage is None else [])]
    for _ in range(2):
        cursor = recover_state(path, DecisionLog(folder / "decisions.jsonl"))
        assert (None if cursor is None else time_of(cursor)) == max(known, default=None)
        assert cursor is None or read_state(path) == cursor


def test_a_state_that_is_later_than_anything_can_be_is_rebuilt_from_the_decisions(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    log = DecisionLog(tmp_path / "decisions.jsonl")
    for decided in (None, FIRST, THIRD):
        if decided:
            log.append(filed(decided))
        write_state(path, THIRD)
        with capture_logs() as logs:
            assert recover_state(path, log, latest=time_of(SECOND)) == read_state(path) == decided
        # A decision that was taken is none the less valid for a clock that went back.
        assert [entry["event"] for entry in logs] == ([] if decided == THIRD else ["state_damaged"])
    write_state(path, SECOND)
    log = DecisionLog(tmp_path / "none.jsonl")
    assert recover_state(path, log, latest=time_of(SECOND)) == read_state(path) == SECOND


def test_of_state_and_decisions_the_newer_one_counts(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    log = DecisionLog(tmp_path / "decisions.jsonl")
    assert recover_state(path, log) is None
    assert not path.exists()
    log.append(filed(SECOND))
    write_state(path, FIRST)
    assert recover_state(path, log) == read_state(path) == SECOND
    write_state(path, THIRD)
    assert recover_state(path, log) == read_state(path) == THIRD
