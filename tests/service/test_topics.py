"""The history of a topic from the decisions, and compared texts."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from intern.core.decisions import Decision, PairApproved, PairFiled, PairMoved, PairRemoved, PairReplaced, PairSkipped
from intern.core.ids import QAId, TopicName
from intern.service.text_diff import DiffPiece, diff_texts
from intern.service.topics import read_topic_changes

SPOOL, QUOTA = TopicName("spool"), TopicName("quota")
AT = datetime(2026, 2, 3, tzinfo=UTC)
ONE, TWO, THREE = (QAId(f"qa_20260203_00000{n}.000000") for n in range(3))


def told(*decisions: Decision, topic: TopicName | None = None) -> list[tuple[str, str, QAId]]:
    return [
        (each.topic, each.what, each.qa_id) for each in read_topic_changes(decisions) if topic in {None, each.topic}
    ]


def test_a_fuller_version_updates_and_an_obsolete_pair_is_removed_by_the_newer_one() -> None:
    decisions: list[Decision] = [
        PairFiled(qa_id=ONE, topic=SPOOL, at=AT),
        PairApproved(qa_id=TWO, at=AT),
        PairReplaced(qa_id=ONE, by=TWO, at=AT),
        PairFiled(qa_id=TWO, topic=SPOOL, at=AT + timedelta(hours=1)),
        PairFiled(qa_id=THREE, topic=SPOOL, removed=(TWO,), at=AT + timedelta(hours=2)),
    ]
    added, updated, newer, removed = read_topic_changes(decisions)
    assert (added.what, added.qa_id) == ("added", ONE)
    assert (updated.what, updated.qa_id, updated.before) == ("updated", TWO, ONE)
    assert (newer.what, removed.what, removed.qa_id, removed.by) == ("added", "removed", TWO, THREE)


def test_a_move_is_told_in_both_topics_and_a_regeneration_that_changes_nothing_in_none() -> None:
    decisions: list[Decision] = [
        PairFiled(qa_id=ONE, topic=SPOOL, at=AT),
        PairMoved(qa_id=ONE, topic=QUOTA, at=AT),
        PairFiled(qa_id=ONE, topic=QUOTA, at=AT),
        PairFiled(qa_id=ONE, topic=SPOOL, at=AT),
        PairSkipped(qa_id=ONE, reason="covered", at=AT),
    ]
    assert told(*decisions) == [
        (SPOOL, "added", ONE),
        (SPOOL, "moved away", ONE),
        (QUOTA, "moved here", ONE),
        (QUOTA, "moved away", ONE),
        (SPOOL, "moved here", ONE),
        (SPOOL, "removed", ONE),
    ]
    assert told(*decisions, topic=QUOTA) == [(QUOTA, "moved here", ONE), (QUOTA, "moved away", ONE)]


def test_a_version_that_gave_way_to_nothing_is_removed() -> None:
    gone = PairRemoved(qa_id=TWO, at=AT, reason="withdrawn")
    assert told(PairFiled(qa_id=ONE, topic=SPOOL, at=AT), PairReplaced(qa_id=ONE, by=TWO, at=AT), gone) == [
        (SPOOL, "added", ONE),
        (SPOOL, "removed", ONE),
    ]


def test_texts_are_compared_by_lines_and_lines_that_changed_by_words() -> None:
    before = "User: How?\nTeam: Run purge, then wait a minute.\nUser: ty"
    after = "User: How?\nTeam: Run purge, then wait two minutes.\nTeam: And restart.\nUser: ty"
    pieces = diff_texts(before, after)
    assert "".join(text for kind, text in pieces if kind != "added") == before
    assert "".join(text for kind, text in pieces if kind != "removed") == after
    assert DiffPiece("removed", "a") in pieces
    assert DiffPiece("added", "two") in pieces
    assert pieces[0].text.startswith("User: How?\n")


def test_texts_too_long_to_compare_and_long_equal_parts_are_cut() -> None:
    lines = [f"line {n}\n" for n in range(2_000)]
    assert [each.kind for each in diff_texts("".join(lines), "".join(lines[1:]))] == ["removed", "added"]
    same = diff_texts("a " * 2_000, "a " * 2_000)
    assert [each.kind for each in same] == ["same"]
    assert len(same[0].text) < 500
