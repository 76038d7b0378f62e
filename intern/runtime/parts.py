"""The bot, put together around a chat platform from the settings: its stores, models, actors and health."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from datetime import timedelta
from functools import partial
from typing import Any, NamedTuple

from anyio.to_thread import run_sync

from intern.actors.backfill import Backfill, Rereading
from intern.actors.capturer import Captioner, LookUp, capturer
from intern.actors.checkpointer import Settling
from intern.actors.events import ASKED, Events
from intern.actors.extractor import Extractor
from intern.actors.filing import Classifier, Integrator
from intern.actors.interactions import InteractionWorker, Reviewer
from intern.actors.job_worker import job_worker
from intern.actors.listener import Listener, batcher
from intern.actors.loops import exponential_backoff, surviving
from intern.actors.pipeline import Parts, Start
from intern.actors.poster import Poster, Waiting
from intern.actors.responder import Responder
from intern.actors.router import Requests, Router
from intern.actors.upkeep import EMBEDS_EVERY, SHORTEST_WAIT, fetch, indexer, regularly, scout
from intern.answering.offline import is_chatter
from intern.answering.posted_answers import PostedAnswers, Retractions
from intern.answering.replying import Declining, Replying
from intern.answering.slash_commands import Commands, Manage
from intern.answering.workflow import Answerer, Seeing
from intern.answering.working import RepeatingModel, request_key, steps_of
from intern.chat.batching import Batches
from intern.chat.checkpoints import Checkpoints
from intern.chat.dispatching import Allowance, Dispatcher, PrivateNotes
from intern.chat.options import ConversationOptions
from intern.chat.outbox import Outgoing, Posting
from intern.chat.platform import ChatPlatform, Interactions
from intern.core.clock import Clock, Wakeup
from intern.core.errors import ChatRefusedError
from intern.core.flow import AnswerRequest, Batch
from intern.core.ids import ChannelId, MessageId, RoleId, position_at, position_of
from intern.core.messages import Channel, ChatMessage
from intern.core.records import build_types
from intern.learning.answered_threads import Answered, ThreadReader
from intern.learning.archiving import Captioning
from intern.learning.attached_files import FileHost, FileReader
from intern.learning.message_changes import MessageChanges, MissedChanges
from intern.learning.review import Approvals
from intern.models.endpoint import EndpointModel
from intern.models.limits import Breaker
from intern.models.usage import Usage
from intern.search.embedding_endpoint import EndpointEmbedder
from intern.search.finding import Embedder
from intern.service import monitoring
from intern.service.calibration import setup_of
from intern.service.databases import open_database
from intern.service.hosted import Hosted
from intern.service.models import Models, Shared, answering_options, open_embedder, open_models
from intern.service.replaying import Again, Recordings
from intern.service.running import Running
from intern.service.searching import library_of, never_discovered
from intern.service.writer import Writer
from intern.settings.loading import Settings
from intern.sources.scanning import Changes
from intern.stores.database import DEFAULT_COMMUNITY, Database
from intern.stores.files import FolderLock
from intern.stores.sqlite.chat import CheckpointStore, Greeted, StoredCheckpoints
from intern.stores.sqlite.questions import NOT_ASKED, Questions
from intern.stores.sqlite.traces import Counts, FeedbackStore, TraceStore
from intern.stores.sqlite.usage import UsageLog


class Platform(NamedTuple):
    """A chat platform with what goes beside it."""

    chat: ChatPlatform
    interactions: Interactions
    files: FileHost
    manage: Manage | None = None
    """Carries out `/intern setup` and `/intern status`, where servers have these."""


OpenModels = Callable[[Settings, UsageLog, Clock], AbstractAsyncContextManager[Models]]


Serving = Callable[[Running | Hosted], AbstractAsyncContextManager[object]]
"""Serves the page until the block is left."""


class Beside(NamedTuple):
    """What a front end runs beside the bot, such as the status page."""

    counters: monitoring.Counters
    serving: Serving
    """Is entered for as long as the bot is at work and until it has left."""


class Host(NamedTuple):
    """What a process opens once, for all of its communities."""

    lock: FolderLock
    db: Database
    shared: Shared
    clock: Clock


@asynccontextmanager
async def open_host(settings: Settings, clock: Clock) -> AsyncGenerator[Host]:
    """Hold the data folder, and open what communities share there."""
    build_types()
    with FolderLock(settings.data.dir) as lock:
        async with await open_database(settings) as db, Shared(settings.search.megabytes) as shared:
            yield Host(lock, db, shared, clock)


@asynccontextmanager
async def parts_around(
    settings: Settings,
    platform: Platform,
    *,
    events: Events,
    clock: Clock,
    models: OpenModels | None = None,
    beside: Beside | None = None,
) -> AsyncGenerator[Parts]:
    """Put the bot of one community together around a chat platform; hold the data folder meanwhile."""
    async with (
        open_host(settings, clock) as host,
        parts_of(host, DEFAULT_COMMUNITY, settings, platform, events=events, models=models, beside=beside) as parts,
    ):
        yield parts


@asynccontextmanager
async def parts_of(
    host: Host,
    community: str,
    settings: Settings,
    platform: Platform,
    *,
    events: Events,
    models: OpenModels | None = None,
    beside: Beside | None = None,
    jobs_came: Wakeup | None = None,
) -> AsyncGenerator[Parts]:
    """Put the bot of a community together: its stores, models and actors, within what the process shares."""
    lock, _, shared, clock = host
    models = models or partial(open_models, shared=shared, party=community)
    async with (
        host.db.lent(community) as db,
        models(settings, UsageLog(db), clock) as opened,
        open_embedder(settings, db, clock, opened.usage, shared=shared, party=community) as embedder,
    ):
        await db.hold()
        if beside is not None:
            _add(beside.counters, platform.chat, opened.usage, events, embedder)
        watch = monitoring.ModelWatch(clock, _breakers(opened, embedder), beside and beside.counters)
        section = "llm" if settings.llm_kb is None else "llm.kb"
        learning = watch.over(opened.learning, work="learning", section=section)
        watched = opened._replace(answering=watch.over(opened.answering), learning=learning)
        opening = partial(Writer, embedder=embedder, templates=shared.templates, room=shared.room)
        writer = await run_sync(opening, settings, db, watched.learning, clock)
        await writer.stores.check_own()
        if settings.ai.repeat and isinstance(opened.answering, EndpointModel):  # rules cost nothing
            # With the writer's own store, which repeats nothing after a drop that failed.
            key_of = request_key(settings.llm, shared.templates(settings))
            watched = watched._replace(answering=RepeatingModel(watched.answering, writer.stores.replies, key_of))
        await writer.stores.jobs.reclaim()
        await writer.stores.pending.load()
        await writer.extraction.extractor.mend()
        # A server that we never attended is looked back at as far as the operator wants.
        first = position_at(clock.now() - timedelta(seconds=settings.discord.first_lookback)).id
        marks = await CheckpointStore(db).open(platform.chat.guild_ids, first)
        audience = _Audience(platform.chat, settings.conversations)
        stores, gone, mask = writer.stores, writer.stores.knowledge.is_withdrawn, writer.extraction.answered.mask
        missed = MissedChanges(stores.archive, platform.chat, is_withdrawn=gone, admits=audience.admits_id, mask=mask)
        here = [position_of(marks.attended[guild_id]).time for guild_id in platform.chat.guild_ids]
        attended = min(here, default=clock.now())
        gateway = Rereading(platform.chat, missed.look, attended=attended, clock=clock)
        drops = (stores.questions.drop, stores.recorder.drop, stores.judgements.deleted, stores.pending.drop)
        overheard = monitoring.Overheard(gateway, clock=clock, drops=drops)
        checkpoints = Checkpoints(marks, baseline=first)
        room = _Room(platform, overheard, audience, checkpoints, events, watched, writer, embedder, shared, jobs_came)
        around = await _around(room)
        running = _looked_at(room, around, lock=lock, watch=watch)
        async with beside.serving(running) if beside else nullcontext():
            yield around[0]
        with surviving("projector"):
            await writer.stores.files.catch_up()


class _Room(NamedTuple):
    platform: Platform
    overheard: monitoring.Overheard
    audience: _Audience
    checkpoints: Checkpoints
    events: Events
    models: Models
    writer: Writer
    embedder: Embedder | None
    shared: Shared
    jobs_came: Wakeup | None


_Replay = Callable[[str], Awaitable[Sequence[Again]]]
_Around = tuple[Parts, PostedAnswers, Seeing, Waiting, monitoring.CalibrationWatch, _Replay]


async def _around(room: _Room) -> _Around:
    platform, overheard, audience, checkpoints, events, models, writer, embedder, shared, jobs_came = room
    chat, stores, learning = platform.chat, writer.stores, writer.learning
    settings, discord, db, clock = stores.settings, stores.settings.discord, stores.db, stores.clock
    archive, knowledge, ledger = stores.archive, stores.knowledge, stores.posts
    options = settings.conversations
    chat.recall_roles(await stores.roles.known())
    traces, counts, outgoing = TraceStore(db, clock=clock), Counts(db, clock=clock), Outgoing()
    events.count = counts.add
    events.question = partial(_note, stores.questions)
    counted = await counts.of(clock.now().date())
    refuses = Allowance(
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
        archive, admits=audience.admits_id, pending=pending, answered=answered.threads, done_with=ledger.done_with
    )
    settling = Settling(checkpoints.settle, late.mark_settled)
    library = library_of(
        settings, archive, knowledge, search=stores.search, embedder=embedder, clock=clock, sources=stores.sources
    )
    answerer = Answerer(
        models.answering,
        library,
        answering_options(settings),
        models.nearest,
        stores.judgements,
        setup_of(settings),
    )
    posts = Posting(
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
    # Rules cannot look at pictures, even if the setting is on.
    sees = settings.llm.images and settings.llm.kind == "endpoint"
    files = FileReader(
        *(platform.files, discord.read_files, discord.files_per_hour, discord.paste_hosts), digests=pending.digests
    )
    answers = Seeing(stores.recorder.answers(answerer, settings.llm.known_as), files, sees=sees)
    commands = Commands(
        answers=answers,
        history=chat,
        admits=audience.admits,
        outlet=chat,
        feedback=FeedbackStore(db, clock=clock),
        traces=traces,
        options=options,
        guild_ids=chat.guild_ids,
        wordings=wordings,
        refuses=refuses,
        count=events.asked,
        turned_away=events.turned_away,
        manage=platform.manage,
    )
    posted = PostedAnswers(stores.cited, library, knowledge, emails=settings.kb.mask_emails)
    captions = Captioning(
        *(models.learning, files, pending),
        sees=settings.kb_model.images and settings.kb_model.kind == "endpoint",
        mask=settings.kb.mask_secrets,
    )
    retractions = Retractions(stores.cited, posts.retract, traces, clock)
    calibration = monitoring.CalibrationWatch(db, settings)
    check = partial(retractions.check_and_retract, posted.check) if settings.ai.retract else posted.check
    notes = PrivateNotes(chat, Greeted(db, clock=clock))
    dispatcher = Dispatcher(
        chat, ledger, options, guild_ids=chat.guild_ids, admits=chat.admits, clock=clock, refuses=refuses, private=notes
    )
    approvals, look_up = Approvals(clock=clock), partial(open_message, chat.look_up, audience.admits_id)
    scans, batch_wait = settings.kb.scan_interval_seconds, settings.discord.message_batch_wait_seconds
    poster = Poster(
        posts=posts,
        outgoing=outgoing,
        traces=traces,
        settle=settling.settle,
        events=events,
        # What the asker wrote last has become a question by then, or never will.
        hold_seconds=batch_wait + 5,
    )
    patiently = partial(regularly, backoff=exponential_backoff)
    following = partial(patiently, interval_seconds=scans, shortest_wait=_TOGETHER)
    captures = partial(capturer, keep=learning.keep, known=captions.known, pending=pending, settle=settling.captured)
    fetches = partial(fetch, indexing.refresh_pages, events)
    captioner = Captioner(pending=pending, captions=captions, keep=learning.keep, look_up=look_up, events=events)
    interactions = InteractionWorker(handle=commands.handle, teaches=late.teaches, responses=platform.interactions)
    actors: dict[str, Start] = {
        "classifier": Classifier(
            archive=learning.after,
            after=stores.archived_until(),
            again=learning.due,
            choose=learning.choose_topic,
            attempts=attempts,
            events=events,
        ).run,
        "captioner": captioner.run,
        "integrator": Integrator(filer=learning, attempts=attempts, events=events).run,
        "indexer": partial(indexer, refresh=indexing.refresh, settle_seconds=settings.kb.settle_seconds, events=events),
        "extractor": Extractor(
            decisions=extraction.after,
            after=await extraction.position(),
            again=extraction.due,
            extraction=extraction,
            attempts=attempts,
            events=events,
        ).run,
        "projector": partial(following, "projector", stores.files.catch_up, woken=stores.files.wait),
        "batcher": partial(batcher, open_batches=Batches(batch_wait), settle=checkpoints.settle, clock=clock),
        "router": Router(
            dispatch=partial(_dispatched, dispatcher, answered),
            declines=Declining(wordings, traces=traces, clock=clock),
            outgoing=outgoing,
            late=late,
            settle=settling.settle,
            capturing=settling.capturing,
            events=events,
        ).run,
        "capturer": partial(captures, events=events),
        "responder": Responder(
            answers=answers,
            replying=Replying(wordings, options, handoff_role_id=RoleId(handoff) if handoff else None),
            outgoing=outgoing,
            done_with=ledger.done_with,
            typing=chat.typing,
            traces=traces,
            settle=settling.settle,
            events=events,
        ).run,
        "poster": poster.run,
        "interactions": interactions.run,
        "reviewer": Reviewer(approvals=approvals, reviews=learning, admits=audience.admits_id, events=events).run,
        "listener": Listener(gateway=overheard, checkpoints=checkpoints, approvals=approvals, admits=chat.admits).run,
        "backfill": Backfill(checkpoints=checkpoints, pages=chat).run,
        "scout": partial(scout, interval_seconds=scans),
        "fetcher": partial(regularly, "fetcher", fetches, interval_seconds=scans),
        "checker": partial(regularly, "checker", check, calibration.look, stores.recorder.trim, interval_seconds=scans),
        "job_worker": partial(job_worker, jobs=stores.jobs, do=writer.do, came=jobs_came),
    }
    if embedding := indexing.embedding:
        actors["embedder"] = partial(
            patiently, "embedder", indexing.embed_after_words, interval_seconds=EMBEDS_EVERY, woken=embedding.wait
        )
    if engine := stores.search.engine:
        actors["vector_copier"] = partial(following, "vector_copier", engine.catch_up, woken=engine.wait)
    if settings.discovery.scan_paths:
        actors["explorer"] = partial(
            regularly,
            "explorer",
            writer.discover,
            interval_seconds=settings.discovery.interval_seconds,
            woken=Changes(settings.discovery, never_discovered(settings)).wait,
            shortest_wait=SHORTEST_WAIT,
        )
    keep = partial(_keep, room, CheckpointStore(db), counts)
    parts = Parts(
        actors=actors,
        checkpoints=checkpoints,
        keep_checkpoints=keep,
        count_jobs=stores.jobs.count_open,
        jobs_came=jobs_came,
        wait_for_database=db.wait_until,
    )
    return parts, posted, answers, poster.waiting, calibration, partial(_replayed, room, answerer)


async def _replayed(room: _Room, answerer: Answerer, name: str) -> Sequence[Again]:
    stores = room.writer.stores
    recordings = Recordings(stores.db, stores.archive, stores.knowledge)
    learning, templates = room.models.learning, await run_sync(room.shared.templates, stores.settings)
    return await recordings.replay(name, answerer=answerer, learning=learning, templates=templates, offline=False)


_TOGETHER = 0.9  # seconds; several changes are written together


class _Audience:
    """Where we may listen and speak: as everybody may read there, and as the operator wants."""

    def __init__(self, chat: ChatPlatform, options: ConversationOptions) -> None:
        self._chat, self._options = chat, options

    def admits(self, channel: Channel) -> bool:
        return self._chat.admits(channel) and self._options.mode_of(channel) != "off"

    async def admits_id(self, channel_id: ChannelId) -> bool:
        channel = await self._chat.channel(channel_id)
        await self._chat.told(channel.guild_id)
        return self.admits(channel)


async def _keep(room: _Room, marks: CheckpointStore, counts: Counts, moved: StoredCheckpoints) -> None:
    """Store each second how far channels are settled, and what was counted, asked, spent and seen."""
    stores, usage = room.writer.stores, room.models.usage
    # Before the marks: what is not read again shall not have been forgotten.
    await stores.roles.keep(room.platform.chat.noted_roles())
    if usage is not None:
        await usage.keep()
    await counts.store()
    await stores.questions.store()
    await stores.judgements.store()
    await marks.keep(moved)
    await stores.recorder.store()


def _note(questions: Questions, request: AnswerRequest, reason: str, debug: Mapping[str, Any]) -> None:
    """Keep the words of a question, but none of chatter."""
    messages, steps, seconds = request.batch.messages, steps_of(debug), debug.get("seconds", 0.0)
    if reason == NOT_ASKED and (not request.called or is_chatter("\n".join(each.text for each in messages))):
        return
    tokens, cost = (sum(step.get(name, 0) for step in steps) for name in ("tokens", "cost"))
    # What its author waits, also for the pause that shows that the question is complete.
    seconds = max(seconds, (questions.clock.now() - messages[-1].at).total_seconds())
    questions.add(messages, reason, request.channel, seconds=seconds, tokens=tokens, cost=cost)


def _add(to: monitoring.Counters, chat: ChatPlatform, usage: Usage | None, events: Events, by: Embedder | None) -> None:
    """Register the sources of the counters."""
    events.tally = to
    if usage is not None:
        usage.counted = to.spent
    if isinstance(by, EndpointEmbedder):
        monitoring.count_embeddings(to, by)
    chat.tell_requests(partial(monitoring.count_request, to), to.reconnected)


def _looked_at(room: _Room, around: _Around, *, lock: FolderLock, watch: monitoring.ModelWatch) -> Running:
    """Collect the data for the page and for a monitoring system."""
    parts, posted, answers, waiting, calibration, replay = around
    db, clock = room.writer.stores.db, room.writer.stores.clock
    checks = monitoring.HealthChecks(
        db,
        lock,
        clock=clock,
        is_open=lambda: room.platform.chat.is_open,
        elsewhere=lambda: (
            monitoring.posting_check(waiting.stuck(), clock),
            *watch.checks(),
            *monitoring.connection_checks(room.platform.chat.advice),
            *monitoring.vector_checks(room.writer.stores.search.engine),
            *calibration.checks(),
        ),
    )
    return Running(
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


def _breakers(models: Models, embedder: Embedder | None) -> Mapping[str, Breaker]:
    own = {"embeddings": embedder.breaker} if isinstance(embedder, EndpointEmbedder) else {}
    return {**models.breakers, **own}


async def _dispatched(dispatcher: Dispatcher, answered: Answered, batch: Batch) -> Requests:
    """Decide what follows from a batch; a thread that was read before is looked at again because of it."""
    answered.heard(batch)
    return await dispatcher.dispatch(batch)


async def open_message(
    look_up: LookUp, admits: Callable[[ChannelId], Awaitable[bool]], channel_id: ChannelId, message_id: MessageId
) -> ChatMessage | None:
    """Return a message; None if it is gone. Raises the ChatError family, also where it may not be read any more."""
    if not await admits(channel_id):
        raise ChatRefusedError(f"channel {channel_id} is closed to us by now")
    return await look_up(channel_id, message_id)
