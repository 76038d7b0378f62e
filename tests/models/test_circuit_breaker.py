"""The circuit breaker: when it opens, who may probe, and what closes it, in any order of events."""

from __future__ import annotations

from typing import Literal

import pytest
from hypothesis import given, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from intern.models.circuit_breaker import (
    FAILURES,
    HEAD_START,
    AttemptPermit,
    AttemptRefusal,
    CircuitBreaker,
    CircuitState,
)
from intern.models.limits import FIRST_PAUSE, LONGEST_PAUSE


def state_of(breaker: CircuitBreaker, now: float) -> Literal["closed", "open", "half_open"]:
    if breaker.held is None:
        return "closed"
    return "open" if now < breaker.held.probed_at else "half_open"


def let_through(breaker: CircuitBreaker, now: float, *, background: bool = False) -> AttemptPermit:
    permit = breaker.request_attempt(now, background=background)
    assert isinstance(permit, AttemptPermit)
    return permit


def opened(at: float = 0.0) -> CircuitBreaker:
    breaker = CircuitBreaker()
    for _ in range(FAILURES):
        breaker.record_failure(let_through(breaker, at), at, "down")
    assert state_of(breaker, at) == "open"
    return breaker


def test_it_opens_after_so_many_failures_in_a_row_and_not_one_sooner() -> None:
    breaker = CircuitBreaker()
    for _ in range(FAILURES - 1):
        breaker.record_failure(let_through(breaker, 0), 0, "down")
    breaker.record_success(let_through(breaker, 0))
    for n in range(FAILURES):
        assert state_of(breaker, 0) == "closed"
        assert breaker.record_failure(let_through(breaker, 0), 0, "down") == (n == FAILURES - 1)
    assert breaker.request_attempt(1, background=False) == AttemptRefusal(FIRST_PAUSE - 1)
    assert breaker.reason == "down"


def test_after_the_pause_one_answer_probes_and_its_success_lets_everybody_in() -> None:
    breaker = opened()
    probe = let_through(breaker, FIRST_PAUSE)
    assert probe.probe
    assert isinstance(breaker.request_attempt(FIRST_PAUSE, background=False), AttemptRefusal)
    assert breaker.record_success(probe)
    assert not let_through(breaker, FIRST_PAUSE).probe
    assert not let_through(breaker, FIRST_PAUSE, background=True).probe


def test_the_background_never_takes_the_probe_from_an_answer() -> None:
    breaker = opened()
    assert breaker.request_attempt(FIRST_PAUSE, background=True) == AttemptRefusal(HEAD_START)
    behind = let_through(breaker, FIRST_PAUSE + HEAD_START, background=True)
    assert let_through(breaker, FIRST_PAUSE + HEAD_START).probe, "though the background probes already"
    assert behind.probe


def test_a_probe_that_fails_doubles_the_pause_up_to_the_longest() -> None:
    breaker, now, pauses = opened(), 0.0, [FIRST_PAUSE]
    for _ in range(8):
        now += pauses[-1]
        assert breaker.record_failure(let_through(breaker, now), now, "still down")
        pauses.append(breaker.pause)
    assert pauses[1] == 2 * FIRST_PAUSE
    assert pauses[-1] == LONGEST_PAUSE
    breaker.record_success(let_through(breaker, now + LONGEST_PAUSE))
    for _ in range(FAILURES):
        breaker.record_failure(let_through(breaker, now), now, "down again")
    assert breaker.pause == FIRST_PAUSE, "an endpoint that came back begins anew"


def test_a_probe_that_nobody_waited_for_leaves_its_place_to_the_next() -> None:
    breaker = opened()
    breaker.record_giving_up(let_through(breaker, FIRST_PAUSE))
    assert state_of(breaker, FIRST_PAUSE) == "half_open"
    assert let_through(breaker, FIRST_PAUSE).probe


def test_what_was_begun_before_it_opened_prolongs_nothing_but_a_success_counts() -> None:
    breaker = CircuitBreaker()
    old, older = let_through(breaker, 0), let_through(breaker, 0)
    for _ in range(FAILURES):
        breaker.record_failure(let_through(breaker, 0), 0, "down")
    assert not breaker.record_failure(old, 3, "late")
    assert breaker.request_attempt(4, background=False) == AttemptRefusal(FIRST_PAUSE - 4)
    assert breaker.record_success(older)
    assert state_of(breaker, 4) == "closed"


@given(st.floats(0, 1e6), st.booleans())
def test_looking_whether_one_may_ask_changes_nothing(now: float, background: bool) -> None:  # noqa: FBT001 a draw
    breaker = opened()
    before = breaker.check_refusal(now, background=background)
    assert breaker.check_refusal(now, background=background) == before
    assert isinstance(breaker.request_attempt(now, background=background), AttemptRefusal) == (before is not None)


class Calls(RuleBasedStateMachine):
    """Any calls in any order, with the clock turned in between."""

    def __init__(self) -> None:
        super().__init__()
        self.breaker = CircuitBreaker()
        self.now = 0.0
        self.out: list[AttemptPermit] = []
        self.in_a_row = 0

    @rule(seconds=st.floats(0, 100))
    def time_goes_by(self, seconds: float) -> None:
        self.now += seconds

    @rule(background=st.booleans())
    def ask(self, background: bool) -> None:  # noqa: FBT001 a draw
        state = state_of(self.breaker, self.now)
        asked = self.breaker.request_attempt(self.now, background=background)
        if state == "closed":
            assert isinstance(asked, AttemptPermit)
            assert not asked.probe
        if isinstance(asked, AttemptRefusal):
            assert 0 < asked.seconds <= LONGEST_PAUSE + HEAD_START
            assert state != "closed"
            return
        assert state != "open"
        self.out.append(asked)

    @precondition(lambda self: self.out)
    @rule(data=st.data())
    def end_well(self, data: st.DataObject) -> None:
        self.breaker.record_success(self._one(data))
        self.in_a_row = 0
        assert state_of(self.breaker, self.now) == "closed"

    @precondition(lambda self: self.out)
    @rule(data=st.data())
    def fail(self, data: st.DataObject) -> None:
        was_closed = state_of(self.breaker, self.now) == "closed"
        opens = self.breaker.record_failure(self._one(data), self.now, "down")
        self.in_a_row = self.in_a_row + 1 if was_closed else 0
        if was_closed:
            assert opens == (self.in_a_row >= FAILURES)
        if opens:
            self.in_a_row = 0
            assert state_of(self.breaker, self.now) == "open"
            assert FIRST_PAUSE <= self.breaker.pause <= LONGEST_PAUSE

    @precondition(lambda self: self.out)
    @rule(data=st.data())
    def give_up(self, data: st.DataObject) -> None:
        state = state_of(self.breaker, self.now)
        self.breaker.record_giving_up(self._one(data))
        assert state_of(self.breaker, self.now) == state

    @invariant()
    def an_answer_gets_in_once_the_pause_is_over_and_no_answer_probes(self) -> None:
        later = self.now + LONGEST_PAUSE
        probes = [each for each in self.out if each.probe and each.opening == self.breaker.openings]
        assert (
            len([each for each in probes if not each.background]) <= 1 or state_of(self.breaker, self.now) == "closed"
        )
        if not any(not each.background for each in probes):
            assert self.breaker.check_refusal(later, background=False) is None

    def _one(self, data: st.DataObject) -> AttemptPermit:
        return self.out.pop(data.draw(st.integers(0, len(self.out) - 1)))


TestCalls = Calls.TestCase


@pytest.mark.parametrize("background", [False, True])
def test_every_refusal_is_counted(background: bool) -> None:  # noqa: FBT001 a parameter
    breaker = opened()
    breaker.request_attempt(0, background=background)
    breaker.check_refusal(0, background=background)
    assert (breaker.openings, breaker.refusals) == (1, 2)


def test_whoever_looks_on_is_told_since_when_it_is_open_and_when_it_is_tried() -> None:
    breaker, again = opened(at=10), 10 + FIRST_PAUSE
    told = [CircuitBreaker().held, breaker.held]
    breaker.record_failure(let_through(breaker, again), again, "still down")
    told.append(breaker.held)
    breaker.record_success(let_through(breaker, 100))
    told.append(breaker.held)
    for _ in range(FAILURES):
        breaker.record_failure(let_through(breaker, 200), 200, "down again")
    told.append(breaker.held)
    assert told == [
        None,
        CircuitState(since=10, probed_at=again, reason="down"),
        CircuitState(since=10, probed_at=again + 2 * FIRST_PAUSE, reason="still down"),
        None,
        CircuitState(since=200, probed_at=200 + FIRST_PAUSE, reason="down again"),
    ]
