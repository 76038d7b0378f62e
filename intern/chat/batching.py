"""Batches of one author's messages in one channel, held until the author pauses.

Pure: the caller brings the time and asks when to come back. One heap serves every channel and author, with one live
entry per open batch however many messages restart its wait.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from heapq import heappop, heappush, heapreplace
from itertools import count

from msgspec import structs

from intern.core import flow
from intern.core.ids import ChannelId, MessageId, UserId, parse_position
from intern.core.messages import ChatMessage

_Key = tuple[ChannelId, UserId]

DEFAULT_MAX_AGE = 300.0  # an author who writes for five minutes without a pause should not wait longer for an answer
DEFAULT_MAX_OPEN = 4000  # messages, mostly under 1 KB each; within the usual minute that is 66 a second


class OpenBatches:
    """The open batches.

    Every message comes out exactly once, in order for each channel and author. It waits until its author was silent
    for `wait` seconds, or the batch has `max_messages` or is `max_age` seconds old. Bots' messages form batches, too,
    so all messages are settled in the same way, and routing alone decides about authors.

    Messages from history are divided as if they were read live. Their batch is due once the channel was read past its
    window, or to its end; if neither is reported, `wait` seconds after the last message.
    """

    def __init__(
        self, wait: float, *, max_messages: int = 50, max_age: float = DEFAULT_MAX_AGE, max_open: int = DEFAULT_MAX_OPEN
    ) -> None:
        self._wait, self._max_messages = wait, max_messages
        self._max_age = max(wait, max_age)
        self._max_open = max_open
        self._open: dict[_Key, _OpenBatch] = {}
        self._home: dict[MessageId, _OpenBatch] = {}
        # Batches of channels that are being read; their windows may have ended unnoticed.
        self._past: dict[ChannelId, dict[_OpenBatch, None]] = {}
        # Entries may be older than their batch's deadline (a message restarted the wait), or left over from a batch
        # that is gone; both are corrected when they come up.
        self._heap: list[tuple[float, int, _OpenBatch]] = []
        self._serial = count()

    @property
    def is_full(self) -> bool:
        """Whether so many messages are held that no more should be added before some batches are due."""
        return len(self._home) >= self._max_open

    def add(self, event: flow.BatcherEvent, now: float, age: float = 0.0) -> flow.LateChange | None:
        """Take an event at `now` (seconds of a clock that never goes back); `age`: seconds since a historic message.

        Return the changes of messages that are no longer here: an edit, or the unmatched deletions.
        """
        match event:
            case flow.MessageCreated(message=message):
                self._end_history_windows(message.channel_id)
                self._add_message(message, now, written=now)
                return None
            case flow.MessageBackfilled(message=message):
                for batch in [each for each in self._past.get(message.channel_id, ()) if each.ends <= now - age]:
                    self._close(batch, batch.ends)
                self._add_message(message, now, written=now - age)
                return None
            case flow.ChannelCaughtUp(channel_id=channel_id):
                self._end_history_windows(channel_id)
                return None
            case flow.MessageEdited(message=message):
                return None if self._apply_edit(message) else event
            case flow.MessagesDeleted(message_ids=ids):
                gone = tuple(message_id for message_id in ids if not self._apply_deletion(message_id))
                return structs.replace(event, message_ids=gone) if gone else None

    def take_due(self, now: float) -> list[flow.Batch]:
        """Take out the batches that are due, earliest first."""
        settled: list[flow.Batch] = []
        while self._home and self.next_deadline() <= now:
            settled.append(self._take_out(heappop(self._heap)[2]))
        return settled

    def next_deadline(self) -> float:
        """Return the time of the next batch for `take_due`, if none is added before; infinity without open batches."""
        while self._heap:
            deadline, serial, batch = self._heap[0]
            if not batch.messages or batch.deadline < deadline:
                heappop(self._heap)
            elif batch.deadline > deadline:
                heapreplace(self._heap, (batch.deadline, serial, batch))
            else:
                return deadline
        return math.inf

    def flush(self) -> list[flow.Batch]:
        """Take out all open batches, earliest deadline first."""
        return self.take_due(math.inf)

    def _add_message(self, message: ChatMessage, now: float, *, written: float) -> None:
        if self._apply_edit(message):  # a resumed session may report a message twice
            return
        key = (message.channel_id, message.author.id)
        batch = self._open.get(key)
        # After an outage, messages that arrive together may have been written far apart.
        if batch and (batch.ends <= written or (message.at - batch.newest.at).total_seconds() > self._wait):
            self._close(batch, now)
            batch = None
        if batch is None:
            batch = self._open[key] = _OpenBatch(key, opened=written, serial=next(self._serial))
        batch.messages[message.id] = message
        self._home[message.id] = batch
        batch.ends = min(written + self._wait, batch.opened + self._max_age)
        if written < now:
            batch.from_history = True
            self._past.setdefault(message.channel_id, {})[batch] = None
        self._set_deadline(batch, batch.ends if written == now else now + self._wait)
        if len(batch.messages) >= self._max_messages:
            self._close(batch, now)

    def _end_history_windows(self, channel_id: ChannelId) -> None:
        """Let the clock end the windows: no older messages follow."""
        for batch in self._past.pop(channel_id, ()):
            self._set_deadline(batch, batch.ends)

    def _apply_edit(self, message: ChatMessage) -> bool:
        batch = self._home.get(message.id)
        if batch is None:
            return False
        # A message keeps its author, because an edit's payload may lack the author's roles.
        batch.messages[message.id] = structs.replace(message, author=batch.messages[message.id].author)
        return True

    def _apply_deletion(self, message_id: MessageId) -> bool:
        batch = self._home.pop(message_id, None)
        if batch is None:
            return False
        del batch.messages[message_id]
        if not batch.messages:
            self._forget_batch(batch)
        return True

    def _close(self, batch: _OpenBatch, now: float) -> None:
        """Let no more messages join the batch; edits and deletions still reach it until it is handed out."""
        self._forget_batch(batch)
        self._set_deadline(batch, min(batch.deadline, batch.ends, now))

    def _set_deadline(self, batch: _OpenBatch, deadline: float) -> None:
        if deadline < batch.deadline:  # a later deadline is noticed when the entry in the heap comes up
            heappush(self._heap, (deadline, batch.serial, batch))
        batch.deadline = deadline

    def _take_out(self, batch: _OpenBatch) -> flow.Batch:
        self._forget_batch(batch)
        # Discord may report two messages in the wrong order.
        messages = tuple(sorted(batch.messages.values(), key=lambda message: parse_position(message.id)))
        for message in messages:
            del self._home[message.id]
        batch.messages = {}
        author, read = messages[-1].author, batch.from_history
        return flow.Batch(channel_id=batch.key[0], author=author, messages=messages, from_history=read)

    def _forget_batch(self, batch: _OpenBatch) -> None:
        """Remove a batch from the open ones."""
        if self._open.get(batch.key) is batch:
            del self._open[batch.key]
        past = self._past.get(batch.key[0])
        if past is not None:
            past.pop(batch, None)
            if not past:
                del self._past[batch.key[0]]


@dataclass(eq=False)
class _OpenBatch:
    key: _Key
    opened: float
    serial: int  # of two batches with one deadline, the older comes first
    ends: float = math.inf  # the time at which the author has paused for the window
    deadline: float = math.inf  # the time at which the batch is handed out
    from_history: bool = False
    messages: dict[MessageId, ChatMessage] = field(default_factory=dict[MessageId, ChatMessage])  # in order of arrival

    @property
    def newest(self) -> ChatMessage:
        return next(reversed(self.messages.values()))
