"""The bot: the office around a Discord, real or in memory, and signals turned into a calm shutdown."""

from __future__ import annotations

import signal
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import NamedTuple, NoReturn, Protocol

import anyio
from anyio import Event, create_task_group, move_on_after, open_signal_receiver, sleep
from anyio.to_thread import run_sync

from intern.actors import poster, responder
from intern.actors.backfill import Pages
from intern.actors.listener import Gateway
from intern.actors.office import Answering, Parts, office
from intern.actors.responder import Typing
from intern.actors.witness import Witness
from intern.answering.workflow import Answerer
from intern.app.models import Models, open_models
from intern.app.searching import Ranking, discovered_sources, never_discovered
from intern.app.workshop import Workshop
from intern.conversations.approving import Approvals
from intern.conversations.attendance import Attendance
from intern.conversations.batching import Batches
from intern.conversations.commands import Commands, Said
from intern.conversations.context import History
from intern.conversations.declining import Declining
from intern.conversations.dispatching import Allowance, Audience, Dispatcher, PrivateNotes
from intern.conversations.late import LateChanges
from intern.conversations.options import ConversationOptions
from intern.conversations.outgoing import Outgoing
from intern.conversations.posting import Outlet, Posting
from intern.conversations.replying import Replying, load_wording
from intern.conversations.seeing import Seeing
from intern.discord.attachments import AttachedImages, UnusableImageError
from intern.discord.sandbox import Sandbox
from intern.discord.sandbox_commands import SandboxCommands
from intern.discovery.watching import Changes
from intern.domain import (
    Attachment,
    Channel,
    ChannelId,
    ChatMessage,
    GuildId,
    Interaction,
    MessageId,
    RoleId,
    snowflake_at,
)
from intern.errors import DiscordRefusedError, DiscordUnavailableError
from intern.knowledge.database import Database
from intern.knowledge.feedback import FeedbackStore
from intern.knowledge.greeted import Greeted
from intern.knowledge.library import Library
from intern.knowledge.lock import FolderLock
from intern.knowledge.marks import Marks, MarkStore
from intern.knowledge.traces import Counts, TraceStore
from intern.knowledge.usage import UsageLog
from intern.learning.picturing import Images, Picturing
from intern.observe.clock import Clock, SystemClock
from intern.settings import Settings


class ToldAudience(Audience, Protocol):
    """Knows where everybody may read, once Discord has told."""

    def knows(self, guild_id: GuildId | None, /) -> bool:
        """Whether Discord has told of a server."""
        ...


@dataclass(frozen=True, kw_only=True)
class Discord:
    """Discord, real or in memory, as the bot sees it."""

    gateway: Gateway
    history: History
    outlet: Outlet
    pages: Pages
    typing: Typing
    audience: ToldAudience
    responses: Answering
    images: Images
    guild_ids: tuple[GuildId, ...]


OpenModels = Callable[[Settings, UsageLog, Clock], AbstractAsyncContextManager[Models]]


@asynccontextmanager
async def _parts(
    settings: Settings, discord: Discord, *, witness: Witness, clock: Clock, models: OpenModels = open_models
) -> AsyncGenerator[Parts]:
    """The bot, put together around a Discord; it holds the data folder meanwhile."""
    with FolderLock(settings.data.dir):
        async with (
            await Database.open(settings.paths.database) as db,
            models(settings, UsageLog(db), clock) as opened,
        ):
            workshop = await run_sync(Workshop, settings, db, opened.learning, clock)
            await workshop.jobs.reclaim()
            await workshop.pending.load()
            yield await _around(_Room(settings, discord, witness, clock, db, opened, workshop))


class _Room(NamedTuple):
    settings: Settings
    discord: Discord
    witness: Witness
    clock: Clock
    db: Database
    models: Models
    workshop: Workshop


async def _around(room: _Room) -> Parts:
    settings, discord, witness, clock, db, models, workshop = room
    options = settings.conversations
    attended = MarkStore(db)
    # A server that we never attended is looked back at as far as the operator wants.
    first = MessageId(snowflake_at(clock.now() - timedelta(seconds=settings.discord.first_lookback)))
    attendance = Attendance(await attended.open(discord.guild_ids, first), baseline=first)
    audience = _Audience(discord, options)
    traces, counts, outgoing = TraceStore(db, clock=clock), Counts(db, clock=clock), Outgoing()
    witness.count = counts.add
    allows = Allowance(settings.discord.max_questions_per_user_per_hour, clock=clock)
    wording = load_wording(
        Path(settings.prompts.dir) if settings.prompts.dir else None,
        {"project_introduction": settings.ai.project_introduction},
    )
    handoff = settings.discord.handoff_role_id
    late = LateChanges(workshop.archive, admits=audience.admits_id, pending=workshop.pending)
    answerer = Answerer(
        models.answering,
        Library(
            kb_index=settings.paths.index,
            team_index=settings.paths.team_index,
            sources=workshop.sources,
            topics=workshop.topics,
            archive=workshop.archive,
            pages=workshop.pages,
            ranks=Ranking(settings, workshop.search),
            more=discovered_sources(settings, workshop.search),
        ),
        settings.ai,
    )
    # Rules cannot look at pictures, whatever is set.
    sees = settings.llm.images and settings.llm.kind == "endpoint"
    answers = Seeing(answerer, discord.images, sees=sees)
    commands = Commands(
        answers=answers,
        history=discord.history,
        audience=audience,
        speaker=discord.outlet,
        feedback=FeedbackStore(db, clock=clock),
        traces=traces,
        options=options,
        guild_ids=discord.guild_ids,
        wording=wording,
        allows=allows,
    )
    return Parts(
        gateway=discord.gateway,
        admits=discord.audience.admits,
        admits_id=audience.admits_id,
        attendance=attendance,
        approvals=Approvals(clock=clock),
        pages=discord.pages,
        marks=_Books(attended, counts),
        open_batches=Batches(settings.discord.message_batch_wait_seconds),
        clock=clock,
        dispatch=Dispatcher(
            discord.history,
            workshop.posts,
            options,
            guild_ids=discord.guild_ids,
            audience=discord.audience,
            clock=clock,
            allows=allows,
            private=PrivateNotes(discord.outlet, Greeted(db, clock=clock)),
        ),
        declines=Declining(wording, traces=traces, clock=clock),
        late=late,
        keeper=workshop,
        pictures=Picturing(
            models.learning,
            discord.images,
            workshop.pending,
            # Rules cannot look at pictures, whatever is set.
            sees=settings.kb_model.images and settings.kb_model.kind == "endpoint",
            mask=settings.kb.mask_secrets,
        ),
        pending=workshop.pending,
        messages=_OpenMessages(discord.history, audience),
        attempts=workshop.attempts,
        archive=workshop,
        archived_until=workshop.archived_until(),
        again=workshop,
        chooser=workshop,
        filer=workshop,
        reviews=workshop,
        indices=workshop,
        responding=responder.Collaborators(
            answers=answers,
            replying=Replying(wording, options, handoff_role_id=RoleId(handoff) if handoff else None),
            outgoing=outgoing,
            known=workshop.posts,
            typing=discord.typing,
            traces=traces,
            settles=attendance,
            witness=witness,
        ),
        posting=poster.Collaborators(
            posts=Posting(
                discord.outlet,
                workshop.posts,
                discord.history,
                outgoing=outgoing,
                clock=clock,
                admits=audience.admits_id,
                max_age=timedelta(seconds=settings.discord.max_question_age),
                late_word=wording.late,
                no_thread_word=wording.no_thread,
            ),
            outgoing=outgoing,
            traces=traces,
            settles=attendance,
            witness=witness,
            # What the asker wrote last has become a question by then, or never will.
            patience_seconds=settings.discord.message_batch_wait_seconds + 5,
        ),
        desk=_Desk(commands, late),
        responses=discord.responses,
        jobs=workshop.jobs,
        do_job=workshop.do,
        settle_seconds=settings.kb.settle_seconds,
        scan_interval_seconds=settings.kb.scan_interval_seconds,
        discovery=workshop if settings.discovery.scan_paths else None,
        discovery_interval_seconds=settings.discovery.interval_seconds,
        file_changes=Changes(settings.discovery, never_discovered(settings)),
        witness=witness,
    )


_TOLD_WITHIN = 5.0  # seconds


class _Audience:
    """Where we may listen and speak: as everybody may read there, and as the operator wants."""

    def __init__(self, discord: Discord, options: ConversationOptions) -> None:
        self._discord = discord
        self._options = options

    def admits(self, channel: Channel) -> bool:
        return self._discord.audience.admits(channel) and self._options.mode_of(channel) != "off"

    async def admits_id(self, channel_id: ChannelId) -> bool:
        channel = await self._discord.history.channel(channel_id)
        with move_on_after(_TOLD_WITHIN):  # at a start, Discord tells of its servers right after it says hello
            while not self._discord.audience.knows(channel.guild_id):  # noqa: ASYNC110 happens once, and within a second
                await sleep(0.1)
        if not self._discord.audience.knows(channel.guild_id):
            raise DiscordUnavailableError(f"Discord has not told yet who may read channel {channel_id}")
        return self.admits(channel)


class _Books:
    """What is written down every second: how far channels are settled, and what was counted."""

    def __init__(self, marks: MarkStore, counts: Counts) -> None:
        self._marks = marks
        self._counts = counts

    async def keep(self, moved: Marks) -> None:
        await self._counts.store()
        await self._marks.keep(moved)


class _OpenMessages:
    """Messages where we may listen. Nothing is read again in a channel that was closed to us meanwhile."""

    def __init__(self, history: History, audience: _Audience) -> None:
        self._history = history
        self._audience = audience

    async def message(self, channel_id: ChannelId, message_id: MessageId) -> ChatMessage | None:
        if not await self._audience.admits_id(channel_id):
            raise DiscordRefusedError(f"channel {channel_id} is closed to us by now")
        return await self._history.message(channel_id, message_id)


class _NoImages:
    """What a Discord in memory serves of the files that people name there."""

    async def image(self, attachment: Attachment) -> NoReturn:
        raise UnusableImageError(f"{attachment.filename[:100]} is only a name here")


class _Desk:
    """The commands; what they teach can be withdrawn from the moment on that it is handed on."""

    def __init__(self, commands: Commands, late: LateChanges) -> None:
        self._commands = commands
        self._late = late

    async def handle(self, interaction: Interaction) -> Said:
        answer = await self._commands.handle(interaction)
        for request in answer.captures:
            self._late.teaches(request)
        return answer


async def run_on_discord(settings: Settings, *, stop: Event, clock: Clock | None = None) -> None:
    """The bot on real Discord, until `stop` is set. asyncio only, for hikari is."""
    async with parts_on_discord(settings, witness=Witness(), clock=clock or SystemClock()) as parts:
        await office(parts, stop=stop)


@asynccontextmanager
async def parts_on_discord(
    settings: Settings, *, witness: Witness, clock: Clock, first_pause: float = 1.0
) -> AsyncGenerator[Parts]:
    """The bot, put together around real Discord, where it waits `first_pause` seconds before its second session."""
    from intern.discord.commands import HikariCommands  # noqa: PLC0415 as below
    from intern.discord.gateway import HikariDiscord  # noqa: PLC0415 it costs a second of CPU, and commands need none

    settings.require_for_run()
    # Every reaction on the server is told then.
    reactions = settings.kb.review
    async with (
        HikariDiscord(settings.discord, reactions=reactions, first_pause=first_pause) as hikari,
        AttachedImages() as images,
    ):
        guild_ids = tuple(map(GuildId, settings.discord.guild_ids))
        discord = Discord(
            gateway=hikari,
            history=hikari.rest,
            outlet=hikari.rest,
            pages=hikari.rest,
            typing=hikari.rest,
            audience=hikari.audience,
            responses=HikariCommands(hikari.rest, guild_ids, ready=hikari.wait_ready),
            images=images,
            guild_ids=guild_ids,
        )
        async with _parts(settings, discord, witness=witness, clock=clock) as parts:
            yield parts


@asynccontextmanager
async def open_sandbox(
    settings: Settings,
    sandbox: Sandbox,
    *,
    witness: Witness,
    clock: Clock | None = None,
    responses: Answering | None = None,
    images: Images | None = None,
    models: OpenModels = open_models,
) -> AsyncGenerator[None]:
    """The whole bot at work on a Discord in memory; leaving the block sees everything off to its end."""
    discord = Discord(
        gateway=sandbox,
        history=sandbox,
        outlet=sandbox,
        pages=sandbox,
        typing=sandbox,
        audience=sandbox,
        responses=responses or SandboxCommands(),
        images=images or _NoImages(),
        guild_ids=(sandbox.guild_id,),
    )
    stop = Event()
    async with (
        _parts(settings, discord, witness=witness, clock=clock or SystemClock(), models=models) as parts,
        create_task_group() as tg,
    ):
        tg.start_soon(partial(office, parts, stop=stop, drain=True))
        await sandbox.wait_ready()
        try:
            yield
        finally:
            stop.set()


def run(settings: Settings) -> None:
    """`intern run`: until SIGINT or SIGTERM. Raises ConfigError, KnowledgeError or DiscordError, maybe in a group."""
    anyio.run(_until_told, settings)


async def _until_told(settings: Settings) -> None:
    stop = Event()

    async def wait_for_signal() -> None:
        with open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
            async for _ in signals:
                stop.set()

    async with create_task_group() as tg:
        tg.start_soon(wait_for_signal)
        await run_on_discord(settings, stop=stop)
        tg.cancel_scope.cancel()
