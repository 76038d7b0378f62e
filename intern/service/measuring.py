"""Measurements of a running bot for a monitoring system: calls as they end, and gauges on request."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from typing import Final, Literal, NamedTuple, Protocol

from anyio import current_time, get_running_tasks
from anyio.to_thread import run_sync

from intern.actors.events import Tally
from intern.actors.streams import Fill
from intern.chat.platform import Gateway
from intern.core.clock import Clock
from intern.core.errors import (
    ChatError,
    ChatNotFoundError,
    ChatRefusedError,
    ChatUnauthorizedError,
    ChatUnavailableError,
    InternError,
    KnowledgeError,
    ModelBudgetError,
    ModelBudgetTooSmallError,
    ModelRefusedError,
    ModelReplyError,
    ModelUnavailableError,
)
from intern.core.flow import GatewayEvent, MessageCreated, MessagesDeleted
from intern.core.log import get_logger
from intern.core.messages import Image
from intern.models.circuit_breaker import Breaker
from intern.models.prompt import InT, Model, OutT, Prompt
from intern.models.usage import Usage
from intern.search.embedding_endpoint import USAGE as EMBEDDINGS, EndpointEmbedder
from intern.service.models import PROMPTS
from intern.service.sources_status import sources_of
from intern.service.stores import Stores
from intern.settings.loading import Settings
from intern.stores.sqlite.traces import Unanswered

_log = get_logger(__name__)

CALLED: Final = (*(prompt.name for prompt in PROMPTS), EMBEDDINGS)
"""All that a model can be asked, by the name that it is counted under."""

CallOutcome = Literal["ok", "unavailable", "over_budget", "refused", "bad_reply", "failed", "given_up"]
"""What became of a call of a model."""
RequestOutcome = Literal["ok", "refused", "not_found", "unauthorized", "unavailable", "unknown"]
"""What became of a call of Discord, after waits and retries; after a 5xx or a lost connection it is unknown."""

_CALLS: Final[
    Mapping[type[InternError], CallOutcome]
] = {  # a family after those of its members that have their own outcome
    ModelBudgetError: "over_budget",
    ModelBudgetTooSmallError: "over_budget",
    ModelUnavailableError: "unavailable",
    ModelRefusedError: "refused",
    ModelReplyError: "bad_reply",
}
_REQUESTS: Final[Mapping[type[ChatError], RequestOutcome]] = {
    ChatNotFoundError: "not_found",
    ChatRefusedError: "refused",
    ChatUnauthorizedError: "unauthorized",
    ChatUnavailableError: "unavailable",
}


class Gauge(NamedTuple):
    """What stands somewhere right now."""

    name: str
    """Without the prefix; its unit last."""
    help: str
    values: Mapping[str, float]
    """By the value of the label; by the empty string where there is none."""
    label: str = ""
    only_grows: bool = False
    """It is a counter."""


class Counters(Tally, Protocol):
    """What a front end counts for a monitoring system (see `intern.frontends.http`); neither waits nor raises."""

    def called(self, prompt: str, outcome: CallOutcome, seconds: float, /) -> None:
        """A call of a model came to its end."""
        ...

    def spent(
        self, prompt: str, prompt_tokens: int, completion_tokens: int, cost: float, cached_tokens: int = 0, /
    ) -> None:
        """What a call took."""
        ...

    def requested(self, outcome: RequestOutcome, /) -> None:
        """A call of Discord came to its end."""
        ...

    def reconnected(self) -> None:
        """The connection with Discord was lost, and stands again."""
        ...


def count_request(counters: Counters, error: type[ChatError] | None) -> None:
    """A call of Discord ended, hikari's retries included, and came to this."""
    outcome: RequestOutcome = "ok"
    if error is not None:
        known: list[RequestOutcome] = [told for kind, told in _REQUESTS.items() if issubclass(error, kind)]
        outcome = known[0] if known else "unknown"
    counters.requested(outcome)


def count_embeddings(counters: Counters, embedder: EndpointEmbedder) -> None:
    """Count the calls of an endpoint that embeds; what was embedded before costs none."""

    def ended(error: BaseException | None, seconds: float) -> None:
        counters.called(EMBEDDINGS, "ok" if error is None else _outcome_of(error), seconds)

    embedder.ended = ended


def _outcome_of(error: BaseException) -> CallOutcome:
    known: list[CallOutcome] = [told for kind, told in _CALLS.items() if isinstance(error, kind)]
    return known[0] if known else "failed" if isinstance(error, InternError) else "given_up"


class CountedModel:
    """A model whose calls are counted, failed ones included."""

    def __init__(self, model: Model, counters: Counters) -> None:
        self._model = model
        self._counters = counters

    async def ask(self, prompt: Prompt[InT, OutT], given: InT, *, images: Sequence[Image] = ()) -> OutT:
        """As the model does it."""
        began = current_time()
        try:
            reply = await self._model.ask(prompt, given, images=images)
        except BaseException as error:
            self._counters.called(prompt.name, _outcome_of(error), current_time() - began)
            raise
        self._counters.called(prompt.name, "ok", current_time() - began)
        return reply


class Overheard:
    """A gateway that notes what passes: when a message was last told of, and which were deleted."""

    def __init__(self, gateway: Gateway, *, clock: Clock, unanswered: Unanswered) -> None:
        self._gateway = gateway
        self._clock = clock
        self._unanswered = unanswered
        self.last_message_at: datetime | None = None

    async def listen(self, deliver: Callable[[GatewayEvent], None]) -> None:
        """As the gateway does it."""

        def note(event: GatewayEvent) -> None:
            match event:
                case MessageCreated():
                    self.last_message_at = self._clock.now()
                case MessagesDeleted(message_ids=message_ids):
                    self._unanswered.drop(message_ids)
                case _:
                    pass
            deliver(event)

        await self._gateway.listen(note)


@dataclass(frozen=True, kw_only=True)
class Standing:
    """How things stand."""

    settings: Settings
    stores: Stores
    fill: Fill
    overheard: Overheard
    usage: Usage | None
    breakers: Mapping[str, Breaker]
    clock: Clock

    async def gauges(self) -> list[Gauge]:
        """All of it, as it is right now."""
        now = current_time()
        read = [*self._streams(), *self._circuits(now), *await self._budgets()]
        read += await run_sync(lambda: [*self._sources(), *self._captures()])
        # Tasks that never end show as a number that grows.
        read.append(Gauge("tasks", "Tasks of the event loop that have not ended", {"": len(get_running_tasks())}))
        if (last := self.overheard.last_message_at) is not None:
            read.append(Gauge("last_message_timestamp_seconds", "When a message last came", {"": last.timestamp()}))
        return read

    def _streams(self) -> Iterable[Gauge]:
        streams = self.fill.now()
        name = "stream"
        yield Gauge("stream_items", "What waits between actors", {s.name: s.waiting for s in streams}, name)
        yield Gauge("stream_capacity_items", "How much may wait", {s.name: s.size for s in streams}, name)

    def _circuits(self, now: float) -> Iterable[Gauge]:
        circuits = self.breakers.items()
        name = "endpoint"
        yield Gauge(
            "model_circuit_open",
            "1 while an endpoint is left alone, or tried with single calls",
            {section: float(breaker.state(now) != "closed") for section, breaker in circuits},
            name,
        )
        for what, told, values in (
            ("openings", "Times that an endpoint failed too often", {s: float(b.openings) for s, b in circuits}),
            ("refusals", "Attempts while it was left alone", {s: float(b.refusals) for s, b in circuits}),
        ):
            yield Gauge(f"model_circuit_{what}", told, values, name, only_grows=True)

    async def _budgets(self) -> Iterable[Gauge]:
        llm = self.settings.llm
        if self.usage is None:
            return ()
        today = self.usage.today()
        tokens, cost = await self.usage.spent(today), await self.usage.cost(today)
        money, currency = llm.currency, "currency"
        return (
            Gauge("model_budget_tokens", "Tokens that a day (UTC) may take; 0: no limit", {"": llm.daily_token_budget}),
            Gauge("model_spent_today_tokens", "Tokens of this day (UTC)", {"": tokens}),
            Gauge(
                "model_budget_cost", "Money that a day may cost; 0: no limit", {money: llm.daily_cost_budget}, currency
            ),
            Gauge("model_spent_today_cost", "Money of this day (UTC)", {money: cost}, currency),
        )

    def _sources(self) -> Iterable[Gauge]:
        try:
            known = sources_of(self.settings, clock=self.clock)
        except KnowledgeError as error:
            _log.warning("metrics_not_read", what="sources", reason=str(error))
            return
        states = [each.state for each in known if each.state != "left_out"]
        stale = {state: float(states.count(state)) for state in ("pending", "failed", "gone")}
        yield Gauge("sources", "Sources that are known", {"": len(states)})
        yield Gauge("stale_sources", "Sources whose description is not of their present text", stale, "state")

    def _captures(self) -> Iterable[Gauge]:
        decisions, archive = self.stores.decisions, self.stores.archive
        yield Gauge("archived_captures", "Team answers in the archive", {"": len(archive)})
        yield Gauge("parked_pairs", "Captures that could not be filed", {"": len(decisions.parked())})
        yield Gauge("awaiting_review_pairs", "Captures that wait for the team", {"": len(decisions.awaiting())})
        try:
            waiting = list(islice(archive.after(self.stores.archived_until()), 1))
        except KnowledgeError as error:
            _log.warning("metrics_not_read", what="archive", reason=str(error))
            return
        ages = [(self.clock.now() - pair.timestamp).total_seconds() for pair in waiting]
        told = "Age of the oldest capture that is not decided yet; 0 where none waits"
        yield Gauge("oldest_unfiled_capture_age_seconds", told, {"": max(0.0, *ages, 0.0)})
