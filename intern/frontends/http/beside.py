"""The status page and the counters, for the bot to run beside itself."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from functools import partial

from anyio.to_thread import run_sync

from intern import __version__
from intern.frontends.http.metrics import Metrics
from intern.frontends.http.server import serving
from intern.runtime.parts import Beside
from intern.service.monitoring import CALLED, Standing
from intern.service.running import Running
from intern.service.settings import Settings


def metrics_of(settings: Settings) -> Metrics:
    """The counters of a bot with these settings."""
    return Metrics(prompts=CALLED, version=__version__, currency=settings.llm.currency)


def page_beside(settings: Settings) -> Beside | None:
    """The page that the settings ask for; None where it is off."""
    if not settings.page.enabled:
        return None
    metrics = metrics_of(settings)

    @asynccontextmanager
    async def served(running: Running, standing: Standing) -> AsyncGenerator[None]:
        async with serving(settings.page, running, now=standing.clock.now, metrics=partial(text_of, metrics, standing)):
            yield

    return Beside(metrics, served)


async def text_of(metrics: Metrics, standing: Standing) -> tuple[bytes, str]:
    """All that a monitoring system reads, and its content type."""
    return await run_sync(metrics.text, await standing.gauges())
