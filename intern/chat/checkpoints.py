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

from intern.core.flow import ChannelSnapshot, SessionStarted
from intern.core.ids import FIRST, ChannelId, GuildId, MessageId, Position, parse_position
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


def admit_every_channel(_: Channel) -> bool:
    """Admits every channel."""
    return True


class BackfillPage:
    """One page of a channel that is behind: from the asking to the last message that is taken from it."""

    def __init__(self, channel: _ChannelProgress) -> None:
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

    def accept_page(self, page: Page) -> None:
        """Take in the page."""
        self._held = {parse_position(message.id) for message in page.messages}
        before, self.read_to = self.read_to, max(self.read_to, parse_position(page.read_to))
        self.ended = not page.more or self.read_to == before  # a page that leads nowhere is the last
        if self.ended:
            # What we knew of before we asked, and did not get, is deleted.
            self.read_to = max(self.read_to, self.told)
        for position in self._heard:
            self.receive(position)
        self._heard.clear()

    def receive(self, position: Position) -> None:
        """Note a message of the gateway's. The page may be older than it."""
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
        """Whether the message may differ from what the page says: then read the page again."""
        return parse_position(message.id) in self._changed or not self.channel.is_behind


class UnfinishedWork(NamedTuple):
    """What was heard of and is not settled, or may still be unread."""

    messages: int
    """In work."""
    oldest: MessageId | None
    """Of the messages in work."""
    channels: int
    """Behind, or with archived threads that are not listed yet."""


class PendingThreadListing(NamedTuple):
    """A channel whose archived threads were not listed yet."""

    channel_id: ChannelId
    guild: _GuildProgress
    after: MessageId
    """Threads without a message newer than this have nothing for us."""


class Checkpoints:
    """Where every channel stands. See the module for its promises."""

    def __init__(self, marks: StoredCheckpoints, *, baseline: MessageId) -> None:
        """`baseline` is where a server stands that `marks` does not know, and where private messages do."""
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
        """Whether a message was begun before: it is in work, or settled."""
        channel = self._channels.get(message.channel_id)
        position = parse_position(message.id)
        return channel.knows(position) if channel else position <= self._open_guild(message.guild_id).until

    def begin(self, message: ChatMessage) -> bool:
        """Take a message into work until it is settled. Return False where it was begun before: then ignore it.

        Called in the same step as the message is put into the stream, so that a mark never passes it.
        """
        if self.knows(message):
            return False
        channel, position = self._open_channel(message.channel_id, message.guild_id), parse_position(message.id)
        channel.begin(position)
        if not channel.is_behind:
            # REST may be ahead of the gateway, so what it shows tells nothing of other channels.
            channel.guild.receive(position)
        self._stirred.add(channel.guild)
        return True

    def settle(self, channel_id: ChannelId, message_ids: Sequence[MessageId]) -> None:
        """Nothing is left to do for these messages: they are archived, answered, silent, shed, or gone."""
        channel = self._channels.get(channel_id)
        if channel:
            for message_id in message_ids:
                channel.settle(parse_position(message_id))
            self._stirred.add(channel.guild)

    def count_unfinished(self) -> UnfinishedWork:
        """Count the unfinished work. Checkpoints do not tell it: those of quiet channels do not move."""
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
        return message.channel_id not in self._behind and self._open_guild(message.guild_id).is_complete(
            message.channel_id
        )

    def fall_behind(self, message: ChatMessage) -> bool:
        """Have a message of the gateway's read over REST. Return whether its channel was live until now."""
        if self.knows(message):
            return False
        channel = self._open_channel(message.channel_id, message.guild_id)
        channel.guild.told.add(channel.id)
        return self._fall_behind(channel, parse_position(message.id))

    def channels_behind(self) -> tuple[ChannelId, ...]:
        """Return the channels that are behind, longest first."""
        return tuple(self._behind)

    def is_behind(self, channel_id: ChannelId) -> bool:
        """Whether the channel is to be read over REST."""
        return channel_id in self._behind

    def note_change(self, channel_id: ChannelId, message_id: MessageId) -> bool:
        """Hear that a message was edited or deleted. True where it is still to be read: as it is now, then."""
        channel, position = self._behind.get(channel_id), parse_position(message_id)
        if channel is None or channel.knows(position):
            return False
        if channel.reading:
            channel.reading.note_change(position)
        return True

    @contextmanager
    def open_page(self, channel_id: ChannelId) -> Generator[BackfillPage]:
        """Ask for a page of a channel that is behind; begin what is on it, oldest first; then say `caught_up`."""
        channel = self._behind[channel_id]
        channel.reading = BackfillPage(channel)
        try:
            yield channel.reading
        finally:
            channel.reading = None

    def finish_page(self, reading: BackfillPage) -> bool:
        """Everything on the page was begun. Whether that was the last one: the channel is live from now on."""
        channel = reading.channel
        if channel.is_behind and not reading.overtaken:
            channel.mark_read(reading.read_to)
            if reading.ended and channel.target <= channel.read_to:
                self._go_live(channel)
        self._stirred.add(channel.guild)
        return not channel.is_behind

    def give_up(self, channel_id: ChannelId) -> None:
        """Discord does not let us read the channel: what was missed there is shed."""
        channel = self._behind[channel_id]
        channel.mark_read(channel.target)
        self._go_live(channel)
        self._stirred.add(channel.guild)

    # Sessions.

    def begin_session(self, started: SessionStarted, admits: Callable[[Channel], bool] = admit_every_channel) -> None:
        """Begin a session: channels with messages that were not told fall behind; archived threads are to be listed.

        What was missed in a channel that `admits` refuses is passed over, unread.
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
        """Return the channels whose archived threads are to be listed."""
        return tuple(listing for guild in self._guilds.values() for listing in guild.unlisted.values())

    def record_threads(self, listing: PendingThreadListing, threads: Sequence[ChannelSnapshot]) -> None:
        """Take in the archived threads with messages newer than `listing.after`; none also where listing is refused."""
        guild = listing.guild
        for seen in threads:
            guild.told.add(seen.channel.id)
            # Where Discord does not tell the newest message, only reading does.
            self._note_newest(
                guild, seen.channel.id, parse_position(seen.last_message_id) if seen.last_message_id else None
            )
        if guild.unlisted.get(listing.channel_id) is listing:  # else a newer session wants it listed again
            del guild.unlisted[listing.channel_id]
        self._stirred.add(guild)

    def _note_newest(self, guild: _GuildProgress, channel_id: ChannelId, newest: Position | None) -> None:
        channel = self._open_channel(channel_id, guild.id)
        # Above the floor there may be older messages than we were told, though the newest of all is known.
        if newest is None or (newest > channel.floor and not guild.was_complete(channel, newest)):
            self._fall_behind(channel, newest if newest and newest > channel.read_to else FIRST)
        elif channel.is_untouched:
            # Nothing is newer than that. A server's very first mark is made by our clock, which may run fast.
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
        self.told: set[ChannelId] = set()  # channels that we know everything of since this session began
        # All that is newer than this was made in this session; sessions do not tell of private messages.
        self.begun_at: Position | None = FIRST if guild_id is None else None
        self.newest = FIRST  # that the gateway told
        self.told_before = FIRST  # the newest that it told in earlier sessions whose threads are all listed
        self.steady: Position | None = None  # what the gateway told first, once all archived threads were listed

    def begin(self, channels: Sequence[ChannelSnapshot]) -> None:
        """Begin a session."""
        if not self.unlisted:
            self.told_before = self.newest
        ids = [parse_position(one) for seen in channels for one in (seen.channel.id, seen.last_message_id) if one]
        self.begun_at = max((self.until, *ids))
        self.told = {seen.channel.id for seen in channels}
        self.steady = None

    def is_complete(self, channel_id: ChannelId) -> bool:
        """Whether nothing was missed in the channel, so far as it is not behind.

        Of a thread that was archived when the session began, older messages may be unread. It may have woken up before
        it was listed.
        """
        return self.begun_at is not None and (channel_id in self.told or parse_position(channel_id) > self.begun_at)

    def was_complete(self, channel: _ChannelProgress, newest: Position) -> bool:
        """Whether an earlier session told of everything in a channel where nothing is newer than that."""
        return newest <= channel.read_to and newest <= self.told_before.before(PLENTY)

    def receive(self, position: Position) -> None:
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

    def forget_idle(self) -> list[ChannelId]:
        """Let go of the channels that stand no further than the server; they are given back."""
        idle = [each.id for each in self.channels.values() if each.mark <= self.until and each.is_idle]
        for channel_id in idle:
            del self.channels[channel_id]
        return idle


class _ChannelProgress:
    def __init__(self, channel_id: ChannelId, guild: _GuildProgress) -> None:
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
        """`target` is FIRST where it is unknown whether, and up to where, there is something new."""
        if not self.is_behind:
            self.is_behind = True
            self.target = FIRST
            self.cursor = self.floor  # a little back, should messages have come out of order
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
            # A page that was overtaken may go far beyond what is missed on it, and that is still to be begun.
            self.floor = max(self.floor, floor if self.late is None else min(floor, self.late.previous))
            self._forget_done()

    def _forget_done(self) -> None:
        while self.done and (oldest := next(iter(self.done))) <= self.floor:
            del self.done[oldest]
