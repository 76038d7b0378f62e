"""The state of each community that a process always has, and the part of a platform that one community may see."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterator
from dataclasses import dataclass, field
from functools import wraps
from math import inf
from types import CoroutineType
from typing import Any, Concatenate, Final, ParamSpec, TypeVar, cast

from anyio import CancelScope, Event, current_time, sleep_forever
from msgspec.structs import replace
from structlog.contextvars import bound_contextvars

from intern.chat.platform import ChatPlatform, Deliver, Requested
from intern.core import flow
from intern.core.clock import Wakeup
from intern.core.errors import ChatRefusedError
from intern.core.ids import FIRST, ChannelId, GuildId, MessageId, Position, parse_position
from intern.core.log import get_logger
from intern.core.messages import Channel, MemberRoles
from intern.settings.communities import Community
from intern.stores.sqlite.chat import StoredCheckpoints

P = ParamSpec("P")
R = TypeVar("R")

_log = get_logger(__name__)

_MOST_WAITING: Final = 1000  # events for a community that is being opened


@dataclass(eq=False)
class CommunityState:
    """The state of a community that the process always has."""

    community: Community
    stands: StoredCheckpoints
    sessions: dict[GuildId, flow.SessionStarted] = field(default_factory=dict[GuildId, flow.SessionStarted])
    newest: dict[ChannelId, MessageId] = field(default_factory=dict[ChannelId, MessageId])
    """The newest message after the start of its server's session, for each channel of the session."""
    waiting: list[flow.GatewayEvent] = field(default_factory=list[flow.GatewayEvent])
    """Events that the community could not take yet."""
    noted: dict[tuple[GuildId, str], MemberRoles] = field(default_factory=dict[tuple[GuildId, str], MemberRoles])
    deliver: Deliver | None = None
    is_open: bool = False
    """Whether it is open, or being opened or closed."""
    continues: bool = False
    """Whether it was closed calmly, and no session has begun since."""
    heard_at: float = 0.0
    due_at: float = inf
    failure: str = ""
    retries: Iterator[float] | None = None
    """After a failure: the pauses before the next tries."""
    stop: Event = field(default_factory=Event)
    """Closes it calmly, if it is open."""
    scope: CancelScope = field(default_factory=CancelScope)
    """Ends it at once, if it is open."""
    closed: Event = field(default_factory=Event)
    look: Event = field(default_factory=Event)
    """Makes it check whether it can be closed."""
    hurries: bool = False
    """Whether it gives its place to another one, and is closed as soon as it has no work."""
    jobs_came: Wakeup = field(default_factory=Wakeup)
    """The wakeup of its job worker, if it is open."""
    reopens: bool = False
    """Whether it was closed only to change its settings."""
    is_removed: bool = False

    @property
    def has_more(self) -> bool:
        """Whether it has to be opened again as soon as it is closed."""
        return not self.is_removed and bool(self.reopens or self.waiting)

    def admits(self, channel: Channel, chat: ChatPlatform) -> bool:
        """Whether everyone on its server may read the channel, or the community listed it."""
        if channel.guild_id not in self.community.guild_ids:
            return False
        listed = self.community.chosen.get("discord", {}).get("listed_channel_ids", ())
        return channel.id in listed or (channel.parent_id in listed and not channel.private) or chat.admits(channel)

    def receive(self, event: flow.GatewayEvent) -> None:
        """Take an event. Never waits."""
        self.heard_at = current_time()
        if self.deliver is not None:
            self._note(event)
            with bound_contextvars(community=self.community.name):  # this is the platform's task
                self.deliver(event)
        elif isinstance(event, flow.SessionStarted):
            self.note_missed(event)  # this one is delivered first
        elif len(self.waiting) < _MOST_WAITING:
            self.waiting.append(event)
        else:
            _log.warning("community_events_shed", community=self.community.name, events=_MOST_WAITING + 1)
            self.note_missed(*self.waiting, event)

    def note_missed(self, *events: flow.GatewayEvent) -> None:
        """Note events, and drop the waiting ones. The next session finds the messages; commands would be too late."""
        for each in events:
            self._note(each)
        self.waiting, self.continues = [], self.continues and not events

    def begin_delivery(self, deliver: Deliver) -> None:
        """Deliver the sessions as they were before the waiting events, then those events, then all further ones."""
        for session in self.sessions.values():
            deliver(self._update_session(session))
        waiting, self.waiting = self.waiting, []
        for event in waiting:
            self._note(event)
            deliver(event)
        self.deliver = deliver

    def needs(self, event: flow.GatewayEvent, chat: ChatPlatform) -> bool:
        """Whether a closed community has work for an event."""
        match event:
            case flow.SessionStarted():
                seen = (each for each in event.channels if self.admits(each.channel, chat))
                return any(self._is_behind(event.guild_id, each) for each in seen)
            case flow.MessageCreated(message=message) | flow.MessageEdited(message=message):
                channel = self._find_channel(message.guild_id, message.channel_id)
                return message.author.type != "bot" and (channel is None or self.admits(channel, chat))
            case _:
                return True

    def _note(self, event: flow.GatewayEvent) -> None:
        match event:
            case flow.SessionStarted():
                self.sessions[event.guild_id] = event
                self.newest = {}
            case flow.MessageCreated(message=message) if self._find_channel(message.guild_id, message.channel_id):
                self.newest[message.channel_id] = message.id
            case _:
                pass

    def _update_session(self, session: flow.SessionStarted) -> flow.SessionStarted:
        seen = tuple(
            replace(each, last_message_id=self.newest.get(each.channel.id, each.last_message_id))
            for each in session.channels
        )
        return replace(session, channels=seen, continues=self.continues)

    def _find_channel(self, guild_id: GuildId | None, channel_id: ChannelId) -> Channel | None:
        session = None if guild_id is None else self.sessions.get(guild_id)
        places = session.channels if session else ()
        return next((each.channel for each in places if each.channel.id == channel_id), None)

    def _is_behind(self, guild_id: GuildId, seen: flow.ChannelSnapshot) -> bool:
        attended = self.stands.attended.get(guild_id)
        if attended is None or seen.last_message_id is None:
            return False  # we were never there
        mark = self.stands.channels.get(seen.channel.id)
        stands: Position = max(parse_position(attended), parse_position(mark.settled_to) if mark else FIRST)
        return parse_position(seen.last_message_id) > stands


def event_guild_id(event: flow.GatewayEvent) -> GuildId | None:
    """Return the server that an event comes from; None for private messages."""
    match event:
        case flow.MessageCreated(message=message) | flow.MessageEdited(message=message):
            return message.guild_id
        case (
            flow.MessagesDeleted()
            | flow.SessionStarted()
            | flow.ApprovalReaction()
            | flow.GuildJoined()
            | flow.GuildLeft()
        ):
            return event.guild_id
        case _:
            return event.interaction.guild_id


def _restrict_to_own(
    method: Callable[Concatenate[ChatPlatform, ChannelId, P], Awaitable[R]],
) -> Callable[Concatenate[CommunityChat, ChannelId, P], CoroutineType[Any, Any, R]]:
    """Call the platform. Raises ChatRefusedError for the channel of another community."""

    @wraps(method)
    async def call_if_own(self: CommunityChat, channel_id: ChannelId, /, *args: P.args, **kwargs: P.kwargs) -> R:
        await self.channel(channel_id)
        result: R = await getattr(self._chat, method.__name__)(channel_id, *args, **kwargs)
        return result

    return cast("Callable[Concatenate[CommunityChat, ChannelId, P], CoroutineType[Any, Any, R]]", call_if_own)


class CommunityChat:
    """The part of a platform that one community may see: its own servers. It refuses the channels of all others."""

    def __init__(
        self, chat: ChatPlatform, known: CommunityState, ready: Callable[[], None], note_roles: Callable[[], None]
    ) -> None:
        self._chat, self._known, self._ready, self._note_roles = chat, known, ready, note_roles
        self.capabilities, self.guild_ids = chat.capabilities, known.community.guild_ids
        self.wait_for_permissions, self.restore_roles = chat.wait_for_permissions, chat.restore_roles

    @property
    def is_open(self) -> bool:
        """Whether the platform is open."""
        return self._chat.is_open

    @property
    def advice(self) -> str:
        """The platform's advice."""
        return self._chat.advice

    async def listen(self, deliver: Deliver) -> None:
        """Deliver the sessions of its servers, the events that opened it, and all further ones, until cancelled."""
        self._known.begin_delivery(deliver)
        self._ready()
        try:
            await sleep_forever()
        finally:
            self._known.deliver = None

    def admits(self, channel: Channel) -> bool:
        """Whether everyone on its server may read the channel, or the community listed it."""
        return self._known.admits(channel, self._chat)

    def take_new_roles(self) -> Collection[MemberRoles]:
        """Take the roles that were learned on its servers since the last call."""
        self._note_roles()
        noted, self._known.noted = self._known.noted, {}
        return noted.values()

    def report_requests(self, requested: Requested, reconnected: Callable[[], object]) -> None:
        """Report nothing: requests are counted for the whole process."""

    async def channel(self, channel_id: ChannelId) -> Channel:
        """Return a channel of its servers. Raises ChatRefusedError for any other."""
        channel = await self._chat.channel(channel_id)
        if channel.guild_id not in self.guild_ids:
            raise ChatRefusedError(f"channel {channel_id} belongs to no server of this community")
        return channel

    message = _restrict_to_own(ChatPlatform.message)
    look_up = _restrict_to_own(ChatPlatform.look_up)
    before = _restrict_to_own(ChatPlatform.before)
    after = _restrict_to_own(ChatPlatform.after)
    page = _restrict_to_own(ChatPlatform.page)
    list_archived_threads = _restrict_to_own(ChatPlatform.list_archived_threads)
    start_thread = _restrict_to_own(ChatPlatform.start_thread)
    remove_thread = _restrict_to_own(ChatPlatform.remove_thread)
    send = _restrict_to_own(ChatPlatform.send)
    rewrite = _restrict_to_own(ChatPlatform.rewrite)
    typing = _restrict_to_own(ChatPlatform.typing)
