"""Resources that the parts of a bot share: the platform, the process, the hooks of front ends."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from typing import NamedTuple

from intern.answering.interaction_handler import Manage
from intern.chat.platform import ChatPlatform, Interactions, RequestReports
from intern.core.captures import build_types
from intern.core.clock import Clock
from intern.learning.attached_files import FileHost
from intern.models.usage import UsageCounter
from intern.service import metrics
from intern.service.databases import open_database
from intern.service.hosting_state import HostingState
from intern.service.models import Models, SharedResources
from intern.service.status_page import StatusPage
from intern.settings.settings import Settings
from intern.stores.database import Database
from intern.stores.folder_lock import FolderLock


class PlatformPorts(NamedTuple):
    """A chat platform with its additional parts."""

    chat: ChatPlatform
    interactions: Interactions
    files: FileHost
    manage: Manage | None = None
    """Carries out `/intern setup` and `/intern status`, on platforms that have these."""


OpenModels = Callable[[Settings, UsageCounter, Clock], AbstractAsyncContextManager[Models]]

Serving = Callable[[StatusPage | HostingState], AbstractAsyncContextManager[object]]
"""Serves the page until the block is left."""


class FrontEndHooks(NamedTuple):
    """The hooks of a front end beside the bot, such as the status page."""

    counters: metrics.Counters
    serving: Serving
    """Entered while the bot is running, and left after it has stopped."""

    @property
    def reports(self) -> RequestReports:
        """Counts the requests of the platform."""
        return RequestReports(partial(metrics.count_platform_request, self.counters), self.counters.count_reconnect)


class ProcessResources(NamedTuple):
    """The resources that a process opens once, for all of its communities."""

    lock: FolderLock
    db: Database
    shared: SharedResources
    clock: Clock


@asynccontextmanager
async def open_process_resources(settings: Settings, clock: Clock) -> AsyncGenerator[ProcessResources]:
    """Hold the data folder, and open the shared resources of communities there."""
    build_types()
    with FolderLock(settings.data.dir) as lock:
        async with await open_database(settings) as db, SharedResources(settings.search.megabytes) as shared:
            yield ProcessResources(lock, db, shared, clock)
