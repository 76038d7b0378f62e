"""The bot on Discord until a signal ends it, or on a chat in memory (`intern try`, tests); the page without a bot."""

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

from intern.actors.events import Events
from intern.actors.job_worker import POLL_SECONDS
from intern.actors.loops import surviving
from intern.actors.pipeline import Fill, Parts, run_pipeline
from intern.answering.posted_answers import PostedAnswers
from intern.chat.checkpoints import Checkpoints
from intern.chat.platform import Interactions
from intern.core.clock import Clock, SystemClock
from intern.core.errors import UnusableFileError
from intern.core.ids import MessageId
from intern.core.memory import giving_back, set_aside, share_arenas
from intern.core.messages import AIResult, Attachment, Conversation, RequestContext
from intern.core.tasks import open_task_group
from intern.learning.attached_files import FileHost
from intern.platforms.discord.attachments import AttachedFiles
from intern.platforms.memory import Sandbox
from intern.runtime.hosted_bot import run_hosted
from intern.runtime.parts import Beside, OpenModels, Platform, Serving, parts_around
from intern.service.databases import open_database
from intern.service.hosted import Hosted
from intern.service.intern import open_intern
from intern.service.monitoring import Check, HealthChecks, Overheard
from intern.service.replaying import Again
from intern.service.running import Running
from intern.service.searching import library_of
from intern.service.status import holder_of
from intern.service.stores import Stores
from intern.settings.loading import Settings
from intern.stores.database import DEFAULT_COMMUNITY
from intern.stores.sqlite.chat import StoredCheckpoints
from intern.stores.sqlite.communities import CommunityStore
from intern.stores.sqlite.work import Jobs

__all__ = ["Events", "Sandbox", "open_sandbox"]


async def run_on_discord(settings: Settings, *, stop: Event, beside: Beside | None = None) -> None:
    """Run the bot on real Discord until `stop` is set. asyncio only, for hikari is."""
    async with parts_on_discord(settings, events=Events(), clock=SystemClock(), beside=beside) as parts:
        with set_aside():
            await run_pipeline(parts, stop=stop)


@asynccontextmanager
async def parts_on_discord(
    settings: Settings, *, events: Events, clock: Clock, first_pause: float = 1.0, beside: Beside | None = None
) -> AsyncGenerator[Parts]:
    """Put the bot together around real Discord; wait `first_pause` seconds before its second session."""
    from intern.platforms.discord.commands import HikariCommands  # noqa: PLC0415 as below
    from intern.platforms.discord.gateway import HikariDiscord  # noqa: PLC0415 it costs a second of CPU, and commands need none

    settings.require_for_run()
    # Discord then sends every reaction on the server.
    reactions = settings.kb.review
    async with (
        HikariDiscord(settings.discord, reactions=reactions, first_pause=first_pause) as hikari,
        AttachedFiles() as files,
    ):
        commands = HikariCommands(hikari, hikari.guild_ids, ready=hikari.wait_ready)
        platform = Platform(hikari, commands, files)
        async with parts_around(settings, platform, events=events, clock=clock, beside=beside) as parts:
            yield parts


def run(settings: Settings, beside: Beside | None = None) -> None:
    """`intern run`: until SIGINT or SIGTERM. Raises ConfigError, KnowledgeError or ChatError, maybe in a group."""
    work = run_hosted if settings.hosting.enabled else run_on_discord
    anyio.run(_until_told, partial(work, settings, beside=beside))


def show_page(settings: Settings, serving: Serving) -> None:
    """`intern page`: until SIGINT or SIGTERM. Raises ConfigError or KnowledgeError, maybe in a group."""
    anyio.run(_until_told, partial(run_page, settings, serving))


SWITCH_SECONDS: Final = 0.001
"""After this long, a thread that computes lets others go on. With eight of those the event loop waits for 8 ms in the
median and 89 at worst; at Python's own 5 ms, for 54 and 333 (benchmarks/switching.py)."""


async def _until_told(work: Callable[..., Awaitable[None]]) -> None:
    share_arenas()
    sys.setswitchinterval(SWITCH_SECONDS)
    stop = Event()

    async def wait_for_signal() -> None:
        with open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
            async for _ in signals:
                stop.set()

    async with open_task_group() as tg:
        tg.start_soon(wait_for_signal)
        tg.start_soon(giving_back)
        await work(stop=stop)
        tg.cancel_scope.cancel()


_NO_BOT = Check(name="bot", ok=True, note="this page is served without the bot; `intern status` says whether one runs")


async def run_page(settings: Settings, serving: Serving, *, stop: Event) -> None:
    """Serve the page of a data folder, and do its jobs while no other process holds the folder.

    Where it hosts many communities and none is named, it is the list of these.
    """
    clock = SystemClock()
    async with await open_database(settings) as db, open_task_group() as tg:
        checks = HealthChecks(db, None, clock=clock, is_open=None, elsewhere=lambda: (_NO_BOT,))
        if settings.hosting.enabled and settings.community == DEFAULT_COMMUNITY:
            async with serving(Hosted(registered=CommunityStore(db).all, checks=checks, clock=clock)):
                await stop.wait()
            return
        stores = await run_sync(partial(Stores, settings, db, clock, holds=False))
        page = _Looking(
            stores=stores,
            answerer=_Asked(settings),
            posted=_posted(stores),
            overheard=Overheard(Sandbox(clock), clock=clock, drops=()),
            checkpoints=Checkpoints(StoredCheckpoints(), baseline=MessageId("0")),
            fill=Fill(),
            checks=checks,
            replay=partial(_replayed, settings),
            usage=None,
            breakers={},
        )
        async with serving(page):
            tg.start_soon(_do_jobs, settings, stores.jobs)
            await stop.wait()
        tg.cancel_scope.cancel()


class _Looking(Running):
    """A data folder that this process does not hold: another one may change it at any time."""

    async def renew(self) -> None:
        await run_sync(self.stores.renew)


class _Asked:
    """Answers as `intern ask` does, with what is known at the time of the question."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    async def answer(self, conversation: Conversation, context: RequestContext, *, addressed: bool = False) -> AIResult:
        async with open_intern(self._settings) as intern:
            return await intern.answer(conversation, context, addressed=addressed)


async def _replayed(settings: Settings, name: str) -> Sequence[Again]:
    async with open_intern(settings) as intern:
        return await intern.replay(name)


def _posted(stores: Stores) -> PostedAnswers:
    settings, knowledge = stores.settings, stores.knowledge
    library = library_of(
        settings, stores.archive, knowledge, search=None, embedder=None, clock=stores.clock, sources=stores.sources
    )
    return PostedAnswers(stores.cited, library, knowledge, emails=settings.kb.mask_emails)


async def _do_jobs(settings: Settings, jobs: Jobs) -> None:
    """Do jobs until cancelled. The folder is held only meanwhile, so that a bot can be started."""
    while True:
        with surviving("page"):
            if await jobs.count_waiting() and not (await run_sync(holder_of, settings.home))[1]:
                async with open_intern(settings) as intern:
                    await intern.do_jobs()
        await sleep(POLL_SECONDS)


class _LocalFiles:
    """Serves the files that people attach to messages of a Discord in memory, from this machine."""

    async def image(self, attachment: Attachment) -> NoReturn:
        raise UnusableFileError(f"{attachment.filename[:100]} is only a name here, or too large")

    async def fetch(self, attachment: Attachment, most: int) -> bytes:
        if attachment.url.startswith("file:///") and attachment.size <= most:
            with suppress(OSError):
                return await run_sync(Path(unquote(urlsplit(attachment.url).path)).read_bytes)
        return await self.image(attachment)


class _NoCommands:
    """Commands and buttons of a Discord in memory: it has none."""

    async def _never(self, *_: Any, **__: Any) -> None: ...

    defer = reply = follow_up = register = _never


@asynccontextmanager
async def open_sandbox(
    settings: Settings,
    sandbox: Sandbox,
    *,
    events: Events,
    clock: Clock | None = None,
    responses: Interactions | None = None,
    files: FileHost | None = None,
    models: OpenModels | None = None,
    beside: Beside | None = None,
) -> AsyncGenerator[None]:
    """Run the whole bot on a chat in memory; leaving the block finishes all work."""
    platform = Platform(sandbox, responses or _NoCommands(), files or _LocalFiles())
    put, stop = partial(parts_around, clock=clock or SystemClock(), models=models, beside=beside), Event()
    async with put(settings, platform, events=events) as parts, open_task_group() as tg:
        tg.start_soon(partial(run_pipeline, parts, stop=stop, drain=True))
        await sandbox.wait_ready()
        try:
            yield
        finally:
            stop.set()
