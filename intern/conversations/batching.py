"""One author's messages in one channel, held together until the author pauses.

Pure: the caller brings the time and asks when to come back. One heap serves every channel and author, with one live
entry per open batch however many messages restart its wait.
"""

from __future__ import annotations

import math
from heapq import heappop, heappush, heapreplace
from itertools import count

from msgspec import structs

from intern.domain import (
    Batch,
    ChannelId,
    ChatMessage,
    MessageCreated,
    MessageEdited,
    MessageEvent,
    MessageId,
    MessagesDeleted,
    UserId,
)

_Key = tuple[ChannelId, UserId]

DEFAULT_MAX_AGE = 300.0  # who writes without a pause for five minutes should not wait longer for an answer


class Batches:
    """The open batches.

    Every message comes out exactly once, in order for each channel and author, and not before its author was silent
    for `wait` seconds, unless the batch holds `max_messages` or is `max_age` seconds old by then. Bots' messages form
    batches like all others: so whatever arrives is settled in the same way, and the router alone says who matters.
    """

    def __init__(self, wait: float, *, max_messages: int = 50, max_age: float = DEFAULT_MAX_AGE) -> None:
        self._wait = wait
        self._max_messages = max_messages
        self._max_age = max(wait, max_age)
        self._open: dict[_Key, _OpenBatch] = {}
        self._home: dict[MessageId, _OpenBatch] = {}
        # Entries may be older than their batch's deadline (a message restarted the wait) or left behind by a batch
        # that is gone; both are put right when they come up.
        self._heap: list[tuple[float, int, _OpenBatch]] = []
        self._serial = count()

    def add(self, event: MessageEvent, now: float) -> MessageEdited | MessagesDeleted | None:
        """Take an event at `now` (seconds of a clock that never goes back).

        Gives back what concerns messages that are not here any more: an edit, or the deletions that found nothing.
        """
        match event:
            case MessageCreated(message=message):
                self._created(message, now)
                return None
            case MessageEdited(message=message):
                return None if self._edited(message) else event
            case MessagesDeleted(message_ids=ids):
                gone = tuple(message_id for message_id in ids if not self._deleted(message_id))
                return structs.replace(event, message_ids=gone) if gone else None

    def due(self, now: float) -> list[Batch]:
        """The batches whose time has come, earliest first."""
        settled: list[Batch] = []
        while self._home and self.next_deadline() <= now:
            settled.append(self._settle(heappop(self._heap)[2]))
        return settled

    def next_deadline(self) -> float:
        """When `due` will have something, if nothing is added before; infinity while nothing is open."""
        while self._heap:
            deadline, serial, batch = self._heap[0]
            if not batch.messages or batch.deadline < deadline:
                heappop(self._heap)
            elif batch.deadline > deadline:
                heapreplace(self._heap, (batch.deadline, serial, batch))
            else:
                return deadline
        return math.inf

    def flush(self) -> list[Batch]:
        """All open batches at once, earliest deadline first."""
        return self.due(math.inf)

    def _created(self, message: ChatMessage, now: float) -> None:
        if self._edited(message):  # a resumed session may tell a thing twice
            return
        key = (message.channel_id, message.author.id)
        batch = self._open.get(key)
        if batch is not None and (batch.deadline <= now or self._parted(batch, message)):
            self._close(batch, now)
            batch = None
        if batch is None:
            batch = self._open[key] = _OpenBatch(key, opened=now, serial=next(self._serial))
            batch.deadline = now + self._wait
            heappush(self._heap, (batch.deadline, batch.serial, batch))
        batch.messages[message.id] = message
        self._home[message.id] = batch
        batch.deadline = min(now + self._wait, batch.opened + self._max_age)
        if len(batch.messages) >= self._max_messages:
            self._close(batch, now)

    def _parted(self, batch: _OpenBatch, message: ChatMessage) -> bool:
        # Messages that arrive together may have been written far apart: after an outage, or from history.
        return (message.at - batch.newest.at).total_seconds() > self._wait

    def _edited(self, message: ChatMessage) -> bool:
        batch = self._home.get(message.id)
        if batch is None:
            return False
        # Nobody can take over a message; an edit's payload may lack the roles that told us who the author is.
        batch.messages[message.id] = structs.replace(message, author=batch.messages[message.id].author)
        return True

    def _deleted(self, message_id: MessageId) -> bool:
        batch = self._home.pop(message_id, None)
        if batch is None:
            return False
        del batch.messages[message_id]
        if not batch.messages and self._open.get(batch.key) is batch:
            del self._open[batch.key]
        return True

    def _close(self, batch: _OpenBatch, now: float) -> None:
        """Nothing joins the batch any more; edits and deletions still reach it until it is handed out."""
        del self._open[batch.key]
        batch.deadline = min(batch.deadline, now)
        heappush(self._heap, (batch.deadline, batch.serial, batch))

    def _settle(self, batch: _OpenBatch) -> Batch:
        if self._open.get(batch.key) is batch:
            del self._open[batch.key]
        messages = tuple(batch.messages.values())
        for message in messages:
            del self._home[message.id]
        batch.messages = {}
        return Batch(channel_id=batch.key[0], author=messages[-1].author, messages=messages)


class _OpenBatch:
    def __init__(self, key: _Key, *, opened: float, serial: int) -> None:
        self.key = key
        self.opened = opened
        self.serial = serial  # of two batches with one deadline, the older comes first
        self.deadline = math.inf
        self.messages: dict[MessageId, ChatMessage] = {}  # in order of arrival

    @property
    def newest(self) -> ChatMessage:
        return next(reversed(self.messages.values()))
