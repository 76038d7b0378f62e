"""The state of a process that hosts many communities, for the page and a monitoring system."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass, field
from datetime import datetime

from msgspec import Struct

from intern.core.clock import Clock
from intern.service.health import HealthMonitor
from intern.service.metrics import Gauges, process_gauges
from intern.service.status_page import StatusPage
from intern.stores.tables.communities import RegisteredCommunity


class HostedCommunity(Struct, frozen=True, kw_only=True):
    """One community."""

    known: RegisteredCommunity
    work: str
    """`open`, `closed` or `failing` in this process; `elsewhere` where it is not hosted here."""
    failure: str


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
        self.began = self.clock.now()
        self._last_message_at: datetime | None = None

    async def renew(self) -> None:
        """Do nothing: each view reads the registry."""

    async def list_communities(self) -> tuple[HostedCommunity, ...]:
        """Return all communities of the registry."""
        work = self.work()
        return tuple(_build_community_row(each, work.get(each.name)) for each in await self.registered())

    async def gauges(self) -> Gauges:
        """Return totals of all communities. No community has its own figure: there may be thousands."""
        waiting, kinds = Counter[str](), Counter(map(_classify_work, self.work().values()))
        for running in self.open.values():
            waiting.update({stream.name: stream.waiting for stream in running.fill.read_fills()})
        shown = {kind: kinds[kind] for kind in ("open", "closed", "failing")}
        return {"communities": shown, "stream_items": waiting, **process_gauges(self.last_message_at)}

    @property
    def last_message_at(self) -> datetime | None:
        """The time of the last message of a community that is open, or was."""
        times = [running.overheard.last_message_at for running in self.open.values()]
        self._last_message_at = max((at for at in (*times, self._last_message_at) if at is not None), default=None)
        return self._last_message_at


def _classify_work(work: str) -> str:
    return work if work in {"open", "closed"} else "failing"


def _build_community_row(registered: RegisteredCommunity, work: str | None) -> HostedCommunity:
    kind = "elsewhere" if work is None else _classify_work(work)
    return HostedCommunity(known=registered, work=kind, failure=work or "" if kind == "failing" else "")
