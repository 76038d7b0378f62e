"""Edits and deletions of messages that were captured or are being answered: capture again, or withdraw.

Most changes concern other messages. They cost a look-up in memory, and no call.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import NamedTuple

from anyio import to_thread
from msgspec import Struct, structs

from intern.core.captures import Speaker
from intern.core.flow import AnswerRequest, Batch, CaptureRequest, LateChange, MessageEdited, MessagesDeleted
from intern.core.ids import ChannelId, ConversationId, GuildId, MessageId
from intern.core.messages import Author, AuthorType, ChatMessage
from intern.learning.approvals import append_bounded
from intern.stores.archive import Archive
from intern.stores.tables.answered_threads import AnsweredThreads
from intern.stores.tables.pending_captures import PendingCaptures

# The most remembered messages, enough for those between sequencer and poster or archive. Questions: some 130,
# mostly of one message; the poster checks that they still exist. Captures: 25, of at most 200 messages each.
_ASKED = 4_000
_TAUGHT = 6_000
FIRST_PAUSE, LONGEST_PAUSE = 1.0, 300.0  # seconds, while Discord is away
_AUTHORS: dict[Speaker, AuthorType] = {"User": "community_user", "Team": "team_member"}


class RelevantDeletions(NamedTuple):
    """The deleted messages that concern us."""

    asked: tuple[MessageId, ...]
    """The messages of questions that may be in work."""
    taught: tuple[MessageId, ...]
    """Messages that were captured, are about to be archived, or were read with an answered thread."""


class BatchChanges:
    """The changes while a batch's context is read, because a page of history may be older than they are."""

    def __init__(self) -> None:
        self._changes: dict[MessageId, ChatMessage | None] = {}
        self._only: frozenset[MessageId] | None = None

    def pause(self, messages: Sequence[ChatMessage]) -> None:
        """Keep only changes of these messages until `resume`, because nothing is read meanwhile."""
        self._only = frozenset(message.id for message in messages)
        self._changes = {each: change for each, change in self._changes.items() if each in self._only}

    def resume(self) -> None:
        """Keep all changes again."""
        self._only = None

    def record(self, change: LateChange) -> None:
        """Remember a change."""
        match change:
            case MessageEdited(message=message):
                if self._matters(message.id) and self._changes.get(message.id, message) is not None:
                    self._changes[message.id] = message
            case MessagesDeleted(message_ids=ids):
                self._changes.update(dict.fromkeys(filter(self._matters, ids)))

    def _matters(self, message_id: MessageId) -> bool:
        return self._only is None or message_id in self._only

    def apply_changes(self, messages: Sequence[ChatMessage]) -> tuple[ChatMessage, ...]:
        """Return the current versions of the messages, without the deleted ones."""
        found = ((message, self._changes.get(message.id, message)) for message in messages)
        # An edit's payload may lack the roles that identify a team member.
        return tuple(structs.replace(now, author=message.author) for message, now in found if now is not None)

    def update_capture(self, request: CaptureRequest) -> CaptureRequest | None:
        """Return the current version of the capture; None once its question or its answer is gone."""
        messages = self.apply_changes(request.messages)
        is_whole = {each.author.type for each in messages} == {each.author.type for each in request.messages}
        return structs.replace(request, messages=messages) if is_whole else None

    def find_changed(self, messages: Sequence[ChatMessage]) -> Mapping[MessageId, ChatMessage | None]:
        """Return the newest versions of those of these messages that changed; None for deleted ones."""
        return {message.id: self._changes[message.id] for message in messages if message.id in self._changes}


class _CapturePlace(Struct, frozen=True):
    """The place and the author's type of a captured message."""

    conversation_id: ConversationId
    guild_id: GuildId | None
    channel_id: ChannelId | None
    author: AuthorType


@dataclass(eq=False)
class MessageChanges:
    """Tracks the messages that are being answered or captured, and handles their later changes.

    For use in one event loop. Its callers hand on messages and note changes without an await in between, so that no
    change is lost.
    """

    captured: Archive
    _: KW_ONLY
    admits: Callable[[ChannelId], Awaitable[bool]]
    """Whether we may still learn in a channel; may raise the ChatError family."""
    pending: PendingCaptures | None = None
    """The captures that wait for their attachments. They count as captured, also after a restart."""
    answered: AnsweredThreads | None = None
    done_with: Callable[[MessageId], Awaitable[bool]] | None = None
    """Whether the reply to a message was posted or dropped before. Raises KnowledgeError."""
    _open: set[BatchChanges] = field(default_factory=set[BatchChanges], init=False)
    _asked: OrderedDict[MessageId, Author] = field(default_factory=OrderedDict[MessageId, Author], init=False)
    _in_work: set[MessageId] = field(default_factory=set[MessageId], init=False)
    _taught: OrderedDict[MessageId, _CapturePlace] = field(
        default_factory=OrderedDict[MessageId, _CapturePlace], init=False
    )

    def start_collecting(self) -> BatchChanges:
        """Collect the changes for a batch from now on, until `stop_collecting`."""
        meanwhile = BatchChanges()
        self._open.add(meanwhile)
        return meanwhile

    def stop_collecting(self, meanwhile: BatchChanges) -> None:
        """Stop collecting: the requests of the batch were handed on."""
        self._open.discard(meanwhile)

    def record_question(self, request: AnswerRequest) -> None:
        """Note a question that goes to the responder."""
        for message in request.batch.messages:
            append_bounded(self._asked, message.id, message.author, _ASKED)
            self._in_work.add(message.id)

    def mark_settled(self, message_ids: Collection[MessageId]) -> None:
        """Note that these messages are settled."""
        self._in_work.difference_update(message_ids)

    def record_capture(self, request: CaptureRequest) -> None:
        """Note a capture that goes to the archive."""
        for message in request.messages:
            append_bounded(self._taught, message.id, _make_place(request, message), _TAUGHT)

    def record_deletion(self, change: MessagesDeleted) -> RelevantDeletions:
        """Note a deletion, and return the deleted messages that concern us; mostly none."""
        self._note(change)
        ids, place = change.message_ids, change.channel_id
        for each in ids:
            self._mark_thread_changed(place, each)
        return RelevantDeletions(
            asked=tuple(each for each in ids if each in self._asked),
            taught=tuple(each for each in ids if self._is_captured(each) or self._was_read(place, each)),
        )

    def is_asked(self, message_id: MessageId) -> bool:
        """Return whether a message belongs to a question that may be in work."""
        return message_id in self._asked

    def record_edit(self, change: MessageEdited) -> bool:
        """Note an edit, and return whether it changes a question or a captured message."""
        self._note(change)
        self._mark_thread_changed(change.message.channel_id, change.message.id)
        return change.message.id in self._asked or self._is_captured(change.message.id)

    async def ask_again(self, change: MessageEdited) -> Batch | None:
        """Return the question that an edit changed; None for another message, and once intern or the team answered.

        None, too, while the question is in work: the responder gets its new text.
        """
        message = change.message
        asks_no_more = message.id in self._in_work or self._is_captured(message.id)
        author = None if asks_no_more else self._asked.get(message.id)
        if author is None or (self.done_with is not None and await self.done_with(message.id)):
            return None
        messages = (structs.replace(message, author=author),)  # an edit's payload may lack the roles
        return Batch(channel_id=message.channel_id, author=author, messages=messages)

    async def capture_again(self, change: MessageEdited) -> tuple[CaptureRequest, ...]:
        """Make a capture of the edited message for each of its conversations; the archive joins it with the others.

        Return none if the channel is closed to us by now. Raises the ChatError and KnowledgeError families.
        """
        message = change.message
        if not await self.admits(message.channel_id):
            return ()
        places = await to_thread.run_sync(self._find_archived_places, message.id)
        for underway in await self._find_pending_places(message.id):
            if underway.conversation_id not in {place.conversation_id for place in places}:
                places.append(underway)
        return tuple(
            CaptureRequest(
                conversation_id=place.conversation_id,
                guild_id=place.guild_id,
                channel_id=place.channel_id or message.channel_id,
                # The author's type is known: an edit's payload may lack the roles that identify a team member.
                messages=(structs.replace(message, author=structs.replace(message.author, type=place.author)),),
            )
            for place in places
        )

    def _note(self, change: LateChange) -> None:
        for meanwhile in self._open:
            meanwhile.record(change)

    def _is_captured(self, message_id: MessageId) -> bool:
        """Whether the message was captured, is about to be archived, or waits for that."""
        waits = self.pending is not None and self.pending.holds(message_id)
        return waits or message_id in self._taught or bool(self.captured.find_conversations(message_id))

    def _was_read(self, channel_id: ChannelId, message_id: MessageId) -> bool:
        return self.answered is not None and self.answered.holds(channel_id, message_id)

    def _mark_thread_changed(self, channel_id: ChannelId, message_id: MessageId) -> None:
        if self.answered is not None:
            self.answered.note_event(channel_id, message_id)

    async def _find_pending_places(self, message_id: MessageId) -> list[_CapturePlace]:
        handed_on = self._taught.get(message_id)
        waits = await self.pending.find_requests(message_id) if self.pending is not None else ()
        said = ((request, message) for request in waits for message in request.messages)
        places = [_make_place(request, message) for request, message in said if message.id == message_id]
        return [handed_on, *places] if handed_on is not None else places

    def _find_archived_places(self, message_id: MessageId) -> list[_CapturePlace]:
        places: list[_CapturePlace] = []
        for conversation in self.captured.find_conversations(message_id):
            pair = self.captured.latest_capture(conversation)
            # If ids and turns do not match, it is unknown which turn to change.
            if pair is None or len(pair.turns) != len(pair.message_ids) or message_id not in pair.message_ids:
                continue
            speaker = pair.turns[pair.message_ids.index(message_id)].speaker
            places.append(_CapturePlace(conversation, pair.guild_id, pair.channel_id, _AUTHORS[speaker]))
        return places


def _make_place(request: CaptureRequest, message: ChatMessage) -> _CapturePlace:
    return _CapturePlace(request.conversation_id, request.guild_id, request.channel_id, message.author.type)
