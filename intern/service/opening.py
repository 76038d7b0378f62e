"""The application of a data folder, opened and closed."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager

from anyio.to_thread import run_sync

from intern.core.captures import build_types
from intern.core.clock import Clock, SystemClock
from intern.core.errors import KnowledgeError
from intern.core.log import get_logger
from intern.models.usage import UsageCounter
from intern.service.databases import open_database
from intern.service.intern import Intern
from intern.service.models import Models, open_embedder, open_models
from intern.settings.settings import Settings
from intern.stores.database import Database
from intern.stores.tables.request_forms import RequestFormStore
from intern.stores.tables.usage import UsageLog

_log = get_logger(__name__)


@asynccontextmanager
async def open_intern(
    settings: Settings, *, clock: Clock | None = None, models: Models | None = None
) -> AsyncGenerator[Intern]:
    """Open a data folder. Raises ConfigError if the settings cannot work, KnowledgeError if the disk fails.

    A read-only folder can still answer questions, but the cost of models is not stored then. `models` replace those of
    the settings.
    """
    build_types()
    clock = clock or SystemClock()
    async with AsyncExitStack() as stack:
        db: Database | KnowledgeError
        try:
            db = await stack.enter_async_context(await open_database(settings))
        except KnowledgeError as error:
            _log.warning("database_not_opened", reason=str(error))
            db = error
        usage, forms = None, None
        if not isinstance(db, KnowledgeError):
            usage, forms = UsageCounter(UsageLog(db), clock=clock), RequestFormStore(db)
        if models is None:
            models = await stack.enter_async_context(open_models(settings, usage, clock, forms=forms))
        vectors = open_embedder(settings, None if isinstance(db, KnowledgeError) else db, clock, models.usage)
        embedder = await stack.enter_async_context(vectors)
        intern = await run_sync(Intern, settings, db, models, clock, embedder)
        stack.callback(intern.close)
        yield intern
