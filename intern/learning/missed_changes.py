"""Edits and deletions that were missed while the bot was away, found over REST.

Discord keeps no record of them. So recently captured messages are read again one by one, within a bound on requests. A
message counts as deleted only if Discord does not know it in any channel that it can be in. A channel that is
unreadable, empty or gone proves nothing.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Literal, TypeVar

from anyio import sleep, to_thread
from msgspec import structs

from intern.chat.conversations import format_message
from intern.chat.platform import PAGE, ChatPlatform
from intern.core.captures import CapturedPair
from intern.core.errors import ChatRefusedError, ChatUnavailableError
from intern.core.flow import LateChange, MessageEdited, MessagesDeleted
from intern.core.ids import FIRST, ChannelId, MessageId, Position, parse_position, position_at
from intern.core.log import get_logger
from intern.core.messages import ChatMessage, RoleLookupBudget
from intern.facts.segments import remove_person_ids
from intern.learning.message_changes import FIRST_PAUSE, LONGEST_PAUSE
from intern.stores.archive import Archive

T = TypeVar("T")

_log = get_logger(__name__)

DAYS = 7
"""Days before the outage: older messages are not read again."""
REQUESTS = 300
"""The most requests after one outage. The newest conversations come first."""
PACE = 0.5
"""Seconds between two requests: Discord allows 50 a second over all, and live work comes first."""
_VERSIONS = 100  # of a conversation; the most that are searched for the channels of its messages


class _RequestsSpentError(Exception):
    """All requests are used up."""


@dataclass
class MissedChangeFinder:
    """Finds messages that were edited or deleted during an outage."""

    archive: Archive
    shown: ChatPlatform
    _: KW_ONLY
    is_withdrawn: Callable[[MessageId], bool]
    admits: Callable[[ChannelId], Awaitable[bool]]
    """Whether we may still read a channel; may raise the ChatError family."""
    mask: Callable[[str], str] = lambda text: text
    """Masks a text as archiving does."""
    requests: int = REQUESTS

    async def check(self, outage: datetime, tell: Callable[[LateChange], object]) -> int:
        """Report the changes of messages that were written since DAYS before the outage; return the number of requests.

        The newest messages come first. Waits while Discord is away. Raises KnowledgeError if the archive cannot be
        read.
        """
        left = await to_thread.run_sync(self._map_captures, position_at(outage - timedelta(days=DAYS)))
        asking = _BoundedRequests(self.requests, tell)
        try:
            while left:
                channel_id = max(left, key=lambda each: max(left[each]))
                if not await self._check_newest(channel_id, left[channel_id], asking):
                    del left[channel_id]
        except _RequestsSpentError:
            count = sum(map(len, left.values()))
            _log.warning("missed_changes_cut", requests=asking.made, messages_left=count)
        return asking.made

    def _map_captures(self, floor: Position) -> dict[ChannelId, dict[Position, CapturedPair]]:
        """Map channels and messages to their captures. Blocks."""
        found: dict[ChannelId, dict[Position, CapturedPair]] = {}
        for conversation_id in self.archive.find_conversations_since(floor.id):
            pair = self.archive.latest_capture(conversation_id)
            if pair is None or not parse_position(pair.channel_id or "").is_known:
                continue
            for position in map(parse_position, pair.message_ids):
                if position.is_known and position >= floor and not self.is_withdrawn(position.id):
                    found.setdefault(ChannelId(pair.channel_id or ""), {})[position] = pair
        return found

    async def _check_newest(
        self, channel_id: ChannelId, left: dict[Position, CapturedPair], asking: _BoundedRequests
    ) -> bool:
        """Check the newest remaining messages of a channel; return false if none remain."""
        try:
            if not await asking.ask_about_channel(channel_id, partial(self.admits, channel_id)):
                return False
            shown, down_to = await self._read_page(channel_id, max(left), asking)
        except ChatRefusedError as refusal:
            _log.info("missed_changes_unseen", channel_id=channel_id, reason=str(refusal))
            return False
        for position in sorted((each for each in left if each >= down_to), reverse=True):
            pair = left[position]
            message = shown.get(position) or await self._find_message(position, pair, asking)
            del left[position]
            if message is None:
                gone = (position.id,)
                asking.tell(MessagesDeleted(guild_id=pair.guild_id, channel_id=channel_id, message_ids=gone))
            elif isinstance(message, ChatMessage) and self._is_changed(message, pair):
                asking.tell(MessageEdited(message=message))
        return bool(left)

    def _is_changed(self, message: ChatMessage, pair: CapturedPair) -> bool:
        has_title = message.thread_id is not None or str(message.id) == message.channel_id  # maybe a new one
        if not (message.edited_at or has_title):
            return False
        said = dict(zip(pair.message_ids, pair.turns, strict=False))
        if message.id in said:
            said[message.id] = structs.replace(said[message.id], text=self.mask(format_message(message)))
        return remove_person_ids(tuple(said.values()), pair.author_ids) != pair.turns

    async def _read_page(
        self, channel_id: ChannelId, newest: Position, asking: _BoundedRequests
    ) -> tuple[Mapping[Position, ChatMessage], Position]:
        """Read the page that ends with a message; return also where it is complete from. Raises ChatRefusedError."""
        if newest <= parse_position(channel_id):
            return {}, FIRST  # a channel has nothing older than itself; the first message of a thread is searched for
        page = await asking.ask(partial(self._fetch_page, channel_id, newest.next.id))
        # Without the right to read history, Discord gives empty pages.
        if not page and not await asking.ask(partial(self._fetch_page, channel_id, None)):
            raise ChatRefusedError(f"channel {channel_id} shows no history")
        # A page leaves out system messages, so even the last page but one may be less than full.
        down_to = parse_position(page[0].id) if len(page) >= PAGE // 2 else FIRST
        return {parse_position(message.id): message for message in page}, down_to

    async def _fetch_page(self, channel_id: ChannelId, before: MessageId | None) -> Sequence[ChatMessage]:
        # The archive knows the authors.
        return await self.shown.before(channel_id, before, limit=PAGE, lookups=RoleLookupBudget(0))

    async def _find_message(
        self, position: Position, pair: CapturedPair, asking: _BoundedRequests
    ) -> ChatMessage | Literal["unknown"] | None:
        """Find the message in its possible channels; None if Discord says of each that it is not there."""
        try:
            for place in await self._list_channels(position, pair, asking):
                if not await asking.ask_about_channel(place, partial(self.admits, place)):
                    return "unknown"
                if message := await asking.ask(partial(self.shown.look_up, place, position.id)):
                    return message
        except ChatRefusedError as refusal:
            _log.info("missed_changes_unseen", message_id=position.id, reason=str(refusal))
            return "unknown"
        return None

    async def _list_channels(
        self, position: Position, pair: CapturedPair, asking: _BoundedRequests
    ) -> Sequence[ChannelId]:
        """List the possible channels of a message, the likeliest first: those of its captures, and parents of threads.

        Raises ChatRefusedError if they are unknown.
        """
        places: list[ChannelId] = []
        for captured_in in await to_thread.run_sync(self._find_capture_channels, position.id, pair):
            channel = await asking.ask_about_channel(captured_in, partial(self.shown.channel, captured_in))
            places.append(channel.id)
            if channel.kind == "thread" and channel.parent_id:
                # A thread's first message in the parent channel is not newer than the thread.
                places.insert(0 if position <= parse_position(channel.id) else len(places), channel.parent_id)
        return tuple(dict.fromkeys(places))

    def _find_capture_channels(self, message_id: MessageId, pair: CapturedPair) -> Collection[ChannelId]:
        """Collect the channels in which versions of the conversation with this message were captured. Blocks."""
        places: dict[ChannelId, None] = {}
        for _ in range(_VERSIONS):
            if not pair.channel_id:
                raise ChatRefusedError(f"no capture tells the channel of message {message_id}")
            places[pair.channel_id] = None
            if pair.replaces is None:
                break
            earlier = self.archive.get(pair.replaces)
            if earlier is None:
                raise ChatRefusedError(f"{pair.replaces}, which message {message_id} was captured with, is gone")
            if message_id not in earlier.message_ids:
                break
            pair = earlier
        return places


class _BoundedRequests:
    """Makes a bounded number of requests, one after the other. Repeats each while Discord is away."""

    def __init__(self, most: int, tell: Callable[[LateChange], object]) -> None:
        self.tell = tell
        self.made = 0
        self._most = most
        self._known: set[ChannelId] = set()

    async def ask(self, request: Callable[[], Awaitable[T]]) -> T:
        """Make a request. Raises _RequestsSpentError if none is left."""

        async def count_and_send() -> T:
            if self.made >= self._most:
                raise _RequestsSpentError
            self.made += 1
            await sleep(PACE)
            return await request()

        return await self._retry_while_away(count_and_send)

    async def ask_about_channel(self, channel_id: ChannelId, act: Callable[[], Awaitable[T]]) -> T:
        """Ask about a channel. This costs a request the first time only."""
        if channel_id in self._known:
            return await self._retry_while_away(act)
        answer = await self.ask(act)
        self._known.add(channel_id)
        return answer

    async def _retry_while_away(self, act: Callable[[], Awaitable[T]]) -> T:
        pause = FIRST_PAUSE
        while True:
            try:
                return await act()
            except ChatUnavailableError as error:
                _log.warning("missed_changes_delayed", reason=str(error), again_in_seconds=pause)
                await sleep(pause)
                pause = min(2 * pause, LONGEST_PAUSE)
