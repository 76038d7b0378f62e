"""Counters and gauges for metrics."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from typing import Final, Literal

from anyio import get_running_tasks
from anyio.to_thread import run_sync

from intern.actors.activity import ActivityCounters
from intern.actors.pipeline import StreamMonitor
from intern.core import errors
from intern.core.log import get_logger
from intern.models.circuit_breaker import CircuitBreaker
from intern.models.usage import UsageCounter, UsageTotal
from intern.search.embedding_endpoint import USAGE as EMBEDDINGS
from intern.service.gateway_watch import GatewayWatch
from intern.service.models import PROMPTS
from intern.service.sources import Sources
from intern.service.stores import Stores
from intern.stores.tables.usage import UsageLog

_log = get_logger(__name__)

CALLED: Final = (*(prompt.name for prompt in PROMPTS), EMBEDDINGS)
"""The names under which calls of a model are counted."""

CallOutcome = Literal["ok", "unavailable", "over_budget", "refused", "bad_reply", "failed", "given_up"]
"""The outcome of a call of a model."""
RequestOutcome = Literal["ok", "refused", "not_found", "unauthorized", "unavailable", "unknown"]
"""The outcome of a call of Discord, after waits and retries; after a 5xx or a lost connection it is unknown."""


Gauges = dict[str, Mapping[str, float]]
"""Current values for a monitoring system, by name without the prefix; each by its label, or under the empty string."""


def process_gauges(last_message_at: datetime | None) -> Gauges:
    """Return the gauges that exist once in a process. Tasks that never end show as a number that grows."""
    gauges: Gauges = {"tasks": {"": len(get_running_tasks())}}
    if last_message_at is not None:
        gauges["last_message_timestamp_seconds"] = {"": last_message_at.timestamp()}
    return gauges


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

    async def gauges(self) -> Gauges:
        """Return all current values."""
        streams, circuits = self.fill.read_fills(), self.breakers.items()
        read: Gauges = {
            "stream_items": {stream.name: stream.waiting for stream in streams},
            "stream_capacity_items": {stream.name: stream.size for stream in streams},
            "model_circuit_open": {section: float(breaker.held is not None) for section, breaker in circuits},
            "model_circuit_openings": {section: breaker.openings for section, breaker in circuits},
            "model_circuit_refusals": {section: breaker.refusals for section, breaker in circuits},
            **await self._budget_gauges(),
            **await self._vector_gauges(),
        }
        read |= await run_sync(lambda: {**self._source_gauges(), **self._capture_gauges()})
        return read | process_gauges(self.overheard.last_message_at)

    async def read_spent(self) -> UsageTotal:
        """Return the tokens and the cost of this day (UTC)."""
        return await (self.usage or UsageLog(self.stores.db)).read_spent(self.clock.now().date())

    async def _budget_gauges(self) -> Gauges:
        llm = self.settings.llm
        if self.usage is None:
            return {}
        tokens, cost = await self.read_spent()
        return {
            "model_budget_tokens": {"": llm.daily_token_budget},
            "model_spent_today_tokens": {"": tokens},
            "model_budget_cost": {llm.currency: llm.daily_cost_budget},
            "model_spent_today_cost": {llm.currency: cost},
        }

    async def _vector_gauges(self) -> Gauges:
        copy = self.stores.search.engine
        if copy is None:
            return {}
        return {
            "vector_engine_away": {"": float(bool(copy.away_since))},
            "vector_engine_behind_documents": {"": await copy.db.read(copy.count_behind)},
            "vector_engine_failures": {"": copy.failures},
        }

    def _source_gauges(self) -> Gauges:
        try:
            states = [source.state for source in self.sources.list_all() if source.state != "skipped"]
        except errors.KnowledgeError as error:
            _log.warning("metrics_not_read", what="sources", reason=str(error))
            return {}
        stale = {state: states.count(state) for state in ("pending", "failed", "gone")}
        return {"sources": {"": len(states)}, "stale_sources": stale}

    def _capture_gauges(self) -> Gauges:
        decisions, archive = self.stores.knowledge, self.stores.archive
        gauges: Gauges = {
            "archived_captures": {"": len(archive)},
            "parked_pairs": {"": len(decisions.list_parked())},
            "awaiting_review_pairs": {"": len(decisions.list_awaiting_review())},
        }
        try:
            waiting = list(islice(archive.pairs_after(self.stores.find_last_decided()), 1))
        except errors.KnowledgeError as error:
            _log.warning("metrics_not_read", what="archive", reason=str(error))
            return gauges
        ages = [(self.clock.now() - pair.timestamp).total_seconds() for pair in waiting]
        return gauges | {"oldest_unfiled_capture_age_seconds": {"": max(0.0, *ages, 0.0)}}
