"""Those who learn, at work in a folder without Discord: capturer, classifier, integrator, indexer and clerk.

Real actors over real streams and a real folder; only what they hear is told by hand.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial

from anyio import create_task_group
from anyio.streams.memory import MemoryObjectSendStream
from anyio.to_thread import run_sync

from intern.actors.capturer import capturer
from intern.actors.classifier import classifier
from intern.actors.events import Witness
from intern.actors.extractor import extractor
from intern.actors.indexer import indexer
from intern.actors.integrator import integrator
from intern.actors.job_worker import clerk, do_all
from intern.actors.pipeline import ARCHIVED, CAPTURES, CHANGES, DECIDED, FILINGS, PENDING, WITHDRAWALS
from intern.actors.wakeups import nudge
from intern.core.clock import Clock, SystemClock
from intern.core.flow import Archived, CaptureRequest, Decided, SourceChanged, Withdrawal
from intern.core.ids import ChannelId, MessageId
from intern.models.prompt import Model
from intern.service.workshop import Workshop
from intern.settings.loading import Settings
from intern.stores.files import FileLayer, FolderLock
from intern.stores.sqlite.database import Database

Nudges = MemoryObjectSendStream


@dataclass(frozen=True)
class Learners:
    """Where they are told what happens on Discord, and what they work on."""

    workshop: Workshop
    captures: MemoryObjectSendStream[CaptureRequest]
    withdrawals: MemoryObjectSendStream[Withdrawal]


class NoPictures:
    """Nobody writes with images here."""

    async def known(self, request: CaptureRequest, /) -> Mapping[MessageId, Sequence[str]]:
        assert not any(message.attachments for message in request.messages)
        return {}


class Settled:
    """Tells of each batch that is settled."""

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
    witness: Witness | None = None,
    clock: Clock | None = None,
    files: FileLayer | None = None,
) -> AsyncGenerator[Learners]:
    """At work until the block ends; then all that was told and asked for is done to its end."""
    witness = witness or Witness()
    with FolderLock(settings.data.dir):
        async with await Database.open(settings.paths.database) as db:
            workshop = await run_sync(Workshop, settings, db, model, clock or SystemClock(), files)
            await workshop.jobs.reclaim()
            captures, to_capture = CAPTURES.open()
            withdrawals, to_withdraw = WITHDRAWALS.open()
            archived, to_classify = ARCHIVED.open()
            filings, to_file = FILINGS.open()
            changed, to_index = CHANGES.open()
            decided, to_extract = DECIDED.open()
            waiting, never_read = PENDING.open()  # there are no images
            never_read.close()
            await workshop.pending.load()

            async def commanded(
                archived: Nudges[Archived], decided: Nudges[Decided], changed: Nudges[SourceChanged]
            ) -> None:
                def look() -> None:
                    nudge(archived, Archived())
                    nudge(decided, Decided())
                    nudge(changed, SourceChanged())

                async with archived, decided, changed:
                    await clerk(workshop.jobs, do=lambda job: workshop.do(job, look))

            async with create_task_group() as followers:
                start = followers.start_soon
                start(
                    partial(
                        capturer,
                        to_capture,
                        archived,
                        waiting,
                        keeper=workshop,
                        pictures=NoPictures(),
                        pending=workshop.pending,
                        settles=Settled(settled),
                        witness=witness,
                    )
                )
                start(
                    partial(
                        classifier,
                        workshop,
                        to_classify,
                        filings,
                        after=workshop.archived_until(),
                        again=workshop,
                        chooser=workshop,
                        attempts=workshop.attempts,
                        witness=witness,
                    )
                )
                start(
                    partial(
                        integrator,
                        to_file,
                        to_withdraw,
                        changed,
                        decided,
                        filer=workshop,
                        attempts=workshop.attempts,
                        witness=witness,
                    )
                )
                start(
                    partial(
                        extractor,
                        workshop.extraction,
                        to_extract,
                        after=await workshop.extraction.position(),
                        extraction=workshop.extraction,
                        again=workshop.extraction,
                        attempts=workshop.attempts,
                        witness=witness,
                    )
                )
                start(
                    partial(
                        indexer,
                        to_index,
                        indices=workshop,
                        settle_seconds=settings.kb.settle_seconds,
                        witness=witness,
                    )
                )
                async with create_task_group() as takers, captures, withdrawals:
                    takers.start_soon(commanded, archived.clone(), decided.clone(), changed.clone())
                    yield Learners(workshop, captures, withdrawals)
                    takers.cancel_scope.cancel()
            await workshop.jobs.reclaim()
            await do_all(workshop.jobs, workshop.do)
            await workshop.refresh()
