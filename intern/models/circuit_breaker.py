"""A circuit breaker: an endpoint that keeps failing is left alone for a while, then tried with one call.

Pure: callers pass the time in monotonic seconds, and it never waits. While the circuit is closed, every call passes.
FAILURES attempts in a row that fail open it, and every call is refused at once until its pause is over. Then it is
half open: one answer's call is let through as a probe, and, a little later, one of the background's. The two have a
place each, so background work never takes the probe from an answer. What succeeds closes the circuit; a probe that
fails opens it again, for twice as long.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

FAILURES = 8  # attempts; two calls with all their retries
FIRST_PAUSE, LONGEST_PAUSE = 5.0, 60.0  # seconds
HEAD_START = 2.0  # seconds that answers have before the background may probe

State = Literal["closed", "open", "half_open"]


class Permit(NamedTuple):
    """One attempt that may be made. Return it with the outcome."""

    opening: int
    """How often the circuit had opened by then."""
    background: bool
    probe: bool


class Refused(NamedTuple):
    """An attempt that may not be made."""

    seconds: float
    """When to ask again, at the earliest."""


class Held(NamedTuple):
    """A circuit that is not closed, for health checks. Times are monotonic seconds."""

    since: float
    """When it first opened; later openings do not change it."""
    probed_at: float
    """The time from which the next call may try the endpoint."""
    reason: str
    """The error that opened it last."""


class Breaker:
    """The circuit of one endpoint."""

    def __init__(
        self,
        *,
        failures: int = FAILURES,
        first_pause: float = FIRST_PAUSE,
        longest_pause: float = LONGEST_PAUSE,
        head_start: float = HEAD_START,
    ) -> None:
        self._most = failures
        self._first_pause = first_pause
        self._longest_pause = longest_pause
        self._head_start = head_start
        self._failed = 0
        self.pause = 0.0
        """Seconds, from when it opened last until it is tried again."""
        self._until: float | None = None
        self._since = 0.0  # where it is not closed
        self._probing: set[bool] = set()  # whose probes are under way: of the background, of answers
        self.openings = 0
        """How often it opened."""
        self.refusals = 0
        """How many attempts it refused."""
        self.reason = ""
        """The error that opened it; empty while it is closed."""

    def state(self, now: float) -> State:
        """Return the state of the circuit."""
        if self._until is None:
            return "closed"
        return "open" if now < self._until else "half_open"

    @property
    def held(self) -> Held | None:
        """Since when the endpoint is left alone, and when it is tried; None while the circuit is closed."""
        return None if self._until is None else Held(self._since, self._until, self.reason)

    def asks(self, now: float, *, background: bool) -> Permit | Refused:
        """Ask to make an attempt."""
        if self._until is None:
            return Permit(self.openings, background, probe=False)
        begins = self._until + (self._head_start if background else 0.0)
        if now < begins:
            return self._refused(begins - now)
        if background in self._probing:
            return self._refused(self._head_start)  # the probe under way will tell
        self._probing.add(background)
        return Permit(self.openings, background, probe=True)

    def refuses(self, now: float, *, background: bool) -> Refused | None:
        """Return the refusal that `asks` would give; None if it would let an attempt pass."""
        asked = self.asks(now, background=background)
        if isinstance(asked, Refused):
            return asked
        self.gave_up(asked)
        return None

    def succeeded(self, permit: Permit) -> bool:
        """Record any answer of the endpoint. Return whether it closes the circuit."""
        self._returned(permit)
        closes = self._until is not None
        self._failed, self.pause, self._until, self.reason = 0, 0.0, None, ""
        self._probing.clear()
        return closes

    def failed(self, permit: Permit, now: float, reason: str) -> bool:
        """Record that the endpoint did not answer. Return whether this opens the circuit."""
        probed = self._returned(permit)
        if self._until is None:
            self._failed += 1
            opens = self._failed >= self._most
        else:
            opens = probed  # an attempt that began before it opened tells nothing new
        if opens:
            self._open(now, reason)
        return opens

    def gave_up(self, permit: Permit) -> None:
        """Record that the caller did not wait for the end, so nothing is known."""
        self._returned(permit)

    def _returned(self, permit: Permit) -> bool:
        """Return whether it was one of the probes under way."""
        current = permit.probe and permit.opening == self.openings and permit.background in self._probing
        if current:
            self._probing.discard(permit.background)
        return current

    def _open(self, now: float, reason: str) -> None:
        self.pause = min(2 * self.pause, self._longest_pause) if self.pause else self._first_pause
        if self._until is None:
            self._since = now
        self._until = now + self.pause
        self._failed = 0
        self._probing.clear()
        self.openings += 1
        self.reason = reason

    def _refused(self, seconds: float) -> Refused:
        self.refusals += 1
        return Refused(seconds)
