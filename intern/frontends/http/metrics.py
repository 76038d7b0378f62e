"""Metrics for Prometheus: one registry for the process, under the one prefix `intern_`.

Every label has a known, small set of values: no ids, no names of people or channels, no words of anyone's. Unknown
values from outside are counted as `other`. Counters are pushed; gauges are read on request.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import product
from typing import Any, Final, NamedTuple, cast, get_args

from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.metrics_core import Metric

from intern.core.captures import CapturedPair
from intern.core.decisions import Decision
from intern.core.flow import DeclineReason
from intern.core.messages import LOOKUP_FAILURES, SILENCES, AnswerResult, SilenceReason
from intern.service.metrics import CallOutcome, Counters, Gauges, RequestOutcome

PREFIX: Final = "intern"
OTHER: Final = "other"

_REPLIES = (
    *("posted", "already_posted", "dropped", "recalled", "failed"),
    *("question_deleted", "team_answered", "not_public", "refused", "too_old", "empty"),
)
"""The outcome of a reply, or its reason; see `intern.chat.delivery`. `failed`: not before the next start."""
_DECISIONS = tuple(str(kind.__struct_config__.tag) for kind in get_args(Decision))

_CALL_SECONDS = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 40, 60, 120)
_ANSWER_SECONDS = (0.5, 1, 2, 4, 8, 15, 30, 60, 120)
_LAG_SECONDS = (1, 5, 15, 60, 120, 300, 900, 3600, 6 * 3600, 86_400)
_SOURCES = (0, 1, 2, 3, 5, 8)


class GaugeKind(NamedTuple):
    """The description of a current value."""

    help: str
    label: str = ""
    only_grows: bool = False
    """Whether it is a counter."""


GAUGES: Final[Mapping[str, GaugeKind]] = {
    "build_info": GaugeKind("The version that runs", "version"),
    "stream_items": GaugeKind("What waits between actors", "stream"),
    "stream_capacity_items": GaugeKind("How much may wait", "stream"),
    "model_circuit_open": GaugeKind("1 while an endpoint is left alone, or tried with single calls", "endpoint"),
    "model_circuit_openings": GaugeKind("Times that an endpoint failed too often", "endpoint", only_grows=True),
    "model_circuit_refusals": GaugeKind("Attempts while it was left alone", "endpoint", only_grows=True),
    "model_budget_tokens": GaugeKind("Tokens that a day (UTC) may take; 0: no limit"),
    "model_spent_today_tokens": GaugeKind("Tokens of this day (UTC)"),
    "model_budget_cost": GaugeKind("Money that a day may cost; 0: no limit", "currency"),
    "model_spent_today_cost": GaugeKind("Money of this day (UTC)", "currency"),
    "vector_engine_away": GaugeKind("1 while the vector engine fails"),
    "vector_engine_behind_documents": GaugeKind("Documents still to be copied or deleted there"),
    "vector_engine_failures": GaugeKind("Requests that failed", only_grows=True),
    "sources": GaugeKind("Sources that are known"),
    "stale_sources": GaugeKind("Sources whose description is not of their present text", "state"),
    "archived_captures": GaugeKind("Team answers in the archive"),
    "parked_pairs": GaugeKind("Captures that could not be filed"),
    "awaiting_review_pairs": GaugeKind("Captures that wait for the team"),
    "oldest_unfiled_capture_age_seconds": GaugeKind(
        "Age of the oldest capture that is not decided yet; 0 where none waits"
    ),
    "communities": GaugeKind("Communities of this process, by what they do", "state"),
    "tasks": GaugeKind("Tasks of the event loop that have not ended"),
    "last_message_timestamp_seconds": GaugeKind("When a message last came"),
}
"""The gauges by name, without the prefix and with the unit last."""


class Metrics(Counters):
    """The counters, and the text that a monitoring system reads. `prompts` are the names of all prompts."""

    def __init__(self, *, prompts: Collection[str], version: str, currency: str = "USD") -> None:
        self._registry = CollectorRegistry()
        self._prompts = frozenset(prompts)
        self._currency = currency
        count, spread = self._counter, self._histogram
        told = "Questions on Discord that were thought over, /ask included, by result; not those of the page's own box"
        self._ai = count("ai_requests", told, result=_RESULTS)
        self._gate = count("ai_gate", "Decisions whether to look for an answer", answerable=_TRUTH)
        self._verification = count("ai_verification", "Second looks at an answer", good_enough=_TRUTH)
        self._sources = spread("ai_selected_sources_histogram", "Sources that were chosen for a question", _SOURCES)
        self._answer_seconds = spread("ai_request_duration_seconds", "Time from question to result", _ANSWER_SECONDS)
        self._silences = count("silences", "Questions without an answer, by reason", reason=_REASONS)
        reasons = [SILENCES[each].counter for each in get_args(DeclineReason)]
        self._declined = count("questions_declined", "Questions that were declined, by reason", reason=reasons)
        self._replies = count("replies", "Replies handed to Discord, by outcome", outcome=_REPLIES)
        self._captures = count("captures", "Team answers that were archived")
        told = "Time from a team answer on Discord to its line in the archive"
        self._lag = spread("capture_lag_seconds", told, _LAG_SECONDS)
        self._decided = count("decisions", "What was done with captures", decision=_DECISIONS)
        ends = get_args(CallOutcome)
        self._calls = count("model_calls", "Calls of a model, by prompt and outcome", prompt=prompts, outcome=ends)
        told = "Time of a call, retries and waiting included"
        self._call_seconds = spread("model_call_duration_seconds", told, _CALL_SECONDS, prompt=prompts)
        kinds = ("prompt", "completion")
        self._tokens = count("model_tokens", "Tokens by prompt and kind", prompt=prompts, kind=kinds)
        told = "Of the prompts' tokens, those that the endpoint says it had in its cache"
        self._cached_tokens = count("model_cached_tokens", told, prompt=prompts)
        told = "Money by prompt, as far as prices are set"
        self._cost = count("model_cost", told, prompt=prompts, currency=(currency,))
        told = "Calls of Discord's REST interface, by outcome after waits and retries: mended 429s and 5xx are not seen"
        self._requests = count("discord_requests", told, outcome=get_args(RequestOutcome))
        self._reconnects = count("discord_reconnects", "Connections with Discord after the first")
        ProcessCollector(namespace=PREFIX, registry=self._registry)
        self._build: Gauges = {"build_info": {version: 1.0}}

    def text(self, gauges: Gauges | None = None) -> tuple[bytes, str]:
        """Return all counts with the gauges, and their content type."""
        everything = _MetricsCollector(self._registry, self._build | (gauges or {}))
        # It needs only this method of a registry.
        return generate_latest(cast("CollectorRegistry", everything)), CONTENT_TYPE_PLAIN_0_0_4

    def count_answer(self, result: AnswerResult) -> None:
        """Count an answered question."""
        could_not_look = result.reason in LOOKUP_FAILURES
        self._ai.labels("answered" if result.should_reply else "error" if could_not_look else "skipped").inc()
        if not result.should_reply:
            self._silences.labels(result.reason if result.reason in _REASONS else OTHER).inc()
        told = result.debug or {}
        if kind := _trace_field(told, "gate", "kind"):
            self._gate.labels("true" if kind in _QUESTIONS else "false").inc()
        if (good := _trace_field(told, "verification", "is_good_enough")) is not None:
            self._verification.labels(_TRUTH[not good]).inc()
        if (chosen := _trace_field(told, "selection", "selected_sources_count")) is not None:
            self._sources.observe(chosen)
        if (seconds := told.get("seconds")) is not None:
            self._answer_seconds.observe(seconds)

    def count_decline(self, reason: DeclineReason) -> None:
        """Count a question that was declined."""
        self._declined.labels(SILENCES[reason].counter).inc()

    def count_post(self, outcome: str) -> None:
        """Count a reply by its outcome."""
        self._replies.labels(outcome if outcome in _REPLIES else OTHER).inc()

    def count_capture(self, pair: CapturedPair) -> None:
        """Count a team answer that was archived."""
        self._captures.inc()
        # Our clock and Discord's need not agree.
        self._lag.observe(max(0.0, (pair.timestamp - pair.answered_at).total_seconds()))

    def count_decision(self, decision: Decision) -> None:
        """Count a decision about a capture."""
        self._decided.labels(str(decision.__struct_config__.tag)).inc()

    def count_call(self, prompt: str, outcome: str, seconds: float) -> None:
        """Count a call of a model."""
        prompt = self._check_prompt(prompt)
        self._calls.labels(prompt, outcome).inc()
        self._call_seconds.labels(prompt).observe(seconds)

    def count_usage(self, prompt: str, prompt_tokens: int, reply_tokens: int, cost: float, cached: int = 0) -> None:
        """Count the tokens and the money of a call."""
        prompt = self._check_prompt(prompt)
        self._tokens.labels(prompt, "prompt").inc(prompt_tokens)
        self._tokens.labels(prompt, "completion").inc(reply_tokens)
        self._cached_tokens.labels(prompt).inc(cached)
        self._cost.labels(prompt, self._currency).inc(cost)

    def count_request(self, outcome: str) -> None:
        """Count a call of Discord."""
        self._requests.labels(outcome).inc()

    def count_reconnect(self) -> None:
        """Count a new connection with Discord after one was lost."""
        self._reconnects.inc()

    def _check_prompt(self, prompt: str) -> str:
        return prompt if prompt in self._prompts else OTHER

    def _counter(self, name: str, told: str, **labels: Iterable[str]) -> Counter:
        counter = Counter(f"{PREFIX}_{name}", told, tuple(labels), registry=self._registry)
        for combined in product(*labels.values()) if labels else ():
            counter.labels(*combined)  # so a rate can be computed from the first one on
        return counter

    def _histogram(self, name: str, told: str, buckets: Iterable[float], **labels: Iterable[str]) -> Histogram:
        bounds = tuple(map(float, buckets))
        return Histogram(f"{PREFIX}_{name}", told, tuple(labels), registry=self._registry, buckets=bounds)


_RESULTS: Final = ("answered", "skipped", "error")
_QUESTIONS: Final = ("question", "answer", "not_covered")
_TRUTH: Final = ("true", "false")
_REASONS: Final[tuple[SilenceReason, ...]] = tuple(reason for reason in get_args(SilenceReason) if reason)


class _MetricsCollector:
    """The counts and the gauges, in the form that the library wants."""

    def __init__(self, registry: CollectorRegistry, gauges: Gauges) -> None:
        self._registry, self._gauges = registry, gauges

    def collect(self) -> Iterator[Metric]:
        for counted in self._registry.collect():
            # The start of each series would be one more series for each.
            counted.samples = [each for each in counted.samples if not each.name.endswith("_created")]
            yield counted
        for name, values in self._gauges.items():
            kind = GAUGES[name]
            labels = (kind.label,) if kind.label else ()
            family = (CounterMetricFamily if kind.only_grows else GaugeMetricFamily)(
                f"{PREFIX}_{name}", kind.help, labels=labels
            )
            for label, value in values.items():
                family.add_metric((label,) if labels else (), value)
            yield family


def _trace_field(told: Mapping[str, Any], step: str, name: str) -> Any:
    return told.get(step, {}).get(name)
