"""A writer in a folder of its own."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

from anyio import fail_after
from anyio.to_thread import run_sync

from intern.core.clock import Clock
from intern.models.prompt import Model, OfflineModel
from intern.search.embedder import Embedder
from intern.service.model_wrapping import wrap_models
from intern.service.models import Models, collect_offline_rules
from intern.service.stores import Stores
from intern.service.writer import Writer
from intern.settings.loading import load_settings
from intern.settings.settings import Settings
from intern.stores.database import Database
from intern.stores.engines.sqlite.database import SqliteDatabase
from intern.stores.files import FileLayer
from tests.worlds.clock import HandClock


def settings_in(folder: Path, **kb: object) -> Settings:
    return load_settings(environ={}, overrides={"data": {"dir": str(folder)}, "kb": kb})


def open_writer(
    settings: Settings,
    db: Database,
    model: Model,
    clock: Clock,
    files: FileLayer | None = None,
    *,
    embedder: Embedder | None = None,
) -> Writer:
    """Open a writer as commands do. Blocks."""
    stores = Stores(settings, db, clock, files)
    return Writer(stores, wrap_models(Models(model, model), stores)[1], embedder)


@asynccontextmanager
async def writer_in(
    settings: Settings, model: Model | None = None, clock: HandClock | None = None
) -> AsyncGenerator[Writer]:
    with fail_after(20):
        async with await SqliteDatabase.open(settings.paths.database) as db:
            yield await run_sync(
                open_writer, settings, db, model or OfflineModel(collect_offline_rules()), clock or HandClock()
            )
