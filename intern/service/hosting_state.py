"""The state of a process that hosts many communities, for the page and a monitoring system: totals, and each state."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass, field
from datetime import datetime

from msgspec import Struct

from intern import __version__
from intern.core.clock import Clock
from intern.service.health import Health, HealthMonitor
from intern.service.metrics import Gauge, process_gauges
from intern.service.status_page import StatusPage
from intern.stores.tables.communities import RegisteredCommunity


class HostedCommunity(Struct, frozen=True, kw_only=True):
    """One community."""

    known: RegisteredCommunity
    work: str
    """`open`, `closed` or `failing` in this process; `elsewhere` where it is not hosted here."""
    failure: str


class HostingPage(Struct, frozen=True, kw_only=True):
    """The page of a process."""

    version: str
    since: datetime
    health: Health
    last_message_at: datetime | None
    shards: str
    """The shards of this process, for people; empty where it has none."""
    communities: tuple[HostedCommunity, ...]
    numbers: Mapping[str, int]
    """The number of communities in each state."""


@dataclass(kw_only=True)
class HostingState:
    """A process that hosts communities, as its page sees it. Raises KnowledgeError."""

    registered: Callable[[], Awaitable[tuple[RegisteredCommunity, ...]]]
    checks: HealthMonitor
    clock: Clock
    work: Callable[[], Mapping[str, str]] = dict[str, str]
    """The state of each community of this process: `open`, `closed`, or the reason of its failure."""
    shards: Callable[[], Collection[int]] = tuple[int, ...]
    shard_count: Callable[[], int] = int
    open: dict[str, StatusPage] = field(default_factory=dict[str, StatusPage])
    """The communities that are open."""

    def __post_init__(self) -> None:
        self._began = self.clock.now()
        self._last_message_at: datetime | None = None

    async def renew(self) -> None:
        """Do nothing: each view reads the registry."""

    async def view(self) -> HostingPage:
        """Return the data of the page."""
        work = self.work()
        communities = tuple(_build_community_row(each, work.get(each.name)) for each in await self.registered())
        numbers = Counter(each.known.state for each in communities) + Counter(each.work for each in communities)
        return HostingPage(
            version=__version__,
            since=self._began,
            health=await self.checks.health(),
            last_message_at=self._update_last_message_at(),
            shards=self._shards(),
            communities=communities,
            numbers=numbers,
        )

    async def gauges(self) -> list[Gauge]:
        """Return totals of all communities. No community has its own figure: there may be thousands."""
        waiting, kinds = Counter[str](), Counter(map(_classify_work, self.work().values()))
        for running in self.open.values():
            waiting.update({each.name: each.waiting for each in running.fill.read_fills()})
        told = "Communities of this process, by what they do"
        shown = {kind: float(kinds[kind]) for kind in ("open", "closed", "failing")}
        return [
            Gauge("communities", told, shown, "state"),
            Gauge("stream_items", "What waits between actors", {k: float(n) for k, n in waiting.items()}, "stream"),
            *process_gauges(self._update_last_message_at()),
        ]

    def _shards(self) -> str:
        held = ", ".join(map(str, sorted(self.shards())))
        return held and f"{held} of {self.shard_count()}"

    def _update_last_message_at(self) -> datetime | None:
        times = [running.overheard.last_message_at for running in self.open.values()]
        known = [each for each in (*times, self._last_message_at) if each is not None]
        self._last_message_at = max(known, default=None)
        return self._last_message_at


def _classify_work(work: str) -> str:
    return work if work in {"open", "closed"} else "failing"


def _build_community_row(registered: RegisteredCommunity, work: str | None) -> HostedCommunity:
    kind = "elsewhere" if work is None else _classify_work(work)
    return HostedCommunity(known=registered, work=kind, failure=work or "" if kind == "failing" else "")
