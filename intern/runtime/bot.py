"""The bot on Discord until a signal, or on a chat in memory (`intern try`, tests); and the page without a bot."""

from __future__ import annotations

import signal
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, Final, NoReturn
from urllib.parse import unquote, urlsplit

import anyio
from anyio import Event, open_signal_receiver, sleep
from anyio.to_thread import run_sync

from intern.actors.activity import ActivityReporter
from intern.actors.job_worker import POLL_SECONDS
from intern.actors.loops import surviving
from intern.actors.pipeline import PipelineParts, StreamMonitor, run_pipeline
from intern.answering.posted_answers import PostedAnswers
from intern.chat.checkpoints import Checkpoints
from intern.chat.platform import Interactions, RequestReports
from intern.core.clock import Clock, SystemClock
from intern.core.errors import UnusableFileError
from intern.core.ids import MessageId
from intern.core.memory import freeze_garbage_collector, limit_malloc_arenas, release_memory_regularly
from intern.core.messages import AnswerResult, Attachment, Conversation, RequestContext
from intern.core.tasks import open_task_group
from intern.learning.attached_files import FileHost
from intern.platforms.discord.attachments import AttachmentFetcher
from intern.platforms.sandbox import Sandbox
from intern.runtime.hosted_bot import run_hosted
from intern.runtime.parts import open_bot_parts
from intern.runtime.resources import FrontEndHooks, OpenModels, PlatformPorts, Serving
from intern.service.databases import open_database
from intern.service.gateway_watch import GatewayWatch
from intern.service.health import HealthCheck, HealthMonitor
from intern.service.hosting_state import HostingState
from intern.service.indexing import open_library
from intern.service.opening import open_intern
from intern.service.recordings import ReplayedRecording
from intern.service.status_page import StatusPage
from intern.service.stores import Stores
from intern.settings.settings import Settings
from intern.stores.database import DEFAULT_COMMUNITY
from intern.stores.folder_lock import FolderLock
from intern.stores.tables.checkpoints import StoredCheckpoints
from intern.stores.tables.communities import CommunityStore
from intern.stores.tables.jobs import JobQueue

__all__ = ["ActivityReporter", "Sandbox", "open_sandbox"]


async def run_on_discord(settings: Settings, *, stop: Event, beside: FrontEndHooks | None = None) -> None:
    """Run the bot on real Discord until `stop` is set. asyncio only, because hikari needs it."""
    async with open_discord_parts(settings, events=ActivityReporter(), clock=SystemClock(), beside=beside) as parts:
        with freeze_garbage_collector():
            await run_pipeline(parts, stop=stop)


@asynccontextmanager
async def open_discord_parts(
    settings: Settings,
    *,
    events: ActivityReporter,
    clock: Clock,
    first_pause: float = 1.0,
    beside: FrontEndHooks | None = None,
) -> AsyncGenerator[PipelineParts]:
    """Put the bot together around real Discord; wait `first_pause` seconds before its second session."""
    from intern.platforms.discord.commands import HikariCommands  # noqa: PLC0415 as below
    from intern.platforms.discord.gateway import HikariDiscord  # noqa: PLC0415 it costs a second of CPU, and commands need none

    settings.require_for_run()
    # Discord then sends every reaction on the server.
    reactions = settings.kb.review
    async with (
        HikariDiscord(
            settings.discord,
            reactions=reactions,
            first_pause=first_pause,
            reports=beside.reports if beside else RequestReports(),
        ) as hikari,
        AttachmentFetcher() as files,
    ):
        commands = HikariCommands(hikari, hikari.guild_ids, ready=hikari.wait_ready)
        platform = PlatformPorts(hikari, commands, files)
        async with open_bot_parts(settings, platform, events=events, clock=clock, beside=beside) as parts:
            yield parts


def run(settings: Settings, beside: FrontEndHooks | None = None) -> None:
    """Run `intern run` until SIGINT or SIGTERM. Raises ConfigError, KnowledgeError or ChatError, maybe in a group."""
    work = run_hosted if settings.hosting.enabled else run_on_discord
    anyio.run(_run_until_signal, partial(work, settings, beside=beside))


def show_page(settings: Settings, serving: Serving) -> None:
    """Run `intern page` until SIGINT or SIGTERM. Raises ConfigError or KnowledgeError, maybe in a group."""
    anyio.run(_run_until_signal, partial(run_page, settings, serving))


SWITCH_SECONDS: Final = 0.001
"""Seconds after which a computing thread yields to others. With eight such threads the event loop waits 8 ms in the
median and 89 ms at worst; with Python's default of 5 ms, 54 and 333 ms (benchmarks/switching.py).
"""


async def _run_until_signal(work: Callable[..., Awaitable[None]]) -> None:
    limit_malloc_arenas()
    sys.setswitchinterval(SWITCH_SECONDS)
    stop = Event()

    async def wait_for_signal() -> None:
        with open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
            async for _ in signals:
                stop.set()

    async with open_task_group() as tg:
        tg.start_soon(wait_for_signal)
        tg.start_soon(release_memory_regularly)
        await work(stop=stop)
        tg.cancel_scope.cancel()


_NO_BOT = HealthCheck(
    name="bot", ok=True, note="this page is served without the bot; `intern status` says whether one runs"
)


async def run_page(settings: Settings, serving: Serving, *, stop: Event) -> None:
    """Serve the page of a data folder, and do its jobs while no other process holds the folder.

    If it hosts many communities and none is named, the page lists them.
    """
    clock = SystemClock()
    async with await open_database(settings) as db, open_task_group() as tg:
        checks = HealthMonitor(db, None, clock=clock, is_open=None, elsewhere=lambda: (_NO_BOT,))
        if settings.hosting.enabled and settings.community == DEFAULT_COMMUNITY:
            async with serving(HostingState(registered=CommunityStore(db).all, checks=checks, clock=clock)):
                await stop.wait()
            return
        stores = await run_sync(partial(Stores, settings, db, clock, holds=False))
        page = _UnlockedStatusPage(
            stores=stores,
            answerer=_OnDemandAnswerer(settings),
            posted=_build_posted_answers(stores),
            overheard=GatewayWatch(clock),
            checkpoints=Checkpoints(StoredCheckpoints(), baseline=MessageId("0")),
            fill=StreamMonitor(),
            checks=checks,
            replay=partial(_replay_recording, settings),
            usage=None,
            breakers={},
        )
        async with serving(page):
            tg.start_soon(_do_jobs, settings, stores.jobs)
            await stop.wait()
        tg.cancel_scope.cancel()


class _UnlockedStatusPage(StatusPage):
    """A data folder that this process does not hold: another one may change it at any time."""

    async def renew(self) -> None:
        await run_sync(self.stores.reload_if_changed)


class _OnDemandAnswerer:
    """Answers as `intern ask` does, with the knowledge at the time of the question."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    async def answer(
        self, conversation: Conversation, context: RequestContext, *, addressed: bool = False
    ) -> AnswerResult:
        async with open_intern(self._settings) as intern:
            return await intern.answer(conversation, context, addressed=addressed)


async def _replay_recording(settings: Settings, name: str) -> Sequence[ReplayedRecording]:
    async with open_intern(settings) as intern:
        return await intern.replay(name)


def _build_posted_answers(stores: Stores) -> PostedAnswers:
    settings, knowledge = stores.settings, stores.knowledge
    library = open_library(
        settings, stores.archive, knowledge, search=None, embedder=None, clock=stores.clock, sources=stores.sources
    )
    return PostedAnswers(stores.cited, library, knowledge, emails=settings.kb.mask_emails)


async def _do_jobs(settings: Settings, jobs: JobQueue) -> None:
    """Do jobs until cancelled. The folder is locked only meanwhile, so that a bot can be started."""
    while True:
        with surviving("page"):
            if await jobs.count_waiting() and await run_sync(FolderLock(settings.home).find_holder) is None:
                async with open_intern(settings) as intern:
                    await intern.do_jobs()
        await sleep(POLL_SECONDS)


class _LocalFiles:
    """Serves the files that people attach to messages of a Discord in memory, from this machine."""

    async def fetch_image(self, attachment: Attachment) -> NoReturn:
        raise UnusableFileError(f"{attachment.filename[:100]} is only a name here, or too large")

    async def fetch(self, attachment: Attachment, most: int) -> bytes:
        if attachment.url.startswith("file:///") and attachment.size <= most:
            with suppress(OSError):
                return await run_sync(Path(unquote(urlsplit(attachment.url).path)).read_bytes)
        return await self.fetch_image(attachment)


class _NoCommands:
    """The commands and buttons of a Discord in memory, which has none."""

    async def _never(self, *_: Any, **__: Any) -> None: ...

    defer = reply = follow_up = register = _never


@asynccontextmanager
async def open_sandbox(
    settings: Settings,
    sandbox: Sandbox,
    *,
    events: ActivityReporter,
    clock: Clock | None = None,
    responses: Interactions | None = None,
    files: FileHost | None = None,
    models: OpenModels | None = None,
    beside: FrontEndHooks | None = None,
) -> AsyncGenerator[None]:
    """Run the whole bot on a chat in memory; leaving the block finishes all work."""
    platform = PlatformPorts(sandbox, responses or _NoCommands(), files or _LocalFiles())
    put, stop = partial(open_bot_parts, clock=clock or SystemClock(), models=models, beside=beside), Event()
    async with put(settings, platform, events=events) as parts, open_task_group() as tg:
        tg.start_soon(partial(run_pipeline, parts, stop=stop, drain=True))
        await sandbox.wait_ready()
        try:
            yield
        finally:
            stop.set()
