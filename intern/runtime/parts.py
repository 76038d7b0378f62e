"""The bot, put together around a chat platform from the settings: its stores, models, actors and health."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager, nullcontext
from functools import partial

from anyio.to_thread import run_sync

from intern.actors.activity import ActivityReporter
from intern.actors.loops import surviving
from intern.actors.pipeline import PipelineParts, StreamMonitor
from intern.chat.platform import ChatPlatform
from intern.core.clock import Clock, Wakeup
from intern.models.circuit_breaker import CircuitBreaker
from intern.models.usage import UsageCounter
from intern.runtime.answering_parts import AnsweringParts, build_answering_parts
from intern.runtime.chat_parts import ChatParts, ReadingProgress, build_chat_parts, open_reading
from intern.runtime.learning_parts import build_learning_parts
from intern.runtime.resources import FrontEndHooks, OpenModels, PlatformPorts, ProcessResources, open_process_resources
from intern.runtime.upkeep_parts import build_upkeep_parts
from intern.search.embedder import Embedder
from intern.search.embedding_endpoint import EndpointEmbedder
from intern.service import health, metrics
from intern.service.activity_recorder import ActivityRecorder
from intern.service.model_wrapping import wrap_models
from intern.service.models import Models, open_embedder, open_models
from intern.service.recordings import Recordings, ReplayedRecording
from intern.service.status_page import StatusPage
from intern.service.stores import Stores
from intern.service.writer import Writer
from intern.settings.settings import Settings
from intern.stores.database import DEFAULT_COMMUNITY
from intern.stores.tables.checkpoints import CheckpointStore, StoredCheckpoints
from intern.stores.tables.usage import UsageLog


@asynccontextmanager
async def open_bot_parts(
    settings: Settings,
    platform: PlatformPorts,
    *,
    events: ActivityReporter,
    clock: Clock,
    models: OpenModels | None = None,
    beside: FrontEndHooks | None = None,
) -> AsyncGenerator[PipelineParts]:
    """Put the bot of one community together around a chat platform; hold the data folder meanwhile."""
    async with (
        open_process_resources(settings, clock) as host,
        open_community_parts(
            host, DEFAULT_COMMUNITY, settings, platform, events=events, models=models, beside=beside
        ) as parts,
    ):
        yield parts


@asynccontextmanager
async def open_community_parts(
    host: ProcessResources,
    community: str,
    settings: Settings,
    platform: PlatformPorts,
    *,
    events: ActivityReporter,
    models: OpenModels | None = None,
    beside: FrontEndHooks | None = None,
    jobs_came: Wakeup | None = None,
) -> AsyncGenerator[PipelineParts]:
    """Put the bot of a community together: its stores, models and actors, with the shared resources of the process."""
    shared, clock, counters = host.shared, host.clock, beside.counters if beside else metrics.Counters()
    models = models or partial(open_models, shared=shared, party=community)
    async with host.db.community_scope(community) as db:
        usage = UsageCounter(UsageLog(db), clock=clock, counted=counters.count_usage)
        ended = partial(metrics.count_embedding, counters)
        async with (
            models(settings, usage, clock) as opened,
            open_embedder(settings, db, clock, opened.usage, shared=shared, party=community, ended=ended) as embedder,
        ):
            await db.lock_community()
            stores = await run_sync(partial(Stores, templates=shared.templates, room=shared.room), settings, db, clock)
            await stores.check_archive_owner()
            watch = health.ModelWatch(clock, _collect_breakers(opened, embedder), counters)
            wrapped, writing = wrap_models(opened, stores, watch=watch, cached=shared.templates)
            writer = await run_sync(Writer, stores, writing, embedder)
            with events.subscribe(ActivityRecorder(stores.counts), counters):
                parts, page = await _build_parts(
                    host, platform, writer, wrapped, embedder=embedder, watch=watch, events=events, jobs_came=jobs_came
                )
                async with beside.serving(page) if beside else nullcontext():
                    yield parts
            with surviving("projector"):
                await stores.files.catch_up()


async def _build_parts(
    host: ProcessResources,
    platform: PlatformPorts,
    writer: Writer,
    models: Models,
    *,
    embedder: Embedder | None,
    watch: health.ModelWatch,
    events: ActivityReporter,
    jobs_came: Wakeup | None,
) -> tuple[PipelineParts, StatusPage]:
    """Finish the work of an earlier run, and build the parts of the pipeline and the page of their state."""
    stores = writer.stores
    await stores.jobs.reclaim()
    await stores.pending.load()
    await writer.extraction.extractor.repair_search()
    reading = await open_reading(platform.chat, writer)
    wordings, calibration = host.shared.wordings(stores.settings), health.CalibrationWatch(stores.db, stores.settings)
    chat = build_chat_parts(platform.chat, reading, writer, wordings=wordings, events=events)
    answering = build_answering_parts(
        platform, reading, chat, stores, models, embedder=embedder, wordings=wordings, events=events
    )
    learning = await build_learning_parts(
        platform.chat, reading, writer, models.learning, files=answering.files, approvals=chat.approvals, events=events
    )
    checks = (answering.check_posted, calibration.check, stores.recorder.trim)
    upkeep = build_upkeep_parts(writer, checks=checks, events=events, jobs_came=jobs_came)
    parts = PipelineParts(
        actors={**chat.actors, **answering.actors, **learning, **upkeep},
        checkpoints=reading.checkpoints,
        keep_checkpoints=partial(_store_progress, platform.chat, stores, models.usage),
        count_jobs=stores.jobs.count_open,
        jobs_came=jobs_came,
        wait_for_database=stores.db.wait_for_server_until,
    )
    page = build_observing_parts(
        host,
        platform.chat,
        stores,
        models,
        embedder,
        reading=reading,
        chat=chat,
        answering=answering,
        watch=watch,
        calibration=calibration,
        fill=parts.fill,
    )
    return parts, page


def _collect_breakers(models: Models, embedder: Embedder | None) -> Mapping[str, CircuitBreaker]:
    """Return the circuit breakers of all endpoints, by the table of the settings."""
    own = {"embeddings": embedder.breaker} if isinstance(embedder, EndpointEmbedder) else {}
    return {**models.breakers, **own}


def build_observing_parts(
    host: ProcessResources,
    platform: ChatPlatform,
    stores: Stores,
    models: Models,
    embedder: Embedder | None,
    *,
    reading: ReadingProgress,
    chat: ChatParts,
    answering: AnsweringParts,
    watch: health.ModelWatch,
    calibration: health.CalibrationWatch,
    fill: StreamMonitor,
) -> StatusPage:
    """Collect the data for the page and for a monitoring system."""
    checks = health.HealthMonitor(
        stores.db,
        host.lock,
        clock=stores.clock,
        is_open=lambda: platform.is_open,
        elsewhere=lambda: (
            health.posting_check(chat.waiting.find_stuck(), stores.clock),
            *watch.checks(),
            *health.connection_checks(platform.advice),
            *health.vector_checks(stores.search.engine),
            *calibration.checks(),
        ),
    )

    async def replay(name: str) -> Sequence[ReplayedRecording]:
        templates = await run_sync(host.shared.templates, stores.settings)
        return await Recordings(stores.db, stores.archive, stores.knowledge).replay(
            name, answerer=answering.answerer, learning=models.learning, templates=templates, offline=False
        )

    return StatusPage(
        stores=stores,
        answerer=answering.answers,
        posted=answering.posted,
        overheard=chat.watch,
        checkpoints=reading.checkpoints,
        fill=fill,
        checks=checks,
        replay=replay,
        embedder=embedder,
        usage=models.usage,
        breakers=_collect_breakers(models, embedder),
    )


async def _store_progress(
    chat: ChatPlatform, stores: Stores, usage: UsageCounter | None, moved: StoredCheckpoints
) -> None:
    """Store each second the progress of channels, and the new counts, questions, usage and changes."""
    # Before the checkpoints: data from messages that are not read again must not be lost.
    await stores.roles.save(chat.take_new_roles())
    if usage is not None:
        await usage.flush()
    await stores.counts.store()
    await stores.answers.store()
    await CheckpointStore(stores.db).save(moved)
    await stores.recorder.store()
