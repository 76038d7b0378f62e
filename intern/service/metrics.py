"""Counters and gauges for metrics."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Final, Literal, NamedTuple

from anyio import get_running_tasks

from intern.actors.activity import ActivityCounters
from intern.core import errors
from intern.search.embedding_endpoint import USAGE as EMBEDDINGS
from intern.service.models import PROMPTS

CALLED: Final = (*(prompt.name for prompt in PROMPTS), EMBEDDINGS)
"""The names under which calls of a model are counted."""

CallOutcome = Literal["ok", "unavailable", "over_budget", "refused", "bad_reply", "failed", "given_up"]
"""The outcome of a call of a model."""
RequestOutcome = Literal["ok", "refused", "not_found", "unauthorized", "unavailable", "unknown"]
"""The outcome of a call of Discord, after waits and retries; after a 5xx or a lost connection it is unknown."""


class Gauge(NamedTuple):
    """A current value for a monitoring system."""

    name: str
    """Without the prefix; its unit last."""
    help: str
    values: Mapping[str, float]
    """The values by label; under the empty string if there is no label."""
    label: str = ""
    only_grows: bool = False
    """Whether it is a counter."""


def process_gauges(last_message_at: datetime | None) -> Iterator[Gauge]:
    """Yield the gauges that exist once in a process. Tasks that never end show as a number that grows."""
    yield Gauge("tasks", "Tasks of the event loop that have not ended", {"": len(get_running_tasks())})
    if last_message_at is not None:
        told = "When a message last came"
        yield Gauge("last_message_timestamp_seconds", told, {"": last_message_at.timestamp()})


class Counters(ActivityCounters):
    """The counters of a front end for a monitoring system (see `intern.frontends.http`); none waits or raises."""

    def count_call(self, prompt: str, outcome: str, seconds: float, /) -> None:
        """Count a call of a model, by its `CallOutcome`."""

    def count_usage(self, prompt: str, prompt_tokens: int, reply_tokens: int, cost: float, cached: int = 0, /) -> None:
        """Count the tokens and the cost of a call."""

    def count_request(self, outcome: str, /) -> None:
        """Count a call of Discord, by its `RequestOutcome`."""

    def count_reconnect(self) -> None:
        """Count a reconnection with Discord."""


def count_platform_request(counters: Counters, error: type[errors.ChatError] | None) -> None:
    """Count a call of Discord, after hikari's retries."""
    counters.count_request("ok" if error is None else error.outcome)


def count_embedding(counters: Counters, error: BaseException | None, seconds: float) -> None:
    """Count a call of an endpoint that embeds; reused vectors cost none."""
    counters.count_call(EMBEDDINGS, classify_outcome(error), seconds)


def classify_outcome(error: BaseException | None) -> str:
    """Return the outcome of a call by its error."""
    if error is None:
        return "ok"
    return error.outcome if isinstance(error, errors.InternError) else "given_up"
