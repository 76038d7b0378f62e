"""The figures of a bot: how many questions are answered, how fast, how well and at what cost, by the day; its stock.

A period is compared with the one before it, of the same length. Days are UTC.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import date, timedelta
from itertools import islice
from statistics import median
from typing import Literal

from anyio.to_thread import run_sync
from msgspec import Struct
from msgspec.structs import astuple

from intern.answering import prompts
from intern.core.clock import from_microseconds
from intern.core.ids import QAId, SourceId
from intern.service.sources import Sources
from intern.service.status import SHED
from intern.service.stores import Stores
from intern.stores.tables.attempts import find_retry
from intern.stores.tables.daily_counts import DailyCounts
from intern.stores.tables.feedback import Votes
from intern.stores.tables.figures import FigureStore
from intern.stores.tables.usage import PromptUsage, UsageLog

ANSWERED, SILENT = "questions_answered", "questions_silent"
PERIODS = (14, 90)
"""The days that the front shows, the shortest first."""

_ANSWERING = frozenset(
    each.name
    for each in (prompts.GATE, prompts.SELECT, prompts.ANSWER, prompts.VERIFY, prompts.DECIDE, prompts.CONFIRM)
)
_BUSIEST = 5


class Figure(Struct, frozen=True, kw_only=True):
    """A figure of a period; None without data."""

    value: float | None
    before: float | None
    """The value of the period before."""
    count: int
    """The number of answers, questions or votes behind it."""


class Plot(Struct, frozen=True, kw_only=True):
    """Values of the last days; each series has one for each day, None without data."""

    title: str
    days: tuple[date, ...]
    series: Mapping[str, tuple[float | None, ...]]
    """The values by name."""


class PeriodFigures(Struct, frozen=True, kw_only=True):
    """A period in figures, with a plot for each."""

    days: tuple[date, ...]
    answered: Figure
    """Share of the questions, from 0 to 1. Messages that ask nothing do not count."""
    seconds: Figure
    """Median seconds from a question until its answer, the batch wait included."""
    helpful: Figure
    """Share of the votes, from 0 to 1."""
    cost: Figure
    """Cost of an answer, including the questions without one; in tokens where no price is set."""
    currency: str
    """Empty where no price is set."""
    captures: Figure
    plots: Mapping[Literal["answered", "seconds", "helpful", "cost", "captures"], Plot]
    busiest: tuple[tuple[SourceId, int], ...]
    """The sources that most answers cite, with the number of answers."""


NeedKind = Literal["review", "gaps", "parked", "outdated", "sources", "dropped"]


def sum_by_prompt(usage: Iterable[PromptUsage]) -> tuple[PromptUsage, ...]:
    """Add up the usage of each prompt, the most expensive first."""
    sums: dict[str, PromptUsage] = {}
    for each in usage:
        sums[each.prompt] = sum_usage((sums.get(each.prompt, PromptUsage(each.prompt, 0, 0, 0)), each))
    return tuple(sorted(sums.values(), key=lambda each: (-each.cost, -each.tokens, each.prompt)))


def sum_usage(usage: Sequence[PromptUsage]) -> PromptUsage:
    """Add up usage, under the name of the first."""
    sums = (sum(values) for values in zip(*(astuple(each)[1:] for each in usage), strict=True))
    return PromptUsage(usage[0].prompt, *sums)


class BotFigures:
    """Computes figures from the stores of a data folder. Raises KnowledgeError."""

    def __init__(self, stores: Stores, sources: Sources) -> None:
        self._stores, self._sources, self._clock = stores, sources, stores.clock
        self._counts, self._figures = DailyCounts(stores.db, clock=stores.clock), FigureStore(stores.db)
        self._usage = UsageLog(stores.db)

    async def read_period(self, length: int) -> PeriodFigures:
        """Return the figures of the last days, today included."""
        today, llm = self._clock.now().date(), self._stores.settings.llm
        both = tuple(today - timedelta(days=n) for n in reversed(range(2 * length)))
        days, since = both[length:], both[0]
        counts, votes = await self._counts.read_since(since), await self._figures.read_votes(since)
        seconds, usage = await self._figures.read_answer_seconds(since), await self._usage.read_since(since)
        captured = await run_sync(self._count_captures, since)
        cited = await self._figures.count_citations(days[0])
        is_priced = self._stores.settings.priced or any(each.cost for day in usage.values() for each in day)
        spent = {day: _sum_spending(usage.get(day, ()), is_priced=is_priced) for day in both}
        paid = {
            day: _sum_spending((p for p in usage.get(day, ()) if p.prompt in _ANSWERING), is_priced=is_priced)
            for day in both
        }

        def daily_counts(name: str) -> Mapping[date, int]:
            return {day: counts.get(day, {}).get(name, 0) for day in both}

        answered, silent = daily_counts(ANSWERED), daily_counts(SILENT)
        up = {day: votes.get(day, Votes()).up for day in both}
        down = {day: votes.get(day, Votes()).down for day in both}
        times = {day: median(seconds[day]) if seconds.get(day) else None for day in both}

        def compare_periods(of: Callable[[Sequence[date]], tuple[float | None, int]]) -> Figure:
            (value, count), (before, _) = of(days), of(both[:length])
            return Figure(value=value, before=before, count=count)

        def build_plot(title: str, series: Mapping[str, Mapping[date, float | None] | Mapping[date, int]]) -> Plot:
            return Plot(
                title=title, days=days, series={name: tuple(each[day] for day in days) for name, each in series.items()}
            )

        unit = llm.currency if is_priced else "tokens"
        return PeriodFigures(
            days=days,
            answered=compare_periods(lambda of: _share(_sum(answered, of), _sum(silent, of))),
            seconds=compare_periods(lambda of: _median([each for day in of for each in seconds.get(day, ())])),
            helpful=compare_periods(lambda of: _share(_sum(up, of), _sum(down, of))),
            cost=compare_periods(lambda of: _ratio(sum(paid[day] for day in of), _sum(answered, of))),
            captures=compare_periods(lambda of: (sum(captured[day] for day in of), len(of))),
            currency=llm.currency if is_priced else "",
            plots={
                "answered": build_plot("Questions", {"answered": answered, "left open": silent}),
                "seconds": build_plot("Seconds to answer", {"seconds (median)": times}),
                "helpful": build_plot("Votes", {"helpful": up, "not helpful": down}),
                "cost": build_plot("All costs" if is_priced else "All tokens", {unit: spent}),
                "captures": build_plot("Captures", {"captures": captured}),
            },
            busiest=tuple(islice(cited.items(), _BUSIEST)),
        )

    async def read_usage(self, length: int) -> Mapping[date, tuple[PromptUsage, ...]]:
        """Return the usage of prompts in the last days, the newest day first."""
        since = self._clock.now().date() - timedelta(days=length - 1)
        return dict(reversed((await self._usage.read_since(since)).items()))

    async def count_stored(self) -> Mapping[str, int]:
        """Return the amount of each kind of data."""
        topics = await run_sync(self._stores.knowledge.topic_names)
        known = await self._figures.count_knowledge()
        return {"captures": len(self._stores.archive), "topics": len(topics), **known}

    async def count_needs(self, gaps: int) -> Mapping[NeedKind, int]:
        """Return how many items of each kind need a person, beside the open gaps; kinds without any are left out."""
        stores = self._stores
        retries = await stores.attempts.read_retries()
        today = await self._counts.read_day(self._clock.now().date())
        states = [source.state for source in await run_sync(self._sources.list_all)]
        numbers: dict[NeedKind, int] = {
            "review": len(stores.knowledge.list_awaiting_review()),
            "gaps": gaps,
            "parked": sum(find_retry(each, retries).next_at is None for each in stores.knowledge.list_parked()),
            "outdated": await stores.cited.count_outdated(),
            "sources": states.count("failed"),
            "dropped": today.get(SHED, 0),
        }
        return {kind: number for kind, number in numbers.items() if number}

    def _count_captures(self, since: date) -> Counter[date]:
        # Blocks.
        first = QAId(f"qa_{since:%Y%m%d}_000000")
        return Counter(from_microseconds(each).date() for each in self._stores.archive.times_after(first))


def _sum(counts: Mapping[date, int], days: Sequence[date]) -> int:
    return sum(counts[day] for day in days)


def _share(part: int, rest: int) -> tuple[float | None, int]:
    return _ratio(part, part + rest)


def _ratio(sum_of: float, number: int) -> tuple[float | None, int]:
    return (sum_of / number if number else None), number


def _median(values: Sequence[float]) -> tuple[float | None, int]:
    return (median(values) if values else None), len(values)


def _sum_spending(usage: Iterable[PromptUsage], *, is_priced: bool) -> float:
    return sum(each.cost if is_priced else each.tokens for each in usage)
