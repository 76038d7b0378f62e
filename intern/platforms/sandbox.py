"""A chat platform in memory, with Discord's rules, on asyncio and on trio.

Deterministic: ids come from its clock. People act through plain methods, the bot through the port's async ones.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from datetime import datetime, timedelta
from typing import Literal, TypeVar

import anyio
from anyio.lowlevel import checkpoint
from msgspec import structs

from intern.chat.platform import PAGE, Capabilities, Deliver
from intern.core.clock import Clock
from intern.core.errors import ChatNotFoundError, ChatRefusedError
from intern.core.flow import ChannelSnapshot, GatewayEvent, MessageCreated, MessageEdited, SessionStarted
from intern.core.ids import ChannelId, GuildId, MessageId, RoleId, UserId, parse_position, position_at
from intern.core.messages import (
    Attachment,
    Author,
    AuthorType,
    Button,
    Channel,
    ChannelKind,
    ChatMessage,
    MemberRoles,
    Page,
    RoleLookupBudget,
    find_message_index,
)

_T = TypeVar("_T")

_Reads = Literal["channel", "message", "look_up", "before", "after", "page", "list_archived_threads"]
Call = _Reads | Literal["start_thread", "remove_thread", "send", "rewrite", "typing"]


class MemoryHistory:
    """Channels and their messages, oldest first."""

    def __init__(self) -> None:
        self._channels: dict[ChannelId, Channel] = {}
        self._messages: dict[ChannelId, list[ChatMessage]] = {}

    async def channel(self, channel_id: ChannelId) -> Channel:
        """Return a channel or thread. Raises ChatRefusedError for one that does not exist."""
        return await self._call("channel", lambda: self._find_channel(channel_id))

    async def message(self, channel_id: ChannelId, message_id: MessageId) -> ChatMessage | None:
        """Return a message; None if there is none of that id, or no such channel."""
        return await self._call("message", lambda: find_message(self._messages.get(channel_id, ()), message_id))

    async def before(
        self,
        channel_id: ChannelId,
        message_id: MessageId | None,
        limit: int,
        *,
        lookups: RoleLookupBudget | None = None,
    ) -> Sequence[ChatMessage]:
        """Return the newest messages older than `message_id` (None: of all), oldest first."""
        del lookups

        def page() -> Sequence[ChatMessage]:
            here = self._list_messages(channel_id)
            end = len(here) if message_id is None else find_message_index(here, message_id)
            return here[max(0, end - _page_size(limit)) : end]

        return await self._call("before", page)

    async def after(self, channel_id: ChannelId, message_id: MessageId, limit: int) -> Sequence[ChatMessage]:
        """Return the oldest messages newer than `message_id`, oldest first."""
        return await self._call("after", lambda: self._after(channel_id, message_id, limit))

    def _after(self, channel_id: ChannelId, message_id: MessageId, limit: int) -> Sequence[ChatMessage]:
        here = self._list_messages(channel_id)
        start = find_message_index(here, message_id) + (find_message(here, message_id) is not None)
        return here[start : start + _page_size(limit)]

    async def _call(self, call: Call, work: Callable[[], _T]) -> _T:
        del call
        await checkpoint()
        return work()

    def _find_channel(self, channel_id: ChannelId) -> Channel:
        if channel_id not in self._channels:
            raise ChatNotFoundError("Discord refused: unknown channel")
        return self._channels[channel_id]

    def _list_messages(self, channel_id: ChannelId) -> list[ChatMessage]:
        return self._messages[self._find_channel(channel_id).id]


def find_message(messages: Sequence[ChatMessage], message_id: MessageId) -> ChatMessage | None:
    """Return the message of that id, among messages in order."""
    at = find_message_index(messages, message_id)
    found = messages[at : at + 1]
    return found[0] if found and found[0].id == message_id else None


def require(met: bool, what: str) -> None:  # noqa: FBT001 - reads like an assertion
    """Refuse a call as Discord does, unless a rule is met."""
    if not met:
        raise ChatRefusedError(f"Discord refused: {what}")


def _page_size(limit: int) -> int:
    require(1 <= limit <= PAGE, "a page has 1 to 100 messages")
    return limit


NONCE_LIFETIME = timedelta(minutes=3)  # Discord remembers a nonce for "the past few minutes"
_NONCE_LIMIT = 25
_BUTTON_ID_LIMIT = 100
_LABEL_LIMIT = 80


class Sandbox(MemoryHistory):
    """One server with one channel, `general`, to begin with; a name in `team` is a team member's.

    Each request of the bot costs a call, counted in `calls`. Events are delivered while there is a listener; the
    rest is history, as on Discord. Each listening begins with a SessionStarted.
    """

    def __init__(self, clock: Clock, team: Collection[str] = ()) -> None:
        super().__init__()
        self._clock = clock
        self._team = frozenset(team)
        self._newest = 0
        self._people: dict[str, Author] = {}
        self._nonces: dict[tuple[ChannelId, str], tuple[datetime, MessageId]] = {}
        self._last: dict[ChannelId, MessageId] = {}
        self._listeners: list[Deliver] = []
        self._own_threads: set[ChannelId] = set()
        self._changed = anyio.Event()
        self.capabilities = Capabilities()
        self.is_open, self.advice = True, ""
        self.guild_id = GuildId(self._next_id())
        self.bot = Author(id=UserId(self._next_id()), name="intern", type="bot", is_self=True)
        self._mention = re.compile(rf"@intern\b|<@!?{self.bot.id}>")
        self.general = self.add_channel("general")

    # People's actions.

    def add_channel(self, name: str) -> ChannelId:
        """Add a text channel."""
        return self._add(ChannelId(self._next_id()), "channel", name, None)

    def author(self, name: str) -> Author:
        """Return the person of that name; always the same one."""
        if name not in self._people:
            kind: AuthorType = "team_member" if name in self._team else "community_user"
            self._people[name] = Author(id=UserId(self._next_id()), name=name, type=kind)
        return self._people[name]

    def say(
        self,
        author: Author | str,
        text: str,
        *,
        channel_id: ChannelId | None = None,
        reply_to: MessageId | None = None,
        attachments: Sequence[Attachment] = (),
        message_id: MessageId | None = None,
    ) -> ChatMessage:
        """Write, in `general` unless a channel or thread is given. `@intern` in the text is a mention."""
        place = self._channels[channel_id or self.general]
        replied = find_message(self._messages[place.id], reply_to) if reply_to else None
        author = self.author(author) if isinstance(author, str) else author
        message = ChatMessage(
            id=message_id or MessageId(self._next_id()),
            guild_id=place.guild_id,
            channel_id=place.id,
            author=author,
            text=text,
            at=self._clock.now(),
            reply_to=reply_to,
            reply_to_channel=place.id if reply_to else None,
            reply_to_author=replied.author.id if replied else None,
            replies_to_other=replied is not None and not replied.author.is_self and replied.author.id != author.id,
            attachments=tuple(attachments),
            mentions_bot=self._mention.search(text) is not None,
            mentioned_staff=self._find_mentioned_team(text),
        )
        self._messages[place.id].append(message)
        self._last[place.id] = message.id
        self._deliver_event(MessageCreated(message=message))
        return message

    def open_thread(self, channel_id: ChannelId, message_id: MessageId, name: str) -> ChannelId:
        """Open the thread on a message, with the message's id, unless there is one."""
        thread = ChannelId(message_id)
        if thread in self._channels:
            return thread
        at, message = self._locate(channel_id, message_id)
        self._messages[channel_id][at] = structs.replace(message, thread_id=thread)
        return self._add(thread, "thread", name, channel_id)

    def edit(self, channel_id: ChannelId, message_id: MessageId, text: str) -> ChatMessage:
        """Change a message."""
        at, message = self._locate(channel_id, message_id)
        bot, staff = self._mention.search(text) is not None, self._find_mentioned_team(text)
        now = self._clock.now()
        edited = structs.replace(message, text=text, edited_at=now, mentions_bot=bot, mentioned_staff=staff)
        self._messages[channel_id][at] = edited
        self._deliver_event(MessageEdited(message=edited))
        return edited

    # The visible state.

    def messages(self, channel_id: ChannelId | None = None) -> tuple[ChatMessage, ...]:
        """Return the messages of a channel or thread, or of all, oldest first."""
        if channel_id is not None:
            return tuple(self._messages[channel_id])
        everything = (message for place in self._messages.values() for message in place)
        return tuple(sorted(everything, key=lambda message: parse_position(message.id)))

    def threads(self, parent_id: ChannelId | None = None) -> tuple[Channel, ...]:
        """Return threads and posts, oldest first; of one channel, if it is given."""
        threads = (place for place in self._channels.values() if place.is_thread)
        return tuple(place for place in threads if parent_id in {None, place.parent_id})

    def posts(self) -> tuple[ChatMessage, ...]:
        """Return all messages that the bot has written, oldest first."""
        return tuple(message for message in self.messages() if message.author.is_self)

    async def wait_ready(self) -> None:
        """Wait for a listener."""
        while not self._listeners:
            await self._changed.wait()

    # The bot's side: the port.

    async def listen(self, deliver: Deliver) -> None:
        """Call `deliver` for a new session and each event from now on, in order, until cancelled."""
        self._listeners.append(deliver)
        self._greet(deliver)
        self._notify_waiters()
        try:
            await anyio.sleep_forever()
        finally:
            self._listeners.remove(deliver)

    async def wait_for_permissions(self, guild_id: GuildId | None) -> None:
        """Wait for the server's permissions; here they are always known."""

    def admits(self, channel: Channel) -> bool:
        """Return whether everybody can read there."""
        return channel.guild_id is not None and not channel.private

    @property
    def guild_ids(self) -> tuple[GuildId, ...]:
        """The one server."""
        return (self.guild_id,)

    def take_new_roles(self) -> tuple[MemberRoles, ...]:
        """Return nothing: here are no roles."""
        return ()

    def restore_roles(self, known: Collection[MemberRoles]) -> None:
        """Do nothing: here are no roles."""

    async def look_up(self, channel_id: ChannelId, message_id: MessageId) -> ChatMessage | None:
        """Return a message; None where the channel has none of that id."""
        return await self._call("look_up", lambda: find_message(self._list_messages(channel_id), message_id))

    async def page(self, channel_id: ChannelId, after: MessageId, limit: int) -> Page:
        """Return messages as `after` does, with the position that it reaches."""

        def work() -> Page:
            found = self._after(channel_id, after, limit)
            return Page(messages=tuple(found), read_to=found[-1].id if found else after, more=len(found) == limit)

        return await self._call("page", work)

    async def list_archived_threads(self, channel_id: ChannelId, after: MessageId) -> Sequence[ChannelSnapshot]:
        """Return none: no thread is ever archived here."""
        del channel_id, after
        return ()

    async def start_thread(self, channel_id: ChannelId, message_id: MessageId, name: str) -> ChannelId:
        """Open the thread on a message, unless there is one. Raises ChatRefusedError where Discord would refuse."""

        def work() -> ChannelId:
            fits = bool(name.strip()) and len(name) <= self.capabilities.thread_name_limit
            require(fits, "a thread's name has 1 to 100 characters")
            require(self._find_channel(channel_id).kind == "channel", "a thread cannot hang in a thread")
            known = ChannelId(message_id) in self._channels or find_message(self._list_messages(channel_id), message_id)
            require(bool(known), "unknown message")
            if ChannelId(message_id) not in self._channels:
                self._own_threads.add(ChannelId(message_id))
            return self.open_thread(channel_id, message_id, name)

        return await self._call("start_thread", work)

    async def remove_thread(self, thread_id: ChannelId) -> None:
        """Remove a thread that the bot opened, unless there is a message in it."""

        def work() -> None:
            thread = self._find_channel(thread_id)
            if thread_id in self._own_threads and thread.parent_id and not self._list_messages(thread_id):
                del self._channels[thread_id], self._messages[thread_id]
                here = self._messages[thread.parent_id]
                here[:] = [
                    structs.replace(each, thread_id=None) if each.id == MessageId(thread_id) else each for each in here
                ]

        await self._call("remove_thread", work)

    async def send(
        self,
        channel_id: ChannelId,
        text: str,
        nonce: str,
        *,
        buttons: Sequence[Button] = (),
        mention_role: RoleId | None = None,
    ) -> MessageId:
        """Post a message; the same nonce within a few minutes gives the message that is there already."""
        del mention_role

        def work() -> MessageId:
            self._check(channel_id, text, buttons)
            require(len(nonce) <= _NONCE_LIMIT, "a nonce has at most 25 characters")
            now = self._clock.now()
            at, known = self._nonces.get((channel_id, nonce), (None, None))
            if at is not None and known is not None and now - at <= NONCE_LIFETIME:
                return known
            # Discord cuts off white space around a text.
            message_id = self.say(self.bot, text.strip(), channel_id=channel_id).id
            self._nonces[channel_id, nonce] = now, message_id
            return message_id

        return await self._call("send", work)

    async def rewrite(self, channel_id: ChannelId, message_id: MessageId, text: str) -> None:
        """Replace a message of the bot's by a text, without buttons."""

        def work() -> None:
            self._check(channel_id, text)
            message = find_message(self._list_messages(channel_id), message_id)
            if message is None:
                raise ChatNotFoundError(f"there is no message {message_id}")
            require(message.author.is_self, "only its author edits a message")
            self.edit(channel_id, message_id, text.strip())

        await self._call("rewrite", work)

    async def typing(self, channel_id: ChannelId) -> None:
        """Show the bot typing."""
        await self._call("typing", lambda: self._find_channel(channel_id))

    def _check(self, channel_id: ChannelId, text: str, buttons: Sequence[Button] = ()) -> None:
        self._find_channel(channel_id)
        fits = bool(text.strip()) and len(text) <= self.capabilities.message_limit
        require(fits, "a message has 1 to 2,000 characters")
        for button in buttons:
            require(1 <= len(button.custom_id) <= _BUTTON_ID_LIMIT, "a button's id has 1 to 100 characters")
            require(bool(button.label or button.emoji), "a button shows a label or an emoji")
            require(len(button.label) <= _LABEL_LIMIT, "a button's label has at most 80 characters")

    def _build_session_start(self) -> SessionStarted:
        there = (self._build_channel_seen(place) for place in self._channels.values() if place.guild_id)
        return SessionStarted(guild_id=self.guild_id, channels=tuple(there))

    def _build_channel_seen(self, place: Channel) -> ChannelSnapshot:
        return ChannelSnapshot(channel=place, last_message_id=self._last.get(place.id))

    def _greet(self, deliver: Deliver) -> None:
        deliver(self._build_session_start())

    def _deliver_event(self, event: GatewayEvent) -> None:
        for deliver in tuple(self._listeners):
            deliver(event)
        self._notify_waiters()

    def _notify_waiters(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()

    def _add(self, channel_id: ChannelId, kind: ChannelKind, name: str, parent: ChannelId | None) -> ChannelId:
        place = Channel(id=channel_id, guild_id=self.guild_id, kind=kind, name=name, parent_id=parent)
        self._channels[channel_id], self._messages[channel_id] = place, []
        return channel_id

    def _locate(self, channel_id: ChannelId, message_id: MessageId) -> tuple[int, ChatMessage]:
        return next((at, message) for at, message in enumerate(self._messages[channel_id]) if message.id == message_id)

    def _find_mentioned_team(self, text: str) -> frozenset[UserId]:
        team = (person.id for person in self._people.values() if person.type == "team_member")
        return frozenset(user_id for user_id in team if f"<@{user_id}>" in text)

    def _next_id(self) -> str:
        """Return a strictly increasing id, also while the clock stands still or goes back."""
        self._newest = max(self._newest + 1, int(position_at(self._clock.now()).id))
        return str(self._newest)
