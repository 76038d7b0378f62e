"""How far a regeneration came, in `topics.next`: its plan, what the model chose, and the decisions that are drafted.

All of it is on disk before it is used, so whoever goes on after a kill asks no model twice.
"""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path

import msgspec
from msgspec import Struct

from intern.domain import Decision, Forgotten, MessageId, PairDecision, QAId, Withdrawn
from intern.errors import KnowledgeError
from intern.knowledge.decisions import DecisionLog
from intern.knowledge.files import FileLayer
from intern.learning.filing import Choice, Decisions, PairsAfter
from intern.learning.rounds import Round, still_begins_with
from intern.learning.swapping import DRAFTED, JOURNAL, upcoming
from intern.observe.log import get_logger

_log = get_logger(__name__)


class _Line(Struct, frozen=True, kw_only=True, tag_field="line", tag=str.lower):
    pass


class Begun(_Line, frozen=True, kw_only=True):
    """The first line. `basis` tells all that decides the result, beside the archive."""

    basis: str


class Chosen(_Line, frozen=True, kw_only=True):
    """Where a pair goes."""

    qa_id: QAId
    choice: Choice
    again: bool = False
    """Chosen a second time, knowing the topics that the epoch opened before."""


class Classified(_Line, frozen=True, kw_only=True):
    """All pairs of an epoch have their places; from here on the library changes."""

    epoch: int


class Finished(_Line, frozen=True, kw_only=True):
    """All pairs of an epoch are decided. Calls and tokens are those of all epochs so far."""

    epoch: int
    calls: int
    tokens: int


Line = Begun | Round | Chosen | Classified | Finished
_DECODER: msgspec.json.Decoder[Line] = msgspec.json.Decoder(Line)


class Journal:
    """`regeneration.jsonl`, which is only appended to. Any thread may write. Raises KnowledgeError."""

    def __init__(self, folder: Path, files: FileLayer) -> None:
        self._path = folder / JOURNAL
        self._files = files
        self._writing = threading.Lock()
        self.basis: str | None = None
        """None where nothing was begun."""
        self.rounds: list[Round] = []
        self.classified = 0
        """Epochs whose pairs have their places."""
        self.finished = 0
        """Epochs whose pairs are decided."""
        self.calls = 0
        self.tokens = 0
        self.first: dict[QAId, Choice] = {}
        """What was chosen in the epoch under way."""
        self.again: dict[QAId, Choice] = {}
        """What was chosen there a second time."""
        for line in (files.read(self._path) or b"").splitlines():
            if line.strip():
                self._read(line)

    def write(self, line: Line) -> None:
        """Add a line, durably."""
        with self._writing:
            self._files.append_durably(self._path, msgspec.json.encode(line) + b"\n", fresh_line=True)
            self._remember(line)

    @property
    def epochs(self) -> list[tuple[QAId, ...]]:
        """The pairs of all epochs that are planned."""
        return list(chain.from_iterable(each.epochs() for each in self.rounds))

    def _read(self, line: bytes) -> None:
        try:
            self._remember(_DECODER.decode(line))
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            # Torn by a kill, so nobody has gone by it.
            _log.warning("regeneration_line_damaged", file=self._path.name, reason=str(error))

    def _remember(self, line: Line) -> None:
        match line:
            case Begun():
                self.basis = line.basis
            case Round():
                self.rounds.append(line)
            case Chosen():
                (self.again if line.again else self.first)[line.qa_id] = line.choice
            case Classified():
                self.classified = line.epoch + 1
            case Finished():
                self.finished, self.calls, self.tokens = line.epoch + 1, line.calls, line.tokens
                self.first.clear()
                self.again.clear()


class Draft:
    """Decisions that count only if the new library comes to stand. What is withdrawn, is so for good and at once."""

    def __init__(self, folder: Path, decisions: Decisions, files: FileLayer) -> None:
        self._drafted = DecisionLog(folder / DRAFTED, files)
        self._decisions = decisions

    def append(self, decision: Decision) -> None:
        """Draft a decision, durably."""
        self.extend((decision,))

    def extend(self, decisions: Iterable[Decision]) -> None:
        """Draft many at once."""
        listed = list(decisions)
        final = [each for each in listed if isinstance(each, Withdrawn | Forgotten)]
        self._decisions.extend(final)
        self._drafted.extend(each for each in listed if not isinstance(each, Withdrawn | Forgotten))

    def of(self, qa_id: QAId) -> PairDecision | None:
        """The last draft about a pair."""
        return self._drafted.of(qa_id)

    def all(self) -> Iterator[Decision]:
        """Every draft, oldest first."""
        return self._drafted.all()

    def taken(self) -> list[PairDecision]:
        """All of them, as they were taken."""
        return [each for each in self._drafted.all() if not isinstance(each, Withdrawn | Forgotten)]

    def is_withdrawn(self, message_id: MessageId) -> bool:
        """Whether a message may teach nothing any more."""
        return self._decisions.is_withdrawn(message_id)

    def withdrawn(self, since: int = 0) -> Sequence[MessageId]:
        """The messages that were withdrawn, in that order, but for the first `since`."""
        return self._decisions.withdrawn(since)

    def cursor(self) -> QAId | None:
        """The newest pair that a draft is about."""
        return self._drafted.cursor()


def opened(topics_dir: Path, archive: PairsAfter, *, basis: str, files: FileLayer) -> Journal:
    """The journal of the regeneration that was begun, if that may go on, else of a new one in an empty folder.

    It may go on where `basis` is the same, and the archive still holds what was read. Raises KnowledgeError. Blocks.
    """
    folder = upcoming(topics_dir)
    journal = Journal(folder, files)
    if journal.basis == basis and still_begins_with(archive, journal.rounds):
        for left_by_a_kill in folder.glob(".*.tmp"):
            left_by_a_kill.unlink()
        return journal
    discard(topics_dir, files)
    journal = Journal(folder, files)
    journal.write(Begun(basis=basis))
    return journal


def discard(topics_dir: Path, files: FileLayer | None = None) -> None:
    """Throw away what an unfinished regeneration has built: the next begins anew. Raises KnowledgeError."""
    folder, layer = upcoming(topics_dir), files or FileLayer()
    if not folder.exists():
        return
    # First of all: half a library beside a whole journal would pass for a whole one.
    layer.remove(folder / JOURNAL)
    try:
        shutil.rmtree(folder)
    except OSError as error:
        raise KnowledgeError(f"{folder} could not be cleared ({error.strerror}); check its permissions") from error
