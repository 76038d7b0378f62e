"""Edits and deletions during an outage: recent captures are read again, within a bound on requests.

Discord keeps no record of them, so each captured message is looked at. Only what Discord says counts: a message is
deleted where Discord does not know it in any place that it can stand in. What may not be read, a channel that shows
nothing and a channel that is gone tell nothing.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Literal, Protocol, TypeVar

from anyio import sleep
from anyio.to_thread import run_sync

from intern.core.errors import DiscordRefusedError, DiscordUnavailableError
from intern.core.flow import LateChange, MessageEdited, MessagesDeleted
from intern.core.ids import ChannelId, ConversationId, MessageId, QAId, snowflake_at
from intern.core.log import get_logger
from intern.core.messages import Channel, ChatMessage, Lookups
from intern.core.records import CapturedPair

DAYS = 7
"""Messages written earlier than this before an outage are not read again."""
REQUESTS = 300
"""Most requests after one outage; the newest conversations come first."""
PACE = 0.5
"""Seconds between two requests: Discord allows 50 a second over all, and live work comes first."""
_FIRST_PAUSE, _LONGEST_PAUSE = 1.0, 300.0  # seconds, while Discord is away
_PAGE = 100  # messages; what Discord gives at most
_VERSIONS = 100  # of a conversation, that are looked at for where its messages stand

T = TypeVar("T")

_log = get_logger(__name__)


class Archive(Protocol):
    """What was captured; see `intern.stores.archive`. Reads the disk, and raises KnowledgeError."""

    def written_since(self, message_id: MessageId, /) -> Collection[ConversationId]:
        """The conversations with a message that is as new as this one."""
        ...

    def latest_of(self, conversation_id: ConversationId, /) -> CapturedPair | None:
        """The newest pair of a conversation."""
        ...

    def get(self, qa_id: QAId, /) -> CapturedPair | None:
        """The pair of that id."""
        ...


class Shown(Protocol):
    """What Discord shows. All methods raise the DiscordError family."""

    async def channel(self, channel_id: ChannelId, /) -> Channel:
        """A channel or thread."""
        ...

    async def before(
        self, channel_id: ChannelId, message_id: MessageId | None, /, limit: int, *, lookups: Lookups | None = None
    ) -> Sequence[ChatMessage]:
        """The newest messages older than that one (None: of all), oldest first."""
        ...

    async def look_up(self, channel_id: ChannelId, message_id: MessageId, /) -> ChatMessage | None:
        """A message; None only where Discord says that the channel has none of that id."""
        ...


class _SpentError(Exception):
    """No request is left."""


class Missed:
    """Finds messages that were edited or deleted during an outage."""

    def __init__(
        self,
        archive: Archive,
        shown: Shown,
        *,
        is_withdrawn: Callable[[MessageId], bool],
        admits: Callable[[ChannelId], Awaitable[bool]],
        requests: int = REQUESTS,
    ) -> None:
        """`admits` says whether we may still read in a channel; it may ask Discord, and raise its errors."""
        self._archive = archive
        self._shown = shown
        self._is_withdrawn = is_withdrawn
        self._admits = admits
        self._requests = requests

    async def look(self, outage: datetime, tell: Callable[[LateChange], object]) -> int:
        """Tell what changed of the messages that were written since DAYS before the outage; return the requests made.

        The newest messages come first. Waits while Discord is away. Raises KnowledgeError where the archive cannot be
        read.
        """
        left = await run_sync(self._captured, MessageId(snowflake_at(outage - timedelta(days=DAYS))))
        asking = _Asking(self._requests)
        try:
            while left:
                channel_id = max(left, key=lambda each: max(left[each]))
                if not await self._look_at_newest(channel_id, left[channel_id], asking, tell):
                    del left[channel_id]
        except _SpentError:
            count = sum(map(len, left.values()))
            _log.warning("missed_changes_cut", requests=asking.made, messages_left=count)
        return asking.made

    def _captured(self, floor: MessageId) -> dict[ChannelId, dict[int, CapturedPair]]:
        """What was captured, by channel and message. Blocks."""
        found: dict[ChannelId, dict[int, CapturedPair]] = {}
        for conversation_id in self._archive.written_since(floor):
            pair = self._archive.latest_of(conversation_id)
            if pair is None or not _is_id(pair.channel_id or ""):
                continue
            for message_id in filter(_is_id, pair.message_ids):
                if int(message_id) >= int(floor) and not self._is_withdrawn(message_id):
                    found.setdefault(ChannelId(pair.channel_id or ""), {})[int(message_id)] = pair
        return found

    async def _look_at_newest(
        self,
        channel_id: ChannelId,
        left: dict[int, CapturedPair],
        asking: _Asking,
        tell: Callable[[LateChange], object],
    ) -> bool:
        """Look at the newest messages that are left in a channel; false where there are none any more."""
        try:
            if not await asking.of_channel(channel_id, partial(self._admits, channel_id)):
                return False
            shown, down_to = await self._read(channel_id, max(left), asking)
        except DiscordRefusedError as refusal:
            _log.info("missed_changes_unseen", channel_id=channel_id, reason=str(refusal))
            return False
        for number in sorted((each for each in left if each >= down_to), reverse=True):
            pair = left[number]
            message = shown.get(number) or await self._search(number, pair, asking)
            del left[number]
            if message is None:
                gone = (_id(number),)
                tell(MessagesDeleted(guild_id=pair.guild_id, channel_id=channel_id, message_ids=gone))
            elif isinstance(message, ChatMessage) and message.edited_at:
                # Also where that was told before: what the archive holds already is not captured again.
                tell(MessageEdited(message=message))
        return bool(left)

    async def _read(self, channel_id: ChannelId, newest: int, asking: _Asking) -> tuple[Mapping[int, ChatMessage], int]:
        """The page that ends with a message, and down to where it shows all. Raises DiscordRefusedError."""
        if newest <= int(channel_id):
            return {}, 0  # nothing in a channel is older than it; what a thread hangs on is searched for
        page = await asking.ask(partial(self._page, channel_id, _id(newest + 1)))
        # Without the right to read history, Discord gives empty pages.
        if not page and not await asking.ask(partial(self._page, channel_id, None)):
            raise DiscordRefusedError(f"channel {channel_id} shows no history")
        # Discord's own messages are left out of a page, so one that is nearly full need not be the last.
        down_to = int(page[0].id) if len(page) >= _PAGE // 2 else 0
        return {int(message.id): message for message in page}, down_to

    async def _page(self, channel_id: ChannelId, before: MessageId | None) -> Sequence[ChatMessage]:
        # Who the authors are, the archive knows.
        return await self._shown.before(channel_id, before, limit=_PAGE, lookups=Lookups(0))

    async def _search(
        self, number: int, pair: CapturedPair, asking: _Asking
    ) -> ChatMessage | Literal["unknown"] | None:
        """The message, wherever it can stand; None where Discord says of each such place that it is not there."""
        try:
            for place in await self._places(number, pair, asking):
                if not await asking.of_channel(place, partial(self._admits, place)):
                    return "unknown"
                if message := await asking.ask(partial(self._shown.look_up, place, _id(number))):
                    return message
        except DiscordRefusedError as refusal:
            _log.info("missed_changes_unseen", message_id=_id(number), reason=str(refusal))
            return "unknown"
        return None

    async def _places(self, number: int, pair: CapturedPair, asking: _Asking) -> Sequence[ChannelId]:
        """Where a message can stand: where it was captured, or in what such a thread hangs in; the likeliest first.

        Raises DiscordRefusedError where that cannot be told.
        """
        places: list[ChannelId] = []
        for captured_in in await run_sync(self._captured_in, _id(number), pair):
            channel = await asking.of_channel(captured_in, partial(self._shown.channel, captured_in))
            places.append(channel.id)
            if channel.kind == "thread" and channel.parent_id:
                # What a thread hangs on is no younger than the thread.
                places.insert(0 if number <= int(channel.id) else len(places), channel.parent_id)
        return tuple(dict.fromkeys(places))

    def _captured_in(self, message_id: MessageId, pair: CapturedPair) -> Collection[ChannelId]:
        """The channels that the versions of a conversation with this message were captured in. Blocks."""
        places: dict[ChannelId, None] = {}
        for _ in range(_VERSIONS):
            if not pair.channel_id:
                raise DiscordRefusedError(f"no capture tells the channel of message {message_id}")
            places[pair.channel_id] = None
            if pair.replaces is None:
                break
            earlier = self._archive.get(pair.replaces)
            if earlier is None:
                raise DiscordRefusedError(f"{pair.replaces}, which message {message_id} was captured with, is gone")
            if message_id not in earlier.message_ids:
                break
            pair = earlier
        return places


class _Asking:
    """A bounded number of requests, one after the other; each is repeated while Discord is away."""

    def __init__(self, most: int) -> None:
        self.made = 0
        self._most = most
        self._known: set[ChannelId] = set()

    async def ask(self, request: Callable[[], Awaitable[T]]) -> T:
        """Make a request. Raises _SpentError where none is left."""

        async def counted() -> T:
            if self.made >= self._most:
                raise _SpentError
            self.made += 1
            await sleep(PACE)
            return await request()

        return await self._persistently(counted)

    async def of_channel(self, channel_id: ChannelId, act: Callable[[], Awaitable[T]]) -> T:
        """Ask about a channel: a request at most, and none once it is known."""
        if channel_id in self._known:
            return await self._persistently(act)
        answer = await self.ask(act)
        self._known.add(channel_id)
        return answer

    async def _persistently(self, act: Callable[[], Awaitable[T]]) -> T:
        pause = _FIRST_PAUSE
        while True:
            try:
                return await act()
            except DiscordUnavailableError as error:
                _log.warning("missed_changes_delayed", reason=str(error), again_in_seconds=pause)
                await sleep(pause)
                pause = min(2 * pause, _LONGEST_PAUSE)


def _is_id(snowflake: str) -> bool:
    return snowflake.isascii() and snowflake.isdigit()


def _id(number: int) -> MessageId:
    return MessageId(str(number))
