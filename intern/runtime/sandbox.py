"""The bot on a chat in memory, for `intern try`, evaluations and tests."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from functools import partial
from typing import NoReturn

from anyio import Event, create_task_group

from intern.actors.events import Events
from intern.actors.pipeline import run_pipeline
from intern.chat.platform import Interactions
from intern.core.clock import Clock, SystemClock
from intern.core.errors import UnusableImageError
from intern.core.messages import Attachment
from intern.learning.captioning import Images
from intern.platforms.memory.chat import Sandbox
from intern.platforms.memory.commands import SandboxCommands
from intern.runtime.parts import OpenModels, Platform, parts_around
from intern.service.models import open_models
from intern.settings.loading import Settings

__all__ = ["Events", "Sandbox", "open_sandbox"]


class _NoImages:
    """What a Discord in memory serves of the files that people name there."""

    async def image(self, attachment: Attachment) -> NoReturn:
        raise UnusableImageError(f"{attachment.filename[:100]} is only a name here")


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
    platform = Platform(sandbox, responses or SandboxCommands(), images or _NoImages())
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
