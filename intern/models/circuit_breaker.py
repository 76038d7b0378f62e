"""The circuit breaker leaves an endpoint that keeps failing alone for a while, then tries it with one call.

While the circuit is closed, every call passes. FAILURES attempts in a row that fail open it, and every call is refused
at once until its pause is over. Then it is half open: one answer's call is let through as a probe, and, a little later,
one of the background's. The two have a place each, so background work never takes the probe from an answer. A success
closes the circuit; a probe that fails opens it again, for twice as long.
"""

from __future__ import annotations

from typing import NamedTuple

from intern.models.limits import FIRST_PAUSE, LONGEST_PAUSE

FAILURES = 8  # attempts; two calls with all their retries
HEAD_START = 2.0  # seconds that answers have before the background may probe


class AttemptPermit(NamedTuple):
    """One attempt that may be made. Return it with the outcome."""

    opening: int
    """The number of times that the circuit had opened by then."""
    background: bool
    probe: bool


class AttemptRefusal(NamedTuple):
    """An attempt that may not be made."""

    seconds: float
    """The seconds until asking again makes sense, at the earliest."""


class CircuitState(NamedTuple):
    """A circuit that is not closed, for health checks. Times are monotonic seconds."""

    since: float
    """When it first opened; later openings do not change it."""
    probed_at: float
    """The time from which the next call may try the endpoint."""
    reason: str
    """The error that opened it last."""


class CircuitBreaker:
    """The circuit of one endpoint. Pure: callers pass the time in monotonic seconds, and it never waits."""

    def __init__(self, *, failures: int = FAILURES, first_pause: float = FIRST_PAUSE) -> None:
        self._most, self._first_pause, self._failed = failures, first_pause, 0
        self.pause = 0.0
        """Seconds from its last opening until the next try."""
        self._until: float | None = None
        self._since = 0.0  # where it is not closed
        self._probing: set[bool] = set()  # the probes under way: True for the background's, False for an answer's
        self.openings = 0
        """The number of times that it opened."""
        self.refusals = 0
        """The number of attempts that it refused."""
        self.reason = ""
        """The error that opened it; empty while it is closed."""

    @property
    def held(self) -> CircuitState | None:
        """The open circuit, with its beginning and the time of the next try; None while the circuit is closed."""
        return None if self._until is None else CircuitState(self._since, self._until, self.reason)

    def request_attempt(self, now: float, *, background: bool) -> AttemptPermit | AttemptRefusal:
        """Ask to make an attempt."""
        if self._until is None:
            return AttemptPermit(self.openings, background, probe=False)
        begins = self._until + (HEAD_START if background else 0.0)
        if now < begins:
            return self._refuse_attempt(begins - now)
        if background in self._probing:
            return self._refuse_attempt(HEAD_START)  # the probe under way will tell
        self._probing.add(background)
        return AttemptPermit(self.openings, background, probe=True)

    def check_refusal(self, now: float, *, background: bool) -> AttemptRefusal | None:
        """Return the refusal that `request_attempt` would give; None if it would let an attempt pass."""
        asked = self.request_attempt(now, background=background)
        if isinstance(asked, AttemptRefusal):
            return asked
        self.record_giving_up(asked)
        return None

    def record_success(self, permit: AttemptPermit) -> bool:
        """Record any answer of the endpoint. Return whether it closes the circuit."""
        self._finish_probe(permit)
        closes = self._until is not None
        self._failed, self.pause, self._until, self.reason = 0, 0.0, None, ""
        self._probing.clear()
        return closes

    def record_failure(self, permit: AttemptPermit, now: float, reason: str) -> bool:
        """Record that the endpoint did not answer. Return whether this opens the circuit."""
        probed = self._finish_probe(permit)
        if self._until is None:
            self._failed += 1
        # Once it is open, an attempt that began before gives no new information.
        opens = probed if self._until is not None else self._failed >= self._most
        if opens:
            self._open_circuit(now, reason)
        return opens

    def record_giving_up(self, permit: AttemptPermit) -> None:
        """Record that the caller did not wait for the end, so nothing is known."""
        self._finish_probe(permit)

    def _finish_probe(self, permit: AttemptPermit) -> bool:
        """Return whether it was one of the probes under way."""
        current = permit.probe and permit.opening == self.openings and permit.background in self._probing
        if current:
            self._probing.discard(permit.background)
        return current

    def _open_circuit(self, now: float, reason: str) -> None:
        self.pause = min(2 * self.pause, LONGEST_PAUSE) if self.pause else self._first_pause
        if self._until is None:
            self._since = now
        self._until = now + self.pause
        self._failed = 0
        self._probing.clear()
        self.openings += 1
        self.reason = reason

    def _refuse_attempt(self, seconds: float) -> AttemptRefusal:
        self.refusals += 1
        return AttemptRefusal(seconds)
