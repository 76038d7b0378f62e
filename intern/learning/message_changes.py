"""What an edit or a deletion means once its message was handed on: a capture anew, or a withdrawal.

Most of them concern nothing that we hold. Those cost a look into our memory and no call to anybody.

Discord keeps no record of edits and deletions during an outage, so recently captured messages are looked at one by one,
within a bound on requests. Only what Discord says counts: a message is deleted where Discord does not know it in any
place that it can stand in. What may not be read, a channel that shows nothing and a channel that is gone tell nothing.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Literal, NamedTuple, Protocol, TypeVar

from anyio import sleep
from anyio.to_thread import run_sync
from msgspec import Struct
from msgspec.structs import replace

from intern.chat.platform import ChatPlatform
from intern.core.errors import ChatRefusedError, ChatUnavailableError
from intern.core.flow import AnswerRequest, CaptureRequest, LateChange, MessageEdited, MessagesDeleted
from intern.core.ids import ChannelId, ConversationId, GuildId, MessageId, snowflake_at
from intern.core.log import get_logger
from intern.core.messages import AuthorType, ChatMessage, Lookups
from intern.core.records import CapturedPair, Speaker
from intern.learning.review import put_last
from intern.stores.archive import Archive
from intern.stores.sqlite.answered_threads import AnsweredThreads
from intern.stores.sqlite.pending import PendingCaptures

T = TypeVar("T")

_log = get_logger(__name__)

# Messages, of what lies between the router and the poster or the archive. Questions: some 130, mostly of one message;
# the poster looks whether they are still there. Captures: 25, of at most 200 messages each.
_ASKED = 4_000
_TAUGHT = 6_000

DAYS = 7
"""Messages written earlier than this before an outage are not read again."""
REQUESTS = 300
"""Most requests after one outage; the newest conversations come first."""
PACE = 0.5
"""Seconds between two requests: Discord allows 50 a second over all, and live work comes first."""
_FIRST_PAUSE, _LONGEST_PAUSE = 1.0, 300.0  # seconds, while Discord is away
_PAGE = 100  # messages; what Discord gives at most
_VERSIONS = 100  # of a conversation, that are looked at for where its messages stand

_AUTHORS: dict[Speaker, AuthorType] = {"User": "community_user", "Team": "team_member"}


class Captured(Protocol):
    """Finds what was captured of a message; see `intern.stores.archive`."""

    def conversations_of(self, message_id: MessageId, /) -> tuple[ConversationId, ...]:
        """All conversations that a message was captured with. From memory."""
        ...

    def latest_of(self, conversation_id: ConversationId, /) -> CapturedPair | None:
        """The newest pair of a conversation. Reads the disk; raises KnowledgeError."""
        ...


class Gone(NamedTuple):
    """Of the messages that were deleted, those that concern us."""

    asked: tuple[MessageId, ...]
    """They ask something, and may be in work."""
    taught: tuple[MessageId, ...]
    """They were captured, are on their way to the archive, or were read with a thread that was answered in."""


class Meanwhile:
    """What changed on Discord while a batch's surroundings are being read: a page that was read may be older."""

    def __init__(self) -> None:
        self._changes: dict[MessageId, ChatMessage | None] = {}
        self._only: frozenset[MessageId] | None = None

    def pause(self, messages: Sequence[ChatMessage]) -> None:
        """Nothing is being read until `resume`: only changes of these messages are kept, however long that takes."""
        self._only = frozenset(message.id for message in messages)
        self._changes = {each: change for each, change in self._changes.items() if each in self._only}

    def resume(self) -> None:
        """From now on, all changes are kept again."""
        self._only = None

    def note(self, change: LateChange) -> None:
        """Remember a change."""
        match change:
            case MessageEdited(message=message):
                if self._matters(message.id) and self._changes.get(message.id, message) is not None:
                    self._changes[message.id] = message
            case MessagesDeleted(message_ids=ids):
                self._changes.update(dict.fromkeys(filter(self._matters, ids)))

    def _matters(self, message_id: MessageId) -> bool:
        return self._only is None or message_id in self._only

    def now(self, messages: Sequence[ChatMessage]) -> tuple[ChatMessage, ...]:
        """The messages as they are by now, without those that are gone."""
        found = ((message, self._changes.get(message.id, message)) for message in messages)
        # An edit's payload may lack the roles that told us who its author is.
        return tuple(replace(now, author=message.author) for message, now in found if now is not None)

    def captured_now(self, request: CaptureRequest) -> CaptureRequest | None:
        """The capture as it is by now; None once its question or its answer is gone."""
        messages = self.now(request.messages)
        kinds = {message.author.type for message in messages}
        return replace(request, messages=messages) if kinds == _authors(request) else None

    def deleted_of(self, messages: Sequence[ChatMessage]) -> tuple[MessageId, ...]:
        """Of these messages, those that are gone by now."""
        return tuple(message.id for message in messages if self._changes.get(message.id, message) is None)


class MessageChanges:
    """Knows what was handed on to be answered or captured, and so what a later change to it means.

    One event loop's own: whoever hands on and whoever hears of changes call it between two awaits, so nothing falls
    between them.
    """

    def __init__(
        self,
        captured: Captured,
        *,
        admits: Callable[[ChannelId], Awaitable[bool]],
        pending: PendingCaptures | None = None,
        answered: AnsweredThreads | None = None,
    ) -> None:
        """`admits` says whether we may still learn in a channel; it may ask Discord, and raise its errors.

        What is `pending` counts as captured, for as long as it is, also after a restart.
        """
        self._captured = captured
        self._pending = pending
        self._answered = answered
        self._admits = admits
        self._open: set[Meanwhile] = set()
        self._asked: OrderedDict[MessageId, None] = OrderedDict()
        self._taught: OrderedDict[MessageId, _Place] = OrderedDict()

    def begin(self) -> Meanwhile:
        """A batch is about to be read and handed on: what changes from now on concerns it, until `end`."""
        meanwhile = Meanwhile()
        self._open.add(meanwhile)
        return meanwhile

    def end(self, meanwhile: Meanwhile) -> None:
        """What followed from the batch was handed on."""
        self._open.discard(meanwhile)

    def asks(self, request: AnswerRequest) -> None:
        """A question goes to the responder."""
        for message in request.batch.messages:
            put_last(self._asked, message.id, None, _ASKED)

    def teaches(self, request: CaptureRequest) -> None:
        """A capture goes to the archive."""
        for message in request.messages:
            place = _Place(request.conversation_id, request.guild_id, request.channel_id, message.author.type)
            put_last(self._taught, message.id, place, _TAUGHT)

    def deleted(self, change: MessagesDeleted) -> Gone:
        """What a deletion withdraws; mostly nothing."""
        self._note(change)
        ids, place = change.message_ids, change.channel_id
        for each in ids:
            self._stir(place, each)
        return Gone(
            asked=tuple(each for each in ids if each in self._asked),
            taught=tuple(each for each in ids if self._holds(each) or self._was_read(place, each)),
        )

    def edited(self, change: MessageEdited) -> bool:
        """Whether an edit changes something that we captured, so that `captured_anew` is worth its calls."""
        self._note(change)
        self._stir(change.message.channel_id, change.message.id)
        return self._holds(change.message.id)

    async def captured_anew(self, change: MessageEdited) -> tuple[CaptureRequest, ...]:
        """The edited message by itself, for each conversation that holds it: the archive joins it with the others.

        Nothing where the channel is closed to us by now. Raises the ChatError and KnowledgeError families.
        """
        message = change.message
        if not await self._admits(message.channel_id):
            return ()
        places = await run_sync(self._places, message.id)
        for underway in await self._underway(message.id):
            if underway.conversation_id not in {place.conversation_id for place in places}:
                places.append(underway)
        return tuple(
            CaptureRequest(
                conversation_id=place.conversation_id,
                guild_id=place.guild_id,
                channel_id=place.channel_id or message.channel_id,
                # Who it was is known already: an edit's payload may lack the roles that told us.
                messages=(replace(message, author=replace(message.author, type=place.author)),),
            )
            for place in places
        )

    def _note(self, change: LateChange) -> None:
        for meanwhile in self._open:
            meanwhile.note(change)

    def _holds(self, message_id: MessageId) -> bool:
        """Whether it was captured, is on its way to the archive, or waits to be."""
        if message_id in self._taught or self._captured.conversations_of(message_id):
            return True
        return self._pending is not None and self._pending.holds(message_id)

    def _was_read(self, channel_id: ChannelId, message_id: MessageId) -> bool:
        return self._answered is not None and self._answered.holds(channel_id, message_id)

    def _stir(self, channel_id: ChannelId, message_id: MessageId) -> None:
        if self._answered is not None:
            self._answered.stir(channel_id, message_id)

    async def _underway(self, message_id: MessageId) -> list[_Place]:
        handed_on = self._taught.get(message_id)
        waits = await self._pending.holding(message_id) if self._pending is not None else ()
        places = [
            _Place(request.conversation_id, request.guild_id, request.channel_id, message.author.type)
            for request in waits
            for message in request.messages
            if message.id == message_id
        ]
        return [handed_on, *places] if handed_on is not None else places

    def _places(self, message_id: MessageId) -> list[_Place]:
        places: list[_Place] = []
        for conversation in self._captured.conversations_of(message_id):
            pair = self._captured.latest_of(conversation)
            # Where ids and turns do not run side by side, nobody can say which turn to change.
            if pair is None or len(pair.turns) != len(pair.message_ids) or message_id not in pair.message_ids:
                continue
            speaker = pair.turns[pair.message_ids.index(message_id)].speaker
            places.append(_Place(conversation, pair.guild_id, pair.channel_id, _AUTHORS[speaker]))
        return places


class _Place(Struct, frozen=True):
    """Where a captured message belongs, and as whose."""

    conversation_id: ConversationId
    guild_id: GuildId | None
    channel_id: ChannelId | None
    author: AuthorType


def _authors(request: CaptureRequest) -> set[AuthorType]:
    return {message.author.type for message in request.messages}


class _SpentError(Exception):
    """No request is left."""


class MissedChanges:
    """Finds messages that were edited or deleted during an outage."""

    def __init__(
        self,
        archive: Archive,
        shown: ChatPlatform,
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
        except ChatRefusedError as refusal:
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
        """The page that ends with a message, and down to where it shows all. Raises ChatRefusedError."""
        if newest <= int(channel_id):
            return {}, 0  # nothing in a channel is older than it; what a thread hangs on is searched for
        page = await asking.ask(partial(self._page, channel_id, _id(newest + 1)))
        # Without the right to read history, Discord gives empty pages.
        if not page and not await asking.ask(partial(self._page, channel_id, None)):
            raise ChatRefusedError(f"channel {channel_id} shows no history")
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
        except ChatRefusedError as refusal:
            _log.info("missed_changes_unseen", message_id=_id(number), reason=str(refusal))
            return "unknown"
        return None

    async def _places(self, number: int, pair: CapturedPair, asking: _Asking) -> Sequence[ChannelId]:
        """Where a message can stand: where it was captured, or in what such a thread hangs in; the likeliest first.

        Raises ChatRefusedError where that cannot be told.
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
                raise ChatRefusedError(f"no capture tells the channel of message {message_id}")
            places[pair.channel_id] = None
            if pair.replaces is None:
                break
            earlier = self._archive.get(pair.replaces)
            if earlier is None:
                raise ChatRefusedError(f"{pair.replaces}, which message {message_id} was captured with, is gone")
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
            except ChatUnavailableError as error:
                _log.warning("missed_changes_delayed", reason=str(error), again_in_seconds=pause)
                await sleep(pause)
                pause = min(2 * pause, _LONGEST_PAUSE)


def _is_id(snowflake: str) -> bool:
    return snowflake.isascii() and snowflake.isdigit()


def _id(number: int) -> MessageId:
    return MessageId(str(number))
