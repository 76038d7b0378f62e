"""Counters and gauges for metrics."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from typing import Final, Literal, NamedTuple

from anyio import get_running_tasks
from anyio.to_thread import run_sync

from intern.actors.activity import ActivityCounters
from intern.actors.pipeline import StreamMonitor
from intern.core import errors
from intern.core.log import get_logger
from intern.models.circuit_breaker import CircuitBreaker
from intern.models.usage import UsageCounter
from intern.search.embedding_endpoint import USAGE as EMBEDDINGS
from intern.service.gateway_watch import GatewayWatch
from intern.service.models import PROMPTS
from intern.service.sources import Sources
from intern.service.stores import Stores

_log = get_logger(__name__)

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


@dataclass(kw_only=True)
class BotGauges:
    """The gauges of a bot: its streams, circuits, budgets, vectors and sources."""

    stores: Stores
    fill: StreamMonitor
    overheard: GatewayWatch
    usage: UsageCounter | None
    breakers: Mapping[str, CircuitBreaker]

    def __post_init__(self) -> None:
        self.settings, self.clock = self.stores.settings, self.stores.clock
        self.sources = Sources(self.settings, self.stores.knowledge, self.clock)

    async def gauges(self) -> list[Gauge]:
        """Return all current values."""
        read = [
            *self._stream_gauges(),
            *self._circuit_gauges(),
            *await self._budget_gauges(),
            *await self._vector_gauges(),
        ]
        read += await run_sync(lambda: [*self._source_gauges(), *self._capture_gauges()])
        return [*read, *process_gauges(self.overheard.last_message_at)]

    def _stream_gauges(self) -> Iterable[Gauge]:
        streams, name = self.fill.read_fills(), "stream"
        yield Gauge("stream_items", "What waits between actors", {s.name: s.waiting for s in streams}, name)
        yield Gauge("stream_capacity_items", "How much may wait", {s.name: s.size for s in streams}, name)

    def _circuit_gauges(self) -> Iterable[Gauge]:
        circuits, name = self.breakers.items(), "endpoint"
        told = "1 while an endpoint is left alone, or tried with single calls"
        yield Gauge("model_circuit_open", told, {s: float(b.held is not None) for s, b in circuits}, name)
        for what, told, values in (
            ("openings", "Times that an endpoint failed too often", {s: float(b.openings) for s, b in circuits}),
            ("refusals", "Attempts while it was left alone", {s: float(b.refusals) for s, b in circuits}),
        ):
            yield Gauge(f"model_circuit_{what}", told, values, name, only_grows=True)

    async def _budget_gauges(self) -> Iterable[Gauge]:
        llm = self.settings.llm
        if self.usage is None:
            return ()
        today = self.usage.today()
        tokens, cost = await self.usage.read_spent(today)
        money, currency, most = llm.currency, "currency", llm.daily_cost_budget
        return (
            Gauge("model_budget_tokens", "Tokens that a day (UTC) may take; 0: no limit", {"": llm.daily_token_budget}),
            Gauge("model_spent_today_tokens", "Tokens of this day (UTC)", {"": tokens}),
            Gauge("model_budget_cost", "Money that a day may cost; 0: no limit", {money: most}, currency),
            Gauge("model_spent_today_cost", "Money of this day (UTC)", {money: cost}, currency),
        )

    async def _vector_gauges(self) -> Iterable[Gauge]:
        copy = self.stores.search.engine
        if copy is None:
            return ()
        behind = await copy.db.read(copy.count_behind)
        return (
            Gauge("vector_engine_away", "1 while the vector engine fails", {"": float(bool(copy.away_since))}),
            Gauge("vector_engine_behind_documents", "Documents still to be copied or deleted there", {"": behind}),
            Gauge("vector_engine_failures", "Requests that failed", {"": float(copy.failures)}, only_grows=True),
        )

    def _source_gauges(self) -> Iterable[Gauge]:
        try:
            known = self.sources.list_all()
        except errors.KnowledgeError as error:
            _log.warning("metrics_not_read", what="sources", reason=str(error))
            return
        states = [each.state for each in known if each.state != "skipped"]
        stale = {state: float(states.count(state)) for state in ("pending", "failed", "gone")}
        yield Gauge("sources", "Sources that are known", {"": len(states)})
        yield Gauge("stale_sources", "Sources whose description is not of their present text", stale, "state")

    def _capture_gauges(self) -> Iterable[Gauge]:
        decisions, archive = self.stores.knowledge, self.stores.archive
        yield Gauge("archived_captures", "Team answers in the archive", {"": len(archive)})
        yield Gauge("parked_pairs", "Captures that could not be filed", {"": len(decisions.list_parked())})
        yield Gauge(
            "awaiting_review_pairs", "Captures that wait for the team", {"": len(decisions.list_awaiting_review())}
        )
        try:
            waiting = list(islice(archive.pairs_after(self.stores.find_last_decided()), 1))
        except errors.KnowledgeError as error:
            _log.warning("metrics_not_read", what="archive", reason=str(error))
            return
        ages = [(self.clock.now() - pair.timestamp).total_seconds() for pair in waiting]
        told = "Age of the oldest capture that is not decided yet; 0 where none waits"
        yield Gauge("oldest_unfiled_capture_age_seconds", told, {"": max(0.0, *ages, 0.0)})
