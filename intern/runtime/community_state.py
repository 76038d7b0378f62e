"""The state of each community that a process always has."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from math import inf
from typing import Final

from anyio import CancelScope, Event, current_time
from msgspec.structs import replace
from structlog.contextvars import bound_contextvars

from intern.chat.platform import ChatPlatform, Deliver
from intern.core import flow
from intern.core.clock import Wakeup
from intern.core.ids import FIRST, ChannelId, GuildId, MessageId, Position, parse_position
from intern.core.log import get_logger
from intern.core.messages import Channel, MemberRoles
from intern.settings.communities import Community
from intern.stores.tables.checkpoints import StoredCheckpoints

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
