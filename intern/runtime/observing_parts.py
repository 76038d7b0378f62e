"""The parts that observe a bot: its health, and the page of its state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from anyio.to_thread import run_sync

from intern.actors.pipeline import StreamMonitor
from intern.chat.platform import ChatPlatform
from intern.models.circuit_breaker import CircuitBreaker
from intern.runtime.answering_parts import AnsweringParts
from intern.runtime.chat_parts import ChatParts, ReadingProgress
from intern.runtime.resources import ProcessResources
from intern.search.embedder import Embedder
from intern.search.embedding_endpoint import EndpointEmbedder
from intern.service import health
from intern.service.models import Models
from intern.service.recordings import Recordings, ReplayedRecording
from intern.service.status_page import StatusPage
from intern.service.stores import Stores


def collect_breakers(models: Models, embedder: Embedder | None) -> Mapping[str, CircuitBreaker]:
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
        breakers=collect_breakers(models, embedder),
    )
