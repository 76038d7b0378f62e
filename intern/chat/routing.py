"""Routing: a batch is answered, captured or ignored. Its context is read only as far as that decision needs.

The bot listens only where everyone can read, if the channel's mode allows it, and within a member's limit of questions.
Elsewhere it says nothing and keeps nothing. If it declines a question for another reason, the asker gets the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import KW_ONLY, dataclass
from datetime import timedelta
from typing import Literal

from msgspec import structs

from intern.chat.addressing import RecentLines, find_mentioned_account, lines_before
from intern.chat.context import BatchContext, gather_context
from intern.chat.conversations import build_answer_request, build_capture_requests, is_calling_bot
from intern.chat.options import STILL_WAITED_FOR, ConversationOptions
from intern.chat.phrases import ENGLISH, get_phrases
from intern.chat.platform import PAGE, History, Outlet
from intern.core.clock import Clock
from intern.core.errors import ChatRefusedError, ChatUnavailableError, ChatUnknownOutcomeError
from intern.core.flow import AnswerRequest, Batch, CaptureRequest, DeclineReason, QuestionDeclined
from intern.core.ids import GuildId, UserId
from intern.core.log import get_logger
from intern.core.messages import Channel, ChatMessage, RoleLookupBudget
from intern.core.text.language import detect_language
from intern.stores.tables.members import GreetedMembers
from intern.stores.tables.outbox import Outbox

_log = get_logger(__name__)


def is_worth_gathering(batch: Batch, place: Channel, *, answered_in_thread: bool = False) -> bool:
    """Whether a batch may concern the bot, so its context must be read: most messages cost no REST call.

    `answered_in_thread`, here and below: the bot posted an answer in this thread.
    """
    if batch.last.guild_id is None or batch.author.type == "bot":
        return False
    if batch.author.type == "team_member":
        return place.is_thread or any(message.reply_to or find_mentioned_account(message) for message in batch.messages)
    if answered_in_thread or _opens_post(batch, place):
        return True
    aside = all(message.replies_to_other and not message.mentions_bot for message in batch.messages)
    return not aside and (_may_call(batch) or not place.is_thread)


def find_question_messages(
    batch: Batch, place: Channel, gathered: BatchContext, *, answered_in_thread: bool = False
) -> tuple[ChatMessage, ...]:
    """Return the messages of a member's batch that are a question to the bot.

    All of them, if one addresses the bot. Else, in a channel, all but the replies to others; a reply to a message that
    is gone or unreadable may be such a reply, so it is left out, too.
    """
    if is_addressed_to_bot(batch, place, gathered, answered_in_thread=answered_in_thread):
        return batch.messages
    if place.is_thread:
        return ()
    return tuple(message for message in batch.messages if not _is_for_another(message, gathered))


def is_addressed_to_bot(
    batch: Batch, place: Channel, gathered: BatchContext, *, answered_in_thread: bool = False
) -> bool:
    """Return whether the asker mentions the bot, replies to it, or writes in its thread or a new forum post."""
    return is_calling_bot(batch, gathered) or (place.is_thread and answered_in_thread) or _opens_post(batch, place)


def is_teaching(batch: Batch, place: Channel, gathered: BatchContext) -> bool:
    """Return whether a team member's batch answers a user, or corrects the bot: then it is captured."""
    own = {message.id for message in batch.messages}
    asked = (message.author.type == "community_user" and message.id not in own for message in gathered.thread)
    return (place.is_thread and any(asked)) or any(map(gathered.is_teaching, batch.messages))


def _is_for_another(message: ChatMessage, gathered: BatchContext) -> bool:
    if message.reply_to is None:
        return False
    author = gathered.reply_authors.get(message.reply_to)
    return author is None or author.id != message.author.id


def _opens_post(batch: Batch, place: Channel) -> bool:
    return place.kind == "post" and any(str(message.id) == place.id for message in batch.messages)


Requests = Sequence[AnswerRequest | CaptureRequest | QuestionDeclined]

IgnoreReason = Literal["not public", "mode", "voice"]
"""The reasons for ignoring a batch without a notice."""


@dataclass(frozen=True)
class PrivateNotices:
    """Sends the notice of where to ask to members who write in private. Each gets it once."""

    outlet: Outlet
    greeted: GreetedMembers

    async def answer(self, batch: Batch) -> None:
        """Post the notice, unless the author got it before. Raises ChatUnavailableError and KnowledgeError."""
        # Before the first wait on the platform, so that two messages get one notice.
        if not await self.greeted.add(batch.author.id):
            return
        try:
            note = get_phrases(detect_language(batch.text) or ENGLISH).private_note
            await self.outlet.send(batch.channel_id, note, f"note {batch.last.id}")
        except ChatUnavailableError:
            await self.greeted.drop(batch.author.id)
            raise
        except (ChatRefusedError, ChatUnknownOutcomeError) as error:
            _log.info("private_note_not_sent", message_id=batch.last.id, reason=str(error))


@dataclass
class BatchRouter:
    """Routes batches; several may be in work at once."""

    history: History
    posts: Outbox
    options: ConversationOptions
    _: KW_ONLY
    guild_ids: Collection[GuildId]
    admits: Callable[[Channel], bool]
    clock: Clock
    count_question: Callable[[UserId], DeclineReason | None] = lambda _: None
    """Counts a question of a member, and returns the limit that it exceeds, if any."""
    private: PrivateNotices | None = None
    """Without it, private messages are ignored."""

    def __post_init__(self) -> None:
        self._recent = RecentLines(self.options.bounds)

    async def route(self, batch: Batch) -> Requests:
        """Return the captures that follow from a batch, and the question, declined or not.

        Raises ChatUnavailableError if Discord is away.
        """
        if batch.author.type == "bot":
            return ()
        if batch.last.guild_id not in self.guild_ids:
            if batch.last.guild_id is None and self.private:
                await self.private.answer(batch)
            return ()
        may_go_on = self._recent.may_follow_up(batch)  # before the first await, so that batches are remembered in order
        channel = await self.history.channel(batch.channel_id)
        may_go_on = may_go_on and not channel.is_thread
        answered = channel.is_thread and await self.posts.has_answer_in(channel.id)
        if not (may_go_on or is_worth_gathering(batch, channel, answered_in_thread=answered)):
            return ()
        if not self.admits(channel) or self.options.channel_mode(channel) == "off":
            return self._ignore_batch(batch, "mode" if self.admits(channel) else "not public")
        if batch.author.type == "team_member":
            return await self._route_team_batch(batch, channel, may_go_on=may_go_on)
        return await self._route_member_batch(batch, channel, answered_in_thread=answered, may_go_on=may_go_on)

    async def _route_team_batch(self, batch: Batch, channel: Channel, *, may_go_on: bool) -> Requests:
        if may_go_on:
            first = batch.messages[0]
            # Only the author's own lines count, so no roles are looked up.
            said = await self.history.before(channel.id, first.id, limit=PAGE, lookups=RoleLookupBudget(0))
            lines = lines_before(first, said, self.options.message_batch_wait_seconds)
            lines = tuple(structs.replace(line, author=first.author) for line in lines)
            batch = structs.replace(batch, messages=(*lines, *batch.messages))
        gathered = await gather_context(batch, channel, self.history, self.options.bounds)
        # Reading takes a while, and the channel may have turned private meanwhile.
        if not self.admits(channel):
            return self._ignore_batch(batch, "not public")
        return build_capture_requests(batch, channel, gathered) if is_teaching(batch, channel, gathered) else ()

    async def _route_member_batch(
        self, batch: Batch, channel: Channel, *, answered_in_thread: bool, may_go_on: bool
    ) -> Requests:
        """Route a member's batch: it follows up a capture, asks something, or both."""
        mode = self.options.channel_mode(channel)
        listens = mode == "answer" or (mode == "mention_only" and _may_call(batch))
        late = self._age(batch) > timedelta(seconds=self.options.max_question_age)
        gathered = BatchContext()
        if may_go_on or (listens and not late):
            gathered = await gather_context(batch, channel, self.history, self.options.bounds, follow_ups=may_go_on)
            take_in = self._recent.remember_history if may_go_on else self._recent.remember
            take_in(channel.id, gathered.read)
            if not self.admits(channel):
                return self._ignore_batch(batch, "not public")
        goes_on = build_capture_requests(batch, channel, gathered) if may_go_on else ()
        if not listens:
            return goes_on or self._ignore_batch(batch, "mode")
        if late:
            return (*goes_on, *await self._decline_late(batch, channel))
        return (*goes_on, *self._route_question(batch, channel, gathered, answered_in_thread=answered_in_thread))

    def _route_question(
        self, batch: Batch, channel: Channel, gathered: BatchContext, *, answered_in_thread: bool
    ) -> Sequence[AnswerRequest | QuestionDeclined]:
        asked = find_question_messages(batch, channel, gathered, answered_in_thread=answered_in_thread)
        if not asked:
            return ()
        to_bot = is_addressed_to_bot(batch, channel, gathered, answered_in_thread=answered_in_thread)
        question = structs.replace(batch, messages=asked)
        request = build_answer_request(question, channel, gathered, self.options, addressed=to_bot)
        if self.options.channel_mode(channel) == "mention_only" and not request.called:
            return self._ignore_batch(batch, "mode")
        if all(message.is_voice and not message.text for message in asked):
            declined = QuestionDeclined(request=structs.replace(request, called=True), reason="voice")
            return (declined,) if to_bot else self._ignore_batch(batch, "voice")
        # Last of all, so that ignored and repeated batches do not count.
        if reason := self.count_question(batch.author.id):
            return (QuestionDeclined(request=request, reason=reason),)
        return (request,)

    async def _decline_late(self, batch: Batch, channel: Channel) -> Sequence[QuestionDeclined]:
        """Decline a question that is too old. Only its reply targets are read."""
        request = build_answer_request(batch, channel, BatchContext(), self.options, addressed=False)
        called = self._age(batch) <= STILL_WAITED_FOR and (request.called or await self._is_reply_to_bot(batch))
        return (QuestionDeclined(request=structs.replace(request, called=called), reason="too old"),)

    async def _is_reply_to_bot(self, batch: Batch) -> bool:
        for message in batch.messages:
            if message.reply_to:
                replied = await self.history.message(message.reply_to_channel or batch.channel_id, message.reply_to)
                if replied and replied.author.is_self:
                    return True
        return False

    def _age(self, batch: Batch) -> timedelta:
        return self.clock.now() - batch.last.at

    def _ignore_batch(self, batch: Batch, reason: IgnoreReason) -> tuple[()]:
        _log.debug("batch_passed_over", channel_id=batch.channel_id, message_id=batch.last.id, reason=reason)
        return ()


def _may_call(batch: Batch) -> bool:
    """Whether a batch mentions the bot, or replies to a message that may be the bot's."""
    return any(message.mentions_bot or message.reply_to for message in batch.messages)
