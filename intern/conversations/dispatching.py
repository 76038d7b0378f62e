"""Whom a batch concerns, and with what: the reading on Discord that routing needs, and no more.

Only where intern may listen, only as the channel's mode says, and only within what one member may ask. Questions that
are passed over by these rules are logged, and accounted for where somebody may wonder about the silence.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Sequence
from datetime import datetime, timedelta
from typing import Literal, Protocol

from intern.conversations.asking import answer_request
from intern.conversations.capturing import capture_requests
from intern.conversations.context import Gathered, History, gather
from intern.conversations.options import ConversationOptions
from intern.conversations.routing import RoutingFacts, addressed, facts_of, route, worth_gathering
from intern.domain import (
    AnswerRequest,
    Batch,
    CaptureRequest,
    Channel,
    ChannelId,
    GuildId,
    MessageId,
    UserId,
)
from intern.errors import DiscordRefusedError, DiscordUnavailableError, DiscordUnknownOutcomeError, KnowledgeError
from intern.observe.clock import Clock
from intern.observe.log import get_logger

_log = get_logger(__name__)

PassedOver = Literal["too old", "asked too much", "not public", "mode"]
"""Why nobody acts on a batch that the routing table might give to somebody."""

PRIVATE_NOTE = (
    "Hello! I answer on the server only, where everybody can read along. Please ask there; I do not read private "
    "messages."
)

_NOTED_AT_MOST = 10_000  # members; who is forgotten may be told a second time
_HOUR = timedelta(hours=1)


class AnsweredThreads(Protocol):
    """Remembers where the bot has answered; see `intern.knowledge.posts`."""

    async def answered_in(self, thread_id: ChannelId, /) -> bool:
        """Whether a reply of the bot's stands in this thread."""
        ...


class Audience(Protocol):
    """Knows where everybody may read; see `intern.discord.audience`."""

    def admits(self, channel: Channel, /) -> bool:
        """Whether the bot may listen and speak in a channel."""
        ...


class Speaker(Protocol):
    """The way to a private channel."""

    async def send(self, channel_id: ChannelId, text: str, nonce: str, /) -> MessageId:
        """Post a message that pings nobody. For some minutes, a nonce posts only once. Raises DiscordError."""
        ...


class Traces(Protocol):
    """Remembers what became of questions; see `intern.knowledge.traces`."""

    async def keep(
        self, message_ids: Sequence[MessageId], channel_id: ChannelId, /, *, outcome: str, reason: str = ""
    ) -> None:
        """Keep what became of a question, whose id is the last of `message_ids`. Raises KnowledgeError."""
        ...


class Allowance:
    """How much one member may ask: at most `per_hour` within any hour, 0 being no limit. Calling it counts.

    What was refused does not count. Holds the members who asked within the hour, and no others.
    """

    def __init__(self, per_hour: int, *, clock: Clock) -> None:
        self._per_hour = per_hour
        self._clock = clock
        # In the order of their last question, so that whoever may be forgotten stands in front.
        self._asked: OrderedDict[UserId, deque[datetime]] = OrderedDict()

    def __call__(self, user_id: UserId) -> bool:
        """Whether this member may ask one more question now."""
        if not self._per_hour:
            return True
        now = self._clock.now()
        self._forget(now)
        asked = self._asked.setdefault(user_id, deque())
        while asked and not _within_hour(asked[0], now):
            asked.popleft()
        if len(asked) >= self._per_hour:
            return False
        asked.append(now)
        self._asked.move_to_end(user_id)
        return True

    def _forget(self, now: datetime) -> None:
        while self._asked:
            user_id, asked = next(iter(self._asked.items()))
            if asked and _within_hour(asked[-1], now):
                return
            del self._asked[user_id]


def _within_hour(then: datetime, now: datetime) -> bool:
    # Also true of a time ahead, but not for ever: the clock may have been put back by a year.
    return abs(now - then) < _HOUR


class PrivateNotes:
    """Tells whoever writes in private where to ask, once each for as long as the process lives."""

    def __init__(self) -> None:
        self._noted: OrderedDict[UserId, None] = OrderedDict()

    def note_for(self, batch: Batch) -> str | None:
        """What to say to a private message; None where there is nothing to say, or it was said."""
        if batch.last.guild_id is not None or batch.author.type == "bot" or batch.author.id in self._noted:
            return None
        return PRIVATE_NOTE

    def noted(self, user_id: UserId) -> None:
        """It is being said."""
        self._noted[user_id] = None
        if len(self._noted) > _NOTED_AT_MOST:
            self._noted.popitem(last=False)

    def not_noted(self, user_id: UserId) -> None:
        """It was not said after all."""
        self._noted.pop(user_id, None)


class Dispatcher:
    """Routes one batch at a time; several may be under way at once.

    `allows` counts a question of a member's and says whether it is within their limit. Without a `speaker`, private
    messages are passed over without a word.
    """

    def __init__(
        self,
        history: History,
        answered: AnsweredThreads,
        options: ConversationOptions,
        *,
        guild_ids: Collection[GuildId],
        audience: Audience,
        clock: Clock,
        allows: Callable[[UserId], bool] = lambda _: True,
        speaker: Speaker | None = None,
        traces: Traces | None = None,
    ) -> None:
        self._history = history
        self._answered = answered
        self._options = options
        self._guild_ids = frozenset(guild_ids)
        self._audience = audience
        self._clock = clock
        self._allows = allows
        self._speaker = speaker
        self._traces = traces
        self._private = PrivateNotes()

    async def dispatch(self, batch: Batch) -> Sequence[AnswerRequest | CaptureRequest]:
        """The question or the captures that a batch is; nothing where it concerns nobody.

        Raises DiscordUnavailableError where Discord could not be asked.
        """
        if batch.last.guild_id not in self._guild_ids:
            await self._greet(batch)
            return ()
        if batch.author.type == "bot":
            return ()
        channel = await self._history.channel(batch.channel_id)
        answered = channel.is_thread and await self._answered.answered_in(channel.id)
        if not worth_gathering(batch, channel, answered_in_thread=answered):
            return ()
        if reason := self._bar(batch, channel):
            return await self._pass_over(batch, reason)
        gathered = await gather(batch, channel, self._history, self._options.bounds)
        return await self._concerned(batch, channel, gathered, answered_in_thread=answered)

    async def _concerned(
        self, batch: Batch, channel: Channel, gathered: Gathered, *, answered_in_thread: bool
    ) -> Sequence[AnswerRequest | CaptureRequest]:
        # Reading takes a while, and a channel that turned private meanwhile is closed at once.
        if not self._audience.admits(channel):
            return await self._pass_over(batch, "not public")
        facts = facts_of(batch, gathered, answered_in_thread=answered_in_thread)
        match route(batch, channel, facts):
            case "capture":
                return capture_requests(batch, channel, gathered)
            case "answer":
                return await self._ask(batch, channel, gathered, facts)
            case "nobody":
                return ()

    async def _ask(
        self, batch: Batch, channel: Channel, gathered: Gathered, facts: RoutingFacts
    ) -> Sequence[AnswerRequest]:
        if self._options.mode_of(channel) == "mention_only" and not _called(batch, facts):
            return await self._pass_over(batch, "mode")
        # Last of all, so that what is passed over, or asked for again, does not count.
        if not self._allows(batch.author.id):
            return await self._pass_over(batch, "asked too much")
        to_bot = addressed(batch, channel, facts)
        return (answer_request(batch, channel, gathered, self._options, addressed=to_bot),)

    def _bar(self, batch: Batch, channel: Channel) -> PassedOver | None:
        """Why nothing needs to be read; None where something does."""
        if not self._audience.admits(channel):
            return "not public"
        mode = self._options.mode_of(channel)
        if mode == "off":
            return "mode"
        if batch.author.type == "team_member":
            return None
        if mode == "capture_only" or (mode == "mention_only" and not _may_call(batch)):
            return "mode"
        age = (self._clock.now() - batch.last.at).total_seconds()
        return "too old" if age > self._options.max_question_age else None

    async def _pass_over(self, batch: Batch, reason: PassedOver) -> tuple[()]:
        _log.debug("batch_passed_over", channel_id=batch.channel_id, message_id=batch.last.id, reason=reason)
        if self._traces is not None and reason in {"too old", "asked too much"}:
            ids = [message.id for message in batch.messages]
            try:
                await self._traces.keep(ids, batch.channel_id, outcome="passed over", reason=reason)
            except KnowledgeError as error:  # an account that is missing changes nothing for anybody
                _log.warning("trace_not_kept", message_id=batch.last.id, reason=str(error))
        return ()

    async def _greet(self, batch: Batch) -> None:
        note = self._private.note_for(batch)
        if note is None or self._speaker is None:
            return
        self._private.noted(batch.author.id)  # before the first wait: two messages get one note
        try:
            await self._speaker.send(batch.channel_id, note, f"note {batch.last.id}")
        except DiscordUnavailableError:
            self._private.not_noted(batch.author.id)
            raise
        except (DiscordRefusedError, DiscordUnknownOutcomeError) as error:
            _log.info("private_note_not_sent", message_id=batch.last.id, reason=str(error))


def _may_call(batch: Batch) -> bool:
    """Whether a batch mentions the bot, or replies to somebody who may be the bot."""
    return any(message.mentions_bot or message.reply_to for message in batch.messages)


def _called(batch: Batch, facts: RoutingFacts) -> bool:
    """Whether it mentions the bot or replies to it."""
    targets = [facts.reply_authors.get(message.reply_to) for message in batch.messages if message.reply_to]
    return any(message.mentions_bot for message in batch.messages) or any(each and each.is_self for each in targets)
