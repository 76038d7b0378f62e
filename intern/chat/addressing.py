"""Find the addressee of a message that is no reply: the mentioned account, or the one its author spoke with before.

Pure. Only earlier messages count, so that live reading and history give the same result.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from math import inf

from msgspec import structs

from intern.chat.options import ContextBounds
from intern.core.flow import Batch
from intern.core.ids import ChannelId, MessageId, UserId, parse_position
from intern.core.messages import ChatMessage

_QUESTION_MARKS = "?？؟"
_MOST_LINES = 150  # of a channel; a busy one has as many in a quarter of an hour
_MOST_LINES_IN_ALL = 15_000  # some 10 MB; channels beyond that are forgotten, as after a start


def find_mentioned_account(message: ChatMessage) -> UserId | None:
    """Return the one account that a message mentions; None if it mentions none or several.

    Besides the member that they answer, a team member may mention colleagues and bots.
    """
    mentions = message.mentions
    if message.author.type == "team_member" and len(mentions) > 1:
        mentions -= message.mentioned_staff
    return next(iter(mentions)) if len(mentions) == 1 else None


def split_by_target(messages: Sequence[ChatMessage]) -> list[list[ChatMessage]]:
    """Split one author's consecutive messages where the addressee changes.

    A message is addressed to its reply target, or else to the account that it mentions. A reply within a part starts no
    new part, nor does a message without addressee.
    """
    parts: list[list[ChatMessage]] = []
    target: MessageId | UserId | None = None
    for message in messages:
        inward = bool(parts) and any(message.reply_to == earlier.id for earlier in parts[-1])
        aim = None if inward else message.reply_to or find_mentioned_account(message)
        if not parts or (aim is not None and aim != target):
            parts.append([])
        target = aim or target
        parts[-1].append(message)
    return parts


def lines_before(message: ChatMessage, said: Iterable[ChatMessage], window: float) -> tuple[ChatMessage, ...]:
    """Return its author's lines right before a message, each within the window of the next; oldest first."""
    run = [message]
    for earlier in sorted(said, key=lambda line: parse_position(line.id), reverse=True):
        if earlier.author.id == message.author.id and parse_position(earlier.id) < parse_position(message.id):
            if _seconds_between(earlier, run[0]) > window:
                break
            run.insert(0, earlier)
    return tuple(run[:-1])


def _may_follow_up(message: ChatMessage) -> bool:
    """Whether it may follow up a team member's message: it is neither for the bot nor for several accounts."""
    return not message.mentions_bot and len(message.mentions) <= 1


def _is_new_question(message: ChatMessage) -> bool:
    """Return whether a message without addressee asks something new. On real chat, two of three did."""
    return not message.mentions and any(mark in message.text for mark in _QUESTION_MARKS)


def _seconds_between(earlier: ChatMessage, later: ChatMessage) -> float:
    return (later.at - earlier.at).total_seconds()


class ChannelTranscript:
    """The messages of a channel, as far as they were read."""

    def __init__(self, messages: Iterable[ChatMessage], bounds: ContextBounds) -> None:
        self._said = sorted(messages, key=lambda message: parse_position(message.id))
        self._ages = [parse_position(message.id) for message in self._said]
        self._by_id = {message.id: message for message in self._said}
        self._bounds = bounds

    def __len__(self) -> int:
        return len(self._said)

    def find_target(self, message: ChatMessage) -> ChatMessage | None:
        """Find the message that this one replies to, answers or follows up."""
        if message.reply_to is not None:
            return self._by_id.get(message.reply_to)
        if message.author.type == "team_member":
            return self.find_answered_question(message)
        if message.author.type == "bot":
            return None
        named = find_mentioned_account(message)
        if named is not None and not message.mentions_bot:  # a mention counts for longer
            return self._find_message_to_author(message, named, self._bounds.mention_seconds)
        return self.find_followed_up(message) or self._find_open_question(message)

    def _find_open_question(self, message: ChatMessage) -> ChatMessage | None:
        """Find the author's last message without addressee, if it has no answer yet."""
        if message.mentions or message.mentions_bot:
            return None
        for earlier in self._iterate_before(message, self._bounds.question_seconds):
            if earlier.author.id == message.author.id:
                if earlier.reply_to is None and not earlier.mentions and not earlier.mentions_bot:
                    return earlier
                if _seconds_between(earlier, message) < self._bounds.window_seconds:  # it belongs to that one
                    return None
            elif earlier.author.type == "team_member" and self._is_addressed_to(earlier, message.author.id):
                return None
        return None

    def find_answered_question(self, message: ChatMessage) -> ChatMessage | None:
        """Find the question that a team member answers by a mention: the mentioned member's newest one.

        It is in their latest batch, which must ask something or follow up the team's answer.
        """
        named = find_mentioned_account(message)
        if message.reply_to is not None or message.author.type != "team_member" or named is None:
            return None
        latest: ChatMessage | None = None
        for earlier in self._iterate_before(message, self._bounds.mention_seconds):
            if earlier.author.id != named:
                continue
            parted = latest is not None and _seconds_between(earlier, latest) > self._bounds.window_seconds
            if parted or earlier.author.type != "community_user":
                return None
            if self._is_asking(earlier):
                return earlier
            latest = earlier
        return None

    def find_followed_up(self, message: ChatMessage) -> ChatMessage | None:
        """Find the team's message that its asker follows up: by a mention, or soon after it."""
        author, named = message.author, find_mentioned_account(message)
        if author.type != "community_user" or not _may_follow_up(message):
            return None
        if message.reply_to is not None:
            target = self._by_id.get(message.reply_to)
            if target is None or _seconds_between(target, message) > self._bounds.named_follow_up_seconds:
                return None
            return target if self._is_addressed_to(target, author.id) else None
        if named is None and _is_new_question(message):
            return None
        return self._find_message_to_author(message, named, self._bounds.named_follow_up_seconds)

    def _find_message_to_author(self, message: ChatMessage, named: UserId | None, within: float) -> ChatMessage | None:
        """Find the last message that the team, or the mentioned account, addressed to this author within the time."""
        author, since = message.author, message
        for earlier in self._iterate_before(message):
            if _seconds_between(earlier, since) > within:
                break
            if earlier.author.id == author.id:
                if named is None and earlier.reply_to is None and _is_new_question(earlier):
                    break
                since = earlier if self._is_asking(earlier) else since
            elif named in {None, earlier.author.id} and self._is_addressed_to(earlier, author.id):
                return earlier
            elif named is None and earlier.author.type != "bot":
                # Once others write, a message without addressee is soon about something else.
                within = self._bounds.follow_up_seconds
        return None

    def _is_addressed_to(self, message: ChatMessage, user_id: UserId) -> bool:
        """Return whether this is a team answer to a user."""
        seen: set[MessageId] = set()
        here: ChatMessage | None = message
        while here is not None and here.author.type == "team_member" and here.id not in seen:
            seen.add(here.id)
            if here.reply_to or here.mentions:
                here = self.find_target(here)
            else:  # their line before it
                before, author = self._iterate_before(here, self._bounds.window_seconds), here.author
                here = next((earlier for earlier in before if earlier.author.id == author.id), None)
        return here is not None and here.author.id == user_id

    def _is_asking(self, message: ChatMessage) -> bool:
        """Whether it asks, by the routing table, or follows up the team's answer."""
        if message.reply_to is None:
            return True
        target = self._by_id.get(message.reply_to)
        if target is None:
            return False
        return target.author.id == message.author.id or target.author.is_self or target.author.type == "team_member"

    def _iterate_before(self, message: ChatMessage, within: float = inf) -> Iterator[ChatMessage]:
        """Yield the older messages, the newest first."""
        for at in range(bisect_left(self._ages, parse_position(message.id)) - 1, -1, -1):
            earlier = self._said[at]
            if _seconds_between(earlier, message) > within:
                return
            yield earlier


class RecentLines:
    """The last lines of each channel, without their words: they show whether a member may follow up the team.

    So most messages of members cost no REST call. After a start, a channel's earlier messages are unknown, so
    `may_follow_up` is true there until `remember_history` gets them.
    """

    def __init__(self, bounds: ContextBounds) -> None:
        self._bounds = bounds
        self._places: OrderedDict[ChannelId, dict[MessageId, ChatMessage]] = OrderedDict()
        self._looked_back: set[ChannelId] = set()
        self._lines = 0

    def may_follow_up(self, batch: Batch) -> bool:
        """Remember a batch. Return whether its author may follow up the team's messages there.

        A team member may continue their own lines: a batch can end between two of these, because it ends when the
        gateway goes away or the process stops.
        """
        place, first = batch.channel_id, batch.messages[0]
        self.remember(place, batch.messages)
        if batch.author.type == "team_member":
            lines = lines_before(first, self._places[place].values(), self._bounds.window_seconds)
            addressed = any(line.reply_to or find_mentioned_account(line) for line in lines)
            is_aimed = first.reply_to or find_mentioned_account(first)
            return not is_aimed and (addressed or place not in self._looked_back)
        if batch.author.type != "community_user" or not any(map(_may_follow_up, batch.messages)):
            return False
        if place not in self._looked_back:
            return True
        said = self._places[place]
        team = [line for line in said.values() if line.author.type == "team_member"]
        lately = [line for line in team if _seconds_between(line, first) <= self._bounds.mention_seconds]
        if not lately:
            return False
        talk = ChannelTranscript(said.values(), self._bounds)
        if any(talk.find_followed_up(message) for message in batch.messages):
            return True
        # The target of the team's reply may be too old to be known here.
        return not all(map(_is_new_question, batch.messages)) and any(
            line.reply_to not in said and line.reply_to_author == batch.author.id
            for line in lately
            if _seconds_between(line, first) <= self._bounds.named_follow_up_seconds
        )

    def remember_history(self, place: ChannelId, messages: Iterable[ChatMessage]) -> None:
        """Remember the messages before a batch, and that no others can be read."""
        self._looked_back.add(place)
        self.remember(place, messages)

    def remember(self, place: ChannelId, messages: Iterable[ChatMessage]) -> None:
        """Remember messages of a channel, without their words."""
        said = self._places.setdefault(place, {})
        self._places.move_to_end(place)
        before = len(said)
        said.update((message.id, _strip_words(message)) for message in messages)
        while len(said) > _MOST_LINES:
            del said[min(said, key=parse_position)]
        self._lines += len(said) - before
        while self._lines > _MOST_LINES_IN_ALL:
            gone, lines = self._places.popitem(last=False)
            self._looked_back.discard(gone)
            self._lines -= len(lines)


def _strip_words(message: ChatMessage) -> ChatMessage:
    """Reduce a message to its mentions and question marks."""
    words = [f"<@{user_id}>" for user_id in sorted(message.mentions)]
    words += [mark for mark in _QUESTION_MARKS if mark in message.text]
    return structs.replace(message, text=" ".join(words), attachments=())
