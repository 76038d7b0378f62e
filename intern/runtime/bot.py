"""The bot on Discord until a signal ends it; the bot on a chat in memory, for `intern try` and tests."""

from __future__ import annotations

import signal
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, NoReturn

import anyio
from anyio import Event, create_task_group, open_signal_receiver

from intern.actors.events import Events
from intern.actors.pipeline import Parts, run_pipeline
from intern.chat.platform import Interactions
from intern.core.clock import Clock, SystemClock
from intern.core.errors import UnusableImageError
from intern.core.memory import giving_back, set_aside
from intern.core.messages import Attachment
from intern.learning.archiving import Images
from intern.platforms.discord.attachments import AttachedImages
from intern.platforms.memory import Sandbox
from intern.runtime.parts import Beside, OpenModels, Platform, parts_around
from intern.service.models import open_models
from intern.settings.loading import Settings

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
        AttachedImages() as images,
    ):
        commands = HikariCommands(hikari, hikari.guild_ids, ready=hikari.wait_ready)
        platform = Platform(hikari, commands, images)
        async with parts_around(settings, platform, events=events, clock=clock, beside=beside) as parts:
            yield parts


def run(settings: Settings, beside: Beside | None = None) -> None:
    """`intern run`: until SIGINT or SIGTERM. Raises ConfigError, KnowledgeError or ChatError, maybe in a group."""
    anyio.run(_until_told, settings, beside)


async def _until_told(settings: Settings, beside: Beside | None) -> None:
    stop = Event()

    async def wait_for_signal() -> None:
        with open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
            async for _ in signals:
                stop.set()

    async with create_task_group() as tg:
        tg.start_soon(wait_for_signal)
        tg.start_soon(giving_back)
        await run_on_discord(settings, stop=stop, beside=beside)
        tg.cancel_scope.cancel()


class _NoImages:
    """What a Discord in memory serves of the files that people name there."""

    async def image(self, attachment: Attachment) -> NoReturn:
        raise UnusableImageError(f"{attachment.filename[:100]} is only a name here")


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
    images: Images | None = None,
    models: OpenModels = open_models,
) -> AsyncGenerator[None]:
    """Run the whole bot on a chat in memory; leaving the block finishes all work."""
    platform = Platform(sandbox, responses or _NoCommands(), images or _NoImages())
    stop = Event()
    async with (
        parts_around(settings, platform, events=events, clock=clock or SystemClock(), models=models) as parts,
        create_task_group() as tg,
    ):
        tg.start_soon(partial(run_pipeline, parts, stop=stop, drain=True))
        await sandbox.wait_ready()
        try:
            yield
        finally:
            stop.set()
