"""Learn from threads that intern answered in, where the operator wants that.

A thread is read from the platform once it is quiet, and again when it changes. If the team answered in it, the archive
has the conversation, and the thread is left alone. Only nuggets and facts are kept, and who wrote their sources.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import chain

from anyio.to_thread import run_sync
from msgspec import Struct

from intern.chat.context import merge_messages
from intern.chat.conversations import format_message
from intern.chat.platform import PAGE, History
from intern.core.captures import Turn
from intern.core.clock import Clock
from intern.core.errors import ChatError, ChatNotFoundError, ChatRefusedError
from intern.core.flow import Batch
from intern.core.ids import ChannelId, ConversationId, MessageId, bot_answer_conversation
from intern.core.log import get_logger
from intern.core.messages import Channel, ChatMessage, RoleLookupBudget
from intern.facts.extraction import ExtractionOutcome, KnowledgeExtractor
from intern.facts.segments import ExtractionOptions, Segment
from intern.stores.archive import Archive
from intern.stores.tables.answered_threads import AnsweredThreads, ThreadMessage
from intern.stores.tables.extractions import ExtractionLog
from intern.stores.tables.knowledge import KnowledgeStore
from intern.stores.tables.outbox import Outbox
from intern.stores.tables.pending_captures import PendingCaptures

_log = get_logger(__name__)


_MOST_MESSAGES = 200  # of a thread, its newest; as many as a capture takes
_MOST_ASKED = 10  # messages of the channel that the thread answers: a question, and what was written with it
_MOST_LOOKUPS = 10  # further calls to identify authors


class AnsweredThread(Struct, frozen=True, kw_only=True):
    """A thread as it was read."""

    channel: Channel
    messages: tuple[ChatMessage, ...]
    """Oldest first, with the question in the channel; without empty messages and those of other bots."""


@dataclass
class ThreadReader:
    """Reads threads that all members may read. All methods raise the ChatError family."""

    history: History
    admits: Callable[[ChannelId], Awaitable[bool]]
    """Whether we may work in a channel; may raise the ChatError family."""

    async def read(self, thread_id: ChannelId, asked: Sequence[tuple[ChannelId, MessageId]]) -> AnsweredThread | None:
        """Read a thread and the messages that were `asked` (channel and id); None if it is not a thread.

        Raises ChatRefusedError also if the thread is closed to us, or shows no history.
        """
        channel = await self.history.channel(thread_id)
        if not channel.is_thread:
            return None
        if not await self.admits(thread_id):
            raise ChatRefusedError(f"thread {thread_id} is closed to us by now")
        said = await self._read_messages(thread_id)
        if not said:
            # Our answer was here. Without the right to read history, Discord gives empty pages.
            raise ChatRefusedError(f"thread {thread_id} shows no history")
        places = (each for each in dict.fromkeys(asked[:_MOST_ASKED]) if each[0] == channel.parent_id)
        question = [each for place in places if (each := await self.history.message(*place)) is not None]
        messages = (each for each in merge_messages(question, said) if each.author.type != "bot" or each.author.is_self)
        return AnsweredThread(
            channel=channel, messages=tuple(each for each in messages if format_message(each).strip())
        )

    async def _read_messages(self, thread_id: ChannelId) -> list[ChatMessage]:
        said: list[ChatMessage] = []
        lookups = RoleLookupBudget(_MOST_LOOKUPS)
        while len(said) < _MOST_MESSAGES:
            before = said[0].id if said else None
            page = await self.history.before(thread_id, before, limit=PAGE, lookups=lookups)
            said = [*page, *said]
            # A page leaves out system messages, so even the last page but one may be less than full.
            if len(page) < PAGE // 2:
                break
        return said[-_MOST_MESSAGES:]


QUIET = timedelta(hours=1)
"""A thread without a message for this long is read."""

LOOK_SECONDS = 60.0
"""Seconds between two reads of the outbox, which does not announce its replies."""

FOLLOWER = "answers"
"""The name of the position in the log."""

_AGAIN = timedelta(minutes=10)  # if the platform was away, or something changed meanwhile
_POSTS = 100  # read from the outbox at once


@dataclass(kw_only=True)
class AnsweredThreadLearner:
    """Learns from the threads that intern answered in. All methods raise KnowledgeError."""

    options: ExtractionOptions
    mask: Callable[[str], str]
    """Masks the secrets of a text."""
    threads: AnsweredThreads
    posts: Outbox
    archive: Archive
    pending: PendingCaptures
    decisions: KnowledgeStore
    log: ExtractionLog
    extractor: KnowledgeExtractor
    clock: Clock
    _reader: ThreadReader | None = field(default=None, init=False)

    async def open(self, reader: ThreadReader) -> None:
        """Load the known threads, and read them with `reader` from now on."""
        await self.threads.load()
        self._reader = reader

    def receive(self, batch: Batch) -> None:
        """Note a new message: a known thread is read again once it is quiet."""
        self.threads.note_event(batch.channel_id, batch.last.id, batch.last.at + QUIET)

    async def find_due_thread(self) -> tuple[ChannelId | None, float | None]:
        """Return the thread to read now; else the seconds until there may be one, None if there will be none."""
        if self._reader is None:
            return None, None
        if not (self.options.auto and self.options.from_questions):
            # The setting was on before: withdraw the results of threads that change.
            return self.threads.find_thread_with_events(), LOOK_SECONDS
        await self._add_new_threads()
        await self.threads.store()
        found = await self.threads.next_due()
        if found is None:
            return None, LOOK_SECONDS
        thread_id, at = found
        seconds = (at - self.clock.now()).total_seconds()
        return (thread_id, None) if seconds <= 0 else (None, min(seconds, LOOK_SECONDS))

    async def learn_from_thread(self, thread_id: ChannelId) -> ExtractionOutcome:
        """Learn from a thread as it is now. Also raises the ModelError family.

        If one of its messages was withdrawn, its results are withdrawn first, even if it cannot be read now.
        """
        await self.threads.store(thread_id)
        if any(map(self.decisions.is_withdrawn, await self.threads.read_message_ids(thread_id))):
            await self._withdraw(thread_id)
        if self._reader is None:
            # Leave it to the process that has a reader.
            await self.threads.reschedule(thread_id, self.clock.now())
            return "unknown"
        if not (self.options.auto and self.options.from_questions):
            return await self._withdraw(thread_id)
        try:
            found = await self._reader.read(thread_id, await self.posts.find_questions_in(thread_id))
        except ChatRefusedError as error:
            _log.warning("answered_thread_unreadable", channel_id=thread_id, reason=str(error))
            gone = isinstance(error, ChatNotFoundError)
            came = await self._withdraw(thread_id) if gone else "unknown"
            await self.threads.reschedule(thread_id, None)
            return came
        except ChatError as error:
            _log.warning("answered_thread_delayed", channel_id=thread_id, reason=str(error))
            await self.threads.reschedule(thread_id, self.clock.now() + _AGAIN)
            return "unknown"
        return await self._learn_if_quiet(thread_id, found)

    async def park(self, thread_id: ChannelId) -> None:
        """Do not read a thread again until it changes."""
        await self.threads.reschedule(thread_id, None)

    async def withdraw_archived(self, message_ids: Collection[MessageId]) -> None:
        """Withdraw the results of threads with these messages: the archive has them now, and has priority."""
        for thread_id in await self.threads.find_threads(message_ids):
            await self._withdraw(thread_id)

    async def find_conversations(self, message_ids: Collection[MessageId]) -> tuple[ConversationId, ...]:
        """Return the conversations of the threads with one of these messages."""
        return tuple(map(bot_answer_conversation, await self.threads.find_threads(message_ids)))

    async def forget(self, message_ids: Collection[MessageId]) -> None:
        """Delete these messages, and have the rest of their threads read again."""
        await self.threads.forget(message_ids)

    async def _add_new_threads(self) -> None:
        """Add the threads that were answered in since the last call."""
        position = await self.log.read_position(FOLLOWER)
        while ended := await self.posts.list_finished_after(position, _POSTS):
            quiet = {post.thread_id: post.changed_at + QUIET for post, _ in ended if post.thread_id is not None}
            await self.threads.add(quiet)
            position = ended[-1][1]
            await self.log.save_position(FOLLOWER, position)

    async def _learn_if_quiet(self, thread_id: ChannelId, found: AnsweredThread | None) -> ExtractionOutcome:
        if found is None or not found.messages:
            await self.threads.reschedule(thread_id, None)
            return "unknown"
        quiet_at = found.messages[-1].at + QUIET
        if quiet_at > self.clock.now():
            await self.threads.reschedule(thread_id, quiet_at)
            return "unknown"
        # Store the authors before the results, so that a request to forget finds them.
        await self.threads.replace_messages(
            thread_id, [_make_thread_message(each, thread_id) for each in found.messages]
        )
        came = await self._extract(thread_id, found)
        await self.threads.reschedule(
            thread_id, await self._find_retry_time(thread_id) if came in {"failed", "unknown"} else None
        )
        return came

    async def _extract(self, thread_id: ChannelId, found: AnsweredThread) -> ExtractionOutcome:
        async def build_current() -> Segment | None:
            if self.threads.has_events(thread_id) or self._is_captured(found):
                return None
            segment = await run_sync(self._build_segment, found)
            people = len(segment.turns) - len(segment.ours)
            return segment if people >= self.options.min_turns else None

        segment = await build_current()
        if segment is None:
            came = await self._withdraw(thread_id)
            return "too short" if came == "unknown" else came
        return await self.extractor.extract_segment(segment, build_current)

    async def _find_retry_time(self, thread_id: ChannelId) -> datetime | None:
        """Return when to read a thread again after a failure; None: only once it changes."""
        entry = await self.log.read_entry(bot_answer_conversation(thread_id))
        return entry.next_at if entry is not None and entry.error is not None else self.clock.now() + _AGAIN

    async def _withdraw(self, thread_id: ChannelId) -> ExtractionOutcome:
        came = await self.extractor.withdraw(bot_answer_conversation(thread_id))
        await self.threads.mark_unread(thread_id)
        return came

    def _is_captured(self, found: AnsweredThread) -> bool:
        ids = [each.id for each in found.messages]
        return any(chain(map(self.archive.find_conversations, ids), map(self.pending.holds, ids)))

    def _build_segment(self, found: AnsweredThread) -> Segment:
        kept = [each for each in found.messages if not self._is_gone(each)]
        people = [each.author for each in found.messages if not each.author.is_self]
        return Segment(
            id=bot_answer_conversation(found.channel.id),
            origin="answer",
            turns=tuple(self._make_turn(each) for each in kept),
            message_ids=tuple(each.id for each in kept),
            author_ids=tuple(each.author.id for each in kept),
            last_message_at=found.messages[-1].at,
            guild_id=found.channel.guild_id,
            channel_id=found.channel.id,
            names={each.id: each.names for each in people},
            ours=frozenset(each.id for each in kept if each.author.is_self),
        )

    def _make_turn(self, message: ChatMessage) -> Turn:
        # Messages of intern count as a member's, because they are not the team's.
        return Turn("Team" if message.author.type == "team_member" else "User", self.mask(format_message(message)))

    def _is_gone(self, message: ChatMessage) -> bool:
        return self.decisions.is_withdrawn(message.id) or self.decisions.is_forgotten(message.author.id, message.id)


def _make_thread_message(message: ChatMessage, thread_id: ChannelId) -> ThreadMessage:
    return ThreadMessage(id=message.id, author_id=message.author.id, is_outside=message.channel_id != thread_id)
