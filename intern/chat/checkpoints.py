"""Checkpoints: the settled messages, and how far each channel is read. No message of the history is skipped.

Pure, for one event loop: callers report messages without an await in between, so none gets lost.

- A message is *begun* when it is put into the stream, and *settled* once all work on it is done. A channel's *mark*
  passes settled messages only; after a restart, reading continues at the marks.
- A channel is *live* (the gateway reports its messages) or *behind* (it is read over REST, up to the newest message
  that the gateway reported). It goes live again in one step: once a page reached the channel's end that was requested
  after the gateway's last report.
- Within a process, a message is begun at most once, if Discord reports it at most DISORDER late.

It remembers the unsettled messages, those of each channel's newest seconds, and a few numbers for each channel with
recent messages. A server's quiet channels share the server's mark.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import NamedTuple

from intern.core.flow import ChannelSnapshot, SessionStarted
from intern.core.ids import FIRST, ChannelId, GuildId, MessageId, Position, parse_position
from intern.core.messages import Channel, ChatMessage, Page
from intern.stores.tables.checkpoints import Checkpoint, StoredCheckpoints

DISORDER = timedelta(seconds=5)
"""The most by which a message may be older than the newest of its channel when it is first reported.

Discord makes ids on many machines and promises no order; in practice, it was milliseconds.
"""
LAG = timedelta(seconds=600)
"""The delay of a server's mark behind its newest message, so that no message of a slower channel is skipped."""
PLENTY = timedelta(seconds=60)
"""The age, relative to its server's newest message, at which the gateway has surely reported all up to a message.

By DISORDER, a twelfth of that would do; in practice, it was milliseconds.
"""


def admit_every_channel(_: Channel) -> bool:
    """Admits every channel."""
    return True


class BackfillPage:
    """One page of a channel that is behind, from the request to the last message taken from it."""

    def __init__(self, channel: _ChannelProgress) -> None:
        self.channel = channel
        self.told = channel.target  # the newest message known at the request
        self.read_to = channel.cursor if channel.late is None else min(channel.cursor, channel.late.previous)
        self.ended = False
        self.overtaken = False  # a message was reported that should be on the page, and is not
        self.after = self.read_to.id
        """The message before the page."""
        self._held: set[Position] | None = None
        self._heard: set[Position] = set()
        self._changed: set[Position] = set()

    def accept_page(self, page: Page) -> None:
        """Take the messages of the page."""
        self._held = {parse_position(message.id) for message in page.messages}
        before, self.read_to = self.read_to, max(self.read_to, parse_position(page.read_to))
        self.ended = not page.more or self.read_to == before  # a page without progress is the last
        if self.ended:
            # Messages that were known before the request, and are not on the page, are deleted.
            self.read_to = max(self.read_to, self.told)
        for position in self._heard:
            self.receive(position)
        self._heard.clear()

    def receive(self, position: Position) -> None:
        """Note a message from the gateway. The page may be older than it."""
        if self._held is None:
            self._heard.add(position)
        elif position <= self.read_to and position not in self._held:
            self.note_missing(position)

    def note_missing(self, position: Position) -> None:
        """Note a message that the page lacks: another page must be read."""
        self.overtaken = True
        self.channel.note_missing(position)

    def note_change(self, position: Position) -> None:
        """Note an edit or deletion of a message that may be on the page."""
        if self._held is None or position in self._held:
            self._changed.add(position)

    def is_stale(self, message: ChatMessage) -> bool:
        """Whether the message may have changed since the page: then read the page again."""
        return parse_position(message.id) in self._changed or not self.channel.is_behind


class UnfinishedWork(NamedTuple):
    """The counts of messages in work and of unread channels."""

    messages: int
    """The number of messages in work."""
    oldest: MessageId | None
    """The oldest of the messages in work."""
    channels: int
    """The channels that are behind, or have archived threads that are not listed yet."""


class PendingThreadListing(NamedTuple):
    """A channel whose archived threads were not listed yet."""

    channel_id: ChannelId
    guild: _GuildProgress
    after: MessageId
    """Threads without a message newer than this are irrelevant."""


class Checkpoints:
    """The marks and states of all channels. See the module for the guarantees."""

    def __init__(self, marks: StoredCheckpoints, *, baseline: MessageId) -> None:
        """`baseline` is the mark of private messages, and of servers that `marks` does not know."""
        self._baseline = parse_position(baseline)
        self._guilds: dict[GuildId | None, _GuildProgress] = {None: _GuildProgress(None, self._baseline)}
        self._channels: dict[ChannelId, _ChannelProgress] = {}
        self._behind: dict[ChannelId, _ChannelProgress] = {}
        self._stirred: set[_GuildProgress] = set()
        for guild_id, until in marks.attended.items():
            self._guilds[guild_id] = _GuildProgress(guild_id, parse_position(until))
        for channel_id, mark in marks.channels.items():
            channel = self._open_channel(channel_id, mark.guild_id)
            if parse_position(mark.settled_to) > channel.read_to:
                channel.set_position(parse_position(mark.settled_to))
                channel.kept = channel.mark

    # Messages.

    def knows(self, message: ChatMessage) -> bool:
        """Whether a message was begun before: it is in work or settled."""
        channel = self._channels.get(message.channel_id)
        position = parse_position(message.id)
        return channel.knows(position) if channel else position <= self._open_guild(message.guild_id).until

    def begin(self, message: ChatMessage) -> bool:
        """Take a message into work until it is settled. Return False if it was begun before: then ignore it.

        Called in the same step as the message is put into the stream, so that a mark never passes it.
        """
        if self.knows(message):
            return False
        channel, position = self._open_channel(message.channel_id, message.guild_id), parse_position(message.id)
        channel.begin(position)
        if not channel.is_behind:
            # REST may be ahead of the gateway, so its messages prove nothing about other channels.
            channel.guild.receive(position)
        self._stirred.add(channel.guild)
        return True

    def settle(self, channel_id: ChannelId, message_ids: Sequence[MessageId]) -> None:
        """Mark these messages as done: they are archived, answered, silent, shed, or gone."""
        channel = self._channels.get(channel_id)
        if channel:
            for message_id in message_ids:
                channel.settle(parse_position(message_id))
            self._stirred.add(channel.guild)

    def count_unfinished(self) -> UnfinishedWork:
        """Count the unfinished work. The marks do not show it, because those of quiet channels do not move."""
        busy = [channel.work for channel in self._channels.values() if channel.work]
        unlisted = {listing.channel_id for listing in self.find_unlisted()}
        oldest = min(map(min, busy)).id if busy else None
        return UnfinishedWork(messages=sum(map(len, busy)), oldest=oldest, channels=len(unlisted.union(self._behind)))

    # Checkpoints.

    def collect_moved(self) -> StoredCheckpoints:
        """Return the marks that moved since the last call."""
        attended: dict[GuildId, MessageId] = {}
        channels: dict[ChannelId, Checkpoint] = {}
        for guild in self._stirred:
            if guild.advance():
                for channel_id in guild.forget_idle():
                    del self._channels[channel_id]
            if guild.id is None:  # private messages are not read over REST
                continue
            if guild.kept != guild.until:
                guild.kept = guild.until
                attended[guild.id] = guild.until.id
            for channel in guild.channels.values():
                # Also a mark that went back to the server's mark: the saved one is too far ahead.
                if channel.kept != channel.mark and max(channel.kept, channel.mark) > guild.until:
                    channel.kept = channel.mark
                    channels[channel.id] = Checkpoint(guild_id=guild.id, settled_to=channel.mark.id)
        self._stirred.clear()
        return StoredCheckpoints(attended=attended, channels=channels)

    # Live or behind.

    def is_live(self, message: ChatMessage) -> bool:
        """Whether the message may be begun as the gateway reports it: no older message has to be read first."""
        guild, channel_id = self._open_guild(message.guild_id), message.channel_id
        return channel_id not in self._behind and guild.is_complete(channel_id)

    def fall_behind(self, message: ChatMessage) -> bool:
        """Let a message from the gateway be read over REST. Return whether its channel was live until now."""
        if self.knows(message):
            return False
        channel = self._open_channel(message.channel_id, message.guild_id)
        channel.guild.told.add(channel.id)
        return self._fall_behind(channel, parse_position(message.id))

    def channels_behind(self) -> tuple[ChannelId, ...]:
        """Return the channels that are behind, longest first."""
        return tuple(self._behind)

    def is_behind(self, channel_id: ChannelId) -> bool:
        """Whether the channel has to be read over REST."""
        return channel_id in self._behind

    def note_change(self, channel_id: ChannelId, message_id: MessageId) -> bool:
        """Note an edit or deletion of a message. Return True if it is still unread, so its new version will be read."""
        channel, position = self._behind.get(channel_id), parse_position(message_id)
        if channel is None or channel.knows(position):
            return False
        if channel.reading:
            channel.reading.note_change(position)
        return True

    @contextmanager
    def open_page(self, channel_id: ChannelId) -> Generator[BackfillPage]:
        """Open a page of a channel that is behind. Begin its messages, oldest first, then call `finish_page`."""
        channel = self._behind[channel_id]
        channel.reading = BackfillPage(channel)
        try:
            yield channel.reading
        finally:
            channel.reading = None

    def finish_page(self, reading: BackfillPage) -> bool:
        """Note that all of the page was begun. Return whether it was the last: the channel is live from now on."""
        channel = reading.channel
        if channel.is_behind and not reading.overtaken:
            channel.mark_read(reading.read_to)
            if reading.ended and channel.target <= channel.read_to:
                self._go_live(channel)
        self._stirred.add(channel.guild)
        return not channel.is_behind

    def give_up(self, channel_id: ChannelId) -> None:
        """Give up a channel that Discord does not let us read: its missed messages are shed."""
        channel = self._behind[channel_id]
        channel.mark_read(channel.target)
        self._go_live(channel)
        self._stirred.add(channel.guild)

    # Sessions.

    def begin_session(self, started: SessionStarted, admits: Callable[[Channel], bool] = admit_every_channel) -> None:
        """Begin a session: channels with unreported messages fall behind; archived threads have to be listed.

        Missed messages in a channel that `admits` refuses are skipped, unread.
        """
        guild = self._open_guild(started.guild_id)
        guild.begin(started.channels)
        for seen in started.channels:
            if not admits(seen.channel):
                self._skip_channel(guild, seen)
                continue
            if seen.last_message_id:
                self._note_newest(guild, seen.channel.id, parse_position(seen.last_message_id))
            if not (seen.channel.is_thread or started.continues):
                guild.unlisted[seen.channel.id] = PendingThreadListing(seen.channel.id, guild, guild.until.id)
        self._stirred.add(guild)

    def find_unlisted(self) -> tuple[PendingThreadListing, ...]:
        """Return the channels whose archived threads have to be listed."""
        return tuple(listing for guild in self._guilds.values() for listing in guild.unlisted.values())

    def record_threads(self, listing: PendingThreadListing, threads: Sequence[ChannelSnapshot]) -> None:
        """Take the archived threads with messages newer than `listing.after`; none also if listing is refused."""
        guild = listing.guild
        for seen in threads:
            guild.told.add(seen.channel.id)
            # If Discord does not report the newest message, only reading shows it.
            newest = parse_position(seen.last_message_id) if seen.last_message_id else None
            self._note_newest(guild, seen.channel.id, newest)
        if guild.unlisted.get(listing.channel_id) is listing:  # else a newer session has to list it again
            del guild.unlisted[listing.channel_id]
        self._stirred.add(guild)

    def _note_newest(self, guild: _GuildProgress, channel_id: ChannelId, newest: Position | None) -> None:
        channel = self._open_channel(channel_id, guild.id)
        # Above the floor there may be unreported older messages, although the newest of all is known.
        if newest is None or (newest > channel.floor and not guild.was_complete(channel, newest)):
            self._fall_behind(channel, newest if newest and newest > channel.read_to else FIRST)
        elif channel.is_untouched:
            # No message is newer than that. A server's very first mark is made by our clock, which may run fast.
            channel.set_position(newest)

    def _skip_channel(self, guild: _GuildProgress, seen: ChannelSnapshot) -> None:
        channel = self._open_channel(seen.channel.id, guild.id)
        if seen.last_message_id:
            channel.mark_read(parse_position(seen.last_message_id))
        if channel.is_behind:
            self.give_up(channel.id)

    def _fall_behind(self, channel: _ChannelProgress, target: Position) -> bool:
        newly = not channel.is_behind
        channel.fall_behind(target)
        self._behind[channel.id] = channel
        self._stirred.add(channel.guild)
        return newly

    def _go_live(self, channel: _ChannelProgress) -> None:
        channel.is_behind, channel.late = False, None
        del self._behind[channel.id]

    def _open_guild(self, guild_id: GuildId | None) -> _GuildProgress:
        if guild_id not in self._guilds:
            self._guilds[guild_id] = _GuildProgress(guild_id, self._baseline)
        return self._guilds[guild_id]

    def _open_channel(self, channel_id: ChannelId, guild_id: GuildId | None) -> _ChannelProgress:
        channel = self._channels.get(channel_id)
        if channel is None:
            guild = self._open_guild(guild_id)
            channel = self._channels[channel_id] = guild.channels[channel_id] = _ChannelProgress(channel_id, guild)
        return channel


class _GuildProgress:
    """A server, or all private messages. Everything up to `until` is settled, in each of its channels."""

    def __init__(self, guild_id: GuildId | None, until: Position) -> None:
        self.id = guild_id
        self.until = self.kept = until
        self.channels: dict[ChannelId, _ChannelProgress] = {}
        self.unlisted: dict[ChannelId, PendingThreadListing] = {}
        self.told: set[ChannelId] = set()  # channels whose messages are all known since this session began
        # Channels newer than this were made in this session; sessions do not report private messages.
        self.begun_at: Position | None = FIRST if guild_id is None else None
        self.newest = FIRST  # the newest message that the gateway reported
        self.told_before = FIRST  # the newest that it reported in earlier sessions whose threads are all listed
        self.steady: Position | None = None  # the first one that it reported after all archived threads were listed

    def begin(self, channels: Sequence[ChannelSnapshot]) -> None:
        """Begin a session."""
        if not self.unlisted:
            self.told_before = self.newest
        ids = [parse_position(one) for seen in channels for one in (seen.channel.id, seen.last_message_id) if one]
        self.begun_at = max((self.until, *ids))
        self.told = {seen.channel.id for seen in channels}
        self.steady = None

    def is_complete(self, channel_id: ChannelId) -> bool:
        """Whether no message was missed in the channel, unless it is behind.

        A thread that was archived when the session began may have unread older messages. It may have been unarchived
        before it was listed.
        """
        return self.begun_at is not None and (channel_id in self.told or parse_position(channel_id) > self.begun_at)

    def was_complete(self, channel: _ChannelProgress, newest: Position) -> bool:
        """Whether an earlier session reported all messages of a channel, up to its `newest`."""
        return newest <= channel.read_to and newest <= self.told_before.before(PLENTY)

    def receive(self, position: Position) -> None:
        """Note a message from the gateway."""
        self.newest = max(self.newest, position)
        if self.steady is None and not self.unlisted:
            self.steady = position

    def advance(self) -> bool:
        """Move the mark as far as unsettled work allows. Return whether it moved."""
        if self.begun_at is None or self.steady is None or self.newest <= self.steady.after(PLENTY):
            return False
        # By now, messages that unarchived a thread before the listing, which left it out, were reported.
        held = [channel.mark for channel in self.channels.values() if not channel.is_idle]
        until = min((self.newest.before(LAG), *held))
        moves = until > self.until
        self.until = max(until, self.until)
        return moves

    def forget_idle(self) -> list[ChannelId]:
        """Forget the idle channels whose marks are not ahead of the server's, and return them."""
        idle = [each.id for each in self.channels.values() if each.mark <= self.until and each.is_idle]
        for channel_id in idle:
            del self.channels[channel_id]
        return idle


class _ChannelProgress:
    def __init__(self, channel_id: ChannelId, guild: _GuildProgress) -> None:
        self.id = channel_id
        self.guild = guild
        self.floor = guild.until  # messages up to here are not begun any more
        self.read_to = guild.until  # all messages up to here were begun, are gone, or do not concern us
        self.kept = guild.until  # the mark as it was last returned
        self.work: set[Position] = set()
        # Settled messages above the floor, in the order of settling, which is nearly their own order.
        self.done: dict[Position, None] = {}
        self.is_untouched = True  # no message was begun here
        self.is_behind = False
        self.target = FIRST  # while behind: the newest known message
        self.cursor = FIRST  # while behind: the start of the next page
        self.late: Position | None = None  # while behind: the oldest message that was missed on a page
        self.reading: BackfillPage | None = None

    @property
    def mark(self) -> Position:
        mark = self.read_to
        if self.work:
            mark = min(mark, min(self.work).previous)
        return mark if self.late is None else min(mark, self.late.previous)

    @property
    def is_idle(self) -> bool:
        return not self.work and not self.is_behind

    def set_position(self, position: Position) -> None:
        self.floor = self.read_to = position

    def knows(self, position: Position) -> bool:
        return position <= self.floor or position in self.work or position in self.done

    def begin(self, position: Position) -> None:
        self.is_untouched = False
        self.work.add(position)
        self._advance_to(position)

    def settle(self, position: Position) -> None:
        if position in self.work:
            self.work.discard(position)
            if position > self.floor:
                self.done[position] = None

    def mark_read(self, position: Position) -> None:
        self.is_untouched = False
        self.cursor = max(self.cursor, position)
        missed = self.late is not None
        if self.late is not None and self.late <= position:  # else a later page has it
            self.late = None
        self._advance_to(position)
        if missed:  # the floor may have been far behind
            self.done = {each: None for each in self.done if each > self.floor}

    def fall_behind(self, target: Position) -> None:
        """`target` is FIRST if it is unknown whether there are new messages, and up to which one."""
        if not self.is_behind:
            self.is_behind = True
            self.target = FIRST
            self.cursor = self.floor  # a little back, in case messages came out of order
        if target == FIRST:
            if self.reading:
                self.reading.overtaken = True
        elif target <= self.read_to:  # this one did
            (self.reading or self).note_missing(target)
        elif self.reading:
            self.reading.receive(target)
        self.target = max(self.target, target)

    def note_missing(self, position: Position) -> None:
        self.late = position if self.late is None else min(self.late, position)

    def _advance_to(self, position: Position) -> None:
        self.read_to = max(self.read_to, position)
        if not self.is_untouched:
            floor = self.read_to.before(DISORDER)
            # An overtaken page may go far beyond the messages that it lacks, and these still have to be begun.
            self.floor = max(self.floor, floor if self.late is None else min(floor, self.late.previous))
            while self.done and (oldest := next(iter(self.done))) <= self.floor:
                del self.done[oldest]
