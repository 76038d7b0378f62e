"""All captures, for ever: week files that are only appended to. Only `erase` removes anything.

An acknowledged append is on disk. Timestamps, and so ids, strictly increase, even if the clock goes back. Pairs stay on
disk; memory holds the place of each one (32 bytes), and the conversation of each message.

One thread at a time may append or erase; any may read meanwhile.

The decisions about captures are beside them in `decisions.jsonl`, a decision a line, for people, other programs and
`intern restore`.
"""

from __future__ import annotations

import re
import threading
from array import array
from bisect import bisect_left, bisect_right
from codecs import BOM_UTF8
from collections.abc import Collection, Generator, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import cached_property, partial
from io import BytesIO
from itertools import pairwise
from pathlib import Path
from typing import BinaryIO

import msgspec
from msgspec import Struct

from intern.core.captures import Capture, CapturedPair, Turn
from intern.core.clock import Clock, SystemClock, from_microseconds, to_microseconds
from intern.core.decisions import Decision, MessagesForgotten, MessagesWithdrawn
from intern.core.errors import KnowledgeError
from intern.core.ids import ConversationId, MessageId, QAId
from intern.core.log import get_logger
from intern.core.progress import report_progress
from intern.core.text.encoding import replace_surrogates
from intern.stores import block_format, qa_ids
from intern.stores.files import FileLayer, unreadable_error
from intern.stores.week_files import PairLocation, find_tail, locate_pair, scan_week

_log = get_logger(__name__)

WEEK_FILE = re.compile(r"[0-9]{4}-W[0-9]{2}\.txt")
_BEFORE_ALL = -(1 << 63)
_SOME = 1 << 20  # bytes that are copied at a time


class ArchiveErasure(Struct, frozen=True, kw_only=True):
    """The figures of an erasure: the parts of the archive that it removed."""

    captures: int = 0
    """Pairs that lost something."""
    gone: int = 0
    """The pairs that lost all messages: the archive does not hold them any more."""
    messages: int = 0
    """A message counts once for each capture that held it."""
    damaged: int = 0
    """Damaged pieces that named one of the messages."""


class Archive:
    """The pairs in `raw_dir`, in order of archiving. The first use reads every week file once, a block at a time.

    Raises KnowledgeError where a file cannot be read; a damaged block is ignored with a warning. Blocks that
    another process appends after that are not seen.
    """

    def __init__(self, raw_dir: Path, *, clock: Clock | None = None, files: FileLayer | None = None) -> None:
        self._dir = raw_dir
        self._clock = clock or SystemClock()
        self._files = files or FileLayer()
        # Held while an erasure changes files and rows, and while a reader takes rows and the file that fits them.
        self._changing = threading.Lock()
        self._last = from_microseconds(0)

    def reserve_ids_up_to(self, floor: QAId) -> None:
        """Give no id up to `floor` again: an erased pair may have been the newest that was decided.

        Raises ValueError for an invalid id.
        """
        self._last = max(self._last, qa_ids.qa_id_time(floor))

    @cached_property
    def _rows(self) -> _ArchiveIndex:
        rows = self._read_all()
        self._last = max(self._last, from_microseconds(max(rows.times, default=0)))
        return rows

    @property
    def damaged(self) -> Sequence[block_format.BlockWarning]:
        """The pieces that were ignored when the files were read."""
        return tuple(self._rows.damaged)

    def newest_time(self) -> datetime | None:
        """Return when the newest pair was archived; None where there is none."""
        times = self._rows.times
        return from_microseconds(times[-1]) if times else None

    def __len__(self) -> int:
        """Return how many pairs there are."""
        return len(self._rows.times)

    def reload(self) -> None:
        """Read the changes by another process: appended and erased blocks."""
        with self._changing:
            self._rows = self._read_all()

    def file_stamps(self) -> dict[str, tuple[int, int]]:
        """Return size and time of each file: they change with each append and erasure. Raises KnowledgeError."""
        sizes: dict[str, tuple[int, int]] = {}
        for week in self._week_files():
            try:
                found = (self._dir / week).stat()
            except OSError as error:
                raise unreadable_error(self._dir / week, error) from error
            sizes[week] = found.st_size, found.st_mtime_ns
        return sizes

    def append(self, capture: Capture) -> CapturedPair:
        """Archive a capture; when this returns, it is on disk.

        Raises KnowledgeError if the disk refuses; nothing is archived then. Raises ValueError for a capture
        without turns, or one that would be read back differently.
        """
        # Never backward, and never twice: ids are unique, and a cursor that passed one pair has passed all before it.
        rows = self._rows
        timestamp = self._last = max(self._clock.now().astimezone(UTC), self._next_time())
        pair = CapturedPair(
            qa_id=qa_ids.make_qa_id(timestamp),
            timestamp=timestamp,
            conversation_id=capture.conversation_id,
            turns=tuple(Turn(turn.speaker, replace_surrogates(turn.text)) for turn in capture.turns),
            message_ids=capture.message_ids,
            author_ids=capture.author_ids if any(capture.author_ids) else (),
            answered_at=capture.answered_at.astimezone(UTC),
            guild_id=capture.guild_id,
            channel_id=capture.channel_id,
            replaces=capture.replaces,
        )
        block = block_format.format_pair_block(pair).encode()
        week = _week_file(timestamp)
        # A torn tail from a crash ends before this block, not in it.
        start = self._append(week, block)
        rows.add(locate_pair(pair, start, len(block)), week)
        return pair

    def pairs_after(self, qa_id: QAId | None) -> Iterator[CapturedPair]:
        """Yield the pairs archived after that one (None: all), oldest first, read as they are asked for.

        Raises ValueError for an invalid id, and KnowledgeError if a file cannot be read.
        """
        yield from self._pairs_since(_id_to_micros(qa_id))

    def _pairs_since(self, last: int) -> Iterator[CapturedPair]:
        while (at := bisect_right((times := self._rows.times), last)) < len(times):
            last = times[at]
            if (pair := self._read_pair(last)) is not None:
                yield pair

    def newest_pairs(self, most: int) -> Iterator[CapturedPair]:
        """Yield the newest pairs, oldest first, without reading more files than needed. Raises KnowledgeError."""
        newest: list[CapturedPair] = []
        for week in reversed(self._week_files()):
            if len(newest) >= most:
                break
            newest += self._read_tail(week, most)
        by_time = {each.timestamp: each for each in reversed(newest)}
        yield from sorted(by_time.values(), key=lambda each: each.timestamp)[-most or len(newest) :]

    def scan_ids(self) -> tuple[set[str], Sequence[block_format.BlockWarning]]:
        """Read the ids of all pairs, and the ignored pieces; keep nothing. Raises KnowledgeError."""
        damaged: list[block_format.BlockWarning] = []
        return {each.qa_id for _, each in self._scan_weeks(damaged)}, damaged

    def times_after(self, qa_id: QAId | None) -> Sequence[int]:
        """Return when the pairs after that one (None: all) were archived, in microseconds since 1970. From memory."""
        times = self._rows.times
        return times[bisect_right(times, _id_to_micros(qa_id)) :]

    def get(self, qa_id: QAId) -> CapturedPair | None:
        """Return the pair with that id, however its fraction is written; None where there is none."""
        try:
            time = to_microseconds(qa_ids.qa_id_time(qa_id))
        except ValueError:
            return None
        return self._read_pair(time)

    def latest_capture(self, conversation_id: ConversationId) -> CapturedPair | None:
        """Return the newest capture of a conversation, which is its most complete one."""
        time = self._rows.newest.get(conversation_id)
        return None if time is None else self._read_pair(time)

    def latest_capture_id(self, conversation_id: ConversationId) -> QAId | None:
        """Return the id of a conversation's newest capture. From memory."""
        time = self._rows.newest.get(conversation_id)
        return None if time is None else qa_ids.make_qa_id(from_microseconds(time))

    def find_conversations(self, message_id: MessageId) -> tuple[ConversationId, ...]:
        """Return all conversations that a message was captured with, the first one first."""
        rows = self._rows
        first = rows.conversations.get(qa_ids.bare_message_id(message_id))
        return () if first is None else (first, *rows.further.get(qa_ids.bare_message_id(message_id), ()))

    def find_conversations_since(self, message_id: MessageId) -> set[ConversationId]:
        """Return the conversations that were captured with a message of Discord's as new as this one. From memory."""
        rows, oldest = self._rows, (len(message_id), message_id)
        new = [each for each in tuple(rows.conversations) if each.isdigit() and (len(each), each) >= oldest]
        return {conversation for each in new for conversation in self.find_conversations(MessageId(each))}

    def erase(self, message_ids: Collection[MessageId]) -> ArchiveErasure:
        """Rewrite the week files without these messages: the one way in which anything ever leaves the archive.

        The other messages stay, and so do the ids of all pairs. A pair that loses all messages disappears, and so does
        one that does not say which turn belongs to which message. Each week file is replaced at once: killed in
        between, doing it again does the rest. Raises KnowledgeError; weeks that were not reached stay as they were.
        """
        doomed = frozenset(map(qa_ids.bare_message_id, message_ids))
        lost: list[block_format.WeekFilePiece] = []
        with self._changing:
            try:
                for week in self._week_files():
                    with self._open_week(week) as file:
                        cut = [piece for piece in block_format.erase_messages(file, doomed) if piece.lost]
                    if cut:
                        self._rewrite(week, doomed)
                        lost += cut
            finally:
                self._rows = self._read_all()
        pairs = [piece for piece in lost if piece.qa_id is not None]
        return ArchiveErasure(
            captures=len(pairs),
            gone=sum(not piece.data for piece in pairs),
            messages=sum(piece.lost for piece in pairs),
            damaged=len(lost) - len(pairs),
        )

    def _next_time(self) -> datetime:
        """Return the earliest time that a further pair may have. Raises KnowledgeError where time ends."""
        try:
            return from_microseconds(to_microseconds(self._last) + 1)
        except OverflowError:
            raise KnowledgeError(
                f"nothing can be archived in {self._dir} any more: {qa_ids.make_qa_id(self._last)} is the last id that"
                " there can be; look for the pair or the decision that has it, and correct its date"
            ) from None

    def open_weeks(self) -> Iterator[tuple[str, BinaryIO]]:
        """Yield each week with its file, open until the next one. Raises KnowledgeError."""
        for week in self._week_files():
            with self._open_week(week) as file:
                yield week, file

    def copy_to(self, folder: Path) -> None:
        """Write all week files into an empty folder. Raises KnowledgeError."""
        for week, file in self.open_weeks():
            FileLayer().write_pieces_atomically(folder / week, iter(partial(file.read, _SOME), b""))

    def _append(self, week: str, block: bytes) -> int:
        """Add a block to a week, and return its offset."""
        return self._files.append_durably(self._dir / week, block, fresh_line=True)

    def _read_block(self, week: str, start: int, length: int) -> bytes:
        with self._open_week(week) as file:
            file.seek(start)
            return file.read(length)

    def _rewrite(self, week: str, doomed: frozenset[str]) -> None:
        # An import puts years into one week, so the file is read again rather than held in memory.
        with self._open_week(week) as file:
            left = (piece.data for piece in block_format.erase_messages(file, doomed))
            self._files.write_pieces_atomically(self._dir / week, left)
        if not (self._dir / week).stat().st_size:
            self._files.remove(self._dir / week)

    def _read_all(self) -> _ArchiveIndex:
        rows = _ArchiveIndex()
        for week, place in self._scan_weeks(rows.damaged):
            rows.add(place, week)
        rows.sort()
        return rows

    def _scan_weeks(self, damaged: list[block_format.BlockWarning]) -> Iterator[tuple[str, PairLocation]]:
        weeks = self._week_files()
        for n, week in enumerate(weeks):
            report_progress("Reading {total} weeks of the archive", n, len(weeks))
            with self._open_week(week) as file:
                for found in scan_week(file, name=week):
                    if isinstance(found, block_format.BlockWarning):
                        _log_damaged(found)
                        damaged.append(found)
                    else:
                        yield week, found

    def _read_tail(self, week: str, most: int) -> list[CapturedPair]:
        """Read the last pairs of a week, `most` of them or more; all where it has fewer."""
        with self._open_week(week) as file:
            for start in (find_tail(file, most), 0):
                file.seek(start)
                found = list(block_format.scan_archive(file, file=week))
                pairs = [each.pair for each in found if isinstance(each, block_format.LocatedPair)]
                if len(pairs) >= most:
                    break
            if damaged := [each for each in found if isinstance(each, block_format.BlockWarning)]:
                file.seek(0)
                before = file.read(start).count(b"\n")
                for each in damaged:
                    _log_damaged(each._replace(line=before + each.line))
        return pairs

    def _week_files(self) -> list[str]:
        try:
            entries = list(self._dir.iterdir()) if self._dir.exists() else []
            # The order of names is that of time: ISO year, then week.
            weeks = (entry for entry in entries if WEEK_FILE.fullmatch(entry.name))
            # A link that leads nowhere is a week that cannot be read, and no week that is not there.
            return sorted(entry.name for entry in weeks if entry.is_symlink() or entry.is_file())
        except OSError as error:
            raise unreadable_error(self._dir, error) from error

    @contextmanager
    def _open_week(self, week: str) -> Generator[BinaryIO]:
        path = self._dir / week
        try:
            with path.open("rb") as file:
                yield file
        except OSError as error:
            raise unreadable_error(path, error) from error

    def _read_pair(self, time: int) -> CapturedPair | None:
        with self._changing:
            rows = self._rows
            at = bisect_left(rows.times, time)
            if at == len(rows.times) or rows.times[at] != time:
                return None
            week = rows.week(at)
            data = self._read_block(week, rows.starts[at], rows.lengths[at])
        for placed in block_format.scan_archive(BytesIO(data), file=week):
            if isinstance(placed, block_format.BlockWarning):
                _log_damaged(placed)
            elif to_microseconds(placed.pair.timestamp) == time:
                return placed.pair
        # If another process has erased something since we opened the file, this place holds other bytes.
        return None


class _ArchiveIndex:
    """One row a pair, sorted by time, and the conversations of each message. Any thread may read while one adds."""

    def __init__(self) -> None:
        self.times = array("q")
        """Microseconds since 1970."""
        self.week_of = array("q")
        """Index in `_weeks`; then offset and length in that file."""
        self.starts = array("q")
        self.lengths = array("q")
        self.damaged: list[block_format.BlockWarning] = []
        self.newest: dict[ConversationId, int] = {}
        self.conversations: dict[str, ConversationId] = {}
        self.further: dict[str, tuple[ConversationId, ...]] = {}
        """Only of the few messages that were captured with several conversations: those after the first."""
        self._weeks: list[str] = []

    def week(self, at: int) -> str:
        return self._weeks[self.week_of[at]]

    def add(self, placed: PairLocation, week: str) -> None:
        time, conversation = placed.time, ConversationId(placed.conversation_id)
        if not self._weeks or self._weeks[-1] != week:
            self._weeks.append(week)
        self.newest[conversation] = max(time, self.newest.get(conversation, time))
        for message_id in placed.message_ids:
            # The first conversation stays: otherwise its id would wander as reply chains grow together.
            if self.conversations.setdefault(message_id, conversation) != conversation:
                further = self.further.get(message_id, ())
                self.further[message_id] = tuple(dict.fromkeys((*further, conversation)))
        self.week_of.append(len(self._weeks) - 1)
        self.starts.append(placed.start)
        self.lengths.append(placed.length)
        # Last: readers in other threads rely on the number of times.
        self.times.append(time)

    def sort(self) -> None:
        """Put the rows in order of time. Only files of other programs need it, by clocks that went back."""
        if all(earlier < later for earlier, later in pairwise(self.times)):
            return
        first: dict[int, int] = {}
        for at in sorted(range(len(self.times)), key=self.times.__getitem__):
            if first.setdefault(self.times[at], at) != at:
                qa_id = qa_ids.make_qa_id(from_microseconds(self.times[at]))
                _log.warning("archive_id_repeated", file=self.week(at), qa_id=qa_id)
        for column in (self.times, self.week_of, self.starts, self.lengths):
            column[:] = array("q", [column[at] for at in first.values()])


def _week_file(timestamp: datetime) -> str:
    year, week, _ = timestamp.isocalendar()
    return f"{year:04d}-W{week:02d}.txt"


def _id_to_micros(qa_id: QAId | None) -> int:
    return _BEFORE_ALL if qa_id is None else to_microseconds(qa_ids.qa_id_time(qa_id))


def _log_damaged(warning: block_format.BlockWarning) -> None:
    _log.warning("archive_block_damaged", file=warning.file, line=warning.line, reason=warning.reason)


_DECODER: msgspec.json.Decoder[Decision] = msgspec.json.Decoder(Decision)


def encode_decision(decision: Decision) -> bytes:
    """Return the line of a decision, with its line break."""
    return msgspec.json.encode(decision) + b"\n"


def parse_decisions(data: bytes, file: str) -> tuple[list[Decision], tuple[block_format.BlockWarning, ...]]:
    """Return the decisions of a file, oldest first, and warnings about the ignored lines.

    Only a line that is torn, damaged or of a later version is lost.
    """
    decisions: list[Decision] = []
    damaged: list[block_format.BlockWarning] = []
    for number, line in enumerate(data.split(b"\n"), 1):
        if not line.strip():
            continue
        try:
            decision = _DECODER.decode(line.removeprefix(BOM_UTF8))  # some editors begin a file with it
            if not isinstance(decision, MessagesWithdrawn | MessagesForgotten):
                qa_ids.qa_id_time(decision.qa_id)
            decisions.append(decision)
        except (msgspec.DecodeError, ValueError) as error:
            damaged.append(block_format.BlockWarning(file, number, str(error)))
    return decisions, tuple(damaged)
