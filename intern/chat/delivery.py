"""The outbox: it posts each message of a reply to Discord exactly once."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import KW_ONLY, dataclass, field
from datetime import timedelta
from typing import Literal

from anyio import Event
from msgspec import Struct, structs

from intern.chat.addressing import find_mentioned_account
from intern.chat.options import STILL_WAITED_FOR
from intern.chat.phrases import ENGLISH, select_language
from intern.chat.platform import PAGE, Capabilities, History, Outlet
from intern.chat.reply_text import reply_parts, thread_name
from intern.core import errors
from intern.core.clock import Clock
from intern.core.flow import AnswerRequest, Reply
from intern.core.ids import LAST, ChannelId, MessageId, UserId, parse_position
from intern.core.log import get_logger
from intern.core.messages import ChatMessage
from intern.core.text.language import detect_language
from intern.stores.tables.outbox import Outbox, Post, PostPart

_log = get_logger(__name__)


RecallReason = Literal["superseded", "withdrawn"]


@dataclass
class _OutgoingReply:
    request: AnswerRequest
    gone: bool = False
    taken: RecallReason | None = None
    told: Event = field(default_factory=Event)
    over: Event = field(default_factory=Event)


class RecallableReplies:
    """The replies that may still be recalled. Of posting and recalling, the first wins: no reply gets both.

    For one event loop: only the methods `wait_…` wait, so nothing changes between a check and the next step.
    """

    def __init__(self) -> None:
        self._entries: dict[MessageId, _OutgoingReply] = {}
        self._closed = False
        self._resuming: Event | None = None

    @contextmanager
    def resuming(self) -> Generator[None]:
        """Make `wait_until_resumed` wait within the block, which finishes replies of an earlier process."""
        over = self._resuming = Event()
        try:
            yield
        finally:
            self._resuming = None
            over.set()

    async def wait_until_resumed(self) -> None:
        """Wait until the replies of an earlier process are finished."""
        if self._resuming is not None:
            await self._resuming.wait()

    def add_reply(self, request: AnswerRequest) -> None:
        """Note that the reply to this question is on its way. The caller ends it with `remove_reply`."""
        self._entries[request.batch.last.id] = _OutgoingReply(request)

    def recall(self, reason: RecallReason, wanted: Callable[[AnswerRequest], bool]) -> tuple[AnswerRequest, ...]:
        """Recall the replies to `wanted` questions that have not left; return the questions."""
        taken = [e for e in self._entries.values() if not e.gone and e.taken is None and wanted(e.request)]
        for entry in taken:
            entry.taken = reason
            entry.told.set()
        return tuple(entry.request for entry in taken)

    def find_recall_reason(self, question_id: MessageId) -> RecallReason | None:
        """Return the reason why a reply must not leave any more; None if it may."""
        entry = self._entries.get(question_id)
        return entry.taken if entry else None

    def begin_posting(self, question_id: MessageId) -> bool:
        """Begin posting. Return whether the reply may leave; if so, it cannot be recalled any more."""
        entry = self._entries.get(question_id)
        if entry and entry.taken is None:
            entry.gone = True
        return entry is None or entry.gone

    async def wait_for_recall(self, question_id: MessageId) -> None:
        """Wait until the reply is recalled, or until `close`."""
        entry = self._entries.get(question_id)
        if entry and not self._closed:
            await entry.told.wait()

    def remove_reply(self, question_id: MessageId) -> None:
        """Forget the reply."""
        if entry := self._entries.pop(question_id, None):
            entry.over.set()

    async def wait_for_recalled_parts(self, request: AnswerRequest) -> None:
        """Wait until the recalled replies to parts of a question are done, so that the reply to all of it may leave."""
        asked = {message.id for message in request.batch.messages}
        for entry in tuple(self._entries.values()):
            if entry.taken and any(message.id in asked for message in entry.request.batch.messages):
                await entry.over.wait()

    def close(self) -> None:
        """Stop holding replies: none is recalled from now on."""
        self._closed = True
        for entry in self._entries.values():
            entry.told.set()


_PAGES = 5  # at most: to search for a message of ours that may have been posted, or to read a question to its end

NO_LONGER = LAST.id
"""The position after all messages: further messages of the asker are not waited for."""


class PostOutcome(Struct, frozen=True, kw_only=True):
    """The outcome of posting a reply."""

    status: Literal["posted", "already_posted", "dropped", "recalled", "held"]
    """`held`: not now, its asker is adding something. `recalled`: the question is asked again, or was withdrawn."""
    reason: str = ""
    """The reason why it was dropped (`question_deleted`, `team_answered`, `not_public`, `refused`, `too_old`, `empty`)
    or recalled, or why a notice was posted instead of the answer (`refused`, `too_old`)."""
    notice: bool = False
    """Whether the posted text is a notice of why there is no answer."""
    thread_id: ChannelId | None = None
    newest: MessageId | None = None
    """If it is held: the asker's newest message."""


ReportOutcome = Callable[[Post, PostOutcome], Awaitable[None]]
"""Called with the outcome of a reply."""


@dataclass(frozen=True)
class OutboxDelivery:
    """Posts replies through the outbox in the database; repeating it is harmless."""

    outlet: Outlet
    outbox: Outbox
    history: History
    _: KW_ONLY
    outgoing: RecallableReplies
    clock: Clock
    capabilities: Capabilities
    admits: Callable[[ChannelId], Awaitable[bool]]
    """Whether we may still post in a channel: it may have turned private since the question."""
    max_age: timedelta
    """A reply that was begun longer ago, and has no posted part, is dropped."""
    late: Mapping[str, str]
    """The notice for such a reply to a member who called the bot, by language."""
    unposted: Mapping[str, str]
    """The notice, in the question's channel, if the platform refuses the reply or its thread, by language."""
    retracted: Mapping[str, str]
    """The note that replaces an outdated answer, by language."""

    async def post(self, reply: Reply, *, waited_for: MessageId | None = None) -> PostOutcome:
        """Post a reply, or finish posting it. One question gets at most one reply, however often this is called.

        A reply is held if its asker has written something newer than `waited_for`, which may be part of the question.
        Raises ChatUnavailableError or ChatUnknownOutcomeError if calling again later is worthwhile,
        KnowledgeError if the ledger cannot be used.
        """
        question = reply.question
        known = await self.outbox.get(question.id)
        # Its messages may be in the record of a newer question by now.
        if known is None and (reason := self.outgoing.find_recall_reason(question.id)):
            return PostOutcome(status="recalled", reason=reason)
        parts = reply_parts(reply, self.capabilities.message_limit)
        begun = known or await self.outbox.begin(reply, parts)
        return await _DeliveryAttempt(self, begun, reply.language, fresh=known is None).run(reply, waited_for)

    async def resume(self, ended: ReportOutcome) -> int:
        """Finish all half-posted replies of the ledger, report the outcome of each, and return their number.

        One that fails holds up no other. Raises as `post` does, after all were tried.
        """
        begun = await self.outbox.list_unfinished()
        failure: errors.ChatError | errors.KnowledgeError | None = None
        for entry in begun:
            # Its question is not at hand.
            language = detect_language("\n".join(part.text for part in entry.parts)) or ENGLISH
            delivery = _DeliveryAttempt(self, entry, language)
            try:
                outcome = await delivery.run(None, NO_LONGER)
            except (errors.ChatUnavailableError, errors.ChatUnknownOutcomeError, errors.KnowledgeError) as error:
                failure = error
            else:
                await ended(entry, outcome)
        if failure:
            raise failure
        return len(begun)

    async def retract(self, question_id: MessageId) -> bool:
        """Edit each message of a posted answer to a note in its language; false if none could be edited.

        A message that is the note already is left alone, so a repeated call edits no message twice. Raises
        ChatUnavailableError if calling again later is worthwhile, and KnowledgeError.
        """
        post = await self.outbox.get(question_id)
        if post is None or post.state != "finished" or post.notice or post.thread_id is None:
            return False
        note, said = "", False
        try:
            if not await self.admits(post.channel_id):
                return False
            for message_id in filter(None, (part.message_id for part in post.parts)):
                message = await self.history.message(post.thread_id, message_id)
                if message is None:
                    continue  # deleted
                if message.text.strip() not in self.retracted.values():
                    note = note or select_language(self.retracted, detect_language(message.text))
                    await self.outlet.rewrite(post.thread_id, message_id, note)
                said = True
        except errors.ChatRefusedError as error:
            _log.warning("retraction_refused", message_id=question_id, error=str(error))
        return said

    def is_late(self, entry: Post) -> bool:
        """Return whether the answer comes too late."""
        if entry.reason:  # a notice of being late has more time
            return self.is_very_late(entry)
        return self.clock.now() - entry.changed_at > self.max_age

    def is_very_late(self, entry: Post) -> bool:
        """Return whether even a notice comes too late."""
        return self.clock.now() - parse_position(entry.question_id).time > STILL_WAITED_FOR


@dataclass
class _DeliveryAttempt:
    """One attempt to post one reply to Discord."""

    to: OutboxDelivery
    begun: Post
    language: str
    _: KW_ONLY
    fresh: bool = False
    """Whether no part of it can have been posted before."""
    sent: set[MessageId] = field(default_factory=set[MessageId])

    async def run(self, reply: Reply | None, waited_for: MessageId | None) -> PostOutcome:
        """Post the missing parts. Without the reply itself, read the other facts from Discord."""
        begun = self.begun
        if begun.state != "open":
            return PostOutcome(status="already_posted", reason=begun.reason, thread_id=begun.thread_id)
        try:
            # If a part is posted, the rest always follows, because half an answer is of no use.
            against = None if await self.is_partly_posted() else await self._check_before_posting(reply, waited_for)
            return against or await self._deliver(reply)
        except errors.ChatRefusedError as error:  # gone, or closed to us: the question need not be deleted
            _log.warning("reply_refused", message_id=begun.question_id, error=str(error))
            return await self._handle_refusal(error)

    async def _handle_refusal(self, refusal: errors.ChatRefusedError) -> PostOutcome:
        """Tell a member who called the bot, in place, that the platform refused the reply; else drop the reply."""
        self.fresh, hopeless = False, isinstance(refusal, errors.ChatNotFoundError) or bool(self.sent)
        with suppress(errors.ChatRefusedError):  # reading may be refused, too
            if not hopeless and await self._replace_by_notice(self.to.unposted, "refused", in_place=True):
                return await self.run(None, NO_LONGER)
        return await self.drop(self.begun.reason or "refused")

    async def is_partly_posted(self) -> bool:
        """Whether a part of it is on Discord already."""
        begun = self.begun
        if any(part.message_id for part in begun.parts):
            return True
        # An earlier try may have posted the beginning without a confirmation; then it cannot be recalled.
        place = begun.channel_id if begun.target == "in_place" else begun.thread_id
        if self.fresh or not begun.parts or place is None:
            return False
        return await self._find_posted_part(begun.parts[0], place) is not None

    async def _check_before_posting(self, reply: Reply | None, waited_for: MessageId | None) -> PostOutcome | None:
        """Find the reason against posting it now; if there is none, it cannot be recalled from then on."""
        question_id = self.begun.question_id
        if self.to.outgoing.find_recall_reason(question_id):
            return await self.recall(question_id)
        if self.to.is_late(self.begun) and not await self._replace_by_notice(self.to.late, "too_old"):
            return await self.drop("too_old")
        if against := await self._check_channel(reply, waited_for):
            return against
        return None if self.to.outgoing.begin_posting(question_id) else await self.recall(question_id)

    async def _deliver(self, reply: Reply | None) -> PostOutcome:
        if self.begun.reason == "refused":
            await self._remove_thread()
        thread = self.begun.thread_id or await self._open_thread(reply.question.text if reply else None)
        if not await self._send_all(thread):
            return await self.drop("not_public")
        begun = self.begun
        await self.to.outbox.mark_finished(begun.question_id)
        return PostOutcome(status="posted", reason=begun.reason, notice=begun.notice, thread_id=thread)

    async def drop(self, reason: str) -> PostOutcome:
        """Give up the reply, or the rest of it."""
        # Another reply may have taken its place in the ledger.
        if self.to.outgoing.find_recall_reason(self.begun.question_id):
            return await self.recall(self.begun.question_id)
        if self.begun.target == "new_thread" and not self.sent and (self.begun.thread_id or not self.fresh):
            await self._remove_thread()
        await self.to.outbox.mark_dropped(self.begun.question_id, reason)
        return PostOutcome(status="dropped", reason=reason)

    async def _remove_thread(self) -> None:
        """Remove the thread that was opened for the reply, before the ledger forgets it."""
        try:
            await self.to.outlet.remove_thread(ChannelId(self.begun.question_id))
        except errors.ChatNotFoundError:
            pass
        except errors.ChatError as error:
            _log.warning("thread_not_removed", message_id=self.begun.question_id, error=str(error))
            if self.begun.thread_id and not isinstance(error, errors.ChatRefusedError):
                raise  # the thread surely exists

    async def _replace_by_notice(self, words: Mapping[str, str], reason: str, *, in_place: bool = False) -> bool:
        """Replace the unsent reply to a member who called the bot by a notice; return false if there is no notice."""
        begun, word = self.begun, select_language(words, self.language)
        if not (begun.called and word) or begun.reason or self.to.is_very_late(begun):
            return False
        # It may be posted though unconfirmed: then it stays.
        if begun.parts and begun.thread_id and await self._find_posted_part(begun.parts[0], begun.thread_id):
            return True
        # As in `drop`; the caller checks again before it leaves.
        if not self.to.outgoing.find_recall_reason(begun.question_id):
            replace = self.to.outbox.replace_with_notice
            self.begun = await replace(begun.question_id, [word], reason=reason, in_place=in_place)
        return True

    async def recall(self, question_id: MessageId) -> PostOutcome:
        """Note that it was recalled: its question is asked again, or gone."""
        await self.to.outbox.delete_unsent(question_id)
        return PostOutcome(status="recalled", reason=self.to.outgoing.find_recall_reason(question_id) or "")

    async def _check_channel(self, reply: Reply | None, waited_for: MessageId | None) -> PostOutcome | None:
        """Find a reason in the question's channel against posting it now."""
        question_id = self.begun.question_id
        asked = {question_id, *self.begun.covers, *(reply.settles if reply else ())}
        if not self.begun.parts:
            return await self.drop("empty")
        if not await self.to.admits(self.begun.channel_id):
            return await self.drop("not_public")
        said = await self._read_since_question(asked)
        question = next((message for message in said if message.id == question_id), None)
        if question is None:
            return await self.drop("question_deleted")
        if await self._is_answered_by_team(question.author.id, said, asked):
            return await self.drop("team_answered")
        newest = _find_newest_message(question, said, asked)
        if newest and (waited_for is None or parse_position(waited_for) < parse_position(newest)):
            return PostOutcome(status="held", reason="asker_goes_on", newest=newest)
        return None

    async def _read_since_question(self, asked: Collection[MessageId]) -> Sequence[ChatMessage]:
        """Read from the first message of the question on, at least a page from its last."""
        channel, last = self.begun.channel_id, self.begun.question_id
        said: list[ChatMessage] = []
        cursor, from_last = min(map(parse_position, asked)).previous, parse_position(last).previous
        for _ in range(_PAGES):
            if cursor >= from_last:
                break
            page = await self.to.history.after(channel, cursor.id, limit=PAGE)
            said += page
            # Discord's own messages are left out of a page, so one that is nearly full need not be the last.
            if len(page) < PAGE // 2:
                return said
            cursor = parse_position(page[-1].id)
        return [*said, *await self.to.history.after(channel, from_last.id, limit=PAGE)]

    async def _is_answered_by_team(
        self, asker: UserId, said: Sequence[ChatMessage], asked: Collection[MessageId]
    ) -> bool:
        """Whether the team has answered: in the thread, by reply or mention, or in a thread on the question."""
        in_place = self.begun.target == "in_place"
        for message in said:
            if message.id in asked:
                if not in_place and message.thread_id and await self._team_speaks_in(message.thread_id, asker):
                    return True
            elif _is_by_team(message, asker):
                mentions_asker = message.reply_to is None and find_mentioned_account(message) == asker
                if in_place or message.reply_to in asked or mentions_asker:
                    return True
        return False

    async def _team_speaks_in(self, thread: ChannelId, asker: UserId) -> bool:
        try:
            # It has the id of the message that opened it, so no message in it is older.
            said = await self.to.history.after(thread, MessageId(thread), limit=PAGE)
        except errors.ChatRefusedError:  # it is gone, or closed to us
            return False
        return any(_is_by_team(message, asker) for message in said)

    async def _open_thread(self, question: str | None) -> ChannelId:
        channel, message_id = self.begun.channel_id, self.begun.question_id
        if self.begun.target == "in_place":
            return channel
        if question is None:
            message = await self.to.history.message(channel, message_id)
            question = message.text if message else ""
        name = thread_name(question, self.to.capabilities.thread_name_limit)
        try:
            thread = await self.to.outlet.start_thread(channel, message_id, name)
        except errors.ChatUnknownOutcomeError:
            # A message has one thread at most: asking again is harmless.
            thread = await self.to.outlet.start_thread(channel, message_id, name)
        await self.to.outbox.save_thread(message_id, thread)
        self.begun = structs.replace(self.begun, thread_id=thread)
        return thread

    async def _send_all(self, thread: ChannelId) -> bool:
        """Post the missing parts. Return False if the channel turned private before the last."""
        self.sent = {part.message_id for part in self.begun.parts if part.message_id}
        # An earlier try may have posted the next part without a confirmation, longer ago than a nonce protects.
        unsure = not self.fresh
        for part in self.begun.parts:
            if part.message_id:
                continue
            if not await self.to.admits(self.begun.channel_id):
                return False
            message_id = await self._find_posted_part(part, thread) if unsure else None
            unsure = False
            message_id = message_id or await self._send_part(part, thread)
            self.sent.add(message_id)
            await self.to.outbox.save_sent_part(self.begun.question_id, part.n, message_id)
        return True

    async def _send_part(self, part: PostPart, thread: ChannelId) -> MessageId:
        try:
            return await self._send(part, thread)
        except errors.ChatUnknownOutcomeError:
            return await self._find_posted_part(part, thread) or await self._send(part, thread)

    async def _send(self, part: PostPart, thread: ChannelId) -> MessageId:
        begun, send = self.begun, self.to.outlet.send
        if part.n < len(begun.parts) - 1:
            return await send(thread, part.text, part.nonce)
        return await send(thread, part.text, part.nonce, buttons=begun.buttons, mention_role=begun.mention_role)

    async def _find_posted_part(self, part: PostPart, thread: ChannelId) -> MessageId | None:
        """Find a message after the question that has this part already."""
        cursor = self.begun.question_id
        for _ in range(_PAGES):
            page = await self.to.history.after(thread, cursor, limit=PAGE)
            for message in page:
                if not message.author.is_self or message.text.strip() != part.text.strip():
                    continue
                # Other replies in the thread may have the same text: that there is no answer.
                if message.id not in self.sent and not await self.to.outbox.holds(message.id):
                    return message.id
            if not page:
                break
            cursor = page[-1].id
        return None


def _find_newest_message(
    question: ChatMessage, said: Sequence[ChatMessage], asked: Collection[MessageId]
) -> MessageId | None:
    """Return the asker's newest message after the question that is neither part of it nor addressed to others."""
    asker = question.author.id
    others = {message.id for message in said if message.author.id != asker and not message.author.is_self}
    mine = [each for each in said if each.author.id == asker and each.id not in asked and each.reply_to not in others]
    later = [each.id for each in mine if parse_position(each.id) > parse_position(question.id)]
    return max(later, key=parse_position, default=None)


def _is_by_team(message: ChatMessage, asker: UserId) -> bool:
    return message.author.type == "team_member" and message.author.id != asker
