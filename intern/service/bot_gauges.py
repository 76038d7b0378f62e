"""Gauges of a running bot, for a monitoring system."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import islice

from anyio.to_thread import run_sync

from intern.actors.pipeline import StreamMonitor
from intern.core import errors
from intern.core.log import get_logger
from intern.models.circuit_breaker import CircuitBreaker
from intern.models.usage import UsageCounter
from intern.service.gateway_watch import GatewayWatch
from intern.service.metrics import Gauge, process_gauges
from intern.service.source_status import read_source_statuses
from intern.service.stores import Stores

_log = get_logger(__name__)


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
            known = read_source_statuses(self.settings, self.stores.knowledge, clock=self.clock)
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
