"""`intern run` with `hosting.enabled`: Discord, the leases, and the page of a process that hosts many communities."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any, Final, cast

from anyio import Event

from intern.chat.platform import RequestReports
from intern.core.clock import Clock, SystemClock
from intern.core.errors import ConfigError
from intern.core.ids import GuildId
from intern.core.memory import freeze_garbage_collector
from intern.platforms.discord.attachments import AttachmentFetcher
from intern.platforms.discord.options import ShardChoice
from intern.runtime.hosting import Hosting, Sharding
from intern.runtime.parts import open_community_parts
from intern.runtime.resources import FrontEndHooks, PlatformPorts, ProcessResources, open_process_resources
from intern.service.health import HealthCheck, HealthMonitor, ModelWatch, connection_checks
from intern.service.hosting_state import HostingState
from intern.service.status_page import StatusPage
from intern.settings.settings import Settings
from intern.stores.engines.postgres.leases import LeaseStore
from intern.stores.tables.communities import CommunityStore

if TYPE_CHECKING:
    from intern.platforms.discord.gateway import HikariDiscord
    from intern.stores.engines.postgres.database import PostgresDatabase

try:
    import resource
except ModuleNotFoundError:  # pragma: no cover - not on Windows
    resource: Any = None  # type: ignore[no-redef]

FILES_EACH: Final = 15
"""Files of an open community: 11, and a margin for communities that are closing meanwhile."""
_FILES: Final = 256  # of the process: connections, its own database, Python's libraries


def allow_files(communities: int, limits: Any = resource) -> None:
    """Let this process open the files that so many open communities need. Raises ConfigError."""
    if limits is None:  # a system without such limits
        return
    needed = FILES_EACH * communities + _FILES
    soft, hard = limits.getrlimit(limits.RLIMIT_NOFILE)
    if soft != limits.RLIM_INFINITY and soft < needed:
        try:
            limits.setrlimit(limits.RLIMIT_NOFILE, (needed, hard))
        except (ValueError, OSError):
            raise ConfigError(
                f"hosting.open_communities = {communities} needs {needed} open files, and this process may have {hard}:"
                f" raise the limit (systemd: LimitNOFILE={needed}, shell: ulimit -n {needed}), or lower"
                " hosting.open_communities"
            ) from None


@asynccontextmanager
async def open_hosting_on_discord(
    settings: Settings, *, clock: Clock, first_pause: float = 1.0, beside: FrontEndHooks | None = None
) -> AsyncGenerator[Hosting]:
    """Open the shared resources, with real Discord; wait `first_pause` seconds before its second session."""
    from intern.platforms.discord.commands import HikariCommands, HostedCommands  # noqa: PLC0415 as below
    from intern.platforms.discord.gateway import HikariDiscord  # noqa: PLC0415 it costs a second of CPU, and commands need none
    from intern.platforms.discord.sessions import no_turn  # noqa: PLC0415 as above

    settings.require_for_run()
    allow_files(settings.hosting.open_communities)
    async with (
        open_process_resources(settings, clock) as host,
        # Processes that share a database share the shards by leases; a file has one process.
        nullcontext(LeaseStore(cast("PostgresDatabase", host.db)) if settings.data.url else None) as leases,
        HikariDiscord(
            settings.discord,
            reactions=True,  # each community chooses whether it reviews, and all share a connection
            first_pause=first_pause,
            hosts=True,
            leased=leases is not None,
            turn=leases.identify_turn if leases else no_turn,
            reports=beside.reports if beside else RequestReports(),
        ) as hikari,
        AttachmentFetcher() as files,
    ):

        def serve(guild_id: GuildId, own: Settings | None) -> None:
            if own is None:
                hikari.servers.drop(guild_id)
            else:
                theirs = own.discord
                hikari.servers.serve(guild_id, member_ids=theirs.team_member_ids, role_ids=theirs.team_role_ids)

        platform = PlatformPorts(hikari, HostedCommands(hikari, ()), files)
        register = HikariCommands(hikari, (), ready=hikari.wait_ready).register
        share_out = partial(_join_sharding, leases, settings, hikari, host) if leases else None

        def is_open() -> bool:
            return hikari.is_open or (leases is not None and not hikari.shards.held)

        def collect_checks() -> tuple[HealthCheck, ...]:
            models = ModelWatch(clock, host.shared.breakers)
            return (*models.checks(), *connection_checks(hikari.advice))

        pages: dict[str, StatusPage] = {}
        own = FrontEndHooks(beside.counters, partial(_list_page, pages)) if beside else None
        parts = partial(open_community_parts, beside=own)
        hosting = Hosting(host, settings, platform, serve=serve, register=register, share_out=share_out, parts=parts)
        view = HostingState(
            registered=CommunityStore(host.db, clock=clock).all,
            checks=HealthMonitor(host.db, host.lock, clock=clock, is_open=is_open, elsewhere=collect_checks),
            clock=clock,
            work=hosting.describe_states,
            shards=lambda: hikari.shards.held,
            shard_count=lambda: hikari.shards.count,
            open=pages,
        )
        await hosting.begin()
        async with beside.serving(view) if beside else nullcontext():
            yield hosting


async def _join_sharding(store: LeaseStore, settings: Settings, bot: HikariDiscord, host: ProcessResources) -> Sharding:
    """Join the processes that share the shards. Raises ConfigError if they use another shard count."""
    chosen, shards = settings.discord.shards, await bot.shards.fetch_shard_count()
    agreed = await store.register_process(shards)
    if agreed != shards and isinstance(chosen, ShardChoice):
        raise ConfigError(
            f"discord.shards: of = {shards}, but the processes that are running have {agreed} shards; set the same in"
            " all, and restart them together"
        )
    bot.shards.count = agreed

    def apply_share(part: float) -> None:
        bot.share(part)
        host.shared.share(max(part, 1 / agreed))

    only = chosen.ids if isinstance(chosen, ShardChoice) else None
    return Sharding(store, agreed, only, bot.shards.hold, bot.shards.release, lambda: bot.shards.welcomed, apply_share)


@asynccontextmanager
async def _list_page(pages: dict[str, StatusPage], running: StatusPage | HostingState) -> AsyncGenerator[None]:
    """List the page of a community, which is not served itself, as open on the page of the process."""
    assert isinstance(running, StatusPage)
    name = running.stores.db.community
    pages[name] = running
    try:
        yield
    finally:
        del pages[name]


async def run_hosted(settings: Settings, *, stop: Event, beside: FrontEndHooks | None = None) -> None:
    """Host all communities of the registry on real Discord until `stop` is set. asyncio only: hikari needs it."""
    async with open_hosting_on_discord(settings, clock=SystemClock(), beside=beside) as hosting:
        with freeze_garbage_collector():
            await hosting.run(stop=stop)
