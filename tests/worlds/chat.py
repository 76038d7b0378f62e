"""The platform in memory: all possible events of Discord, several servers, commands and buttons."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import AsyncGenerator, Callable, Collection, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any, Final, TypeVar

import anyio
from anyio.lowlevel import checkpoint
from msgspec import Struct, structs

from intern.chat.checkpoints import Checkpoints
from intern.chat.delivery import OutboxDelivery
from intern.chat.platform import Capabilities, Deliver, History, Outlet
from intern.core.clock import Clock
from intern.core.errors import ChatError, ChatRefusedError, ChatUnavailableError
from intern.core.flow import (
    APPROVES,
    ApprovalReaction,
    ChannelSnapshot,
    GatewayEvent,
    Interaction,
    InteractionTicket,
    MessageCreated,
    MessagesDeleted,
    SessionStarted,
)
from intern.core.ids import ChannelId, GuildId, MessageId, RoleId, parse_position
from intern.core.messages import Attachment, Author, Button, Channel, ChatMessage
from intern.core.text.words import add_title
from intern.platforms import sandbox
from intern.platforms.sandbox import Call
from intern.stores.tables.outbox import Outbox
from tests.worlds.clock import HandClock

_T = TypeVar("_T")


_LONG: Final = timedelta(days=100_000)
_SHOWING: frozenset[Call] = frozenset({"message", "look_up", "before", "after", "page"})


class PostDetails(Struct, frozen=True, kw_only=True):
    """Properties of a message of the bot's, besides its text."""

    buttons: tuple[Button, ...] = ()
    pings: tuple[RoleId, ...] = ()
    """The roles that Discord notified."""


class Sandbox(sandbox.Sandbox):
    """A chat that counts the bot's requests in `calls`. While it is offline, events become history."""

    def __init__(self, clock: Clock, team: Collection[str] = ()) -> None:
        self._missed: list[GatewayEvent] | None = None
        self._private: set[ChannelId] = set()
        self._told_private: frozenset[ChannelId] = frozenset()
        self._archived: set[ChannelId] = set()
        self._failures: dict[Call, deque[tuple[ChatError, bool]]] = {}
        self.calls: Counter[Call] = Counter()
        self.sent: dict[MessageId, PostDetails] = {}
        """By the bot, also messages that were deleted since."""
        self.typed_in: list[ChannelId] = []
        """The channels where the bot showed typing, in order."""
        self.listed: set[ChannelId] = set()
        """The private channels where the bot works."""
        super().__init__(clock, team)

    # Acts of people.

    def add_direct(self) -> ChannelId:
        """Add a channel for private messages, on no server."""
        channel_id = self._add(ChannelId(self._next_id()), "channel", "", None)
        self._channels[channel_id] = structs.replace(self._channels[channel_id], guild_id=None)
        return channel_id

    def set_private(self, channel_id: ChannelId, private: bool = True) -> None:  # noqa: FBT001, FBT002 - it is the point
        """Make the channel private or public; its threads follow."""
        (self._private.add if private else self._private.discard)(channel_id)
        if self._missed is None:
            self._told_private = frozenset(self._private)

    def open_post(self, author: Author | str, title: str, text: str) -> ChatMessage:
        """Open a post in a forum; its first message has the post's own id."""
        forum = next((place.id for place in self._channels.values() if place.name == "forum"), None)
        message_id = MessageId(self._next_id())
        post = self._add(ChannelId(message_id), "post", title, forum or self.add_channel("forum"))
        return self.say(author, add_title(text, title), channel_id=post, message_id=message_id)

    def open_private_thread(self, channel_id: ChannelId, name: str) -> ChannelId:
        """Open a thread on no message, for invited members; the bot is one."""
        thread = self._add(ChannelId(self._next_id()), "thread", name, channel_id)
        self._channels[thread] = structs.replace(self._channels[thread], private=True)
        return thread

    def archive(self, thread: ChannelId) -> None:
        """Archive a thread; the next message there wakes it up."""
        self._archived.add(thread)

    def delete(self, channel_id: ChannelId, *message_ids: MessageId) -> None:
        """Delete messages; a thread on one of them stays."""
        for message_id in message_ids:
            del self._messages[channel_id][self._locate(channel_id, message_id)[0]]
        guild_id = self._channels[channel_id].guild_id
        self._deliver_event(MessagesDeleted(guild_id=guild_id, channel_id=channel_id, message_ids=tuple(message_ids)))

    def react(self, who: Author | str, message: ChatMessage, emoji: str = APPROVES) -> None:
        """Put an emoji on a message. Only the team's approval is an event."""
        reacting = self.author(who) if isinstance(who, str) else who
        if emoji == APPROVES and reacting.type == "team_member" and message.guild_id is not None:
            place = message.channel_id
            self._deliver_event(
                ApprovalReaction(guild_id=message.guild_id, channel_id=place, message_id=message.id, by=reacting.id)
            )

    def interact(self, interaction: Interaction) -> None:
        """Use a command or press a button."""
        self._deliver_event(interaction)

    # Acts of the connection.

    @asynccontextmanager
    async def offline(self, *, resumes: bool = False) -> AsyncGenerator[None]:
        """Close the gateway for the time of the block, but not REST. Messages read there wait for its end.

        Then a new session starts, and the events of the block are history. If it `resumes`, they are delivered instead.
        """
        self._missed = []
        connected = tuple(self._listeners) if resumes else ()
        try:
            yield
        finally:
            missed, self._missed, self._told_private = self._missed, None, frozenset(self._private)
            for deliver in tuple(self._listeners):
                # Only earlier listeners can resume.
                for event in missed if deliver in connected else (self._build_session_start(),):
                    deliver(event)
            self._notify_waiters()

    def lose_session(self) -> None:
        """Start a new session right now."""
        for deliver in tuple(self._listeners):
            deliver(self._build_session_start())
        self._notify_waiters()

    # The visible results.

    async def posted(
        self, wanted: Callable[[ChatMessage], bool] = lambda _: True, *, within: float = 5.0
    ) -> ChatMessage:
        """Wait for the bot's first message that is `wanted`. Raises TimeoutError after `within` seconds."""
        with anyio.fail_after(within):
            while True:
                found = next(filter(wanted, self.posts()), None)
                if found is not None:
                    return found
                await self._changed.wait()

    def fail(self, call: Call, error: ChatError, *, done: bool = False) -> None:
        """Let the next call of that name raise `error`; with `done`, after its work was done."""
        self._failures.setdefault(call, deque()).append((error, done))

    # Replacements for the platform's own methods.

    def admits(self, channel: Channel) -> bool:
        """Return whether everyone can read there, or it is listed."""
        places = {channel.id, channel.parent_id}
        if channel.id in self.listed or (channel.parent_id in self.listed and not channel.private):
            return True
        return super().admits(channel) and self._told_private.isdisjoint(places)

    async def wait_for_permissions(self, guild_id: GuildId | None) -> None:
        """Wait until the gateway is open. Raises ChatUnavailableError without a listener."""
        while guild_id is not None and self._missed is not None:
            if not self._listeners:
                raise ChatUnavailableError("Discord has not told yet who may read")
            await self._changed.wait()

    async def listen(self, deliver: Deliver) -> None:
        """Listen; afterwards, no caller waits for the gateway."""
        try:
            await super().listen(deliver)
        finally:
            self._notify_waiters()

    async def send(
        self,
        channel_id: ChannelId,
        text: str,
        nonce: str,
        *,
        buttons: Sequence[Button] = (),
        mention_role: RoleId | None = None,
    ) -> MessageId:
        """Post a message, and note its details, also where its confirmation is lost."""
        pings = (mention_role,) if mention_role and f"<@&{mention_role}>" in text else ()
        try:
            return await super().send(channel_id, text, nonce, buttons=buttons, mention_role=mention_role)
        finally:
            if posted := self._nonces.get((channel_id, nonce)):
                self.sent.setdefault(posted[1], PostDetails(buttons=tuple(buttons), pings=pings))

    async def rewrite(self, channel_id: ChannelId, message_id: MessageId, text: str) -> None:
        """Replace a message of the bot's by a text, without buttons."""
        await super().rewrite(channel_id, message_id, text)
        self.sent[message_id] = PostDetails()

    async def typing(self, channel_id: ChannelId) -> None:
        """Show the bot typing."""
        await super().typing(channel_id)
        self.typed_in.append(channel_id)

    async def list_archived_threads(self, channel_id: ChannelId, after: MessageId) -> Sequence[ChannelSnapshot]:
        """List the channel's public archived threads whose newest message is newer than `after`."""

        def work() -> Sequence[ChannelSnapshot]:
            here = [thread for thread in self.threads(self._find_channel(channel_id).id) if thread.id in self._archived]
            seen = [self._build_channel_seen(thread) for thread in here if not thread.private]
            return [
                one
                for one in seen
                if one.last_message_id and parse_position(one.last_message_id) > parse_position(after)
            ]

        return await self._call("list_archived_threads", work)

    async def _call(self, call: Call, work: Callable[[], _T]) -> _T:
        await checkpoint()
        self.calls[call] += 1
        planned = self._failures.get(call)
        error, done = planned.popleft() if planned else (None, True)
        if error and not done:
            raise error
        result = work()
        if error:
            raise error
        if call in _SHOWING:
            await self.wait_for_permissions(self.guild_id)
        return result

    def _build_session_start(self) -> SessionStarted:
        session = super()._build_session_start()
        there = tuple(seen for seen in session.channels if seen.channel.id not in self._archived)
        return structs.replace(session, channels=there)

    def _greet(self, deliver: Callable[[GatewayEvent], None]) -> None:
        if self._missed is None:
            super()._greet(deliver)

    def _deliver_event(self, event: GatewayEvent) -> None:
        if isinstance(event, MessageCreated):
            self._archived.discard(event.message.channel_id)
        if self._missed is None:
            super()._deliver_event(event)
        else:
            self._missed.append(event)
            self._notify_waiters()


class Talk:
    """A chat in memory in which time passes as people write; maya and tom are its team."""

    def __init__(self) -> None:
        self.clock = HandClock()
        self.discord = Sandbox(self.clock, team=["maya", "tom"])

    def say(
        self,
        who: str | Author,
        text: str,
        *,
        to: ChatMessage | None = None,
        after: float = 5,
        place: ChannelId | None = None,
        attachments: Sequence[Attachment] = (),
    ) -> ChatMessage:
        """Write a message, so many seconds after the one before."""
        self.clock.turn(seconds=after)
        return self.discord.say(who, text, channel_id=place, reply_to=to.id if to else None, attachments=attachments)


class Town(Sandbox):
    """A chat whose first server is separate from those added by name: each of these has one channel to begin with."""

    def add_server(self, *channels: str) -> tuple[GuildId, ChannelId]:
        """Add a server with these channels, or with one; return it and its first channel."""
        guild_id = GuildId(self._next_id())
        first, *_ = [self.add_channel_on(guild_id, name) for name in channels or ("general",)]
        return guild_id, first

    def add_channel_on(self, guild_id: GuildId, name: str) -> ChannelId:
        channel_id = self.add_channel(name)
        self._channels[channel_id] = structs.replace(self._channels[channel_id], guild_id=guild_id)
        return channel_id

    @property
    def guild_ids(self) -> tuple[GuildId, ...]:
        return tuple(dict.fromkeys(each.guild_id for each in self._channels.values() if each.guild_id))

    def _greet(self, deliver: Deliver) -> None:
        for guild_id in self.guild_ids:
            deliver(self.session_of(guild_id))

    def lose_session(self) -> None:
        """Begin a new session on every server."""
        for deliver in tuple(self._listeners):
            self._greet(deliver)

    def session_of(self, guild_id: GuildId) -> SessionStarted:
        there = [self._build_channel_seen(place) for place in self._channels.values() if place.guild_id == guild_id]
        return SessionStarted(guild_id=guild_id, channels=tuple(there))

    def open_thread(self, channel_id: ChannelId, message_id: MessageId, name: str) -> ChannelId:
        thread = super().open_thread(channel_id, message_id, name)
        guild_id = self._channels[channel_id].guild_id
        self._channels[thread] = structs.replace(self._channels[thread], guild_id=guild_id)
        return thread


class SeenInteraction(Struct, kw_only=True):
    """One interaction as the member sees it."""

    update: bool
    """Acknowledged without a sign of waiting: the message that holds the button stays as it is."""
    reply: str | None = None
    """The reply in the place where the member saw us waiting; None while they still wait."""
    buttons: tuple[Button, ...] = ()
    """The text under the last reply."""
    follow_ups: list[str] = []

    @property
    def texts(self) -> list[str]:
        """Return all replies, in order."""
        return [*([] if self.reply is None else [self.reply]), *self.follow_ups]


class SandboxCommands:
    """Answers interactions in memory, on asyncio and on trio, with Discord's rules for the order of replies."""

    def __init__(self) -> None:
        self.told: dict[str, SeenInteraction] = {}
        """The interactions by the ticket's id."""

    async def defer(self, ticket: InteractionTicket, *, update: bool = False) -> None:
        """Acknowledge; doing it again is harmless."""
        await checkpoint()
        self.told.setdefault(ticket.id, SeenInteraction(update=update))

    async def reply(self, ticket: InteractionTicket, text: str, *, buttons: Sequence[Button] = ()) -> None:
        """Answer where the member sees us waiting."""
        await checkpoint()
        told = self._told(ticket)
        if told.update:
            raise ChatRefusedError("Discord refused: that would overwrite the message that holds the button")
        told.reply, told.buttons = text, tuple(buttons)

    async def follow_up(self, ticket: InteractionTicket, text: str, *, buttons: Sequence[Button] = ()) -> None:
        """Send a further reply."""
        await checkpoint()
        told = self._told(ticket)
        told.follow_ups.append(text)
        told.buttons = tuple(buttons)

    async def register(self) -> None:
        """Register nothing."""
        await checkpoint()

    def _told(self, ticket: InteractionTicket) -> SeenInteraction:
        if ticket.id not in self.told:
            raise ChatRefusedError("Discord refused: unknown webhook, for nothing was acknowledged")
        return self.told[ticket.id]


def mark_of(checkpoints: Checkpoints, channel_id: ChannelId, guild_id: GuildId | None = None) -> MessageId:
    """Return the checkpoint of a channel; one without recent messages has that of its server."""
    channel = checkpoints._channels.get(channel_id)
    return (channel.mark if channel else checkpoints._open_guild(guild_id).until).id


def make_delivery(outlet: Outlet, outbox: Outbox, history: History, **given: Any) -> OutboxDelivery:
    """Deliver to a chat where everyone reads everything, at any age and without notices, unless `given` differs."""

    async def admit_all(_: ChannelId) -> bool:
        return True

    notices: dict[str, Any] = {name: {"en": ""} for name in ("late", "unposted", "retracted")}
    usual: dict[str, Any] = {"capabilities": Capabilities(), "admits": admit_all, "max_age": _LONG, **notices}
    return OutboxDelivery(outlet, outbox, history, **(usual | given))
