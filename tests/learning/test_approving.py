"""The messages that an approval covers, and the time for which it is held."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given, strategies as st
from msgspec.structs import replace

from intern.core.captures import CapturedPair
from intern.core.flow import ApprovalReaction, MessageCreated, MessageEdited, SessionStarted
from intern.core.ids import MessageId, UserId
from intern.learning.approvals import HELD_FOR, MOST_HELD, ApprovalQueue
from tests.worlds.clock import HandClock
from tests.worlds.samples import CHANNEL, GUILD, START, message, pair

PAIR = pair(n=1)  # its messages are from a minute after the start
BEFORE, AFTER = START + timedelta(seconds=59), START + timedelta(seconds=61)


def word(message_id: str = PAIR.message_ids[1], by: str = "77") -> ApprovalReaction:
    return ApprovalReaction(guild_id=GUILD, channel_id=CHANNEL, message_id=MessageId(message_id), by=UserId(by))


def edit(message_id: str = PAIR.message_ids[0]) -> MessageEdited:
    return MessageEdited(message=replace(message("Poison."), id=MessageId(message_id)))


def archived(seconds: float) -> CapturedPair:
    """Make the pair, archived so many seconds after the start."""
    return replace(PAIR, timestamp=START + timedelta(seconds=seconds))


def test_a_word_covers_what_was_said_before_it_and_nothing_later() -> None:
    for at, covered in ((BEFORE, False), (AFTER, True)):
        approvals = ApprovalQueue(clock=HandClock(at))
        approvals.receive(word())
        [held] = approvals.list_waiting()
        assert approvals.covers(held, archived(120)) is covered


def test_a_clock_that_is_behind_discord_s_costs_nothing() -> None:
    approvals = ApprovalQueue(clock=HandClock(BEFORE))
    approvals.receive(MessageCreated(message=message(n=60)))
    approvals.receive(word())
    [held] = approvals.list_waiting()
    assert approvals.covers(held, archived(120))


@pytest.mark.parametrize("edited", PAIR.message_ids)
def test_what_is_edited_after_the_word_is_not_covered(edited: str) -> None:
    clock = HandClock(AFTER)
    approvals = ApprovalQueue(clock=clock)
    approvals.receive(edit("4711"))
    approvals.receive(word())
    [held] = approvals.list_waiting()
    assert approvals.covers(held, archived(120))
    approvals.receive(edit(edited))
    assert not approvals.covers(held, archived(120))
    approvals.receive(word(by="78"))  # a member who has seen it
    [held] = approvals.list_waiting()
    assert held.approval.by == "78"
    assert approvals.covers(held, archived(120))


def test_a_word_about_an_edited_message_means_the_capture_that_holds_the_edit() -> None:
    clock = HandClock(AFTER)
    approvals = ApprovalQueue(clock=clock)
    clock.turn(seconds=30)
    approvals.receive(edit())
    clock.turn(seconds=5)
    approvals.receive(word())
    [held] = approvals.list_waiting()
    assert not approvals.covers(held, archived(70))
    assert approvals.covers(held, archived(92))


def test_a_word_is_held_a_while_and_then_let_go() -> None:
    clock = HandClock()
    approvals = ApprovalQueue(clock=clock)
    approvals.receive(word("1"))
    clock.turn(seconds=HELD_FOR.total_seconds() - 1)
    approvals.receive(word("2"))
    assert [held.approval.message_id for held in approvals.list_waiting()] == ["1", "2"]
    clock.turn(seconds=2)
    [held] = approvals.list_waiting()
    assert held.approval.message_id == "2"
    approvals.discard(held)
    assert approvals.list_waiting() == ()


def test_a_new_session_lets_all_go_for_nobody_told_of_edits() -> None:
    approvals = ApprovalQueue(clock=HandClock())
    approvals.receive(word())
    approvals.receive(SessionStarted(guild_id=GUILD, channels=()))
    assert approvals.list_waiting() == ()


def test_to_let_an_older_word_go_does_not_lose_a_newer_one_on_the_same_message() -> None:
    approvals = ApprovalQueue(clock=HandClock())
    approvals.receive(word())
    [older] = approvals.list_waiting()
    approvals.receive(word(by="78"))
    approvals.discard(older)
    assert [held.approval.by for held in approvals.list_waiting()] == ["78"]


def test_of_too_many_the_oldest_goes() -> None:
    approvals = ApprovalQueue(clock=HandClock())
    for n in range(MOST_HELD + 5):
        approvals.receive(word(str(n)))
    assert [held.approval.message_id for held in approvals.list_waiting()] == [str(n) for n in range(5, MOST_HELD + 5)]


@given(st.lists(st.sampled_from(["edit", "word", "wait"]), max_size=12))
def test_whatever_happens_a_word_covers_a_capture_exactly_if_no_edit_follows_it_or_the_capture(
    happened: list[str],
) -> None:
    clock = HandClock(AFTER)
    approvals = ApprovalQueue(clock=clock)
    # Captured as soon as the first approval came.
    captured: CapturedPair | None = None
    since_word = since_capture = False
    for what in [*happened, "word"] if "word" not in happened else happened:
        match what:
            case "edit":
                approvals.receive(edit())
                since_word = since_capture = True
            case "word":
                approvals.receive(word())
                since_word = False
                if captured is None:
                    captured, since_capture = replace(PAIR, timestamp=clock.now()), False
            case _:
                pass
        clock.turn(seconds=1)
    [held] = approvals.list_waiting()
    assert captured is not None
    assert approvals.covers(held, captured) is not (since_word or since_capture)
