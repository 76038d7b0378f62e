"""The bot: the office around a Discord, real or in memory, and signals turned into a calm shutdown."""

from __future__ import annotations

import signal
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial

import anyio
from anyio import Event, create_task_group, open_signal_receiver
from anyio.to_thread import run_sync

from intern.actors.listener import Gateway
from intern.actors.office import Parts, office
from intern.actors.witness import Witness
from intern.answering.workflow import Answerer
from intern.app.models import open_models
from intern.app.workshop import Workshop
from intern.conversations.batching import Batches
from intern.conversations.context import History
from intern.conversations.dispatching import Dispatcher
from intern.conversations.posting import Outlet, post, resume
from intern.discord.sandbox import Sandbox
from intern.domain import GuildId, Reply
from intern.knowledge.database import Database
from intern.knowledge.library import Library
from intern.knowledge.lock import FolderLock
from intern.knowledge.posts import PostLedger
from intern.knowledge.usage import UsageLog
from intern.observe.clock import Clock, SystemClock
from intern.settings import Settings


@dataclass(frozen=True)
class Discord:
    """Discord, real or in memory, as the actors see it."""

    gateway: Gateway
    history: History
    outlet: Outlet
    guild_ids: tuple[GuildId, ...]


@asynccontextmanager
async def _parts(settings: Settings, discord: Discord, *, witness: Witness, clock: Clock) -> AsyncGenerator[Parts]:
    """The bot, put together around a Discord; it holds the data folder meanwhile."""
    with FolderLock(settings.data.dir):
        async with (
            await Database.open(settings.paths.database) as db,
            open_models(settings, UsageLog(db), clock) as models,
        ):
            workshop = await run_sync(Workshop, settings, db, models.learning, clock)
            await workshop.jobs.reclaim()
            library = Library(
                kb_index=settings.paths.index,
                team_index=settings.paths.team_index,
                sources=workshop.sources,
                topics=workshop.topics,
                archive=workshop.archive,
            )
            yield Parts(
                gateway=discord.gateway,
                open_batches=Batches(settings.discord.message_batch_wait_seconds),
                dispatch=Dispatcher(
                    discord.history, workshop.posts, settings.conversations, guild_ids=discord.guild_ids
                ),
                keeper=workshop,
                archive=workshop,
                archived_until=workshop.archived_until(),
                chooser=workshop,
                filer=workshop,
                indices=workshop,
                answers=Answerer(models.answering, library, settings.ai),
                posts=_Posts(discord, workshop.posts),
                jobs=workshop.jobs,
                do_job=workshop.do,
                settle_seconds=settings.kb.settle_seconds,
                scan_interval_seconds=settings.kb.scan_interval_seconds,
                witness=witness,
            )


class _Posts:
    """Posting, as the poster sees it."""

    def __init__(self, discord: Discord, ledger: PostLedger) -> None:
        self._discord = discord
        self._ledger = ledger

    async def post(self, reply: Reply) -> str:
        outcome = await post(reply, self._discord.outlet, self._ledger, self._discord.history)
        return outcome.reason or outcome.status

    async def resume(self) -> int:
        return await resume(self._discord.outlet, self._ledger, self._discord.history)


async def run_on_discord(settings: Settings, *, stop: Event, clock: Clock | None = None) -> None:
    """The bot on real Discord, until `stop` is set. asyncio only, for hikari is."""
    from intern.discord.gateway import HikariDiscord  # noqa: PLC0415 it costs a second of CPU, and commands need none

    settings.require_for_run()
    async with HikariDiscord(settings.discord) as hikari:
        discord = Discord(hikari, hikari.rest, hikari.rest, tuple(map(GuildId, settings.discord.guild_ids)))
        async with _parts(settings, discord, witness=Witness(), clock=clock or SystemClock()) as parts:
            await office(parts, stop=stop)


@asynccontextmanager
async def open_sandbox(
    settings: Settings, sandbox: Sandbox, *, witness: Witness, clock: Clock | None = None
) -> AsyncGenerator[None]:
    """The whole bot at work on a Discord in memory; leaving the block sees everything off to its end."""
    discord = Discord(sandbox, sandbox, sandbox, (sandbox.guild_id,))
    stop = Event()
    async with (
        _parts(settings, discord, witness=witness, clock=clock or SystemClock()) as parts,
        create_task_group() as tg,
    ):
        tg.start_soon(partial(office, parts, stop=stop, drain=True))
        await sandbox.wait_ready()
        try:
            yield
        finally:
            stop.set()


def run(settings: Settings) -> None:
    """`intern run`: until SIGINT or SIGTERM. Raises ConfigError, KnowledgeError or DiscordError, maybe in a group."""
    anyio.run(_until_told, settings)


async def _until_told(settings: Settings) -> None:
    stop = Event()

    async def wait_for_signal() -> None:
        with open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
            async for _ in signals:
                stop.set()

    async with create_task_group() as tg:
        tg.start_soon(wait_for_signal)
        await run_on_discord(settings, stop=stop)
        tg.cancel_scope.cancel()
