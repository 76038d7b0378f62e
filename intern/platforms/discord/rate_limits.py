"""Rate limits of Discord and of compatible servers, for hikari."""

from __future__ import annotations

import time
from typing import Final

from hikari.impl.buckets import RESTBucketManager
from hikari.internal import routes

# Discord counts rate limits in seconds. Compatible servers count in milliseconds, and hikari would wait for ever.
_NO_SECONDS: Final = 1e11  # as seconds since 1970, the year 5138
_SKEW: Final = 600.0  # seconds by which our clock may be wrong before the two headers contradict each other
_LONGEST: Final = 86_400.0  # seconds; Discord has no longer limits


class RateLimitBuckets(RESTBucketManager):
    """hikari's rate limits, for headers in seconds or milliseconds; headers that make no sense limit nothing."""

    def update_rate_limits(  # noqa: PLR0917 as hikari has it
        self,
        compiled_route: routes.CompiledRoute,
        authentication: str | None,
        bucket_header: str,
        remaining_header: int,
        limit_header: int,
        reset_at: float,
        reset_after: float,
    ) -> None:
        """Learn from a reply's headers."""
        now = time.time()
        reset_at, reset_after = convert_to_seconds(reset_at, reset_after, now=now)
        if reset_after >= 0 and max(reset_at - now, reset_after) <= _LONGEST:
            super().update_rate_limits(
                compiled_route, authentication, bucket_header, remaining_header, limit_header, reset_at, reset_after
            )


def convert_to_seconds(reset_at: float, reset_after: float, *, now: float) -> tuple[float, float]:
    """Convert the headers `X-RateLimit-Reset` (since 1970) and `X-RateLimit-Reset-After` from either unit."""
    if reset_at > _NO_SECONDS:
        reset_at /= 1000
    if reset_after > max(reset_at - now, 0) + _SKEW:
        reset_after /= 1000
    return reset_at, reset_after
