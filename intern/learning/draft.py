"""A library that was built beside the old one takes its place, at once and for good, whenever the process is killed.

Either library stands: the old one until the new one says `COMPLETE`, the new one from then on. The decisions that
belong to the new one lie in its folder until they are in the log. What is no topic comes along. The old library is kept
as `topics.prev` until the next swap. `finish_swap`, called at start-up before the library is opened, completes a swap.

How far a regeneration came stands in `topics.next`, too: which pairs it takes in which order, what the model chose,
and the decisions that are drafted. All of it is on disk before it is used, so whoever goes on after a kill asks no
model twice. The order never depends on who was faster.
"""

from __future__ import annotations

import os
import shutil
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from datetime import datetime
from hashlib import sha256
from itertools import chain, takewhile
from math import inf
from pathlib import Path
from typing import NamedTuple

import msgspec
from msgspec import Struct

from intern.core.errors import KnowledgeError
from intern.core.ids import ConversationId, MessageId, QAId
from intern.core.log import get_logger
from intern.core.records import (
    AwaitingReview,
    CapturedPair,
    Decision,
    Forgotten,
    Moved,
    PairDecision,
    Rejected,
    Replaced,
    Withdrawn,
)
from intern.learning.classifying import Choice
from intern.stores.archive import Archive
from intern.stores.blocks import time_of
from intern.stores.decisions import DecisionLog
from intern.stores.files import FileLayer
from intern.stores.topics import TopicLibrary

_log = get_logger(__name__)

COMPLETE = "COMPLETE"
"""A file of this name in `topics.next` says that it may take the old library's place; in `topics`, that it just did."""

DRAFTED = "decisions.jsonl"
"""A file of this name in `topics.next`, later in `topics`, holds the decisions that are still to be written down."""

JOURNAL = "regeneration.jsonl"
"""A file of this name in `topics.next` tells how far a regeneration came."""

EPOCH = 32
"""Pairs that are classified against the same index."""


def upcoming(topics_dir: Path) -> Path:
    """Where a library is built that is to take the place of this one."""
    return topics_dir.with_name(f"{topics_dir.name}.next")


def swap_in(topics_dir: Path, drafted: Iterable[Decision], decisions: DecisionLog, layer: FileLayer) -> None:
    """Put `topics.next` in the place of `topics`, and write the decisions down that belong to it.

    Raises KnowledgeError; the old library then still stands. (Only where the log takes no more decisions, the new one
    does; the next `finish_swap` writes them down.)
    """
    # What counts as filed stands in a topic, whenever we are killed: the log hears of the new library last.
    lines = b"".join(msgspec.json.encode(each) + b"\n" for each in drafted)
    layer.write_atomically(upcoming(topics_dir) / DRAFTED, lines)
    layer.write_atomically(upcoming(topics_dir) / COMPLETE, b"")
    try:
        finish_swap(topics_dir, decisions, layer)
    except KnowledgeError:
        if topics_dir.exists():
            # Where the old library stays, it goes on growing: no later start may put this one in its place.
            with suppress(OSError):
                (upcoming(topics_dir) / COMPLETE).unlink(missing_ok=True)
        raise


def finish_swap(topics_dir: Path, decisions: DecisionLog | None = None, files: FileLayer | None = None) -> bool:
    """Complete the swap of a regeneration that was killed, and say whether one was due.

    To be called before the library is opened. A library that is not complete is left alone: `intern regenerate` goes
    on with it. The decisions that belong to the new library go into `decisions`; without, they wait beside the topics
    for the next call. Raises KnowledgeError where the disk refuses; nothing is lost then.
    """
    layer = files or FileLayer()
    new, old = upcoming(topics_dir), topics_dir.with_name(f"{topics_dir.name}.prev")
    try:
        due = (new / COMPLETE).exists()
        if due:
            _exchange(topics_dir, new, old, layer)
        if (topics_dir / COMPLETE).exists():
            _bring_along(old, topics_dir, layer)
            (topics_dir / JOURNAL).unlink(missing_ok=True)
            (topics_dir / COMPLETE).unlink()
    except OSError as error:
        raise KnowledgeError(
            f"the regenerated topics in {new} could not take the place of {topics_dir} ({error.strerror}); "
            "check the permissions there, then start again"
        ) from error
    if decisions is not None:
        _write_down(topics_dir / DRAFTED, decisions, layer)
    return due


def _exchange(topics_dir: Path, new: Path, old: Path, layer: FileLayer) -> None:
    if topics_dir.exists() and any(topics_dir.iterdir()):
        if old.exists():
            shutil.rmtree(old)
        layer.rename(topics_dir, old)
    try:
        layer.rename(new, topics_dir)
    except OSError:
        with suppress(OSError):  # the first one says more
            layer.rename(old, topics_dir)
        raise
    sync(topics_dir.parent, layer)


def _bring_along(old: Path, topics_dir: Path, layer: FileLayer) -> None:
    """Move what people and other programs keep among the topics from the old library to the new one."""
    for stranger in _strangers(old):
        place = next(place for place in _places(topics_dir, stranger.name) if not os.path.lexists(place))
        try:
            layer.rename(stranger, place)
        except OSError as error:
            # One folder with rights of its own is no reason not to start.
            _log.warning("foreign_file_left_behind", file=str(stranger), reason=error.strerror)
    if old.exists():
        sync(topics_dir, layer)
        sync(old, layer)


def _strangers(old: Path) -> Sequence[Path]:
    """What is no topic. A file that is called like one and holds no block is somebody's own, too."""
    if not old.exists():
        return ()
    ours = {f"{name}.txt" for name in TopicLibrary(old).names()} | {COMPLETE, DRAFTED, JOURNAL}
    return sorted(entry for entry in old.iterdir() if entry.name not in ours or entry.is_symlink())


def _places(topics_dir: Path, name: str) -> Iterator[Path]:
    yield topics_dir / name
    yield topics_dir / f"{name}.kept"
    n = 2
    while True:
        yield topics_dir / f"{name}.kept{n}"
        n += 1


def _write_down(drafted: Path, decisions: DecisionLog, layer: FileLayer) -> None:
    """Move drafted decisions into the log; what it holds already, or has newer, it keeps."""
    if drafted.exists():
        decisions.extend(_news(list(DecisionLog(drafted, layer).all()), decisions))
        layer.remove(drafted)


def _news(drafted: Sequence[Decision], decisions: DecisionLog) -> list[Decision]:
    """What the log has not heard of yet: it may hold the beginning."""
    of_pair: defaultdict[datetime, list[PairDecision]] = defaultdict(list)
    for each in drafted:
        if not isinstance(each, Withdrawn | Forgotten):
            of_pair[time_of(each.qa_id)].append(each)
    news = {id(each) for several in of_pair.values() for each in _news_of_pair(several, decisions)}
    return [each for each in drafted if id(each) in news]


def _news_of_pair(drafted: Sequence[PairDecision], decisions: DecisionLog) -> Sequence[PairDecision]:
    known = decisions.of(drafted[0].qa_id)
    if known in drafted:
        return drafted[max(n for n, each in enumerate(drafted) if each == known) + 1 :]
    return drafted if known is None or known.at <= drafted[-1].at else ()


def sync(folder: Path, layer: FileLayer) -> None:
    """Wait until the disk knows what is in a folder."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        layer.fsync(fd)
    finally:
        os.close(fd)


class _Line(Struct, frozen=True, kw_only=True, tag_field="line", tag=str.lower):
    pass


class Round(_Line, frozen=True, kw_only=True):
    """The pairs of one reading of the archive; a further round takes what was archived meanwhile."""

    pairs: int
    """Older captures of the same conversations included, also what is held back."""
    order: tuple[QAId, ...]
    """One pair of each conversation, its most complete one; oldest answer first."""
    replaced: tuple[tuple[QAId, QAId], ...]
    """Older captures, each with the one that stands for its conversation."""
    last: QAId | None
    digest: str
    """Tells the pairs that were read from any others."""

    def epochs(self) -> Iterator[tuple[QAId, ...]]:
        """The order, an epoch at a time."""
        for start in range(0, len(self.order), EPOCH):
            yield self.order[start : start + EPOCH]


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

    @property
    def total(self) -> int:
        """Conversations that are planned."""
        return sum(len(each.order) for each in self.rounds)

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


class Draft(DecisionLog):
    """Decisions that count only if the new library comes to stand. What is withdrawn, is so for good and at once."""

    def __init__(self, folder: Path, decisions: DecisionLog, files: FileLayer) -> None:
        """`decisions` are those that hold."""
        super().__init__(folder / DRAFTED, files)
        self._decisions = decisions

    def extend(self, decisions: Iterable[Decision]) -> None:
        """Draft many at once."""
        listed = list(decisions)
        self._decisions.extend(each for each in listed if isinstance(each, Withdrawn | Forgotten))
        super().extend(each for each in listed if not isinstance(each, Withdrawn | Forgotten))

    def taken(self) -> list[PairDecision]:
        """All of them, as they were taken."""
        return [each for each in self.all() if not isinstance(each, Withdrawn | Forgotten)]

    def is_withdrawn(self, message_id: MessageId) -> bool:
        """Whether a message may teach nothing any more."""
        return self._decisions.is_withdrawn(message_id)

    def withdrawn(self, since: int = 0) -> Sequence[MessageId]:
        """The messages that were withdrawn, in that order, but for the first `since`."""
        return self._decisions.withdrawn(since)


def opened(topics_dir: Path, archive: Archive, *, basis: str, files: FileLayer) -> Journal:
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


class _Version(NamedTuple):
    """A capture of a conversation; the greatest is the one to keep."""

    messages: int
    """Less those that were withdrawn since."""
    archived: datetime
    answered: datetime
    qa_id: QAId


def planned(
    archive: Archive, after: QAId | None, decisions: DecisionLog, awaits_review: Callable[[QAId], bool]
) -> Round:
    """The round that follows the pair `after`. What waits for review or was rejected is left out. Blocks."""
    versions: defaultdict[ConversationId, list[_Version]] = defaultdict(list)
    pairs, last, digest = 0, after, sha256()
    for pair in archive.after(after):
        pairs, last = pairs + 1, pair.qa_id
        digest.update(msgspec.json.encode(pair))
        if not is_held_back(pair.qa_id, decisions) and not awaits_review(pair.qa_id):
            messages = len(pair.message_ids) - sum(map(decisions.is_withdrawn, pair.message_ids))
            version = _Version(messages, pair.timestamp, pair.answered_at, pair.qa_id)
            versions[pair.conversation_id].append(version)
    kept = sorted(map(max, versions.values()), key=lambda version: (version.answered, version.archived))
    replaced = [(version.qa_id, max(group).qa_id) for group in versions.values() for version in sorted(group)[:-1]]
    order = tuple(version.qa_id for version in kept)
    return Round(pairs=pairs, order=order, replaced=tuple(replaced), last=last, digest=digest.hexdigest())


def is_held_back(qa_id: QAId, decisions: DecisionLog) -> bool:
    """Whether the team has not approved the pair, or has rejected it."""
    return isinstance(decisions.of(qa_id), AwaitingReview | Rejected)


def awaiting_review(
    decisions: DecisionLog, passed_over: QAId | None, stands: Callable[[QAId], bool]
) -> Callable[[QAId], bool]:
    """Where the team reviews all captures: whether a pair is still to be put to them.

    So are all without a decision, for a damaged log may have lost a rejection; but not what `stands` in a topic
    already, nor what is as old as `passed_over`, the pair up to which the operator wants none looked at.
    """
    known = None if passed_over is None else time_of(passed_over)

    def awaits(qa_id: QAId) -> bool:
        return decisions.of(qa_id) is None and (known is None or time_of(qa_id) > known) and not stands(qa_id)

    return awaits


def still_begins_with(archive: Archive, rounds: Iterable[Round]) -> bool:
    """Whether the archive holds what these rounds have read, unchanged. Blocks."""
    after: QAId | None = None
    for each in rounds:
        if _digest(archive, after, each.last) != each.digest:
            return False
        after = each.last
    return True


def _digest(archive: Archive, after: QAId | None, last: QAId | None) -> str:
    digest = sha256()
    if last is not None:
        for pair in takewhile(_until(time_of(last)), archive.after(after)):
            digest.update(msgspec.json.encode(pair))
    return digest.hexdigest()


def _until(last: datetime) -> Callable[[CapturedPair], bool]:
    return lambda pair: time_of(pair.qa_id) <= last


def in_order(decisions: Iterable[PairDecision], epochs: Sequence[Sequence[QAId]]) -> list[PairDecision]:
    """The decisions as they would have come one by one, whichever topic was faster.

    Those about a pair stay in their order, and so do those of a topic, which come in the order of its pairs.
    """
    places = {time_of(qa_id): (n, float(at)) for n, epoch in enumerate(epochs) for at, qa_id in enumerate(epoch)}
    told: dict[datetime, tuple[int, float]] = {}
    now = 0
    placed: list[tuple[tuple[int, float], PairDecision]] = []
    for each in decisions:
        about = [time_of(each.qa_id), *([time_of(each.by)] if isinstance(each, Replaced) else ())]
        # Moves come at an epoch's end, one by one.
        known = [] if isinstance(each, Moved) else [places[time] for time in about if time in places]
        place = max([max(known, default=(now, inf)), *(told[time] for time in about if time in told)])
        now = max(now, place[0])
        told[about[0]] = place
        placed.append((place, each))
    return [each for _, each in sorted(placed, key=lambda item: item[0])]
