"""The learning actors in a folder without Discord: capturer, classifier, integrator, indexer and clerk.

Real actors over real streams and a real folder; only their events come from the test.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial

from anyio import create_task_group
from anyio.streams.memory import MemoryObjectSendStream
from anyio.to_thread import run_sync

from intern.actors.activity import ActivityReporter
from intern.actors.capturer import capturer
from intern.actors.classifier import Classifier
from intern.actors.extractor import ExtractionWorker
from intern.actors.integrator import Integrator
from intern.actors.job_worker import do_all_jobs, job_worker
from intern.actors.pipeline import ARCHIVED, CAPTURES, CHANGES, DECIDED, FILINGS, PENDING, WITHDRAWALS
from intern.actors.upkeep import indexer
from intern.core.clock import Clock, SystemClock
from intern.core.flow import CaptureRequest, MessageWithdrawal
from intern.core.ids import ChannelId, MessageId
from intern.models.prompt import Model
from intern.service.databases import open_database
from intern.service.text_files import TextFiles
from intern.service.writer import Writer
from intern.settings.settings import Settings
from intern.stores.files import FileLayer
from intern.stores.folder_lock import FolderLock
from intern.stores.tables.pending_captures import AttachmentTexts
from tests.service.writers import open_writer

Nudges = MemoryObjectSendStream


@dataclass(frozen=True)
class Learners:
    """The events that the actors receive, and their stores."""

    writer: Writer
    captures: MemoryObjectSendStream[CaptureRequest]
    withdrawals: MemoryObjectSendStream[MessageWithdrawal]


class NoPictures:
    """Finds no images."""

    async def known(self, request: CaptureRequest, /) -> AttachmentTexts:
        assert not any(message.attachments for message in request.messages)
        return {}


class Settled:
    """Reports each settled batch."""

    def __init__(self, tell: Callable[[Sequence[MessageId]], None]) -> None:
        self._tell = tell

    def settle(self, channel_id: ChannelId, message_ids: Sequence[MessageId], /) -> None:
        self._tell(message_ids)


@asynccontextmanager
async def learners(
    settings: Settings,
    model: Model,
    *,
    settled: Callable[[Sequence[MessageId]], None] = lambda _: None,
    events: ActivityReporter | None = None,
    clock: Clock | None = None,
    files: FileLayer | None = None,
) -> AsyncGenerator[Learners]:
    """Run the actors until the block ends; then finish all their work."""
    events = events or ActivityReporter()
    with FolderLock(settings.data.dir):
        async with await open_database(settings) as db:
            await db.lock_community()
            writer = await run_sync(open_writer, settings, db, model, clock or SystemClock(), files)
            await writer.stores.jobs.reclaim()
            captures, to_capture = CAPTURES.open()
            withdrawals, to_withdraw = WITHDRAWALS.open()
            archived, to_classify = ARCHIVED.open()
            filings, to_file = FILINGS.open()
            changed, to_index = CHANGES.open()
            decided, to_extract = DECIDED.open()
            waiting, never_read = PENDING.open()  # there are no images
            never_read.close()
            await writer.stores.pending.load()

            async with create_task_group() as followers:
                start = followers.start_soon
                start(
                    partial(
                        capturer,
                        to_capture,
                        archived,
                        waiting,
                        keep=writer.learning.keep,
                        known=NoPictures().known,
                        pending=writer.stores.pending,
                        settle=Settled(settled).settle,
                        events=events,
                    )
                )
                start(
                    Classifier(
                        archive=writer.learning.read_pairs_after,
                        after=writer.stores.find_last_decided(),
                        again=writer.learning.find_next_due,
                        choose=writer.learning.choose_topic,
                        attempts=writer.stores.attempts,
                        events=events,
                    ).run,
                    to_classify,
                    filings,
                )
                start(
                    Integrator(filer=writer.learning, attempts=writer.stores.attempts, events=events).run,
                    to_file,
                    to_withdraw,
                    changed,
                    decided,
                )
                start(
                    ExtractionWorker(
                        decisions=writer.extraction.read_steps_after,
                        after=await writer.extraction.position(),
                        extraction=writer.extraction,
                        again=writer.extraction.find_next_due,
                        attempts=writer.stores.attempts,
                        events=events,
                    ).run,
                    to_extract,
                )
                start(
                    partial(
                        indexer,
                        to_index,
                        refresh=writer.indexing.refresh,
                        settle_seconds=settings.kb.settle_seconds,
                        events=events,
                    )
                )
                async with create_task_group() as takers, captures, withdrawals:
                    takers.start_soon(_project, writer.stores.files)
                    commanded = partial(job_worker, jobs=writer.stores.jobs, handlers=writer.handlers)
                    takers.start_soon(commanded, archived.clone(), decided.clone(), changed.clone())
                    yield Learners(writer, captures, withdrawals)
                    takers.cancel_scope.cancel()
            await writer.stores.jobs.reclaim()
            await do_all_jobs(writer.stores.jobs, writer.handlers)
            await writer.indexing.refresh()
            await writer.stores.files.catch_up()


async def _project(files: TextFiles) -> None:
    while True:
        await files.catch_up()
        await files.wait()
