"""What was done with each archived pair: a log that is only appended to, and the cursor derived from it.

A decision is on disk when `append` returns. In memory stands the last decision about each pair, and which messages
were withdrawn or forgotten.

Any thread may append or read.
"""

from __future__ import annotations

import threading
from codecs import BOM_UTF8
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from itertools import islice
from os import SEEK_END
from pathlib import Path
from typing import NamedTuple, TypeVar

import msgspec
from msgspec import Struct

from intern.core.ids import MessageId, QAId, UserId, position_of
from intern.core.log import get_logger
from intern.core.records import Approved, AwaitingReview, Decision, Forgotten, PairDecision, Parked, Rejected, Withdrawn
from intern.core.text.masking import whole
from intern.stores.blocks import BlockWarning, bare, time_of
from intern.stores.files import FileLayer, unreadable

_log = get_logger(__name__)

D = TypeVar("D", bound=PairDecision)

_DECODER: msgspec.json.Decoder[Decision] = msgspec.json.Decoder(Decision)


class Placed(NamedTuple):
    """A decision, and where it ends in the log: a follower goes on from there."""

    end: int
    decision: Decision


class DecisionLog:
    """`decisions.jsonl`, one decision a line. Raises KnowledgeError where it cannot be read.

    A line that is torn, damaged or of a later version costs itself, with a warning.
    """

    def __init__(self, path: Path, files: FileLayer | None = None) -> None:
        self._path = path
        self._files = files or FileLayer()
        self._last: dict[datetime, PairDecision] = {}
        self._newest: datetime | None = None
        # Few of many, and asked for again and again.
        self._open: dict[datetime, Approved | AwaitingReview | Parked] = {}
        self._reviewed: dict[datetime, Approved | Rejected] = {}
        self._withdrawn: list[MessageId] = []
        self._gone: set[str] = set()
        self._forgotten: dict[UserId, datetime] = {}
        # A withdrawal does not wait for a regeneration that writes its own decisions.
        self._appending = threading.Lock()
        damaged: list[BlockWarning] = []
        for placed in self._read(damaged):
            self._remember(placed.decision)
        self.damaged = tuple(damaged)
        """What was passed over when the file was read."""

    def append(self, decision: Decision) -> None:
        """Write a decision down. Raises KnowledgeError, and it has not been taken then."""
        self.extend((decision,))

    def extend(self, decisions: Iterable[Decision]) -> None:
        """Write many down at once. Raises KnowledgeError, and none has been taken then."""
        taken = [msgspec.structs.replace(each, reason=whole(each.reason)) for each in decisions]
        if not taken:
            return
        lines = b"".join(msgspec.json.encode(each) + b"\n" for each in taken)
        with self._appending:
            self._files.append_durably(self._path, lines, fresh_line=True)
            for each in taken:
                self._remember(each)

    def all(self) -> Iterator[Decision]:
        """Every decision ever taken, oldest first, read as they are asked for."""
        return (placed.decision for placed in self._read())

    def after(self, position: int, most: int) -> Sequence[Placed]:
        """Return some of the decisions behind `position` (0: from the start), oldest first.

        A position behind the end is of another log; then it is read from the start. Blocks; raises KnowledgeError.
        """
        return tuple(islice(self._read(start=position), most))

    def of(self, qa_id: QAId) -> PairDecision | None:
        """Return the last decision about a pair; None where there is none yet."""
        try:
            return self._last.get(time_of(qa_id))
        except ValueError:
            return None

    def decided(self, qa_id: QAId) -> bool:
        """Whether anything was decided about a pair; to park it is a decision, too."""
        return self.of(qa_id) is not None

    def cursor(self) -> QAId | None:
        """Return the newest pair that was decided; None where none was."""
        return None if self._newest is None else self._last[self._newest].qa_id

    def due(self) -> Sequence[Approved]:
        """Return the pairs that are approved and not filed yet, oldest pair first."""
        return self._still(Approved)

    def parked(self) -> Sequence[Parked]:
        """Return the pairs that are parked now, oldest pair first."""
        return self._still(Parked)

    def awaiting(self) -> Sequence[AwaitingReview]:
        """Return the pairs that wait for a review by the team, oldest pair first."""
        return self._still(AwaitingReview)

    def review_of(self, qa_id: QAId) -> Approved | Rejected | None:
        """Return the last review of a pair by the team, even if other decisions followed."""
        return self._reviewed.get(time_of(qa_id))

    def is_withdrawn(self, message_id: MessageId) -> bool:
        """Whether a message may teach nothing any more: it was deleted, or is to be forgotten."""
        return bare(message_id) in self._gone

    def is_forgotten(self, user_id: UserId, message_id: MessageId) -> bool:
        """Whether a member's message is older than their wish to be forgotten.

        It need not have been captured by then. For an id without a time, the answer is yes.
        """
        until = self._forgotten.get(user_id)
        if until is None:
            return False
        try:
            return position_of(bare(message_id)).time <= until
        except (ValueError, OverflowError):
            return True

    def withdrawn(self, since: int = 0) -> Sequence[MessageId]:
        """Return the messages that were withdrawn or forgotten, in that order, without the first `since`."""
        return self._withdrawn[since:]

    def _still(self, kind: type[D]) -> Sequence[D]:
        # A copy at once: another thread may decide meanwhile.
        waiting = tuple(self._open.values())
        return sorted((each for each in waiting if isinstance(each, kind)), key=lambda each: time_of(each.qa_id))

    def _remember(self, decision: Decision) -> None:
        if isinstance(decision, Withdrawn | Forgotten):
            self._gone.update(map(bare, decision.message_ids))
            self._withdrawn.extend(decision.message_ids)
            if isinstance(decision, Forgotten) and decision.user_id is not None:
                known = self._forgotten.get(decision.user_id, decision.at)
                self._forgotten[decision.user_id] = max(known, decision.at)
            return
        time = time_of(decision.qa_id)
        self._last[time] = decision
        self._open.pop(time, None)
        if isinstance(decision, Approved | AwaitingReview | Parked):
            self._open[time] = decision
        if isinstance(decision, Approved | Rejected):
            self._reviewed[time] = decision
        if self._newest is None or time > self._newest:
            self._newest = time

    def _read(self, damaged: list[BlockWarning] | None = None, *, start: int = 0) -> Iterator[Placed]:
        try:
            with self._path.open("rb") as file:
                end = start if start <= file.seek(0, SEEK_END) else 0
                file.seek(end)
                for number, line in enumerate(file, 1):
                    end += len(line)
                    if not line.strip():
                        continue
                    try:
                        decision = _DECODER.decode(line.removeprefix(BOM_UTF8))  # some editors begin a file with it
                        if not isinstance(decision, Withdrawn | Forgotten):
                            time_of(decision.qa_id)
                    except (msgspec.DecodeError, ValueError) as error:
                        if damaged is not None:
                            damaged.append(BlockWarning(self._path.name, number, str(error)))
                            _log.warning("decision_damaged", file=self._path.name, line=number, reason=str(error))
                    else:
                        yield Placed(end, decision)
        except FileNotFoundError:
            return
        except OSError as error:
            raise unreadable(self._path, error) from error


class _State(Struct):
    last_processed_qa_id: QAId


def read_state(path: Path, files: FileLayer | None = None) -> QAId | None:
    """Return the cursor in `state.json`; None where it is missing, empty, or damaged (with a warning)."""
    data = (files or FileLayer()).read(path)
    if data is None:
        return None
    try:
        cursor = msgspec.json.decode(data, type=_State).last_processed_qa_id
        if not cursor:
            return None
        time_of(cursor)
    except (msgspec.DecodeError, ValueError) as error:
        _log.warning("state_damaged", file=path.name, reason=str(error))
        return None
    return cursor


def write_state(path: Path, cursor: QAId | None, files: FileLayer | None = None) -> None:
    """Write `state.json` beside the decisions, at once. It is for people and other programs; the decisions decide."""
    state = _State(last_processed_qa_id=cursor or QAId(""))
    (files or FileLayer()).write_atomically(path, msgspec.json.encode(state) + b"\n")


def recover_state(
    path: Path, decisions: DecisionLog, files: FileLayer | None = None, *, latest: datetime | None = None
) -> QAId | None:
    """Return the cursor to start from: the newer of `state.json` and the decisions. Rewrite the file if it differs.

    What it says counts as damaged where it is later than `latest` and all decisions: pairs to come would be passed over
    unseen.
    """
    stated, decided = read_state(path, files), decisions.cursor()
    known = [cursor for cursor in (stated, decided) if cursor is not None]
    cursor = max(known, key=time_of, default=None)
    if latest is not None and cursor is not None and cursor != decided and time_of(cursor) > latest:
        reason = f"{cursor} is later than all that was archived, and than now"
        _log.warning("state_damaged", file=path.name, reason=reason)
        cursor = decided
    if cursor != stated:
        write_state(path, cursor, files)
    return cursor
