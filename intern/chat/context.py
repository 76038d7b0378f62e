"""The surroundings of a batch: its thread, and the chains that its replies point to.

Bounded in depth, messages and REST calls. One request uses one cache: a page of history serves every hop that falls
into it, so a long chain costs few calls.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from math import ceil

from msgspec import Struct

from intern.chat.addressing import ChannelTranscript, find_mentioned_account, split_by_target
from intern.chat.options import ContextBounds
from intern.chat.platform import PAGE, History
from intern.core.errors import ChatNotFoundError, ChatRefusedError
from intern.core.flow import Batch
from intern.core.ids import FIRST, LAST, ChannelId, MessageId, Position, parse_position
from intern.core.log import get_logger
from intern.core.messages import Author, Channel, ChatMessage, RoleLookupBudget

_log = get_logger(__name__)

_PAGES = 3  # at most, of the messages before a batch
_CALLS_PER_REPLY = 3  # for a batch of many replies to targets far apart: finding one takes two pages at most


class BatchContext(Struct, frozen=True, kw_only=True):
    """The surroundings of a batch, bots' messages included."""

    thread: tuple[ChatMessage, ...] = ()
    """In a thread: its opening message, and its messages, oldest first; for a question, those up to it. Else empty."""
    chains: Mapping[MessageId, tuple[ChatMessage, ...]] = {}
    """For each reply of the batch, by its id, the messages that it points to: each hop with its author's neighbours,
    oldest first; maybe none. In a thread also for its other messages' replies that point out of it. Under a team
    member's reply in a channel also what else passed between those members and others by replies."""
    reply_authors: Mapping[MessageId, Author | None] = {}
    """The authors of the batch's reply targets; None for one that cannot be resolved."""
    answered: Mapping[MessageId, Author | None] = {}
    """For the batch's replies to its author's own messages: the members whom those answered, by the target's id."""
    named: Mapping[MessageId, Author] = {}
    """For a team member's messages that are no replies: the member whom they answer by a mention, by their own ids."""
    goes_on: frozenset[MessageId] = frozenset()
    """The asker's messages in a channel that follow up the team's answer to them."""
    read: tuple[ChatMessage, ...] = ()
    """All messages that were read in the batch's channel; none in a thread."""
    cut: bool = False
    """Whether a bound was reached, so there is more."""

    @property
    def messages(self) -> tuple[ChatMessage, ...]:
        """All messages, each once, oldest first."""
        return merge_messages(self.thread, *self.chains.values())

    def is_teaching(self, message: ChatMessage) -> bool:
        """Return whether a team member's message answers a user, or corrects the bot.

        It answers the author of its reply target, or else the member whom it mentions. A reply to the author's own
        answer teaches the same user as that answer.
        """
        if message.reply_to is None:
            return message.id in self.named
        reached = (self.reply_authors.get(message.reply_to), self.answered.get(message.reply_to))
        return any(author is not None and (author.type == "community_user" or author.is_self) for author in reached)


def merge_messages(*groups: Iterable[ChatMessage]) -> tuple[ChatMessage, ...]:
    """Join the groups by message id, oldest first; of two versions, the later argument's wins."""
    known = {message.id: message for group in groups for message in group}
    return tuple(sorted(known.values(), key=lambda message: parse_position(message.id)))


async def gather_context(
    batch: Batch, channel: Channel, history: History, bounds: ContextBounds, *, follow_ups: bool = False
) -> BatchContext:
    """Read the surroundings of a batch, within bounds.

    A reference that cannot be resolved (deleted, in a foreign channel) is no error, and is ignored. Raises
    ChatUnavailableError if Discord is away, because that does not mean that there is nothing. Messages that Discord
    refuses to show are left out of a question. In a team answer they would be missing for ever, so this raises
    ChatRefusedError there.
    """
    reader = _ContextReader(history, bounds, batch, channel)
    said = await reader.read_thread() if channel.is_thread else ()
    if not channel.is_thread:
        await reader.read_recent(follow_ups=follow_ups)
    # The reply targets of the batch come first: routing depends on them, so the budget must suffice.
    await reader.read_targets()
    # A question alone costs no call.
    talk = reader.build_transcript() if reader.teaches or follow_ups else None
    aims = {} if talk is None else {message.id: talk.find_target(message) for message in batch.messages}
    starts = [message for message in batch.messages if message.reply_to or aims.get(message.id)]
    chains = {message.id: await reader.read_chain(message) for message in starts}
    thread = merge_messages(await reader.read_opening(), said) if channel.is_thread else ()
    inside = {message.id for message in thread}
    chains |= {
        message.id: await reader.read_chain(message)
        for message in reversed(thread)
        if message.reply_to and message.reply_to not in inside and message not in batch.messages
    }
    if reader.cut:
        _log.info("context_cut", channel_id=channel.id, message_id=batch.last.id, rest_calls=reader.calls)
    return BatchContext(
        thread=thread,
        chains=chains,
        reply_authors={
            message.reply_to: target.author if (target := reader.find_read_target(message)) else None
            for message in batch.messages
            if message.reply_to
        },
        answered={
            message.reply_to: await reader.find_answered_author(message)
            for message in batch.messages
            if message.reply_to and _is_own(reader.find_read_target(message), batch.author)
        },
        named={
            message.id: target.author
            for message in batch.messages
            if message.reply_to is None and (target := aims.get(message.id)) is not None and reader.teaches
        },
        goes_on=frozenset(each.id for each in batch.messages if talk is not None and talk.find_followed_up(each)),
        read=() if channel.is_thread else reader.list_channel_messages(),
        cut=reader.cut,
    )


class _ChannelCache:
    """The known messages of one channel by position, and the ranges that are known completely."""

    def __init__(self) -> None:
        self.messages: dict[Position, ChatMessage] = {}
        self._ranges: list[tuple[Position, Position]] = []  # [from, to), sorted, apart from each other
        self._order: list[Position] = []

    def list_positions(self) -> list[Position]:
        """Return the positions of all messages, the lowest first."""
        if len(self._order) < len(self.messages):  # none is ever removed
            self._order = sorted(self.messages)
        return self._order

    def add_page(self, messages: Iterable[ChatMessage], start: Position, end: Position) -> None:
        for message in messages:
            self.messages.setdefault(parse_position(message.id), message)
        apart = [(a, b) for a, b in self._ranges if b < start or end < a]
        joined = [(a, b) for a, b in self._ranges if not (b < start or end < a)]
        start, end = min([start, *(a for a, _ in joined)]), max([end, *(b for _, b in joined)])
        self._ranges = sorted([*apart, (start, end)])

    def find_gap_below(self, start: Position, end: Position) -> Position | None:
        """Return the upper end of the highest unknown range within [start, end); None if all of it is known."""
        for a, b in self._ranges:
            if a < end <= b:
                end = a
                break
        return end if end > start else None


class _ContextReader:
    """One request's view of Discord: its cache, and its budget of REST calls."""

    def __init__(self, history: History, bounds: ContextBounds, batch: Batch, channel: Channel) -> None:
        self._history, self._bounds, self._batch, self._channel = history, bounds, batch, channel
        self._shelves: dict[ChannelId, _ChannelCache] = {}
        self._window = timedelta(milliseconds=ceil(bounds.window_seconds * 1000) + 1)
        # Messages after a question are not part of it. A thread that the team answered in is kept whole.
        self.teaches = batch.author.type == "team_member"
        self._horizon = LAST if channel.is_thread and self.teaches else parse_position(batch.last.id).next
        self._talk: ChannelTranscript | None = None
        self.calls, self.cut = 0, False
        own_replies = sum(1 for message in batch.messages if message.reply_to)
        self._max_calls = max(bounds.max_calls, _CALLS_PER_REPLY * own_replies)
        if channel.is_thread and (born := parse_position(channel.id)).is_known:
            self._open_cache(channel.id).add_page((), FIRST, born)  # no message in a thread is older than the thread
        for message in batch.messages:
            self._open_cache(batch.channel_id).messages[parse_position(message.id)] = message

    async def read_thread(self) -> tuple[ChatMessage, ...]:
        """Read the thread up to the batch's last message; of a long thread, the newest messages."""
        said: list[ChatMessage] = []
        cursor = self._horizon
        while len(said) < self._bounds.max_messages:
            page = await self._read_page(self._channel.id, cursor)
            said = [*(page or ()), *said]
            # System messages are left out of a page, so one that is nearly full need not be the last.
            if not page or len(page) < PAGE // 2:
                break
            cursor = parse_position(page[0].id)
        everything = merge_messages(said, self._batch.messages)
        self.cut = self.cut or len(everything) > self._bounds.max_messages
        return everything[-self._bounds.max_messages :]

    async def read_opening(self) -> tuple[ChatMessage, ...]:
        """Read the message with the thread's id, in the parent channel or, in a forum, in the post."""
        place = self._channel.id if self._channel.kind == "post" else self._channel.parent_id
        opening = await self._read_message(place, MessageId(self._channel.id)) if place else None
        return tuple(await self._read_neighbours(opening)) if opening else ()

    async def read_targets(self) -> None:
        """Find the reply targets of the batch's own messages, before anything else is read."""
        for message in self._batch.messages:
            if message.reply_to and (place := self._target_channel(message)) is not None:
                await self._read_message(place, message.reply_to)

    async def read_recent(self, *, follow_ups: bool) -> None:
        """Read the messages right before the batch: mostly the question, and those from there to the answer."""
        first = self._batch.messages[0]
        names = any(message.reply_to is None and find_mentioned_account(message) for message in self._batch.messages)
        replies = any(message.reply_to and self._target_channel(message) for message in self._batch.messages)
        within = 0.0
        if self.teaches and names:
            within = self._bounds.mention_seconds
        elif not self.teaches and follow_ups:
            within = self._bounds.named_follow_up_seconds if names else self._bounds.follow_up_seconds
        elif not (self.teaches and replies):
            return
        cursor = self._horizon
        for _ in range(_PAGES):
            page = await self._read_page(self._channel.id, cursor)
            if not page or (first.at - page[0].at).total_seconds() > within:
                break
            cursor = parse_position(page[0].id)

    def list_channel_messages(self) -> tuple[ChatMessage, ...]:
        """Return the messages that were read in the channel, without the batch."""
        own = {message.id for message in self._batch.messages}
        return tuple(each for each in self._open_cache(self._channel.id).messages.values() if each.id not in own)

    def build_transcript(self) -> ChannelTranscript | None:
        """Return the transcript of the channel's messages as far as they were read; None in a thread."""
        if self._channel.is_thread:
            return None
        said = self._open_cache(self._channel.id).messages
        if self._talk is None or len(self._talk) < len(said):
            self._talk = ChannelTranscript(said.values(), self._bounds)
        return self._talk

    async def read_chain(self, reply: ChatMessage) -> tuple[ChatMessage, ...]:
        """Read the chain that a reply points to, hop by hop."""
        found: dict[MessageId, ChatMessage] = {}
        hop = [reply]
        for _ in range(self._bounds.max_hops):
            above: list[ChatMessage] = []
            for message in hop:
                target = await self._find_target(message)
                for neighbour in await self._read_neighbours(target) if target and target.id not in found else ():
                    if neighbour.id not in found:
                        found[neighbour.id] = neighbour
                        above.append(neighbour)
            # In a channel, a message may answer another or follow it up.
            in_channel = not self._channel.is_thread
            hop = [each for each in above if each.reply_to or (in_channel and each.author.type != "bot")]
            if not hop or len(found) >= self._bounds.max_messages:
                break
        self.cut = self.cut or any(message.reply_to for message in hop)
        if not self._channel.is_thread and (self.teaches or reply.reply_to is None):
            found |= self._find_branches(found)
        return merge_messages(found.values())

    async def _find_target(self, message: ChatMessage) -> ChatMessage | None:
        """Find the message that this one replies to, or in a channel answers or follows up."""
        if message.reply_to or not (talk := self.build_transcript()):
            return await self._read_target(message)
        return talk.find_target(message)

    def _find_branches(self, chain: Mapping[MessageId, ChatMessage]) -> dict[MessageId, ChatMessage]:
        """Find the other messages between the chain's members and others by replies, until the batch.

        Only messages that were read already are considered: such a branch is useful, but not worth a call.
        """
        askers = {message.author.id for message in chain.values() if message.author.type == "community_user"}
        own = {message.id for message in self._batch.messages}
        known, branches = dict(chain), dict[MessageId, ChatMessage]()
        talk = self.build_transcript()
        # Oldest first, because a reply is newer than its target.
        for message in merge_messages(self._open_cache(self._channel.id).messages.values()):
            if message.id in known or message.id in own or parse_position(message.id) >= self._horizon:
                continue
            target = known.get(message.reply_to) if message.reply_to else None
            if (
                talk
                and not message.reply_to
                and not askers.isdisjoint((message.author.id, find_mentioned_account(message)))
            ):
                aim = talk.find_target(message)
                target = known.get(aim.id) if aim else None
            if target is not None and not askers.isdisjoint((message.author.id, target.author.id)):
                known[message.id] = branches[message.id] = message
        return branches

    async def find_answered_author(self, reply: ChatMessage) -> Author | None:
        """Find the user whom a reply to its author's own message answers: the target of that or of its neighbours."""
        target = self.find_read_target(reply)
        for _ in range(self._bounds.max_hops):
            if target is None or not _is_own(target, reply.author):
                break
            # The chain was read before, so this mostly costs no call.
            said = await self._read_neighbours(target)
            inside = {message.id for message in said}
            outward = next((each for each in said if each.reply_to and each.reply_to not in inside), None)
            target = await self._read_target(outward) if outward else None
        return target.author if target else None

    def find_read_target(self, reply: ChatMessage) -> ChatMessage | None:
        """Return a reply's target, if it was read."""
        place = self._target_channel(reply)
        found = self._open_cache(place).messages if place else {}
        return found.get(parse_position(reply.reply_to)) if reply.reply_to else None

    async def _read_target(self, reply: ChatMessage) -> ChatMessage | None:
        place = self._target_channel(reply)
        return await self._read_message(place, reply.reply_to) if place and reply.reply_to else None

    def _target_channel(self, reply: ChatMessage) -> ChannelId | None:
        """Return the channel of a reply's target; None if we do not follow it."""
        # A reference to a foreign channel (a forwarded message) may lead to a channel that our audience may not read.
        place = reply.reply_to_channel or reply.channel_id
        return place if place in {reply.channel_id, self._channel.id, self._channel.parent_id} else None

    async def _read_message(self, place: ChannelId, message_id: MessageId) -> ChatMessage | None:
        position = parse_position(message_id)
        if not position.is_known or position >= self._horizon:
            return None
        shelf = self._open_cache(place)
        # The page that ends a window after the target also has its neighbours and, mostly, the hops above it. If a
        # hundred others wrote meanwhile, it does not reach the target, and a second page begins right there.
        for cursor in (min(position.next.after(self._window), self._horizon), position.next):
            if position not in shelf.messages and shelf.find_gap_below(position, position.next) is not None:
                await self._read_page(place, cursor)
        return shelf.messages.get(position)

    async def _read_neighbours(self, message: ChatMessage) -> list[ChatMessage]:
        """Read the message with its author's messages around it that belong to it; a bot's message is read alone."""
        if message.author.type == "bot":
            return [message]
        run = [message]
        while earlier := await self._read_neighbour(run[0], -1):
            run.insert(0, earlier)
        while later := await self._read_neighbour(run[-1], +1):
            run.append(later)
        return next(group for group in split_by_target(run) if message in group)

    async def _read_neighbour(self, message: ChatMessage, step: int) -> ChatMessage | None:
        """Find the author's next message within the window, in one direction of time."""
        position = parse_position(message.id)
        start, end = position.before(self._window), position
        if step > 0:
            start, end = position.next, min(position.next.after(self._window), self._horizon)
        shelf = self._open_cache(message.channel_id)
        gap = shelf.find_gap_below(start, end)
        if gap is not None:
            await self._read_page(message.channel_id, gap)
        positions = shelf.list_positions()
        at = bisect_left(positions, position)
        for other in reversed(positions[:at]) if step < 0 else positions[at + 1 :]:
            candidate = shelf.messages[other]
            if abs((candidate.at - message.at).total_seconds()) > self._bounds.window_seconds:
                return None
            if candidate.author.id == message.author.id:
                return candidate
        return None

    async def _read_page(self, place: ChannelId, cursor: Position) -> Sequence[ChatMessage] | None:
        """Read the page that ends before `cursor`; None if the budget is used up."""
        if self.calls >= self._max_calls:
            self.cut = True
            return None
        self.calls += 1
        # Half of the remaining budget: the next page may be more useful than the authors of this one.
        lookups = RoleLookupBudget((self._max_calls - self.calls) // 2)
        try:
            page = await self._history.before(place, cursor.id, limit=PAGE, lookups=lookups)
        except ChatRefusedError as error:
            if self.teaches and not isinstance(error, ChatNotFoundError):
                raise
            _log.warning("context_unreadable", channel_id=place, reason=str(error))
            page = ()
        else:
            # Without the right to read history, Discord gives empty pages.
            is_new = place == self._batch.channel_id and cursor > parse_position(self._batch.last.id)
            if self.teaches and is_new and not page:
                raise ChatRefusedError(f"channel {place} shows no history, not even what was just written there")
        self.calls += lookups.made
        self.cut = self.cut or lookups.refused
        self._open_cache(place).add_page(page, parse_position(page[0].id) if page else FIRST, cursor)
        return page

    def _open_cache(self, place: ChannelId) -> _ChannelCache:
        return self._shelves.setdefault(place, _ChannelCache())


def _is_own(message: ChatMessage | None, author: Author) -> bool:
    return message is not None and message.author.id == author.id
