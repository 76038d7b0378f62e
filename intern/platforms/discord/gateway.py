"""Handling of Discord's events, which the connections of `shards` deliver. asyncio only.

hikari delivers raw payloads, `events` reads them; only `GatewayCache` and `ChannelVisibility` keep state.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Final

import hikari
import msgspec
from anyio import move_on_after

from intern.chat.platform import Deliver, RequestReports
from intern.core.errors import ChatError, ConfigError
from intern.core.flow import GatewayEvent, GuildLeft, MessageEdited
from intern.core.ids import ChannelId, GuildId, parse_position
from intern.core.log import get_logger
from intern.core.messages import ChatMessage, RoleLookupBudget
from intern.core.tasks import open_task_group
from intern.platforms.discord import payloads
from intern.platforms.discord.channel_visibility import ChannelVisibility, read_own_roles, read_session_start
from intern.platforms.discord.commands import read_interaction
from intern.platforms.discord.events import read_event
from intern.platforms.discord.gateway_cache import ChannelDeleted, ChannelsUpdated, GatewayCache
from intern.platforms.discord.messages import opens_thread
from intern.platforms.discord.options import NO_SERVERS, DiscordOptions, ShardChoice, shard_advice
from intern.platforms.discord.rest import HikariRest
from intern.platforms.discord.servers import read_guild_joined
from intern.platforms.discord.sessions import Turn, no_turn
from intern.platforms.discord.shards import GOODBYE_SECONDS, Shards

_log = get_logger(__name__)
_Of = hikari.Intents
INTENTS: Final = _Of.GUILDS | _Of.GUILD_MESSAGES | _Of.DM_MESSAGES | _Of.MESSAGE_CONTENT
REACTIONS: Final = _Of.GUILD_MESSAGE_REACTIONS
"""Needs no permission, but brings every reaction: requested only if one can mean something."""


_MOST_RENAMED: Final = 100  # threads whose first message is read again at once
_CHANNELS_HOSTED: Final = 100_000  # that are remembered: more than 3,000 servers have


class HikariDiscord(HikariRest):
    """One bot account, connected. `async with` opens REST; the first `listen` opens the gateway.

    With `leased`, `listen` holds no shard by itself: `shards.hold` and `release` say which, at any time.
    Leaving the block closes both, however long hikari would go on trying.
    Raises ConfigError at once where the options cannot work.
    """

    def __init__(
        self,
        options: DiscordOptions,
        *,
        reactions: bool = False,
        first_pause: float = 1.0,
        max_retries: int = 3,
        hosts: bool = False,
        leased: bool = False,
        turn: Turn = no_turn,
        reports: RequestReports = RequestReports(),  # noqa: B008 - it is immutable
    ) -> None:
        """With `reactions`, a ✅ of a team member becomes an ApprovalReaction.

        If it `hosts`, events come from every server that the bot is on, also of joining and leaving one.
        """
        if not options.guild_ids and not hosts:
            raise ConfigError(NO_SERVERS)
        cache = GatewayCache(_CHANNELS_HOSTED) if hosts else GatewayCache()
        super().__init__(options, cache, max_retries=max_retries, requested=reports.requested)
        self._options = options
        self.guild_ids, self._hosts = tuple(options.guild_ids), hosts
        self._audience = ChannelVisibility(options.listed_channel_ids)
        self.admits, self.wait_for_permissions = self._audience.admits, self._audience.wait_for_permissions
        self.take_new_roles, self.restore_roles = self._cache.take_new_roles, self._cache.restore_roles
        self._there: dict[GuildId, int] = {}  # the shard of each server that the bot is on
        self._deliver: Deliver | None = None
        self._rereads: set[asyncio.Task[None]] = set()
        self._leased = leased
        self.shards = Shards(
            token=options.token.reveal().strip(),
            intents=INTENTS | REACTIONS if reactions else INTENTS,
            chosen=options.shards if isinstance(options.shards, ShardChoice) else None,
            ask=self.gateway,
            take=self._receive,
            first_pause=first_pause,
            turn=turn,
            reconnected=reports.reconnected,
        )
        self.wait_ready = self.shards.wait_ready

    async def __aexit__(self, *_: object) -> None:
        self._deliver = None
        with move_on_after(GOODBYE_SECONDS, shield=True) as scope:
            async with open_task_group() as tg:
                tg.start_soon(super().__aexit__)
                tg.start_soon(self.shards.close)
        if scope.cancelled_caught:
            _log.warning("discord_close_timed_out", seconds=GOODBYE_SECONDS)

    @property
    def is_open(self) -> bool:
        """Whether a session is open right now on each held shard, so that events are delivered."""
        return self.shards.is_open

    @property
    def advice(self) -> str:
        """Advice to the operator about the shards; empty if there is none."""
        return shard_advice(self.shards.count, self.shards.recommended)

    async def listen(self, deliver: Deliver) -> None:
        """Connect and call `deliver` for each event of our servers, in order, until cancelled.

        Each new session begins with one SessionStarted for each server, before anything else of that server; one that
        is resumed goes on where it was. Private messages are events too; their `guild_id` is None.
        `deliver` must not wait: the heartbeat does, meanwhile. Cancelling ends the delivery and leaves the connection
        open, so that replies can still be seen off. Raises ConfigError where Discord refuses us for good. An outage
        ends nothing: hikari goes on trying, and so do we.
        """
        self._deliver = deliver
        try:
            if not self._leased:
                await self.shards.hold_all()
            await self.shards.wait_for_failure()
        finally:
            self._deliver = None
            self._audience.close()

    async def _messages(
        self, place: ChannelId, page: list[Any], lookups: RoleLookupBudget | None = None
    ) -> list[ChatMessage]:
        """Read a page, once an open session has reported its permissions, also if one was lost meanwhile."""
        guild_id = (await self.channel(place)).guild_id
        await self.wait_for_permissions(guild_id if self._hosts or guild_id in self.servers else None)
        return await super()._messages(place, page, lookups)

    def _receive(self, shard: int, name: str, payload: Mapping[str, Any]) -> None:
        self._audience.track_session(shard, name)
        try:
            if name == "READY":
                self._handle_ready(shard, payloads.parse_leniently(payload, _RawReady))
                return
            if name == "INTERACTION_CREATE":
                # An interaction from any server needs an answer.
                place = msgspec.convert(payload, _RawOrigin)
                team = self.servers.team_for(GuildId(str(place.guild_id)) if place.guild_id else None)
                if interaction := read_interaction(payload, team, self._cache):
                    self._deliver_event(interaction)
                return
            place = msgspec.convert(payload or {}, _RawOrigin)
            server = place.id if name in _ABOUT_SERVERS else place.guild_id
            if server is None and name == "MESSAGE_CREATE":
                self._process(shard, None, name, payload)
            # Events of other servers are ignored. A payload may have any value as its server.
            elif isinstance(server, str) and (self._hosts or server in self.servers):
                self._process(shard, GuildId(server), name, payload)
        except msgspec.ValidationError as error:
            _log.warning("discord_payload_unreadable", event_name=name, problem=str(error))

    def _handle_ready(self, shard: int, ready: _RawReady) -> None:
        self.servers.set_bot_id(ready.user.id)
        _log.info("discord_ready", bot_id=ready.user.id, shard=shard)
        if self._hosts and ready.guilds is not None:
            there = {each.id for each in payloads.parse_items(ready.guilds, payloads.RawChannelStub)}
            self._there = {guild: at for guild, at in self._there.items() if at != shard}
            self._there |= dict.fromkeys(map(GuildId, there), shard)
            for guild_id in self.servers.find_missing(self._there):
                if self.shards.shard_for(guild_id) == shard:
                    self._deliver_event(GuildLeft(guild_id=guild_id))

    def _process(self, shard: int, server: GuildId | None, name: str, payload: Mapping[str, Any]) -> None:
        self._audience.receive(name, payload, shard)
        bot_id = self.servers.bot_id
        if server is not None and name == "GUILD_CREATE":
            self.servers.note_own_roles(server, read_own_roles(payload, bot_id))
        if server is not None and self._hosts and name in _ABOUT_SERVERS:
            self._report_membership(shard, server, name, payloads.parse_leniently(payload, payloads.RawGuild))
        event = read_event(name, payload, self.servers.team_for(server), self._cache)
        if isinstance(event, ChannelsUpdated | ChannelDeleted):
            renamed = list(self._cache.find_renamed(event))
            self._cache.apply(event)
            for thread in renamed[: _MOST_RENAMED - len(self._rereads)]:
                reread = asyncio.create_task(self._report_rename(thread))
                self._rereads.add(reread)
                reread.add_done_callback(self._rereads.discard)
        elif event is not None and (server is None or server in self._audience.sessions):
            # An event that arrives before its server is read as history once the server arrives.
            self._deliver_event(event)
        if name == "GUILD_CREATE" and (started := read_session_start(payload, bot_id)):
            _log.info("discord_session_started", guild_id=started.guild_id, channels=len(started.channels))
            self._cache.begin_session(started.guild_id)
            self._deliver_event(started)

    async def _report_rename(self, thread: payloads.RawChannel) -> None:
        """Report the message that opens a thread as edited: its text begins with the title."""
        before = parse_position(thread.id).previous.id
        try:
            found = await self.after(thread.id, before, 1) or await self.after(thread.parent_id or thread.id, before, 1)
        except ChatError as error:
            _log.info("title_unread", channel_id=thread.id, reason=str(error))
            return
        if found and opens_thread(found[0].id, thread.id):
            self._deliver_event(MessageEdited(message=found[0]))

    def _report_membership(self, shard: int, server: GuildId, name: str, told: payloads.RawGuild) -> None:
        """Report that the bot joined or left a server. An outage is neither."""
        if told.unavailable:
            return
        if name == "GUILD_DELETE":
            self._there.pop(server, None)
            self._deliver_event(GuildLeft(guild_id=server))
        elif server not in self._there or server not in self.servers:
            self._there[server] = shard
            self._deliver_event(read_guild_joined(told))

    def _deliver_event(self, event: GatewayEvent) -> None:
        if self._deliver is not None:
            self._deliver(event)


_ABOUT_SERVERS: Final = frozenset({"GUILD_CREATE", "GUILD_DELETE"})  # they call the server's id `id`


class _RawOrigin(msgspec.Struct, frozen=True):
    id: object = None
    guild_id: object = None


class _RawReady(msgspec.Struct, frozen=True):
    user: payloads.RawUser
    guilds: list[Any] | None = None
    """All servers of this shard that the bot is on, also those in an outage."""
