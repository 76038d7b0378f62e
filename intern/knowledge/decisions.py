"""What was done with each archived pair: a log that is only appended to, and the cursor derived from it.

A decision is on disk when `append` returns. In memory stands the last decision about each pair, and which messages
were withdrawn.

Any thread may append or read.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from pathlib import Path

import msgspec
from msgspec import Struct

from intern.domain import Decision, MessageId, PairDecision, QAId, Withdrawn
from intern.knowledge.blocks import time_of, whole
from intern.knowledge.files import FileLayer, unreadable
from intern.observe.log import get_logger

_log = get_logger(__name__)

_DECODER: msgspec.json.Decoder[Decision] = msgspec.json.Decoder(Decision)


class DecisionLog:
    """`decisions.jsonl`, one decision a line. Raises KnowledgeError where it cannot be read.

    A line that is torn, damaged or of a later version costs itself, with a warning.
    """

    def __init__(self, path: Path, files: FileLayer | None = None) -> None:
        self._path = path
        self._files = files or FileLayer()
        self._last: dict[datetime, PairDecision] = {}
        self._newest: datetime | None = None
        self._withdrawn: list[MessageId] = []
        self._gone: set[str] = set()
        # A withdrawal does not wait for a regeneration that writes its own decisions.
        self._appending = threading.Lock()
        for decision in self._read(warn=True):
            self._remember(decision)

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
        return self._read(warn=False)

    def of(self, qa_id: QAId) -> PairDecision | None:
        """The last decision about a pair; None where there is none yet."""
        try:
            return self._last.get(time_of(qa_id))
        except ValueError:
            return None

    def decided(self, qa_id: QAId) -> bool:
        """Whether anything was decided about a pair; to park it is a decision, too."""
        return self.of(qa_id) is not None

    def cursor(self) -> QAId | None:
        """The newest pair that was decided; None where none was."""
        return None if self._newest is None else self._last[self._newest].qa_id

    def is_withdrawn(self, message_id: MessageId) -> bool:
        """Whether a message may teach nothing any more."""
        return _bare(message_id) in self._gone

    def withdrawn(self, since: int = 0) -> Sequence[MessageId]:
        """The messages that were withdrawn, in that order, but for the first `since`."""
        return self._withdrawn[since:]

    def _remember(self, decision: Decision) -> None:
        if isinstance(decision, Withdrawn):
            self._gone.update(map(_bare, decision.message_ids))
            self._withdrawn.extend(decision.message_ids)
            return
        time = time_of(decision.qa_id)
        self._last[time] = decision
        if self._newest is None or time > self._newest:
            self._newest = time

    def _read(self, *, warn: bool) -> Iterator[Decision]:
        try:
            with self._path.open("rb") as file:
                for number, line in enumerate(file, 1):
                    if not line.strip():
                        continue
                    try:
                        decision = _DECODER.decode(line)
                        if not isinstance(decision, Withdrawn):
                            time_of(decision.qa_id)
                    except (msgspec.DecodeError, ValueError) as error:
                        if warn:
                            _log.warning("decision_damaged", file=self._path.name, line=number, reason=str(error))
                    else:
                        yield decision
        except FileNotFoundError:
            return
        except OSError as error:
            raise unreadable(self._path, error) from error


def _bare(message_id: MessageId) -> str:
    # Discord's ids are bare; other programs wrote `msg_<id>`.
    return message_id.removeprefix("msg_")


class _State(Struct):
    last_processed_qa_id: QAId


def read_state(path: Path, files: FileLayer | None = None) -> QAId | None:
    """The cursor in `state.json`; None where the file is missing, empty or damaged (with a warning), or says none."""
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


def recover_state(path: Path, decisions: DecisionLog, files: FileLayer | None = None) -> QAId | None:
    """The cursor to start from: the newer of `state.json` and the decisions. The file is written anew if it differs."""
    stated, decided = read_state(path, files), decisions.cursor()
    known = [cursor for cursor in (stated, decided) if cursor is not None]
    cursor = max(known, key=time_of, default=None)
    if cursor is not None and cursor != stated:
        write_state(path, cursor, files)
    return cursor
