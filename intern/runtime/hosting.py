"""One process that hosts many communities: one for each server that has the bot, as in the registry.

Discord reports joined and left servers, and commands change the registry. The process follows both, with one query of
the database for all communities.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Coroutine, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, ExitStack, asynccontextmanager
from datetime import timedelta
from functools import partial
from typing import Any, Final, NamedTuple

from anyio import Event, Lock, WouldBlock, create_memory_object_stream, current_time, move_on_after, sleep
from anyio.lowlevel import checkpoint
from anyio.to_thread import run_sync

from intern.actors.activity import ActivityReporter
from intern.actors.interaction_worker import register_commands
from intern.actors.loops import exponential_backoff, make_delay_logger, retry, surviving
from intern.actors.pipeline import PipelineParts
from intern.chat.platform import ChatPlatform, Deliver, Interactions
from intern.chat.routing import PrivateNotices
from intern.core import flow
from intern.core.clock import Wakeup
from intern.core.errors import ConfigError, KnowledgeError, LeaseLostError
from intern.core.ids import GuildId, position_at
from intern.core.log import get_logger
from intern.core.messages import ChatMessage
from intern.core.tasks import open_task_group
from intern.learning.attached_files import FileHost
from intern.platforms.discord.options import shard_index
from intern.runtime.communities import Communities
from intern.runtime.community_state import event_guild_id
from intern.runtime.leases import LeaseHolder
from intern.runtime.parts import open_community_parts
from intern.runtime.resources import PlatformPorts, ProcessResources
from intern.service.community_registry import CommunityRegistry, build_community, erase_left_communities
from intern.service.server_setup import ServerSetup, first_choice, greet_server
from intern.settings.communities import Community, build_community_settings
from intern.settings.settings import Settings
from intern.stores.database import Database
from intern.stores.engines.postgres.leases import Lease, LeaseStore
from intern.stores.tables.checkpoints import CheckpointStore, StoredCheckpoints, read_checkpoints
from intern.stores.tables.communities import REGISTRY, CommunityStore, RegisteredCommunity
from intern.stores.tables.members import GreetedMembers

_log = get_logger(__name__)

LEAVE_SECONDS: Final = 5.0
"""Seconds for the communities of a shard that is handed over to finish their work."""
_GIVE_UP_SECONDS: Final = 1.0
"""Seconds for the others to cancel theirs."""
LOOK_SECONDS: Final = 2.0
"""Seconds between two reads of the registry and of jobs. A person waits for them."""
ERASE_SECONDS: Final = 3600.0
"""Seconds between two searches for communities to erase, unless the registry changes."""
_MOST_WAITING = 1000  # events of a server that is about to become a community
_JOINING: Final = timedelta(minutes=1)
"""Seconds; messages that members write while the registry learns of their server are answered."""
_MOST_PRIVATE = 100  # private messages to be answered; a further one gets no notice

Serve = Callable[[GuildId, Settings | None], object]
"""Passes the settings of a server to the platform; None: it is no longer served."""
OpenParts = Callable[..., AbstractAsyncContextManager[PipelineParts]]
"""Puts a community together, as `open_community_parts` does."""


def build_communities(
    host_of: Callable[[Community], ProcessResources],
    defaults: Settings,
    chat: ChatPlatform,
    interactions: Interactions,
    files: FileHost,
    *,
    elsewhere: Deliver = lambda _: None,
    parts: OpenParts = open_community_parts,
    reading: Database | None = None,
) -> Communities:
    """Build the communities of a process, still empty. `reading`: the database from which checkpoints are read."""

    @asynccontextmanager
    async def open_parts(community: Community, own: ChatPlatform) -> AsyncGenerator[PipelineParts]:
        settings = build_community_settings(community, defaults)
        await run_sync(lambda: settings.paths.sources.mkdir(parents=True, exist_ok=True))
        host = host_of(community)
        manage = ServerSetup(CommunityRegistry(defaults, host.db, host.clock), community.name, host.clock)
        platform = PlatformPorts(own, interactions, files, manage)
        registry = CommunityStore(host.db, clock=host.clock)
        await registry.mark_open(community.name, is_open=True)
        async with parts(
            host, community.name, settings, platform, events=ActivityReporter(), jobs_came=Wakeup()
        ) as opened:
            yield opened
        if made.is_done(community.name):
            await registry.mark_open(community.name, is_open=False)

    async def read_positions(communities: Sequence[Community]) -> list[StoredCheckpoints]:
        hosts = [host_of(community) for community in communities]
        databases = [
            (reading or host.db).for_community(each.name) for host, each in zip(hosts, communities, strict=True)
        ]
        found = await run_sync(lambda: [db.read_blocking(read_checkpoints) for db in databases])
        for n, (host, community) in enumerate(zip(hosts, communities, strict=True)):
            if not found[n].attended.keys() >= set(community.guild_ids):
                # Listen to a server as soon as it is known, and not only when its first message opens it.
                since = host.clock.now() - timedelta(seconds=defaults.discord.first_lookback) - _JOINING
                opened = CheckpointStore(host.db.for_community(community.name)).load_or_create(
                    community.guild_ids, position_at(since).id
                )
                found[n] = await opened
        return found

    made = Communities(
        chat,
        opens=open_parts,
        stands=read_positions,
        elsewhere=elsewhere,
        most_open=defaults.hosting.open_communities,
    )
    return made


class Sharding(NamedTuple):
    """The shards of a bot that several processes share."""

    store: LeaseStore
    shards: int
    """The total number of shards."""
    only: Collection[int] | None
    """The shards that this process serves; None: an even share."""
    hold: Callable[[int], object]
    release: Callable[[int], Coroutine[Any, Any, bool]]
    """Ends the connection of a shard; returns whether Discord had welcomed it."""
    welcomed: Callable[[], Collection[int]]
    """Returns the shards that Discord has welcomed."""
    share: Callable[[float], object]
    """Takes this process's share of all shards, whenever it changes."""


class Hosting:
    """The communities of a process, in agreement with the registry.

    With `share_out`, they are those on the shards of its leases, which fence their databases.
    """

    def __init__(
        self,
        host: ProcessResources,
        settings: Settings,
        platform: PlatformPorts,
        *,
        serve: Serve = lambda _, __: None,
        register: Callable[[], Awaitable[None]] = checkpoint,
        share_out: Callable[[], Awaitable[Sharding]] | None = None,
        parts: OpenParts = open_community_parts,
    ) -> None:
        """`register` makes our commands known on all servers; `share_out` joins the processes that share the shards."""
        apart = host.db.with_own_limits()  # a taken shard waits for this
        self.registry = CommunityStore(apart, clock=host.clock)
        self._host, self._settings, self._serve = host, settings, serve
        self._register = register
        self.communities = build_communities(
            self._build_resources, settings, *platform[:3], elsewhere=self._receive_unowned, parts=parts, reading=apart
        )
        self._notes = PrivateNotices(platform.chat, GreetedMembers(host.db.for_community(REGISTRY), clock=host.clock))
        self._share_out = share_out
        self._sharding: Sharding | None = None
        self._fenced: dict[int, Database] = {}
        self._leaving: dict[int, list[str]] = {}  # shards that are handed over, with the closing of their communities
        self._ours: frozenset[str] = frozenset()
        self._refused: dict[str, str] = {}  # the reasons why settings of communities do not work
        self._revision: object = None
        self._erases_at = 0.0
        self._chat = platform.chat
        self._changing = Lock()
        self._news: dict[GuildId, flow.GuildJoined | flow.GuildLeft] = {}
        self._came = Event()
        # For servers without a community: the session, and the events until one exists.
        self._sessions: dict[GuildId, flow.SessionStarted] = {}
        self._waiting: dict[GuildId, list[flow.GatewayEvent]] = {}
        self._written, self._private = create_memory_object_stream[ChatMessage](_MOST_PRIVATE)

    def describe_states(self) -> Mapping[str, str]:
        """Return the state of each community: `open`, `closed`, or the reason of its failure or refusal."""
        return {**self.communities.describe_states(), **self._refused}

    async def begin(self) -> None:
        """Add all active communities. Raises KnowledgeError."""
        await self._check_registry()

    async def run(self, *, stop: Event) -> None:
        """Serve until `stop` is set or the gateway ends; then close all communities calmly, and hand leases over."""
        closes = Event()
        async with self._written, self._private, open_task_group() as tg:
            register = partial(register_commands, self._register)
            for work in (self._process_server_changes, self._answer_private_messages, self._poll_registry, register):
                tg.start_soon(work)
            tg.start_soon(self._hold_leases, stop, closes)
            await self.communities.run(stop=closes)
            tg.cancel_scope.cancel()

    # The shards of this process.

    async def _hold_leases(self, stop: Event, closes: Event) -> None:
        if (sharding := await self._join_processes(stop)) is not None:
            leases = LeaseHolder(
                sharding.store,
                shards=sharding.shards,
                only=sharding.only,
                took=self._serve_shard,
                leave=self._leave_shard,
                lost=self._abandon_shard,
                settled=lambda: self._fenced.keys() - self._leaving.keys() <= {*sharding.welcomed()},
            )
            await leases.run(stop=stop)
        await stop.wait()
        closes.set()

    async def _join_processes(self, stop: Event) -> Sharding | None:
        """Join the processes that share the shards, once Discord answers; return None if `stop` comes first."""
        async with open_task_group() as tg:

            async def join(share_out: Callable[[], Awaitable[Sharding]]) -> None:
                self._sharding = await share_out()
                tg.cancel_scope.cancel()

            if self._share_out is not None:
                tg.start_soon(join, self._share_out)
                await stop.wait()
                tg.cancel_scope.cancel()
        return self._sharding

    async def _serve_shard(self, lease: Lease) -> None:
        """Serve the communities of a shard. Its events come when all of them are known."""
        assert self._sharding is not None
        self._fenced[lease.shard] = self._sharding.store.fence_database(lease)
        delayed = make_delay_logger(_log, "shard_delayed", shard=str(lease.shard))
        await retry(self._sync_with_registry, KnowledgeError, backoff=exponential_backoff(), delayed=delayed)
        if lease.shard in self._fenced:
            self._sharding.hold(lease.shard)
            self._sharding.share(len(self._fenced) / self._sharding.shards)

    async def _leave_shard(self, shard: int) -> None:
        """Close the communities of a shard calmly, since another process will take it."""
        assert self._sharding is not None
        self._leaving[shard] = self._list_on_shard(shard)
        # Meanwhile no events of the shard arrive. The process that takes it does the cancelled work.
        if await self._sharding.release(shard):
            with move_on_after(LEAVE_SECONDS):
                await self._drop_communities(*self._leaving[shard])
        # Later work can no longer write.
        with move_on_after(_GIVE_UP_SECONDS):
            await self._drop_communities(*self._leaving[shard], at_once=True)
        self._fenced.pop(shard, None)
        del self._leaving[shard]
        self._sharding.share(len(self._fenced) / self._sharding.shards)

    async def _abandon_shard(self, shard: int) -> None:
        """Cancel all work on a shard at once: another process may be serving it."""
        assert self._sharding is not None
        self._fenced.pop(shard, None)
        async with open_task_group() as tg:
            tg.start_soon(self._sharding.release, shard)
            # The code that adds a new community drops it again.
            leaving = self._leaving.get(shard, ())
            tg.start_soon(partial(self._drop_communities, *self._list_on_shard(shard), *leaving, at_once=True))
        self._sharding.share(len(self._fenced) / self._sharding.shards)

    def _list_on_shard(self, shard: int) -> list[str]:
        known = ((name, self.communities.get(name)) for name in self.communities.names)
        return [name for name, each in known if each and self._find_shard(each.guild_ids) == shard]

    def _find_shard(self, guild_ids: Sequence[GuildId]) -> int:
        return shard_index(guild_ids[0], self._sharding.shards if self._sharding else 1)

    def _is_ours(self, guild_ids: Sequence[GuildId]) -> bool:
        if self._share_out is None:
            return True
        shard = self._find_shard(guild_ids)
        return shard in self._fenced and shard not in self._leaving

    def _build_resources(self, community: Community) -> ProcessResources:
        return self._host._replace(db=self._find_database(community.guild_ids))

    def _find_database(self, guild_ids: Sequence[GuildId]) -> Database:
        """Return the database, fenced by the lease on the shard of these servers."""
        if self._share_out is None:
            return self._host.db
        shard = self._find_shard(guild_ids)
        if shard not in self._fenced:
            raise LeaseLostError(self._host.db.place, shard)
        return self._fenced[shard]

    # Events of Discord.

    def _receive_unowned(self, event: flow.GatewayEvent) -> None:
        guild_id = event_guild_id(event)
        match event:
            case flow.GuildJoined() | flow.GuildLeft():
                self._news[event.guild_id] = event
                self._waiting.setdefault(event.guild_id, [])
                self._came.set()
            case flow.SessionStarted():
                self._sessions[event.guild_id] = event
            case flow.MessageCreated(message=message) if guild_id is None:
                if message.author.type != "bot":
                    self._queue_private_message(message)
            case _:
                waiting = None if guild_id is None else self._waiting.get(guild_id)
                if waiting is not None and len(waiting) < _MOST_WAITING:
                    waiting.append(event)

    def _queue_private_message(self, message: ChatMessage) -> None:
        try:
            self._written.send_nowait(message)
        except WouldBlock:
            _log.warning("private_message_shed", message_id=message.id)

    async def _answer_private_messages(self) -> None:
        """Reply once to each member who writes in private: ask on your server. No community learns of it."""
        async for message in self._private:
            with surviving("hosting", message_id=message.id):
                batch = flow.Batch(channel_id=message.channel_id, author=message.author, messages=(message,))
                await self._notes.answer(batch)

    async def _process_server_changes(self) -> None:
        while True:
            await self._came.wait()
            self._came = Event()
            while self._news:
                guild_id, event = next(iter(self._news.items()))
                delayed = make_delay_logger(_log, "server_delayed", guild_id=guild_id)
                await retry(
                    partial(self._apply_server_change, event),
                    KnowledgeError,
                    backoff=exponential_backoff(),
                    delayed=delayed,
                )
                if self._news[guild_id] is event:
                    del self._news[guild_id]
                    self._waiting.pop(guild_id, None)

    async def _apply_server_change(self, event: flow.GuildJoined | flow.GuildLeft) -> None:
        if not self._is_ours((event.guild_id,)):  # after a pause: the process with the lease knows better
            return
        registry = CommunityStore(self._find_database((event.guild_id,)), clock=self._host.clock)
        if isinstance(event, flow.GuildJoined) and not await registry.has_server(event.guild_id):
            # First, so that a crash in between does not cost the greeting. Discord accepts its nonce once.
            await greet_server(event, self._chat, self._host.shared.wordings(self._settings))
        async with self._changing:
            if isinstance(event, flow.GuildLeft):
                self._sessions.pop(event.guild_id, None)
                if left := await registry.mark_departed(event.guild_id):
                    _log.info("community_left", community=left.name)
                    await self._drop_communities(left.name)
                return
            known, is_new = await registry.add_server(event.guild_id, event.name, first_choice(event))
            _log.info("community_joined", community=known.name, is_new=is_new, state=known.state)
            if known.state == "active":
                await self._serve_communities(known)

    # Changes of the registry.

    async def _poll_registry(self) -> None:
        while True:
            with surviving("hosting"):
                await self._check_registry()
                for name in await self.registry.list_with_jobs():
                    self.communities.open_now(name)
                if self._erases_at <= current_time():
                    await self._erase_left()
            await sleep(LOOK_SECONDS)

    async def _check_registry(self) -> None:
        if await self.registry.revision() != self._revision:
            await self._sync_with_registry()

    async def _read_communities(self) -> tuple[RegisteredCommunity, ...]:
        """Read the communities that may belong to us."""
        if self._sharding is None:
            return await self.registry.all()
        return await self.registry.list_on_shards(tuple(self._fenced), self._sharding.shards)

    async def _sync_with_registry(self) -> None:
        """Serve the communities that are active in the registry and on our shards, with its settings."""
        async with self._changing:
            revision = await self.registry.revision()
            ours = [each for each in await self._read_communities() if self._is_ours(each.guild_ids)]
            self._ours = frozenset(each.name for each in ours)
            active = {each.name: each for each in ours if each.state == "active"}
            await self._drop_communities(*(self.communities.names - active.keys()))
            before, self._refused = set(self.communities.names), {}
            await self._serve_communities(*active.values())
            for each in ours:  # suspended, or with bad settings: the removal of the bot must be noticed, too
                if each.left_at is None and each.name not in self.communities:
                    self._serve(each.guild_ids[0], self._settings)
            # Communities whose process stopped during their work, such as this one's previous run.
            if added := self.communities.names - before:
                for name in added & set(await self.registry.list_open()):
                    self.communities.open_now(name)
            self._revision, self._erases_at = revision, 0.0

    async def _erase_left(self) -> None:
        """Erase the data of servers that removed the bot a week ago. Most often, there is none."""
        self._erases_at = current_time() + ERASE_SECONDS
        host = self._host

        def is_closed(name: str) -> bool:
            return name in self._ours and name not in self.communities

        async with self._changing:
            await erase_left_communities(self._settings, host.db, host.clock, is_closed=is_closed)

    async def _serve_communities(self, *registered: RegisteredCommunity) -> None:
        """Start to serve communities, or change their settings."""
        new: list[Community] = []
        for each in registered:
            known, community = self.communities.get(each.name), build_community(each)
            if community == known:
                continue
            try:
                settings = build_community_settings(community, self._settings)
            except ConfigError as error:
                _log.error("community_refused", community=each.name, reason=str(error))
                self._refused[each.name] = str(error)
                await self._drop_communities(each.name)
                continue
            for guild_id in community.guild_ids:
                self._serve(guild_id, settings)
                self._waiting.setdefault(guild_id, [])
            if known is None:
                new.append(community)
            else:
                self.communities.change(community)
                self._deliver_waiting(community)
        await self.communities.add(*(each for each in new if self._is_ours(each.guild_ids)))
        for community in new:
            if not self._is_ours(community.guild_ids):  # the lease was lost meanwhile
                await self._drop_communities(community.name, at_once=True)
            self._deliver_waiting(community)

    def _deliver_waiting(self, community: Community) -> None:
        """Deliver the events that came before a community was known, or while it changed."""
        for guild_id in community.guild_ids:
            if session := self._sessions.pop(guild_id, None):
                self.communities.receive(session)
            for event in self._waiting.pop(guild_id, ()):
                self.communities.receive(event)

    async def _drop_communities(self, *names: str, at_once: bool = False) -> None:
        """Stop serving communities, and wait until they are closed."""
        with ExitStack() as closed:
            for known in filter(None, map(self.communities.get, names)):
                for guild_id in known.guild_ids:
                    closed.callback(self._serve, guild_id, None)
            if at_once:
                closed.close()
            # A calmly closing community reads on meanwhile, and has to know the team members.
            async with open_task_group() as tg:
                for name in names:
                    tg.start_soon(partial(self.communities.remove, name, at_once=at_once))
