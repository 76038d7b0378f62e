"""The registry of hosted communities: for operators, and for the process that hosts them.

A community whose server removed the bot is kept for a week. Then its rows, its folder and its vectors are erased.
"""

from __future__ import annotations

import shutil
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import cast

import msgspec
from anyio import sleep
from anyio.to_thread import run_sync
from msgspec import Struct
from msgspec.structs import replace

from intern.core.clock import Clock, SystemClock
from intern.core.errors import ConfigError, FolderBusyError, KnowledgeError, PageRefusedError
from intern.core.log import get_logger
from intern.core.progress import report_progress
from intern.service.activity_recorder import ASKED
from intern.service.databases import open_database
from intern.service.embedding import open_vector_copy
from intern.service.opening import open_intern
from intern.service.stores import write_whole
from intern.settings.communities import Community, CommunityChoices, build_community_settings, change_chosen_value
from intern.settings.settings import Settings
from intern.sources.addresses import DialPolicy
from intern.stores.database import Database
from intern.stores.folder_lock import FolderLock
from intern.stores.tables.communities import KEPT_FOR, CommunityStore, RegisteredCommunity
from intern.stores.tables.community_rows import erase_community
from intern.stores.tables.daily_counts import DailyCounts
from intern.stores.tables.usage import UsageLog

__all__ = ["CommunityRegistry", "CommunityUsage", "RegisteredCommunity", "open_registry"]  # for the command line

_log = get_logger(__name__)

_POLL_SECONDS = 0.5  # a person waits


class CommunityUsage(Struct, frozen=True, kw_only=True):
    """A community with its limits (0: none) and their use today (UTC)."""

    community: RegisteredCommunity
    erased_at: datetime | None
    """The time when its data is erased, because its server removed the bot."""
    questions_today: int
    questions_per_day: int
    sources: int
    most_sources: int
    tokens_today: int
    cost_today: float
    cost_per_day: float
    problem: str = ""
    """The reason why its settings do not work."""


def build_community(known: RegisteredCommunity) -> Community:
    """Return a community of the registry with its settings."""
    return Community(name=known.name, guild_ids=known.guild_ids, chosen=known.chosen)


def _document_links(known: RegisteredCommunity) -> Sequence[str]:
    return cast("Sequence[str]", known.chosen.get("kb", {}).get("links", ()))


def _check_address(address: str) -> None:
    try:
        DialPolicy().parse_url(address)
    except PageRefusedError as error:  # without the address, which may hold a password
        raise ConfigError(f"an address of documents cannot be read: {error}") from error


class CommunityRegistry:
    """The hosted communities of a database. Made by `open_registry`. Methods raise ConfigError and KnowledgeError."""

    def __init__(self, settings: Settings, db: Database, clock: Clock) -> None:
        self._settings, self._db, self._clock = settings, db, clock
        self._store = CommunityStore(db, clock=clock)

    async def all(self) -> tuple[RegisteredCommunity, ...]:
        """Return all communities, by name."""
        return await self._store.all()

    async def settings(self, name: str) -> Settings:
        """Return the settings of a community."""
        return build_community_settings(build_community(await self._store.get(name)), self._settings)

    async def show(self, name: str) -> CommunityUsage:
        """Return a community with its limits and their use today."""
        known, problem, settings = await self._store.get(name), "", self._settings
        try:
            settings = build_community_settings(build_community(known), settings)
        except ConfigError as error:
            problem = str(error)
        db, today = self._db.for_community(name), self._clock.now().date()
        counts, spent = await DailyCounts(db, clock=self._clock).read_day(today), await UsageLog(db).read_spent(today)
        return CommunityUsage(
            community=known,
            erased_at=known.left_at and known.left_at + KEPT_FOR,
            questions_today=sum(counts.get(each, 0) for each in ASKED),
            questions_per_day=settings.hosting.questions_per_day,
            sources=len(_document_links(known)),
            most_sources=settings.hosting.sources,
            tokens_today=spent.tokens,
            cost_today=spent.cost,
            cost_per_day=settings.hosting.cost_per_day,
            problem=problem,
        )

    async def set(self, name: str, key: str, value: str | None) -> RegisteredCommunity:
        """Set a setting or a limit, written as in the environment; with None, the default holds again."""
        return await self.choose(name, lambda chosen: change_chosen_value(chosen, key, value))

    async def choose(self, name: str, work: Callable[[CommunityChoices], CommunityChoices]) -> RegisteredCommunity:
        """Replace the choices of a community by the result of `work`, if it works with the process's settings."""

        def apply_choice(known: RegisteredCommunity) -> RegisteredCommunity:
            had, known = _document_links(known), replace(known, chosen=work(known.chosen))
            most, links = (
                build_community_settings(build_community(known), self._settings).hosting.sources,
                _document_links(known),
            )
            for each in links:
                if each not in had:
                    _check_address(each)
            if most and len(links) > max(most, len(had)):
                raise ConfigError(f"a community may have {most} addresses of documents; remove one first")
            return known

        return await self._store.change(name, apply_choice)

    async def suspend(self, name: str) -> RegisteredCommunity:
        """Stop serving a community. It keeps its data, and stays suspended if its server comes back."""
        return await self._store.change(name, lambda known: replace(known, state="suspended"))

    async def resume(self, name: str) -> RegisteredCommunity:
        """Serve a suspended community again."""

        def reactivate(known: RegisteredCommunity) -> RegisteredCommunity:
            if known.state != "suspended":
                raise ConfigError(f"community {name} is not suspended")
            return replace(known, state="left" if known.left_at else "active")

        return await self._store.change(name, reactivate)

    async def export(self, name: str, folder: Path) -> tuple[str, ...]:
        """Write a community's knowledge and its settings as text files into an empty folder; return their names."""
        known = await self._store.get(name)
        async with open_intern(await self.settings(name), clock=self._clock) as intern:
            names = await intern.export(folder)
        told = msgspec.json.format(msgspec.json.encode(known), indent=2) + b"\n"
        await run_sync(write_whole, folder / "community.json", told)
        return (*names, "community.json")

    async def delete(self, name: str) -> None:
        """Erase a community now, or ask the process that hosts it and wait."""
        due = self._clock.now() - KEPT_FOR
        # Stored first: a hosting process closes and erases it. If this process dies before, the hosting one still
        # erases it.
        known = await self._store.change(name, lambda known: known.with_departure(due))
        lock = FolderLock(self._settings.home)
        while name in {each.name for each in await self._store.list_departed(due)}:
            erased: tuple[str, ...] = ()
            with suppress(FolderBusyError):
                await run_sync(lock.acquire)
                try:
                    erased = await _erase_communities(self._settings, self._db, (known,))
                finally:
                    lock.release()
            if not erased:
                report_progress(f"the process that hosts {name} erases it; waiting (Ctrl-C to stop)")
                await sleep(_POLL_SECONDS)


@asynccontextmanager
async def open_registry(settings: Settings, *, clock: Clock | None = None) -> AsyncGenerator[CommunityRegistry]:
    """Open the registry. Raises ConfigError and KnowledgeError."""
    async with await open_database(settings) as db:
        yield CommunityRegistry(settings, db, clock or SystemClock())


async def erase_left_communities(
    settings: Settings, db: Database, clock: Clock, *, is_closed: Callable[[str], bool]
) -> tuple[str, ...]:
    """Erase the communities whose servers removed the bot a week ago, if they are closed; return their names.

    One that another process works on waits. After a KnowledgeError, the next call continues.
    """
    store, folder = CommunityStore(db), settings.home / "communities"
    left = await store.list_departed(clock.now() - KEPT_FOR)
    due = [each for each in left if is_closed(each.name)]
    erased = await _erase_communities(settings, db, due, beside_leases=True)
    if settings.moves:  # remains of other processes' erasures: copies only, for the archive is in the database
        here = await run_sync(lambda: [*folder.glob("*")])
        known = {each.name for each in await store.all()}
        for each in here:
            if each.name not in known:
                await run_sync(_remove_folder, each)
    return erased


async def _erase_communities(
    settings: Settings, db: Database, doomed: Sequence[RegisteredCommunity], *, beside_leases: bool = False
) -> tuple[str, ...]:
    """Erase all data of communities and remove them from the registry, but remember suspended ones as suspended.

    Return the names of those that no other process works on. Repeating it after an error or a crash finishes it.
    """
    store, erased = CommunityStore(db), list[RegisteredCommunity]()
    for known in doomed:
        # The community's own choices are left out: they may no longer work.
        own = build_community_settings(Community(name=known.name, guild_ids=known.guild_ids), settings)
        async with db.community_scope(known.name) as lent:
            try:
                await lent.lock_community(beside_leases=beside_leases)
            except FolderBusyError:
                continue
            copy = open_vector_copy(own, lent)
            if copy is not None:
                async with aclosing(copy.engine) as engine:
                    await engine.delete_points(known.name)
            rows = await erase_community(lent)
        await run_sync(_remove_folder, own.data.dir)
        await store.change(known.name, partial(replace, chosen={}, title=""))
        _log.warning("community_erased", community=known.name, rows=rows)
        erased.append(known)
    if erased and not settings.data.url:  # on a server, this would lock all tables; it vacuums automatically
        await db.scrub()
    for known in erased:
        if known.state == "suspended":
            await store.change(known.name, partial(replace, left_at=None))
        else:
            await store.remove(known.name)
    return tuple(each.name for each in erased)


def _remove_folder(folder: Path) -> None:
    try:
        if folder.exists():
            shutil.rmtree(folder)
    except OSError as error:
        raise KnowledgeError(f"{folder} cannot be removed ({error.strerror}); check its rights") from error
