"""The actors that keep indices, files, vectors and checks up to date, and do the jobs of commands."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from functools import partial

from intern.actors.activity import ActivityReporter
from intern.actors.job_worker import job_worker
from intern.actors.loops import exponential_backoff
from intern.actors.pipeline import Start
from intern.actors.upkeep import EMBEDS_EVERY, SHORTEST_WAIT, index_timer, indexer, refresh_pages, run_regularly
from intern.core.clock import Wakeup
from intern.service.indexing import list_ignored_paths
from intern.service.writer import Writer
from intern.sources.scanning import FileWatcher

_TOGETHER = 0.9  # seconds; several changes are written together


def build_upkeep_parts(
    writer: Writer,
    *,
    checks: tuple[Callable[[], Awaitable[object]], ...],
    events: ActivityReporter,
    jobs_came: Wakeup | None,
) -> Mapping[str, Start]:
    """Build the actors of upkeep. `checks` are done at each scan; `jobs_came` is that of the job worker."""
    stores, indexing, discovery = writer.stores, writer.indexing, writer.stores.settings.discovery
    scans = stores.settings.kb.scan_interval_seconds
    patiently = partial(run_regularly, backoff=exponential_backoff)
    following = partial(patiently, interval_seconds=scans, shortest_wait=_TOGETHER)
    fetches = partial(refresh_pages, indexing.refresh_pages, events)
    settle_seconds = stores.settings.kb.settle_seconds
    actors: dict[str, Start] = {
        "indexer": partial(indexer, refresh=indexing.refresh, settle_seconds=settle_seconds, events=events),
        "index_timer": partial(index_timer, interval_seconds=scans),
        "fetcher": partial(run_regularly, "fetcher", fetches, interval_seconds=scans),
        "checker": partial(run_regularly, "checker", *checks, interval_seconds=scans),
        "projector": partial(following, "projector", stores.files.catch_up, woken=stores.files.wait),
        "job_worker": partial(job_worker, jobs=stores.jobs, handlers=writer.handlers, came=jobs_came),
    }
    if embedding := indexing.embedding:
        actors["embedder"] = partial(
            patiently,
            "embedder",
            indexing.make_vectors_after_words,
            interval_seconds=EMBEDS_EVERY,
            woken=embedding.wait,
        )
    if engine := stores.search.engine:
        actors["vector_copier"] = partial(following, "vector_copier", engine.catch_up, woken=engine.wait)
    if discovery.scan_paths:
        actors["explorer"] = partial(
            run_regularly,
            "explorer",
            writer.discover,
            interval_seconds=discovery.interval_seconds,
            woken=FileWatcher(discovery, list_ignored_paths(stores.settings)).wait,
            shortest_wait=SHORTEST_WAIT,
        )
    return actors
