"""What is settled, and how far each channel is read: the history is our inbox, and nothing in it is skipped.

Pure, for one event loop: callers report messages between two awaits, so nothing falls between them.

- A message is *begun* when it is put into the stream, and *settled* once nothing is left to do for it. A channel's
  *mark* passes settled messages only; reading takes up at the marks after a restart.
- A channel is *live* (the gateway tells what is written there) or *behind* (it is read over REST, and what the gateway
  tells only says how far). It goes live again in one step, once a page that was asked for after the last word of the
  gateway reached the channel's end.
- Within a process a message is begun at most once, provided that Discord tells it at most DISORDER late.

What is remembered: the unsettled messages, those of each channel's newest seconds, and a few numbers for each channel
with recent messages. A server's quiet channels stand where the server does.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import NamedTuple

from intern.core.flow import ChannelSeen, SessionStarted
from intern.core.ids import FIRST, ChannelId, GuildId, MessageId, Position, position_of
from intern.core.messages import Channel, ChatMessage, Page
from intern.stores.sqlite.chat import Checkpoint, StoredCheckpoints

DISORDER = timedelta(seconds=5)
"""How much older than the newest message of its channel a message may be when it is first heard of.

Discord makes ids on many machines and promises no order; what was seen are milliseconds.
"""
LAG = timedelta(seconds=600)
"""How much longer than the liveliest channel of a server another one may be silent, and still not be passed over."""
PLENTY = timedelta(seconds=60)
"""How much older than its server's newest message one must be, to be sure that the gateway has told all up to it.

By DISORDER, a twelfth of that would do; what was seen are milliseconds.
"""


def everywhere(_: Channel) -> bool:
    """Admits every channel."""
    return True


class Reading:
    """One page of a channel that is behind: from the asking to the last message that is taken from it."""

    def __init__(self, channel: _Channel) -> None:
        self.channel = channel
        self.told = channel.target  # the newest message that we knew of when we asked
        self.read_to = channel.cursor if channel.late is None else min(channel.cursor, channel.late.previous)
        self.ended = False
        self.overtaken = False  # a message was heard of that should be on the page, and is not
        self.after = self.read_to.id
        """The page begins behind this."""
        self._held: set[Position] | None = None
        self._heard: set[Position] = set()
        self._changed: set[Position] = set()

    def received(self, page: Page) -> None:
        """Take in the page."""
        self._held = {position_of(message.id) for message in page.messages}
        before, self.read_to = self.read_to, max(self.read_to, position_of(page.read_to))
        self.ended = not page.more or self.read_to == before  # a page that leads nowhere is the last
        if self.ended:
            # What we knew of before we asked, and did not get, is deleted.
            self.read_to = max(self.read_to, self.told)
        for position in self._heard:
            self.hear(position)
        self._heard.clear()

    def hear(self, position: Position) -> None:
        """Note a message of the gateway's. The page may be older than it."""
        if self._held is None:
            self._heard.add(position)
        elif position <= self.read_to and position not in self._held:
            self.miss(position)

    def miss(self, position: Position) -> None:
        """Note a message that the page lacks: another page must be read."""
        self.overtaken = True
        self.channel.miss(position)

    def change(self, position: Position) -> None:
        """Note an edit or deletion of a message that may be on the page."""
        if self._held is None or position in self._held:
            self._changed.add(position)

    def is_stale(self, message: ChatMessage) -> bool:
        """Whether the message may differ from what the page says: then read the page again."""
        return position_of(message.id) in self._changed or not self.channel.is_behind


class Unhandled(NamedTuple):
    """What was heard of and is not settled, or may still be unread."""

    messages: int
    """In work."""
    oldest: MessageId | None
    """Of the messages in work."""
    channels: int
    """Behind, or with archived threads that are not listed yet."""


class Listing(NamedTuple):
    """A channel whose archived threads were not listed yet."""

    channel_id: ChannelId
    guild: _Guild
    after: MessageId
    """Threads without a message newer than this have nothing for us."""


class Checkpoints:
    """Where every channel stands. See the module for its promises."""

    def __init__(self, marks: StoredCheckpoints, *, baseline: MessageId) -> None:
        """`baseline` is where a server stands that `marks` does not know, and where private messages do."""
        self._baseline = position_of(baseline)
        self._guilds: dict[GuildId | None, _Guild] = {None: _Guild(None, self._baseline)}
        self._channels: dict[ChannelId, _Channel] = {}
        self._behind: dict[ChannelId, _Channel] = {}
        self._stirred: set[_Guild] = set()
        for guild_id, until in marks.attended.items():
            self._guilds[guild_id] = _Guild(guild_id, position_of(until))
        for channel_id, mark in marks.channels.items():
            channel = self._enter(channel_id, mark.guild_id)
            if position_of(mark.settled_to) > channel.read_to:
                channel.stand_at(position_of(mark.settled_to))
                channel.kept = channel.mark

    # Messages.

    def knows(self, message: ChatMessage) -> bool:
        """Whether a message was begun before: it is in work, or settled."""
        channel = self._channels.get(message.channel_id)
        position = position_of(message.id)
        return channel.knows(position) if channel else position <= self._guild(message.guild_id).until

    def begin(self, message: ChatMessage) -> bool:
        """Take a message into work until it is settled. Return False where it was begun before: then ignore it.

        Called in the same step as the message is put into the stream, so that a mark never passes it.
        """
        if self.knows(message):
            return False
        channel, position = self._enter(message.channel_id, message.guild_id), position_of(message.id)
        channel.begin(position)
        if not channel.is_behind:
            # REST may be ahead of the gateway, so what it shows tells nothing of other channels.
            channel.guild.hear(position)
        self._stirred.add(channel.guild)
        return True

    def settle(self, channel_id: ChannelId, message_ids: Sequence[MessageId]) -> None:
        """Nothing is left to do for these messages: they are archived, answered, silent, shed, or gone."""
        channel = self._channels.get(channel_id)
        if channel:
            for message_id in message_ids:
                channel.settle(position_of(message_id))
            self._stirred.add(channel.guild)

    def unhandled(self) -> Unhandled:
        """Count the unfinished work. Checkpoints do not tell it: those of quiet channels do not move."""
        busy = [channel.work for channel in self._channels.values() if channel.work]
        unlisted = {listing.channel_id for listing in self.unlisted()}
        oldest = min(map(min, busy)).id if busy else None
        return Unhandled(messages=sum(map(len, busy)), oldest=oldest, channels=len(unlisted.union(self._behind)))

    # Checkpoints.

    def moved(self) -> StoredCheckpoints:
        """Return the marks that moved since the last call."""
        attended: dict[GuildId, MessageId] = {}
        channels: dict[ChannelId, Checkpoint] = {}
        for guild in self._stirred:
            if guild.advance():
                for channel_id in guild.forget():
                    del self._channels[channel_id]
            if guild.id is None:  # private messages are not caught up with
                continue
            if guild.kept != guild.until:
                guild.kept = guild.until
                attended[guild.id] = guild.until.id
            for channel in guild.channels.values():
                # Also where it went back to where the server stands: what is written down says more.
                if channel.kept != channel.mark and max(channel.kept, channel.mark) > guild.until:
                    channel.kept = channel.mark
                    channels[channel.id] = Checkpoint(guild_id=guild.id, settled_to=channel.mark.id)
        self._stirred.clear()
        return StoredCheckpoints(attended=attended, channels=channels)

    # Live or behind.

    def is_live(self, message: ChatMessage) -> bool:
        """Whether the message may be begun as the gateway tells it: there is nothing older to be read before it."""
        return message.channel_id not in self._behind and self._guild(message.guild_id).tells_all(message.channel_id)

    def fall_behind(self, message: ChatMessage) -> bool:
        """Have a message of the gateway's read over REST. Return whether its channel was live until now."""
        if self.knows(message):
            return False
        channel = self._enter(message.channel_id, message.guild_id)
        channel.guild.told.add(channel.id)
        return self._fall_behind(channel, position_of(message.id))

    def behind(self) -> tuple[ChannelId, ...]:
        """Return the channels that are behind, longest first."""
        return tuple(self._behind)

    def is_behind(self, channel_id: ChannelId) -> bool:
        """Whether the channel is to be read over REST."""
        return channel_id in self._behind

    def will_read(self, channel_id: ChannelId, message_id: MessageId) -> bool:
        """Hear that a message was edited or deleted. True where it is still to be read: as it is now, then."""
        channel, position = self._behind.get(channel_id), position_of(message_id)
        if channel is None or channel.knows(position):
            return False
        if channel.reading:
            channel.reading.change(position)
        return True

    @contextmanager
    def reading(self, channel_id: ChannelId) -> Generator[Reading]:
        """Ask for a page of a channel that is behind; begin what is on it, oldest first; then say `caught_up`."""
        channel = self._behind[channel_id]
        channel.reading = Reading(channel)
        try:
            yield channel.reading
        finally:
            channel.reading = None

    def caught_up(self, reading: Reading) -> bool:
        """Everything on the page was begun. Whether that was the last one: the channel is live from now on."""
        channel = reading.channel
        if channel.is_behind and not reading.overtaken:
            channel.read(reading.read_to)
            if reading.ended and channel.target <= channel.read_to:
                self._go_live(channel)
        self._stirred.add(channel.guild)
        return not channel.is_behind

    def give_up(self, channel_id: ChannelId) -> None:
        """Discord does not let us read the channel: what was missed there is shed."""
        channel = self._behind[channel_id]
        channel.read(channel.target)
        self._go_live(channel)
        self._stirred.add(channel.guild)

    # Sessions.

    def session(self, started: SessionStarted, admits: Callable[[Channel], bool] = everywhere) -> None:
        """Begin a session: channels with messages that were not told fall behind; archived threads are to be listed.

        What was missed in a channel that `admits` refuses is passed over, unread.
        """
        guild = self._guild(started.guild_id)
        guild.begin(started.channels)
        for seen in started.channels:
            if not admits(seen.channel):
                self._pass_over(guild, seen)
                continue
            if seen.last_message_id:
                self._see(guild, seen.channel.id, position_of(seen.last_message_id))
            if not (seen.channel.is_thread or started.continues):
                guild.unlisted[seen.channel.id] = Listing(seen.channel.id, guild, guild.until.id)
        self._stirred.add(guild)

    def unlisted(self) -> tuple[Listing, ...]:
        """Return the channels whose archived threads are to be listed."""
        return tuple(listing for guild in self._guilds.values() for listing in guild.unlisted.values())

    def listed(self, listing: Listing, threads: Sequence[ChannelSeen]) -> None:
        """Take in the archived threads with messages newer than `listing.after`; none also where listing is refused."""
        guild = listing.guild
        for seen in threads:
            guild.told.add(seen.channel.id)
            # Where Discord does not tell the newest message, only reading does.
            self._see(guild, seen.channel.id, position_of(seen.last_message_id) if seen.last_message_id else None)
        if guild.unlisted.get(listing.channel_id) is listing:  # else a newer session wants it listed again
            del guild.unlisted[listing.channel_id]
        self._stirred.add(guild)

    def _see(self, guild: _Guild, channel_id: ChannelId, newest: Position | None) -> None:
        channel = self._enter(channel_id, guild.id)
        # Above the floor there may be older messages than we were told, though the newest of all is known.
        if newest is None or (newest > channel.floor and not guild.told_all_of(channel, newest)):
            self._fall_behind(channel, newest if newest and newest > channel.read_to else FIRST)
        elif channel.is_untouched:
            # Nothing is newer than that. A server's very first mark is made by our clock, which may run fast.
            channel.stand_at(newest)

    def _pass_over(self, guild: _Guild, seen: ChannelSeen) -> None:
        channel = self._enter(seen.channel.id, guild.id)
        if seen.last_message_id:
            channel.read(position_of(seen.last_message_id))
        if channel.is_behind:
            self.give_up(channel.id)

    def _fall_behind(self, channel: _Channel, target: Position) -> bool:
        newly = not channel.is_behind
        channel.fall_behind(target)
        self._behind[channel.id] = channel
        self._stirred.add(channel.guild)
        return newly

    def _go_live(self, channel: _Channel) -> None:
        channel.is_behind, channel.late = False, None
        del self._behind[channel.id]

    def _guild(self, guild_id: GuildId | None) -> _Guild:
        if guild_id not in self._guilds:
            self._guilds[guild_id] = _Guild(guild_id, self._baseline)
        return self._guilds[guild_id]

    def _enter(self, channel_id: ChannelId, guild_id: GuildId | None) -> _Channel:
        channel = self._channels.get(channel_id)
        if channel is None:
            guild = self._guild(guild_id)
            channel = self._channels[channel_id] = guild.channels[channel_id] = _Channel(channel_id, guild)
        return channel


class _Guild:
    """A server, or all private messages. Everything up to `until` is settled, in each of its channels."""

    def __init__(self, guild_id: GuildId | None, until: Position) -> None:
        self.id = guild_id
        self.until = self.kept = until
        self.channels: dict[ChannelId, _Channel] = {}
        self.unlisted: dict[ChannelId, Listing] = {}
        self.told: set[ChannelId] = set()  # channels that we know everything of since this session began
        # All that is newer than this was made in this session; sessions do not tell of private messages.
        self.begun_at: Position | None = FIRST if guild_id is None else None
        self.newest = FIRST  # that the gateway told
        self.told_before = FIRST  # the newest that it told in earlier sessions whose threads are all listed
        self.steady: Position | None = None  # what the gateway told first, once all archived threads were listed

    def begin(self, channels: Sequence[ChannelSeen]) -> None:
        """Begin a session."""
        if not self.unlisted:
            self.told_before = self.newest
        ids = [position_of(one) for seen in channels for one in (seen.channel.id, seen.last_message_id) if one]
        self.begun_at = max((self.until, *ids))
        self.told = {seen.channel.id for seen in channels}
        self.steady = None

    def tells_all(self, channel_id: ChannelId) -> bool:
        """Whether nothing was missed in the channel, so far as it is not behind.

        Of a thread that was archived when the session began, older messages may be unread. It may have woken up before
        it was listed.
        """
        return self.begun_at is not None and (channel_id in self.told or position_of(channel_id) > self.begun_at)

    def told_all_of(self, channel: _Channel, newest: Position) -> bool:
        """Whether an earlier session told of everything in a channel where nothing is newer than that."""
        return newest <= channel.read_to and newest <= self.told_before.before(PLENTY)

    def hear(self, position: Position) -> None:
        """Note a message of the gateway's."""
        self.newest = max(self.newest, position)
        if self.steady is None and not self.unlisted:
            self.steady = position

    def advance(self) -> bool:
        """Move on, as far as nothing holds it back. Whether it did."""
        if self.begun_at is None or self.steady is None or self.newest <= self.steady.after(PLENTY):
            return False
        # Who woke up a thread before the listing, which then left it out, was told of by now.
        held = [channel.mark for channel in self.channels.values() if not channel.is_idle]
        until = min((self.newest.before(LAG), *held))
        moves = until > self.until
        self.until = max(until, self.until)
        return moves

    def forget(self) -> list[ChannelId]:
        """Let go of the channels that stand no further than the server; they are given back."""
        idle = [each.id for each in self.channels.values() if each.mark <= self.until and each.is_idle]
        for channel_id in idle:
            del self.channels[channel_id]
        return idle


class _Channel:
    def __init__(self, channel_id: ChannelId, guild: _Guild) -> None:
        self.id = channel_id
        self.guild = guild
        self.floor = guild.until  # nothing up to here is begun any more
        self.read_to = guild.until  # everything up to here was begun, is gone, or is not ours
        self.kept = guild.until  # the mark as it was last given away
        self.work: set[Position] = set()
        # Settled, above the floor; in the order of settling, which is nearly theirs.
        self.done: dict[Position, None] = {}
        self.is_untouched = True  # nothing was begun here
        self.is_behind = False
        self.target = FIRST  # while behind: the newest message that we know of
        self.cursor = FIRST  # while behind: where the next page begins
        self.late: Position | None = None  # while behind: the oldest message that was missed on a page
        self.reading: Reading | None = None

    @property
    def mark(self) -> Position:
        mark = self.read_to
        if self.work:
            mark = min(mark, min(self.work).previous)
        return mark if self.late is None else min(mark, self.late.previous)

    @property
    def is_idle(self) -> bool:
        return not self.work and not self.is_behind

    def stand_at(self, position: Position) -> None:
        self.floor = self.read_to = position

    def knows(self, position: Position) -> bool:
        return position <= self.floor or position in self.work or position in self.done

    def begin(self, position: Position) -> None:
        self.is_untouched = False
        self.work.add(position)
        self._reach(position)

    def settle(self, position: Position) -> None:
        if position in self.work:
            self.work.discard(position)
            if position > self.floor:
                self.done[position] = None

    def read(self, position: Position) -> None:
        self.is_untouched = False
        self.cursor = max(self.cursor, position)
        missed = self.late is not None
        if self.late is not None and self.late <= position:  # else a later page has it
            self.late = None
        self._reach(position)
        if missed:  # the floor may have been far behind
            self.done = {each: None for each in self.done if each > self.floor}

    def fall_behind(self, target: Position) -> None:
        """`target` is FIRST where it is unknown whether, and up to where, there is something new."""
        if not self.is_behind:
            self.is_behind = True
            self.target = FIRST
            self.cursor = self.floor  # a little back, should messages have come out of order
        if target == FIRST:
            if self.reading:
                self.reading.overtaken = True
        elif target <= self.read_to:  # this one did
            (self.reading or self).miss(target)
        elif self.reading:
            self.reading.hear(target)
        self.target = max(self.target, target)

    def miss(self, position: Position) -> None:
        self.late = position if self.late is None else min(self.late, position)

    def _reach(self, position: Position) -> None:
        self.read_to = max(self.read_to, position)
        if not self.is_untouched:
            floor = self.read_to.before(DISORDER)
            # A page that was overtaken may go far beyond what is missed on it, and that is still to be begun.
            self.floor = max(self.floor, floor if self.late is None else min(floor, self.late.previous))
            self._forget()

    def _forget(self) -> None:
        while self.done and (oldest := next(iter(self.done))) <= self.floor:
            del self.done[oldest]
