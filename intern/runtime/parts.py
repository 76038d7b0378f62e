"""The bot, put together around a chat platform from the settings: its stores, models, actors and health."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, nullcontext
from datetime import timedelta
from functools import partial
from typing import Any, NamedTuple

from anyio.to_thread import run_sync

from intern.actors.activity import ASKED, ActivityReporter
from intern.actors.backfill import Backfill
from intern.actors.batcher import batcher
from intern.actors.captioner import Captioner
from intern.actors.capturer import capturer
from intern.actors.checkpointer import MessageSettler
from intern.actors.classifier import Classifier
from intern.actors.extractor import ExtractionWorker
from intern.actors.integrator import Integrator
from intern.actors.interaction_worker import InteractionWorker
from intern.actors.job_worker import job_worker
from intern.actors.listener import GatewayListener
from intern.actors.loops import exponential_backoff, surviving
from intern.actors.missed_changes import MissedChangesGateway
from intern.actors.pipeline import PipelineParts, Start
from intern.actors.poster import Poster, WaitingReplies
from intern.actors.responder import Responder
from intern.actors.reviewer import Reviewer
from intern.actors.sequencer import Sequencer
from intern.actors.upkeep import EMBEDS_EVERY, SHORTEST_WAIT, index_timer, indexer, refresh_pages, run_regularly
from intern.answering.answer_trace import list_steps
from intern.answering.answerer import Answerer, AttachmentAwareAnswerer
from intern.answering.interaction_handler import InteractionHandler
from intern.answering.model_cache import CachingModel, make_key_function
from intern.answering.posted_answers import AnswerRetractor, PostedAnswers
from intern.answering.replies import Decliner, ReplyBuilder
from intern.answering.triage import is_chatter
from intern.chat.batching import OpenBatches
from intern.chat.checkpoints import Checkpoints
from intern.chat.delivery import OutboxDelivery, RecallableReplies
from intern.chat.platform import ChatPlatform
from intern.chat.quota import QuestionQuota
from intern.chat.routing import BatchRouter, PrivateNotices, Requests
from intern.core.clock import Clock, Wakeup
from intern.core.flow import AnswerRequest, Batch
from intern.core.ids import RoleId, parse_position, position_at
from intern.learning.answered_threads import AnsweredThreadLearner, ThreadReader
from intern.learning.approvals import ApprovalQueue
from intern.learning.attached_files import FileReader
from intern.learning.captioning import AttachmentCaptioner
from intern.learning.message_changes import MessageChanges
from intern.learning.missed_changes import MissedChangeFinder
from intern.models.circuit_breaker import CircuitBreaker
from intern.models.endpoint import EndpointModel
from intern.models.usage import UsageCounter
from intern.runtime.channel_admission import ChannelAdmission, fetch_admitted_message
from intern.runtime.resources import FrontEndHooks, OpenModels, PlatformPorts, ProcessResources, open_process_resources
from intern.search.embedder import Embedder
from intern.search.embedding_endpoint import EndpointEmbedder
from intern.service import gateway_watch, health, metrics
from intern.service.calibration import describe_setup
from intern.service.indexing import list_ignored_paths, open_library
from intern.service.models import Models, SharedResources, answering_options, open_embedder, open_models
from intern.service.recordings import Recordings, ReplayedRecording
from intern.service.status_page import StatusPage
from intern.service.writer import Writer
from intern.settings.settings import Settings
from intern.sources.scanning import FileWatcher
from intern.stores.database import DEFAULT_COMMUNITY
from intern.stores.folder_lock import FolderLock
from intern.stores.tables.checkpoints import CheckpointStore, StoredCheckpoints
from intern.stores.tables.daily_counts import DailyCounts
from intern.stores.tables.feedback import FeedbackStore
from intern.stores.tables.members import GreetedMembers
from intern.stores.tables.questions import NOT_ASKED, QuestionStore
from intern.stores.tables.traces import TraceStore
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
    lock, _, shared, clock = host
    models = models or partial(open_models, shared=shared, party=community)
    async with (
        host.db.community_scope(community) as db,
        models(settings, UsageLog(db), clock) as opened,
        open_embedder(settings, db, clock, opened.usage, shared=shared, party=community) as embedder,
    ):
        await db.lock_community()
        if beside is not None:
            _register_counters(beside.counters, platform.chat, opened.usage, events, embedder)
        watch = health.ModelWatch(clock, _breakers(opened, embedder), beside and beside.counters)
        section = "llm" if settings.llm_kb is None else "llm.kb"
        learning = watch.wrap_model(opened.learning, work="learning", section=section)
        watched = opened._replace(answering=watch.wrap_model(opened.answering), learning=learning)
        opening = partial(Writer, embedder=embedder, templates=shared.templates, room=shared.room)
        writer = await run_sync(opening, settings, db, watched.learning, clock)
        await writer.stores.check_archive_owner()
        if settings.ai.repeat and isinstance(opened.answering, EndpointModel):  # rules are free
            # With the writer's own store, which reuses no reply after a failed drop.
            key_of = make_key_function(settings.llm, shared.templates(settings))
            watched = watched._replace(answering=CachingModel(watched.answering, writer.stores.replies, key_of))
        await writer.stores.jobs.reclaim()
        await writer.stores.pending.load()
        await writer.extraction.extractor.repair_search()
        # On a server without checkpoints, messages are read as far back as the operator wants.
        first = position_at(clock.now() - timedelta(seconds=settings.discord.first_lookback)).id
        marks = await CheckpointStore(db).load_or_create(platform.chat.guild_ids, first)
        audience = ChannelAdmission(platform.chat, settings.conversations)
        stores, gone, mask = writer.stores, writer.stores.knowledge.is_withdrawn, writer.extraction.answered.mask
        missed = MissedChangeFinder(
            stores.archive, platform.chat, is_withdrawn=gone, admits=audience.admits_id, mask=mask
        )
        here = [parse_position(marks.attended[guild_id]).time for guild_id in platform.chat.guild_ids]
        attended = min(here, default=clock.now())
        gateway = MissedChangesGateway(platform.chat, missed.check, attended=attended, clock=clock)
        drops = (stores.questions.drop, stores.recorder.drop, stores.judgements.note_deleted, stores.pending.drop)
        overheard = gateway_watch.GatewayWatch(gateway, clock=clock, drops=drops)
        checkpoints = Checkpoints(marks, baseline=first)
        room = _CompositionInputs(
            platform, overheard, audience, checkpoints, events, watched, writer, embedder, shared, jobs_came
        )
        around = await _build_parts(room)
        running = _build_bot_state(room, around, lock=lock, watch=watch)
        async with beside.serving(running) if beside else nullcontext():
            yield around[0]
        with surviving("projector"):
            await writer.stores.files.catch_up()


class _CompositionInputs(NamedTuple):
    platform: PlatformPorts
    overheard: gateway_watch.GatewayWatch
    audience: ChannelAdmission
    checkpoints: Checkpoints
    events: ActivityReporter
    models: Models
    writer: Writer
    embedder: Embedder | None
    shared: SharedResources
    jobs_came: Wakeup | None


_Replay = Callable[[str], Awaitable[Sequence[ReplayedRecording]]]
_Around = tuple[PipelineParts, PostedAnswers, AttachmentAwareAnswerer, WaitingReplies, health.CalibrationWatch, _Replay]


async def _build_parts(room: _CompositionInputs) -> _Around:
    platform, overheard, audience, checkpoints, events, models, writer, embedder, shared, jobs_came = room
    chat, stores, learning = platform.chat, writer.stores, writer.learning
    settings, discord, db, clock = stores.settings, stores.settings.discord, stores.db, stores.clock
    archive, knowledge, ledger = stores.archive, stores.knowledge, stores.posts
    options = settings.conversations
    chat.restore_roles(await stores.roles.read_recent())
    traces, counts, outgoing = TraceStore(db, clock=clock), DailyCounts(db, clock=clock), RecallableReplies()
    events.count = counts.add
    events.question = partial(_record_question, stores.questions)
    counted = await counts.read_day(clock.now().date())
    count_question = QuestionQuota(
        settings.discord.max_questions_per_user_per_hour,
        clock=clock,
        per_day=settings.hosting.questions_per_day,
        asked_today=sum(counted.get(each, 0) for each in ASKED),
    )
    wordings = shared.wordings(settings)
    handoff = settings.discord.handoff_role_id
    pending, attempts, indexing = stores.pending, stores.attempts, writer.indexing
    extraction, answered = writer.extraction, writer.extraction.answered
    await answered.open(ThreadReader(chat, audience.admits_id))
    late = MessageChanges(
        archive, admits=audience.admits_id, pending=pending, answered=answered.threads, done_with=ledger.is_done
    )
    settling = MessageSettler(checkpoints.settle, late.mark_settled)
    library = open_library(
        settings, archive, knowledge, search=stores.search, embedder=embedder, clock=clock, sources=stores.sources
    )
    answerer = Answerer(
        models.answering,
        library,
        answering_options(settings),
        models.nearest,
        stores.judgements,
        describe_setup(settings),
    )
    posts = OutboxDelivery(
        chat,
        ledger,
        chat,
        outgoing=outgoing,
        clock=clock,
        capabilities=chat.capabilities,
        admits=audience.admits_id,
        max_age=timedelta(seconds=settings.discord.max_question_age),
        late={language: wording.late for language, wording in wordings.items()},
        unposted={language: wording.unposted for language, wording in wordings.items()},
        retracted={language: wording.retracted for language, wording in wordings.items()},
    )
    # Rules cannot describe images, even if the setting is on.
    sees = settings.llm.images and settings.llm.kind == "endpoint"
    files = FileReader(
        *(platform.files, discord.read_files, discord.files_per_hour, discord.paste_hosts), digests=pending.digests
    )
    answers = AttachmentAwareAnswerer(
        stores.recorder.wrap_answerer(answerer, settings.llm.display_name), files, sees=sees
    )
    commands = InteractionHandler(
        answers=answers,
        history=chat,
        admits=audience.admits,
        outlet=chat,
        feedback=FeedbackStore(db, clock=clock),
        traces=traces,
        options=options,
        guild_ids=chat.guild_ids,
        wordings=wordings,
        count_question=count_question,
        count=events.report_private_answer,
        turned_away=events.report_private_decline,
        manage=platform.manage,
    )
    posted = PostedAnswers(stores.cited, library, knowledge, emails=settings.kb.mask_emails)
    captions = AttachmentCaptioner(
        *(models.learning, files, pending),
        sees=settings.kb_model.images and settings.kb_model.kind == "endpoint",
        mask=settings.kb.mask_secrets,
    )
    retractions = AnswerRetractor(stores.cited, posts.retract, traces, clock)
    calibration = health.CalibrationWatch(db, settings)
    check = partial(retractions.check_and_retract, posted.check) if settings.ai.retract else posted.check
    notes = PrivateNotices(chat, GreetedMembers(db, clock=clock))
    dispatcher = BatchRouter(
        chat,
        ledger,
        options,
        guild_ids=chat.guild_ids,
        admits=chat.admits,
        clock=clock,
        count_question=count_question,
        private=notes,
    )
    approvals, look_up = ApprovalQueue(clock=clock), partial(fetch_admitted_message, chat.look_up, audience.admits_id)
    scans, batch_wait = settings.kb.scan_interval_seconds, settings.discord.message_batch_wait_seconds
    poster = Poster(
        posts=posts,
        outgoing=outgoing,
        traces=traces,
        settle=settling.settle,
        events=events,
        # The asker's last messages have become a question by then, or never will.
        hold_seconds=batch_wait + 5,
    )
    patiently = partial(run_regularly, backoff=exponential_backoff)
    following = partial(patiently, interval_seconds=scans, shortest_wait=_TOGETHER)
    captures = partial(
        capturer, keep=learning.keep, known=captions.read_captions, pending=pending, settle=settling.settle_captured
    )
    fetches = partial(refresh_pages, indexing.refresh_pages, events)
    captioner = Captioner(pending=pending, captions=captions, keep=learning.keep, look_up=look_up, events=events)
    interactions = InteractionWorker(
        handle=commands.handle, teaches=late.record_capture, responses=platform.interactions
    )
    actors: dict[str, Start] = {
        "classifier": Classifier(
            archive=learning.read_pairs_after,
            after=stores.find_last_decided(),
            again=learning.find_next_due,
            choose=learning.choose_topic,
            attempts=attempts,
            events=events,
        ).run,
        "captioner": captioner.run,
        "integrator": Integrator(filer=learning, attempts=attempts, events=events).run,
        "indexer": partial(indexer, refresh=indexing.refresh, settle_seconds=settings.kb.settle_seconds, events=events),
        "extractor": ExtractionWorker(
            decisions=extraction.read_steps_after,
            after=await extraction.position(),
            again=extraction.find_next_due,
            extraction=extraction,
            attempts=attempts,
            events=events,
        ).run,
        "projector": partial(following, "projector", stores.files.catch_up, woken=stores.files.wait),
        "batcher": partial(batcher, open_batches=OpenBatches(batch_wait), settle=checkpoints.settle, clock=clock),
        "sequencer": Sequencer(
            dispatch=partial(_route_batch, dispatcher, answered),
            declines=Decliner(wordings, traces=traces, clock=clock),
            outgoing=outgoing,
            late=late,
            settle=settling.settle,
            capturing=settling.expect_capture,
            events=events,
        ).run,
        "capturer": partial(captures, events=events),
        "responder": Responder(
            answers=answers,
            replying=ReplyBuilder(wordings, options, handoff_role_id=RoleId(handoff) if handoff else None),
            outgoing=outgoing,
            done_with=ledger.is_done,
            typing=chat.typing,
            traces=traces,
            settle=settling.settle,
            events=events,
        ).run,
        "poster": poster.run,
        "interactions": interactions.run,
        "reviewer": Reviewer(approvals=approvals, reviews=learning, admits=audience.admits_id, events=events).run,
        "listener": GatewayListener(
            gateway=overheard, checkpoints=checkpoints, approvals=approvals, admits=chat.admits
        ).run,
        "backfill": Backfill(checkpoints=checkpoints, pages=chat).run,
        "index_timer": partial(index_timer, interval_seconds=scans),
        "fetcher": partial(run_regularly, "fetcher", fetches, interval_seconds=scans),
        "checker": partial(
            run_regularly, "checker", check, calibration.check, stores.recorder.trim, interval_seconds=scans
        ),
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
    if settings.discovery.scan_paths:
        actors["explorer"] = partial(
            run_regularly,
            "explorer",
            writer.discover,
            interval_seconds=settings.discovery.interval_seconds,
            woken=FileWatcher(settings.discovery, list_ignored_paths(settings)).wait,
            shortest_wait=SHORTEST_WAIT,
        )
    keep = partial(_store_progress, room, CheckpointStore(db), counts)
    parts = PipelineParts(
        actors=actors,
        checkpoints=checkpoints,
        keep_checkpoints=keep,
        count_jobs=stores.jobs.count_open,
        jobs_came=jobs_came,
        wait_for_database=db.wait_for_server_until,
    )
    return parts, posted, answers, poster.waiting, calibration, partial(_replay_recording, room, answerer)


async def _replay_recording(room: _CompositionInputs, answerer: Answerer, name: str) -> Sequence[ReplayedRecording]:
    stores = room.writer.stores
    recordings = Recordings(stores.db, stores.archive, stores.knowledge)
    learning, templates = room.models.learning, await run_sync(room.shared.templates, stores.settings)
    return await recordings.replay(name, answerer=answerer, learning=learning, templates=templates, offline=False)


_TOGETHER = 0.9  # seconds; several changes are written together


async def _store_progress(
    room: _CompositionInputs, marks: CheckpointStore, counts: DailyCounts, moved: StoredCheckpoints
) -> None:
    """Store each second the progress of channels, and the new counts, questions, usage and changes."""
    stores, usage = room.writer.stores, room.models.usage
    # Before the checkpoints: data from messages that are not read again must not be lost.
    await stores.roles.save(room.platform.chat.take_new_roles())
    if usage is not None:
        await usage.flush()
    await counts.store()
    await stores.questions.store()
    await stores.judgements.store()
    await marks.save(moved)
    await stores.recorder.store()


def _record_question(questions: QuestionStore, request: AnswerRequest, reason: str, debug: Mapping[str, Any]) -> None:
    """Store the words of a question, but not of chatter."""
    messages, steps, seconds = request.batch.messages, list_steps(debug), debug.get("seconds", 0.0)
    if reason == NOT_ASKED and (not request.called or is_chatter("\n".join(each.text for each in messages))):
        return
    tokens, cost = (sum(step.get(name, 0) for step in steps) for name in ("tokens", "cost"))
    # The wait of its author, including the pause that shows that the question is complete.
    seconds = max(seconds, (questions.clock.now() - messages[-1].at).total_seconds())
    questions.add(messages, reason, request.channel, seconds=seconds, tokens=tokens, cost=cost)


def _register_counters(
    to: metrics.Counters,
    chat: ChatPlatform,
    usage: UsageCounter | None,
    events: ActivityReporter,
    by: Embedder | None,
) -> None:
    """Register the sources of the counters."""
    events.tally = to
    if usage is not None:
        usage.counted = to.count_usage
    if isinstance(by, EndpointEmbedder):
        metrics.count_embeddings(to, by)
    chat.report_requests(partial(metrics.count_platform_request, to), to.count_reconnect)


def _build_bot_state(
    room: _CompositionInputs, around: _Around, *, lock: FolderLock, watch: health.ModelWatch
) -> StatusPage:
    """Collect the data for the page and for a monitoring system."""
    parts, posted, answers, waiting, calibration, replay = around
    db, clock = room.writer.stores.db, room.writer.stores.clock
    checks = health.HealthMonitor(
        db,
        lock,
        clock=clock,
        is_open=lambda: room.platform.chat.is_open,
        elsewhere=lambda: (
            health.posting_check(waiting.find_stuck(), clock),
            *watch.checks(),
            *health.connection_checks(room.platform.chat.advice),
            *health.vector_checks(room.writer.stores.search.engine),
            *calibration.checks(),
        ),
    )
    return StatusPage(
        stores=room.writer.stores,
        answerer=answers,
        posted=posted,
        overheard=room.overheard,
        checkpoints=parts.checkpoints,
        fill=parts.fill,
        checks=checks,
        replay=replay,
        embedder=room.embedder,
        usage=room.models.usage,
        breakers=_breakers(room.models, room.embedder),
    )


def _breakers(models: Models, embedder: Embedder | None) -> Mapping[str, CircuitBreaker]:
    own = {"embeddings": embedder.breaker} if isinstance(embedder, EndpointEmbedder) else {}
    return {**models.breakers, **own}


async def _route_batch(dispatcher: BatchRouter, answered: AnsweredThreadLearner, batch: Batch) -> Requests:
    """Decide the work for a batch; a thread that was read before is scheduled again because of it."""
    answered.receive(batch)
    return await dispatcher.route(batch)
