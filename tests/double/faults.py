"""What goes wrong on purpose: failing, dropped, held and rate-limited requests, for the routes that a test names."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from tests.double.world import Json

When: TypeAlias = Literal["before", "after"]  # the work that the request asks for
Scope: TypeAlias = Literal["user", "shared", "global"]


def route_matcher(route: str) -> Callable[[str], bool]:
    """Match paths by a route such as `/channels/{channel_id}/messages`; a `{name}` or a `*` stands for any id."""
    parts = (r"[^/]+" if part == "*" or part.startswith("{") else re.escape(part) for part in route.split("/"))
    pattern = re.compile("/".join(parts))
    return lambda path: pattern.fullmatch(path) is not None


@dataclass(kw_only=True, slots=True)
class Aim:
    """Which requests something is for, and how many of them."""

    method: str
    matches: Callable[[str], bool]
    times: int

    def hits(self, method: str, path: str) -> bool:
        """Say whether it is for this request; a hit is used up."""
        if not self.times or self.method not in {method, "*"} or not self.matches(path):
            return False
        self.times -= 1
        return True


@dataclass(kw_only=True, slots=True)
class Failure:
    aim: Aim
    when: When
    status: int
    body: Json
    drop: bool


@dataclass(kw_only=True, slots=True)
class Hold:
    """A request that waits: `arrived` is set once it is there, and it goes on after `release()`."""

    aim: Aim
    when: When
    arrived: asyncio.Event = field(default_factory=asyncio.Event)
    _released: asyncio.Event = field(default_factory=asyncio.Event)

    def release(self) -> None:
        self._released.set()

    async def wait(self) -> None:
        self.arrived.set()
        await self._released.wait()


@dataclass(kw_only=True, slots=True)
class Limited:
    """A 429, and the reason for it."""

    retry_after: float
    scope: Scope
    headers: dict[str, str]

    @property
    def body(self) -> Json:
        return {
            "message": "You are being rate limited.",
            "code": 0,
            "retry_after": self.retry_after,
            "global": self.scope == "global",
        }


@dataclass(kw_only=True, slots=True)
class _Stop:
    """One planned 429: whoever comes back before its time gets another."""

    aim: Aim
    retry_after: float
    scope: Scope
    until: dict[str, float] = field(default_factory=dict[str, float])  # method and path ("" for all) -> loop time


@dataclass(kw_only=True, slots=True)
class _Window:
    used: int
    resets_at: float


@dataclass(kw_only=True, slots=True)
class Bucket:
    """A limit that each reply tells of. It counts by major parameter (the first id in the path), as Discord's do."""

    aim: Aim
    name: str
    limit: int
    per: float  # seconds
    unit: float = 1.0  # of its headers, in seconds
    windows: dict[str, _Window] = field(default_factory=dict[str, _Window])


class Faults:
    """The plans of a test, asked at each request in this order: limits, then `before`, the work, then `after`."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now  # seconds of a clock that only goes forward
        self.failures: list[Failure] = []
        self.holds: list[Hold] = []
        self.stops: list[_Stop] = []
        self.buckets: list[Bucket] = []
        self.most_a_second = 0  # requests of the application, but for its answers to interactions; 0: any number
        self.over_the_limit = 0  # so many were refused by that
        self._second = _Window(used=0, resets_at=0.0)

    def stop(self, aim: Aim, retry_after: float, scope: Scope) -> None:
        self.stops.append(_Stop(aim=aim, retry_after=retry_after, scope=scope))

    def limited(self, method: str, path: str) -> Limited | None:
        """Say whether this request comes too early."""
        now = self._now()
        if self.most_a_second and not path.startswith(("/interactions/", "/webhooks/")):
            if self._second.resets_at <= now:
                self._second = _Window(used=0, resets_at=now + 1)
            self._second.used += 1
            if self._second.used > self.most_a_second:
                self.over_the_limit += 1
                return self._limited(self._second.resets_at - now, "global", {})
        for stop in self.stops:
            if stop.aim.hits(method, path):
                stop.until["" if stop.scope == "global" else f"{method} {path}"] = now + stop.retry_after
            left = max(stop.until.get("", now), stop.until.get(f"{method} {path}", now)) - now
            if left > 0:
                return self._limited(left, stop.scope, {})
        return None

    def bucket_headers(self, method: str, path: str) -> tuple[dict[str, str], Limited | None]:
        """Count the request, and give the headers of its bucket; with the 429 if the bucket is empty."""
        for bucket in self.buckets:
            if bucket.aim.method in {method, "*"} and bucket.aim.matches(path):
                return self._count(bucket, path)
        return {}, None

    def failure(self, method: str, path: str, when: When) -> Failure | None:
        return next((f for f in self.failures if f.when == when and f.aim.hits(method, path)), None)

    def hold(self, method: str, path: str, when: When) -> Hold | None:
        return next((h for h in self.holds if h.when == when and h.aim.hits(method, path)), None)

    def _count(self, bucket: Bucket, path: str) -> tuple[dict[str, str], Limited | None]:
        now = self._now()
        major = "/".join(path.split("/")[:3])
        window = bucket.windows.get(major)
        if window is None or window.resets_at <= now:
            window = bucket.windows[major] = _Window(used=0, resets_at=now + bucket.per)
        empty = window.used >= bucket.limit
        window.used += not empty
        left = window.resets_at - now
        headers = {
            "X-RateLimit-Limit": str(bucket.limit),
            "X-RateLimit-Remaining": str(bucket.limit - window.used),
            "X-RateLimit-Reset": f"{window.resets_at / bucket.unit:.3f}",
            "X-RateLimit-Reset-After": f"{left / bucket.unit:.3f}",
            "X-RateLimit-Bucket": bucket.name,
        }
        return headers, self._limited(left, "user", headers) if empty else None

    def _limited(self, left: float, scope: Scope, headers: dict[str, str]) -> Limited:
        headers = {**headers, "Retry-After": f"{left:.3f}", "X-RateLimit-Scope": scope}
        if scope == "global":
            headers["X-RateLimit-Global"] = "true"
        return Limited(retry_after=round(left, 3), scope=scope, headers=headers)
