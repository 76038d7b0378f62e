"""Exports as they were at a past moment: later messages and edits are missing.

A community's history as the bot would have met it: the team's lessons and the questions, in order of time.

Each step uses only the knowledge of its time. The whole history serves one further purpose: to find the team's answer
to a question, which only the judge gets.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from itertools import chain, starmap
from typing import NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from intern.core.captures import Capture
from intern.core.flow import AnswerRequest, Batch
from intern.core.ids import ChannelId, MessageId, Position, UserId, parse_position
from intern.core.messages import Channel, ChatMessage, RoleLookupBudget
from intern.service import Settings
from intern.service.history_batches import find_batch_captures, find_batch_question, find_exclusion_reason, form_batches
from intern.service.history_import import (
    ConversationOptions,
    ExportedChannel,
    ExportedHistory,
    Exports,
    check_exported_guild,
    format_message,
    is_worth_gathering,
)


class Moment(NamedTuple):
    """A time, and the message that separates it from others of the same time."""

    at: datetime
    position: Position


def find_known_moment(message: ChatMessage) -> Moment:
    """Return the time when the exported text of a message was first known.

    An export holds the last text alone. The text before an edit is lost, and the edit must not be known before it was
    made.
    """
    written = message.at if message.edited_at is None else max(message.at, message.edited_at)
    return Moment(written, parse_position(message.id))


class HistoryUntil:
    """An exported history as Discord would have shown it at a moment."""

    def __init__(self, whole: ExportedHistory, until: Moment) -> None:
        self._whole = whole
        self._until = until
        self.channel = whole.channel
        self.edited_later: set[Moment] = set()
        """The times when skipped messages become known, although they were written before."""

    async def message(self, channel_id: ChannelId, message_id: MessageId) -> ChatMessage | None:
        """Return a message, or None if it did not exist yet."""
        found = await self._whole.message(channel_id, message_id)
        return found if found and self._shows(found) else None

    async def before(
        self,
        channel_id: ChannelId,
        message_id: MessageId | None,
        limit: int,
        *,
        lookups: RoleLookupBudget | None = None,
    ) -> Sequence[ChatMessage]:
        """Return the newest messages older than `message_id` (None: of all), oldest first."""
        shown: list[ChatMessage] = []
        while len(shown) < limit and (page := await self._whole.before(channel_id, message_id, limit, lookups=lookups)):
            shown[:0] = filter(self._shows, page)
            message_id = page[0].id
        return shown[-limit:]

    async def after(self, channel_id: ChannelId, message_id: MessageId, limit: int) -> Sequence[ChatMessage]:
        """Return the oldest messages newer than `message_id`, oldest first."""
        shown: list[ChatMessage] = []
        while len(shown) < limit and (page := await self._whole.after(channel_id, message_id, limit)):
            shown += filter(self._shows, page)
            message_id = page[-1].id
        return shown[:limit]

    def _shows(self, message: ChatMessage) -> bool:
        moment = find_known_moment(message)
        if moment > self._until and (message.at, moment.position) <= self._until:
            self.edited_later.add(moment)
        return moment <= self._until


EDITED = "questions that were edited later: what was asked at first is lost"
BY_MODE = "questions where the channel's mode has the bot keep silent"
NOT_SAMPLED = "questions that --limit leaves out"


class TeamReply(Struct, frozen=True, kw_only=True):
    """The consecutive messages of the team in one reply."""

    moment: Moment
    """The time of its first message."""
    by: UserId
    text: str
    link: str
    replies_to: frozenset[MessageId]


class TeachingStep(Struct, frozen=True, kw_only=True):
    """Team answers, from the moment when they were known."""

    moment: Moment
    captures: tuple[Capture, ...]


class QuestionStep(Struct, frozen=True, kw_only=True):
    """A message that the bot would have considered as a question."""

    moment: Moment
    """Later messages must not be visible to the answering model."""
    request: AnswerRequest
    team: tuple[TeamReply, ...]
    """The team's answer, for the judge alone."""
    was_first: bool
    """Whether the team had answered before the asker's pause was over, so the bot would have stayed silent."""
    known: bool
    """Whether the team had answered even before the last message of the question."""

    @property
    def link(self) -> str:
        """The address of its last message."""
        return _link(self.request.batch.last)


class Timeline(Struct, frozen=True, kw_only=True):
    """All steps, oldest first."""

    steps: tuple[TeachingStep | QuestionStep, ...]
    left_out: dict[str, int]
    """The number of skipped questions and messages, by reason."""
    team_replies: int

    @property
    def asked(self) -> tuple[QuestionStep, ...]:
        """The questions."""
        return tuple(step for step in self.steps if isinstance(step, QuestionStep))


async def build_timeline(
    exports: Exports, settings: Settings, *, since: datetime | None = None, until: datetime | None = None
) -> Timeline:
    """Return the history, with the questions from `since` to `until`. Earlier lessons count, later ones do not.

    Raises ConfigError for the export of a server that is not served.
    """
    making = _TimelineBuilder(exports, settings.conversations, since=since, until=until)
    for place in exports.channels:
        check_exported_guild(place, settings)
        if reason := find_exclusion_reason(place, settings):
            making.left_out[reason] += len(place.messages)
            continue
        await making.add_channel(place)
    return making.build()


def sample_questions(timeline: Timeline, limit: int | None) -> Timeline:
    """Choose at most `limit` of its questions, spread evenly over all of them: the first ones know the least."""
    asked = timeline.asked
    if limit is None or len(asked) <= limit:
        return timeline
    # Towards the end of each stretch, so that the newest question is included.
    kept = {asked[(n + 1) * len(asked) // limit - 1].moment for n in range(limit)}
    return replace(
        timeline,
        steps=tuple(step for step in timeline.steps if isinstance(step, TeachingStep) or step.moment in kept),
        left_out={**timeline.left_out, NOT_SAMPLED: len(asked) - len(kept)},
    )


class _TimelineBuilder:
    def __init__(
        self, exports: Exports, options: ConversationOptions, *, since: datetime | None, until: datetime | None
    ) -> None:
        self.left_out: Counter[str] = Counter()
        self.left_out["notices of Discord's"] = exports.system
        self.left_out["messages that cannot be read"] = exports.unreadable
        self._options = options
        self._wait = timedelta(seconds=options.message_batch_wait_seconds)
        self._since = since or datetime.min.replace(tzinfo=UTC)
        self._until = until or datetime.max.replace(tzinfo=UTC)
        self._whole = ExportedHistory(exports)
        self._taught: list[TeachingStep] = []
        self._asked: list[tuple[Moment, AnswerRequest]] = []
        self._replies: dict[MessageId, list[TeamReply]] = {}
        self._spoken: dict[str, list[TeamReply]] = {}
        self._team_replies = 0

    async def add_channel(self, place: ExportedChannel) -> None:
        """Add a channel or thread."""
        for batch in form_batches(place, self._options.message_batch_wait_seconds):
            match batch.author.type:
                case "team_member":
                    await self._add_team_batch(batch, place.channel)
                case "community_user":
                    await self._add_member_batch(batch, place.channel)
                case "bot":
                    pass

    def build(self) -> Timeline:
        """Return all steps, in order, with the answers to each question, which are known only now."""
        # At the same moment the question comes first: it cannot know lessons of that moment.
        steps: list[TeachingStep | QuestionStep] = [*starmap(self._build_question, self._asked), *self._taught]
        steps.sort(key=lambda step: (step.moment, isinstance(step, TeachingStep)))
        return Timeline(
            steps=tuple(steps),
            left_out={reason: number for reason, number in self.left_out.items() if number},
            team_replies=self._team_replies,
        )

    # Team messages.

    async def _add_team_batch(self, batch: Batch, channel: Channel) -> None:
        reply = _build_team_reply(batch)
        self._spoken.setdefault(channel.id, []).append(reply)
        if not is_worth_gathering(batch, channel):
            return
        self._team_replies += 1
        captures = await find_batch_captures(batch, channel, self._whole, self._options)
        for message_id in chain.from_iterable(capture.message_ids for capture in captures):
            self._replies.setdefault(message_id, []).append(reply)
        if captures:
            await self._add_captures(batch, channel)

    async def _add_captures(self, batch: Batch, channel: Channel) -> None:
        """Add the captures that the bot would have made: at once, and again whenever a message was edited.

        The text of a message before an edit is lost, so until the edit the message is missing.
        """
        first = _find_moment(batch, self._wait)
        waiting = {first, *filter(first.__le__, map(find_known_moment, batch.messages))}
        seen: set[Moment] = set()
        before: list[Capture] = []
        while waiting and (moment := min(waiting)).at <= self._until:
            seen.add(moment)
            history = HistoryUntil(self._whole, moment)
            captures: list[Capture] = []
            if known := tuple(message for message in batch.messages if find_known_moment(message) <= moment):
                captures = await find_batch_captures(replace(batch, messages=known), channel, history, self._options)
            waiting = (waiting | history.edited_later) - seen
            if captures and captures != before:
                self._taught.append(TeachingStep(moment=moment, captures=tuple(captures)))
                before = captures

    # Member messages.

    async def _add_member_batch(self, batch: Batch, channel: Channel) -> None:
        moment = _find_moment(batch, self._wait)
        if not self._since <= moment.at <= self._until:
            return
        request = await find_batch_question(batch, channel, HistoryUntil(self._whole, moment), self._options)
        if request is None:
            return
        if any(find_known_moment(message) > moment for message in batch.messages):
            self.left_out[EDITED] += 1
            return
        if _keeps_silent(self._options, request):
            self.left_out[BY_MODE] += 1
            return
        self._asked.append((moment, request))

    def _build_question(self, moment: Moment, request: AnswerRequest) -> QuestionStep:
        team = self._find_answers(request.batch, request.channel)
        first = min((reply.moment for reply in team), default=None)
        return QuestionStep(
            moment=moment,
            request=request,
            team=team,
            known=first is not None and first <= moment,
            was_first=first is not None and first.at <= request.batch.last.at + self._wait,
        )

    def _find_answers(self, batch: Batch, channel: Channel) -> tuple[TeamReply, ...]:
        """Return the replies to the question, else the team's next message in its conversation or thread."""
        own = frozenset(message.id for message in batch.messages)
        opened = find_known_moment(batch.messages[0])
        said = {reply.moment: reply for each in own for reply in self._replies.get(each, ())}
        if channel.is_thread:
            said |= {reply.moment: reply for reply in self._spoken.get(channel.id, ())}
        for message_id in own:  # the thread that hangs on it has its id
            said |= {reply.moment: reply for reply in self._spoken.get(message_id, ())}
        later = [said[each] for each in sorted(said) if each > opened and said[each].by != batch.author.id]
        direct = [reply for reply in later if not own.isdisjoint(reply.replies_to)]
        return tuple(direct or later[:1])


def _find_moment(batch: Batch, wait: timedelta) -> Moment:
    """Return the moment when a batch was complete: its last message, or its last edit before its pause ended."""
    settles = max(message.at for message in batch.messages) + wait
    written = [Moment(message.at, parse_position(message.id)) for message in batch.messages]
    mended = [known for message in batch.messages if (known := find_known_moment(message)).at <= settles]
    return max([*written, *mended])


def _keeps_silent(options: ConversationOptions, request: AnswerRequest) -> bool:
    mode = options.channel_mode(request.channel)
    return mode == "capture_only" or (mode == "mention_only" and not request.called)


def _build_team_reply(batch: Batch) -> TeamReply:
    first = batch.messages[0]
    return TeamReply(
        moment=Moment(first.at, parse_position(first.id)),
        by=batch.author.id,
        text="\n".join(filter(None, map(format_message, batch.messages))),
        link=_link(first),
        replies_to=frozenset(message.reply_to for message in batch.messages if message.reply_to),
    )


def _link(message: ChatMessage) -> str:
    """Return Discord's own address of a message; its ids were checked when it was read."""
    return f"https://discord.com/channels/{message.guild_id or '@me'}/{message.channel_id}/{message.id}"


def sort_by_count(counts: Mapping[str, int]) -> dict[str, int]:
    """Sort counts, most first, then by name."""
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))
