"""The questions that a member may ask within an hour, and all within a day."""

from __future__ import annotations

from collections import Counter, deque
from datetime import datetime, timedelta

from intern.core.clock import Clock
from intern.core.flow import DeclineReason
from intern.core.ids import UserId

_HOUR = timedelta(hours=1)


class QuestionQuota:
    """Limits of questions: `per_hour` for one member within any hour, `per_day` for all on a UTC day; 0: no limit.

    Each call counts a question, unless it is refused. Only members who asked within the hour are remembered.
    """

    def __init__(self, per_hour: int, *, clock: Clock, per_day: int = 0, asked_today: int = 0) -> None:
        self._per_hour, self._per_day, self._clock = per_hour, per_day, clock
        self._day, self._asked_today = clock.now().date(), asked_today
        self._asked: deque[tuple[datetime, UserId]] = deque()
        self._within_hour: Counter[UserId] = Counter()

    def __call__(self, user_id: UserId) -> DeclineReason | None:
        """Return the reason why this member may not ask one more question now; None if they may."""
        now = self._clock.now()
        if now.date() != self._day:
            self._day, self._asked_today = now.date(), 0
        # A time in the future counts, too, but not for ever: the clock may have been put back by a year.
        while self._asked and abs(now - self._asked[0][0]) >= _HOUR:
            _, gone = self._asked.popleft()
            self._within_hour[gone] -= 1
            if not self._within_hour[gone]:
                del self._within_hour[gone]
        if self._per_day and self._asked_today >= self._per_day:
            return "day used up"
        if self._per_hour and self._within_hour[user_id] >= self._per_hour:
            return "asked too much"
        self._asked.append((now, user_id))
        self._within_hour[user_id] += 1
        self._asked_today += 1
        return None
