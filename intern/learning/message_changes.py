"""What an edit or a deletion means once its message was handed on: a capture anew, or a withdrawal.

Most of them concern nothing that we hold. Those cost a look into our memory and no call to anybody.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, NamedTuple, Protocol, TypeVar

from anyio.to_thread import run_sync
from msgspec import Struct
from msgspec.structs import replace

from intern.core.flow import AnswerRequest, CaptureRequest, LateChange, MessageEdited, MessagesDeleted
from intern.core.ids import ChannelId, ConversationId, GuildId, MessageId
from intern.core.messages import AuthorType, ChatMessage
from intern.core.records import CapturedPair, Speaker

T = TypeVar("T")

# Messages, of what lies between the router and the poster or the archive. Questions: some 130, mostly of one message;
# the poster looks whether they are still there. Captures: 25, of at most 200 messages each.
_ASKED = 4_000
_TAUGHT = 6_000

_AUTHORS: dict[Speaker, AuthorType] = {"User": "community_user", "Team": "team_member"}


class Captured(Protocol):
    """Finds what was captured of a message; see `intern.stores.archive`."""

    def conversations_of(self, message_id: MessageId, /) -> tuple[ConversationId, ...]:
        """All conversations that a message was captured with. From memory."""
        ...

    def latest_of(self, conversation_id: ConversationId, /) -> CapturedPair | None:
        """The newest pair of a conversation. Reads the disk; raises KnowledgeError."""
        ...


class Pending(Protocol):
    """Knows what waits to be archived; see `intern.stores.sqlite.pending`."""

    def holds(self, message_id: MessageId, /) -> bool:
        """Whether a capture with this message waits. From memory."""
        ...

    async def holding(self, message_id: MessageId, /) -> Sequence[CaptureRequest]:
        """What waits with this message in it. Reads the disk; raises KnowledgeError."""
        ...


class Answered(Protocol):
    """Knows the threads that something may have been learned from; from memory alone."""

    def holds(self, channel_id: ChannelId, message_id: MessageId, /) -> bool:
        """Whether a message stands in one of them, or was read with one."""
        ...

    def stir(self, channel_id: ChannelId, message_id: MessageId, /) -> None:
        """Something happened to a message; its thread is to be looked at again."""
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


class LateChanges:
    """Knows what was handed on to be answered or captured, and so what a later change to it means.

    One event loop's own: whoever hands on and whoever hears of changes call it between two awaits, so nothing falls
    between them.
    """

    def __init__(
        self,
        captured: Captured,
        *,
        admits: Callable[[ChannelId], Awaitable[bool]],
        pending: Pending | None = None,
        answered: Answered | None = None,
    ) -> None:
        """`admits` says whether we may still learn in a channel; it may ask Discord, and raise its errors.

        What is `pending` counts as captured, for as long as it is, also after a restart.
        """
        self._captured = captured
        self._pending = pending
        self._answered = answered
        self._admits = admits
        self._open: set[Meanwhile] = set()
        self._asked = _Recent[None](_ASKED)
        self._taught = _Recent[_Place](_TAUGHT)

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
            self._asked.add(message.id, None)

    def teaches(self, request: CaptureRequest) -> None:
        """A capture goes to the archive."""
        for message in request.messages:
            place = _Place(request.conversation_id, request.guild_id, request.channel_id, message.author.type)
            self._taught.add(message.id, place)

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

        Nothing where the channel is closed to us by now. Raises the DiscordError and KnowledgeError families.
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


class _Recent(Generic[T]):
    """The messages that were handed on last."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._held: dict[MessageId, T] = {}

    def __contains__(self, message_id: MessageId) -> bool:
        return message_id in self._held

    def get(self, message_id: MessageId) -> T | None:
        return self._held.get(message_id)

    def add(self, message_id: MessageId, value: T) -> None:
        self._held.pop(message_id, None)
        self._held[message_id] = value
        if len(self._held) > self._limit:
            del self._held[next(iter(self._held))]


def _authors(request: CaptureRequest) -> set[AuthorType]:
    return {message.author.type for message in request.messages}
