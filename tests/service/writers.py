"""A writer in a folder of its own."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

from anyio import fail_after
from anyio.to_thread import run_sync

from intern.models.prompt import Model, OfflineModel
from intern.service.models import collect_offline_rules
from intern.service.writer import Writer
from intern.settings.loading import load_settings
from intern.settings.settings import Settings
from intern.stores.engines.sqlite.database import SqliteDatabase
from tests.worlds.clock import HandClock


def settings_in(folder: Path, **kb: object) -> Settings:
    return load_settings(environ={}, overrides={"data": {"dir": str(folder)}, "kb": kb})


@asynccontextmanager
async def writer_in(
    settings: Settings, model: Model | None = None, clock: HandClock | None = None
) -> AsyncGenerator[Writer]:
    with fail_after(20):
        async with await SqliteDatabase.open(settings.paths.database) as db:
            yield await run_sync(
                Writer, settings, db, model or OfflineModel(collect_offline_rules()), clock or HandClock()
            )
