"""The bot: the office around a Discord, real or in memory, and signals turned into a calm shutdown."""

from __future__ import annotations

import signal
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import NamedTuple

import anyio
from anyio import Event, create_task_group, open_signal_receiver
from anyio.to_thread import run_sync

from intern.actors import poster, responder
from intern.actors.backfill import Pages
from intern.actors.listener import Gateway
from intern.actors.office import Answering, Parts, office
from intern.actors.responder import Typing
from intern.actors.witness import Witness
from intern.answering.workflow import Answerer
from intern.app.models import Models, open_models
from intern.app.workshop import Workshop
from intern.conversations.attendance import Attendance
from intern.conversations.batching import Batches
from intern.conversations.commands import Commands, Said
from intern.conversations.context import History
from intern.conversations.dispatching import Allowance, Audience, Dispatcher
from intern.conversations.late import LateChanges
from intern.conversations.options import ConversationOptions
from intern.conversations.outgoing import Outgoing
from intern.conversations.posting import Outlet, Posting
from intern.conversations.replying import Replying, load_wording
from intern.discord.sandbox import Sandbox
from intern.discord.sandbox_commands import SandboxCommands
from intern.domain import Channel, ChannelId, GuildId, Interaction, MessageId, RoleId, snowflake_at
from intern.knowledge.attempts import Attempts
from intern.knowledge.database import Database
from intern.knowledge.feedback import FeedbackStore
from intern.knowledge.library import Library
from intern.knowledge.lock import FolderLock
from intern.knowledge.marks import Marks, MarkStore
from intern.knowledge.traces import Counts, TraceStore
from intern.knowledge.usage import UsageLog
from intern.observe.clock import Clock, SystemClock
from intern.settings import Settings


@dataclass(frozen=True, kw_only=True)
class Discord:
    """Discord, real or in memory, as the bot sees it."""

    gateway: Gateway
    history: History
    outlet: Outlet
    pages: Pages
    typing: Typing
    audience: Audience
    responses: Answering
    guild_ids: tuple[GuildId, ...]


@asynccontextmanager
async def _parts(settings: Settings, discord: Discord, *, witness: Witness, clock: Clock) -> AsyncGenerator[Parts]:
    """The bot, put together around a Discord; it holds the data folder meanwhile."""
    with FolderLock(settings.data.dir):
        async with (
            await Database.open(settings.paths.database) as db,
            open_models(settings, UsageLog(db), clock) as models,
        ):
            workshop = await run_sync(Workshop, settings, db, models.learning, clock)
            await workshop.jobs.reclaim()
            yield await _around(_Room(settings, discord, witness, clock, db, models, workshop))


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
    late = LateChanges(workshop.archive, admits=audience.admits_id)
    answers = Answerer(
        models.answering,
        Library(
            kb_index=settings.paths.index,
            team_index=settings.paths.team_index,
            sources=workshop.sources,
            topics=workshop.topics,
            archive=workshop.archive,
        ),
        settings.ai,
    )
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
        attendance=attendance,
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
            speaker=discord.outlet,
            traces=traces,
        ),
        late=late,
        keeper=workshop,
        attempts=Attempts(db),
        archive=workshop,
        archived_until=workshop.archived_until(),
        chooser=workshop,
        filer=workshop,
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
                max_age=timedelta(seconds=settings.discord.max_question_age),
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
        witness=witness,
    )


class _Audience:
    """Where we may listen and speak: as everybody may read there, and as the operator wants."""

    def __init__(self, discord: Discord, options: ConversationOptions) -> None:
        self._discord = discord
        self._options = options

    def admits(self, channel: Channel) -> bool:
        return self._discord.audience.admits(channel) and self._options.mode_of(channel) != "off"

    async def admits_id(self, channel_id: ChannelId) -> bool:
        return self.admits(await self._discord.history.channel(channel_id))


class _Books:
    """What is written down every second: how far channels are settled, and what was counted."""

    def __init__(self, marks: MarkStore, counts: Counts) -> None:
        self._marks = marks
        self._counts = counts

    async def keep(self, moved: Marks) -> None:
        await self._counts.store()
        await self._marks.keep(moved)


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
    from intern.discord.commands import HikariCommands  # noqa: PLC0415 as below
    from intern.discord.gateway import HikariDiscord  # noqa: PLC0415 it costs a second of CPU, and commands need none

    settings.require_for_run()
    async with HikariDiscord(settings.discord) as hikari:
        guild_ids = tuple(map(GuildId, settings.discord.guild_ids))
        discord = Discord(
            gateway=hikari,
            history=hikari.rest,
            outlet=hikari.rest,
            pages=hikari.rest,
            typing=hikari.rest,
            audience=hikari.audience,
            responses=HikariCommands(hikari.rest, guild_ids, ready=hikari.wait_ready),
            guild_ids=guild_ids,
        )
        async with _parts(settings, discord, witness=Witness(), clock=clock or SystemClock()) as parts:
            await office(parts, stop=stop)


@asynccontextmanager
async def open_sandbox(
    settings: Settings, sandbox: Sandbox, *, witness: Witness, clock: Clock | None = None
) -> AsyncGenerator[None]:
    """The whole bot at work on a Discord in memory; leaving the block sees everything off to its end."""
    discord = Discord(
        gateway=sandbox,
        history=sandbox,
        outlet=sandbox,
        pages=sandbox,
        typing=sandbox,
        audience=sandbox,
        responses=SandboxCommands(),
        guild_ids=(sandbox.guild_id,),
    )
    stop = Event()
    async with (
        _parts(settings, discord, witness=witness, clock=clock or SystemClock()) as parts,
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
