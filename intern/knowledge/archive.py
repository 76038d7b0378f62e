"""All captures, for ever: week files that are only appended to. What is in here is never lost.

An acknowledged append is on disk. Timestamps, and so ids, strictly increase, whatever the clock does. Pairs stay on
disk; memory holds where each one stands (32 bytes), and which conversation a message belongs to.

One thread at a time may append; any may read meanwhile.
"""

from __future__ import annotations

import re
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from io import BytesIO
from itertools import pairwise
from pathlib import Path
from typing import BinaryIO

from intern.domain import Capture, CapturedPair, ConversationId, MessageId, QAId, Turn
from intern.knowledge.blocks import BlockWarning, Placed, format_raw, qa_id_of, scan_archive, time_of, whole
from intern.knowledge.files import FileLayer, unreadable
from intern.observe.clock import Clock, SystemClock
from intern.observe.log import get_logger

_log = get_logger(__name__)

_WEEK_FILE = re.compile(r"[0-9]{4}-W[0-9]{2}\.txt")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_TICK = timedelta(microseconds=1)


class Archive:
    """The pairs in `raw_dir`, in order of archiving. Opening reads every week file once, a block at a time.

    Raises KnowledgeError where a file cannot be read; a damaged block is passed over with a warning. What another
    process appends after opening is not seen.
    """

    def __init__(self, raw_dir: Path, *, clock: Clock | None = None, files: FileLayer | None = None) -> None:
        self._dir = raw_dir
        self._clock = clock or SystemClock()
        self._files = files or FileLayer()
        self._weeks: list[str] = []
        # One row a pair, sorted by time: microseconds since 1970, week (index in _weeks), offset and length in it.
        self._times = array("q")
        self._week_of = array("q")
        self._starts = array("q")
        self._lengths = array("q")
        self._newest: dict[ConversationId, int] = {}
        self._conversations: dict[str, ConversationId] = {}
        # Only of the few messages that were captured with several conversations: those after the first.
        self._further: dict[str, tuple[ConversationId, ...]] = {}
        self._open()
        self._last = _EPOCH + self._times[-1] * _TICK if self._times else _EPOCH

    def __len__(self) -> int:
        """How many pairs there are."""
        return len(self._times)

    def append(self, capture: Capture) -> CapturedPair:
        """Archive a capture; when this returns, it is on disk.

        Raises KnowledgeError where the disk refuses (nothing was archived then), and ValueError for a capture
        without turns, or with ids that no header line can hold.
        """
        # Never backward, and never twice: ids are unique, and a cursor that passed one pair has passed all before it.
        timestamp = self._last = max(self._clock.now().astimezone(UTC), self._last + _TICK)
        pair = CapturedPair(
            qa_id=qa_id_of(timestamp),
            timestamp=timestamp,
            conversation_id=capture.conversation_id,
            turns=tuple(Turn(turn.speaker, whole(turn.text)) for turn in capture.turns),
            message_ids=capture.message_ids,
            answered_at=capture.answered_at.astimezone(UTC),
            guild_id=capture.guild_id,
            channel_id=capture.channel_id,
            replaces=capture.replaces,
        )
        block = format_raw(pair).encode()
        week = _week_file(timestamp)
        # A torn tail from a crash ends before this block, not in it.
        start = self._files.append_durably(self._dir / week, block, fresh_line=True)
        self._place(Placed(pair, start, len(block)), week)
        return pair

    def after(self, qa_id: QAId | None) -> Iterator[CapturedPair]:
        """The pairs archived after that one (None: all), oldest first, read as they are asked for.

        Raises ValueError for what is no id, and KnowledgeError where a file cannot be read.
        """
        at = 0 if qa_id is None else bisect_right(self._times, _micros(time_of(qa_id)))
        while at < len(self._times):
            week = self._week_of[at]
            with self._opened(self._weeks[week]) as file:
                while at < len(self._times) and self._week_of[at] == week:
                    pair = self._read(file, at)
                    at += 1
                    if pair is not None:
                        yield pair

    def get(self, qa_id: QAId) -> CapturedPair | None:
        """The pair of that id, however its fraction is written; None where there is none."""
        try:
            time = _micros(time_of(qa_id))
        except ValueError:
            return None
        return self._at(time)

    def latest_of(self, conversation_id: ConversationId) -> CapturedPair | None:
        """The newest capture of a conversation, which is its most complete one."""
        time = self._newest.get(conversation_id)
        return None if time is None else self._at(time)

    def conversation_of(self, message_id: MessageId) -> ConversationId | None:
        """The conversation that a message was first captured with; None where it never was."""
        return self._conversations.get(_bare(message_id))

    def conversations_of(self, message_id: MessageId) -> tuple[ConversationId, ...]:
        """All conversations that a message was captured with, the first one first."""
        first = self._conversations.get(_bare(message_id))
        return () if first is None else (first, *self._further.get(_bare(message_id), ()))

    def _open(self) -> None:
        for week in self._week_files():
            for placed in self._scan(week):
                if isinstance(placed, BlockWarning):
                    _warn(placed)
                else:
                    self._place(placed, week)
        if any(later <= earlier for earlier, later in pairwise(self._times)):
            self._sort()

    def _sort(self) -> None:
        """Put the rows in order of time. Only files of other programs need it, by clocks that went back."""
        rows: list[int] = []
        for at in sorted(range(len(self._times)), key=self._times.__getitem__):
            if rows and self._times[rows[-1]] == self._times[at]:
                qa_id = qa_id_of(_EPOCH + self._times[at] * _TICK)
                _log.warning("archive_id_repeated", file=self._weeks[self._week_of[at]], qa_id=qa_id)
            else:
                rows.append(at)
        for column in (self._times, self._week_of, self._starts, self._lengths):
            column[:] = array(column.typecode, [column[at] for at in rows])

    def _week_files(self) -> list[str]:
        try:
            entries = list(self._dir.iterdir()) if self._dir.exists() else []
            # By name is by time: ISO year, then week.
            return sorted(entry.name for entry in entries if _WEEK_FILE.fullmatch(entry.name) and entry.is_file())
        except OSError as error:
            raise unreadable(self._dir, error) from error

    def _scan(self, week: str) -> Iterator[Placed | BlockWarning]:
        with self._opened(week) as file:
            try:
                yield from scan_archive(file, file=week)
            except OSError as error:
                raise unreadable(self._dir / week, error) from error

    def _opened(self, week: str) -> BinaryIO:
        path = self._dir / week
        try:
            return path.open("rb")
        except OSError as error:
            raise unreadable(path, error) from error

    def _place(self, placed: Placed, week: str) -> None:
        pair = placed.pair
        time = _micros(pair.timestamp)
        if not self._weeks or self._weeks[-1] != week:
            self._weeks.append(week)
        self._newest[pair.conversation_id] = max(time, self._newest.get(pair.conversation_id, time))
        for message_id in pair.message_ids:
            # The first conversation stays: otherwise its id would wander as reply chains grow together.
            if self._conversations.setdefault(_bare(message_id), pair.conversation_id) != pair.conversation_id:
                further = self._further.get(_bare(message_id), ())
                self._further[_bare(message_id)] = tuple(dict.fromkeys((*further, pair.conversation_id)))
        self._week_of.append(len(self._weeks) - 1)
        self._starts.append(placed.start)
        self._lengths.append(placed.length)
        # Last: readers in other threads go by the number of times.
        self._times.append(time)

    def _at(self, time: int) -> CapturedPair | None:
        at = bisect_left(self._times, time)
        if at == len(self._times) or self._times[at] != time:
            return None
        with self._opened(self._weeks[self._week_of[at]]) as file:
            return self._read(file, at)

    def _read(self, file: BinaryIO, at: int) -> CapturedPair | None:
        week = self._weeks[self._week_of[at]]
        try:
            file.seek(self._starts[at])
            data = file.read(self._lengths[at])
        except OSError as error:
            raise unreadable(self._dir / week, error) from error
        for placed in scan_archive(BytesIO(data), file=week):
            if isinstance(placed, Placed):
                return placed.pair
            _warn(placed)
        return None


def _week_file(timestamp: datetime) -> str:
    year, week, _ = timestamp.isocalendar()
    return f"{year:04d}-W{week:02d}.txt"


def _micros(moment: datetime) -> int:
    return (moment - _EPOCH) // _TICK


def _bare(message_id: MessageId) -> str:
    # Discord's ids are bare; other programs wrote `msg_<id>`.
    return message_id.removeprefix("msg_")


def _warn(warning: BlockWarning) -> None:
    _log.warning("archive_block_damaged", file=warning.file, line=warning.line, reason=warning.reason)
