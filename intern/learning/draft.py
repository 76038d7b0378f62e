"""The draft of a regenerated library in `topics.next`: its plan, its choices, its decisions, and the final swap.

The swap is atomic. The old library is valid until the new one has the file `COMPLETE`, the new one from then on. Its
decisions are in its folder until they are in the log. Files that are not topics move along. The old library stays as
`topics.prev` until the next swap. `finish_swap` completes a swap after a crash; call it before opening the library.

The plan, the model's choices and the drafted decisions are on disk before they are used. So a regeneration continues
after a crash without repeating a model call. The order never depends on which call was faster.
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
from itertools import chain, count
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
from intern.stores.library import TopicLibrary

_log = get_logger(__name__)

COMPLETE = "COMPLETE"
"""A file of this name in `topics.next`: it is ready to replace the old library. In `topics`: it just has."""

DRAFTED = "decisions.jsonl"
"""A file of this name in `topics.next`, later in `topics`: the decisions that are not in the log yet."""

JOURNAL = "regeneration.jsonl"
"""A file of this name in `topics.next`: the progress of a regeneration."""

EPOCH = 32
"""The number of pairs that are classified with the same index."""


def upcoming(topics_dir: Path) -> Path:
    """Return the folder of the draft."""
    return topics_dir.with_name(f"{topics_dir.name}.next")


def swap_in(topics_dir: Path, drafted: Iterable[Decision], decisions: DecisionLog, layer: FileLayer) -> None:
    """Replace `topics` with `topics.next`, and log its decisions.

    Raises KnowledgeError; the old library is then still in place. (If only logging the decisions failed, the new one is
    in place, and the next `finish_swap` logs them.)
    """
    # The log comes last: a filed pair must be in a topic, also after a crash at any point.
    lines = b"".join(msgspec.json.encode(each) + b"\n" for each in drafted)
    layer.write_atomically(upcoming(topics_dir) / DRAFTED, lines)
    layer.write_atomically(upcoming(topics_dir) / COMPLETE, b"")
    try:
        finish_swap(topics_dir, decisions, layer)
    except KnowledgeError:
        if topics_dir.exists():
            # The old library stays and grows, so a later start must not replace it with this one.
            with suppress(OSError):
                (upcoming(topics_dir) / COMPLETE).unlink(missing_ok=True)
        raise


def finish_swap(topics_dir: Path, decisions: DecisionLog | None = None, files: FileLayer | None = None) -> bool:
    """Complete the swap of a killed regeneration, and return whether one was due.

    Call it before opening the library. An incomplete draft is left alone: `intern regenerate` continues it. The drafted
    decisions go into `decisions`; without it, they wait beside the topics for the next call. Raises KnowledgeError if
    the disk fails; nothing is lost then.
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
        with suppress(OSError):  # the first error says more
            layer.rename(old, topics_dir)
        raise
    layer.sync_folder(topics_dir.parent)


def _bring_along(old: Path, topics_dir: Path, layer: FileLayer) -> None:
    """Move the files of people and other programs from the old library to the new one."""
    for stranger in _strangers(old):
        place = next(place for place in _places(topics_dir, stranger.name) if not os.path.lexists(place))
        try:
            layer.rename(stranger, place)
        except OSError as error:
            # A folder with unusual permissions must not prevent a start.
            _log.warning("foreign_file_left_behind", file=str(stranger), reason=error.strerror)
    if old.exists():
        layer.sync_folder(topics_dir)
        layer.sync_folder(old)


def _strangers(old: Path) -> Sequence[Path]:
    """List the files that are not topics. A file with a topic's name but no block counts, too."""
    if not old.exists():
        return ()
    ours = {f"{name}.txt" for name in TopicLibrary(old).names()} | {COMPLETE, DRAFTED, JOURNAL}
    return sorted(entry for entry in old.iterdir() if entry.name not in ours or entry.is_symlink())


def _places(topics_dir: Path, name: str) -> Iterator[Path]:
    kept = (f"{name}.kept{n}" for n in count(2))
    return (topics_dir / each for each in chain((name, f"{name}.kept"), kept))


def _write_down(drafted: Path, decisions: DecisionLog, layer: FileLayer) -> None:
    """Move drafted decisions into the log, except those that it has already, or has newer."""
    if drafted.exists():
        decisions.extend(_news(list(DecisionLog(drafted, layer).all()), decisions))
        layer.remove(drafted)


def _news(drafted: Sequence[Decision], decisions: DecisionLog) -> list[Decision]:
    """Return the decisions that the log lacks. It may have the first ones already."""
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


class _Line(Struct, frozen=True, kw_only=True, tag_field="line", tag=str.lower):
    pass


class Round(_Line, frozen=True, kw_only=True):
    """The pairs of one reading of the archive. A further round takes the pairs that were archived meanwhile."""

    pairs: int
    """With older captures of the same conversations, and those that are held back."""
    order: tuple[QAId, ...]
    """The most complete pair of each conversation, oldest answer first."""
    replaced: tuple[tuple[QAId, QAId], ...]
    """Older captures, each with the pair that replaces it."""
    last: QAId | None
    digest: str
    """The hash of the pairs that were read."""

    def epochs(self) -> Iterator[tuple[QAId, ...]]:
        """Yield the order, an epoch at a time."""
        for start in range(0, len(self.order), EPOCH):
            yield self.order[start : start + EPOCH]


class Begun(_Line, frozen=True, kw_only=True):
    """The first line. `basis` identifies everything that determines the result, except the archive."""

    basis: str


class Chosen(_Line, frozen=True, kw_only=True):
    """The choice for a pair."""

    qa_id: QAId
    choice: Choice
    again: bool = False
    """Chosen a second time, with the topics that the epoch opened before."""


class Classified(_Line, frozen=True, kw_only=True):
    """All pairs of an epoch have a choice; from here on the library changes."""

    epoch: int


class Finished(_Line, frozen=True, kw_only=True):
    """All pairs of an epoch are decided. Calls and tokens are those of all epochs so far."""

    epoch: int
    calls: int
    tokens: int


Line = Begun | Round | Chosen | Classified | Finished
_DECODER: msgspec.json.Decoder[Line] = msgspec.json.Decoder(Line)


class Journal:
    """The append-only file `regeneration.jsonl`. Any thread may write. Raises KnowledgeError."""

    def __init__(self, folder: Path, files: FileLayer) -> None:
        self._path = folder / JOURNAL
        self._files = files
        self._writing = threading.Lock()
        self.basis: str | None = None
        """None if no regeneration was started."""
        self.rounds: list[Round] = []
        self.classified = 0
        """Epochs whose pairs have a choice."""
        self.finished = 0
        """Epochs whose pairs are decided."""
        self.calls = 0
        self.tokens = 0
        self.first: dict[QAId, Choice] = {}
        """The choices of the current epoch."""
        self.again: dict[QAId, Choice] = {}
        """The second choices of the current epoch."""
        for line in filter(bytes.strip, (files.read(self._path) or b"").splitlines()):
            try:
                self._remember(_DECODER.decode(line))
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                # A crash cut the line, so it was never used.
                _log.warning("regeneration_line_damaged", file=self._path.name, reason=str(error))

    def write(self, line: Line) -> None:
        """Add a line, durably."""
        with self._writing:
            self._files.append_durably(self._path, msgspec.json.encode(line) + b"\n", fresh_line=True)
            self._remember(line)

    @property
    def epochs(self) -> list[tuple[QAId, ...]]:
        """The pairs of all planned epochs."""
        return list(chain.from_iterable(each.epochs() for each in self.rounds))

    @property
    def total(self) -> int:
        """The number of planned conversations."""
        return sum(len(each.order) for each in self.rounds)

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
    """Decisions that count only once the new library is in place. Withdrawals are those of the current library."""

    def __init__(self, folder: Path, decisions: DecisionLog, files: FileLayer) -> None:
        """Open the draft. `decisions` is the log of the current library."""
        super().__init__(folder / DRAFTED, files)
        self._decisions = decisions

    def taken(self) -> list[PairDecision]:
        """Return all drafted decisions, oldest first."""
        return [each for each in self.all() if not isinstance(each, Withdrawn | Forgotten)]

    def is_withdrawn(self, message_id: MessageId) -> bool:
        """Whether a message may teach nothing any more."""
        return self._decisions.is_withdrawn(message_id)

    def withdrawn(self, since: int = 0) -> Sequence[MessageId]:
        """Return the withdrawn messages, oldest first, without the first `since`."""
        return self._decisions.withdrawn(since)


def opened(topics_dir: Path, archive: Archive, *, basis: str, files: FileLayer) -> Journal:
    """Open the journal of the unfinished regeneration if it can continue, else of a new one in an empty folder.

    It can continue if `basis` is the same, and the archive still has the pairs that were read. Raises KnowledgeError.
    Blocks.
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
    """Delete the draft of an unfinished regeneration. Raises KnowledgeError."""
    folder, layer = upcoming(topics_dir), files or FileLayer()
    if not folder.exists():
        return
    # The journal first: with it, half a library would look like a whole one.
    layer.remove(folder / JOURNAL)
    try:
        shutil.rmtree(folder)
    except OSError as error:
        raise KnowledgeError(f"{folder} could not be cleared ({error.strerror}); check its permissions") from error


class _Version(NamedTuple):
    """A capture of a conversation. The greatest one is kept."""

    messages: int
    """Without the withdrawn ones."""
    archived: datetime
    answered: datetime
    qa_id: QAId


def planned(
    archive: Archive, after: QAId | None, decisions: DecisionLog, awaits_review: Callable[[QAId], bool]
) -> Round:
    """Plan the round after the pair `after`, without pairs that wait for review or were rejected. Blocks."""
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
    """Whether the pair waits for review, or was rejected."""
    return isinstance(decisions.of(qa_id), AwaitingReview | Rejected)


def awaiting_review(decisions: DecisionLog, passed_over: QAId | None, topics: TopicLibrary) -> Callable[[QAId], bool]:
    """Return a function that says whether a pair still needs review. For use with `kb.review`.

    All pairs without a decision do, because a damaged log may have lost a rejection. Exceptions are pairs that are in a
    topic already, and those up to `passed_over`, which the operator wants to skip.
    """
    known = None if passed_over is None else time_of(passed_over)
    return lambda qa_id: (
        decisions.of(qa_id) is None and (known is None or time_of(qa_id) > known) and topics.topic_of(qa_id) is None
    )


def still_begins_with(archive: Archive, rounds: Iterable[Round]) -> bool:
    """Whether the archive still has the pairs that these rounds read, unchanged. Blocks."""
    after: QAId | None = None
    for each in rounds:
        digest = sha256()
        for pair in archive.after(after):
            if each.last is None or time_of(pair.qa_id) > time_of(each.last):
                break
            digest.update(msgspec.json.encode(pair))
        if digest.hexdigest() != each.digest:
            return False
        after = each.last
    return True


def in_order(decisions: Iterable[PairDecision], epochs: Sequence[Sequence[QAId]]) -> list[PairDecision]:
    """Sort the decisions as if the pairs had been decided one by one.

    The decisions of a pair stay in their order, and those of a topic come in the order of its pairs.
    """
    places = {time_of(qa_id): (n, float(at)) for n, epoch in enumerate(epochs) for at, qa_id in enumerate(epoch)}
    told: dict[datetime, tuple[int, float]] = {}
    now = 0
    placed: list[tuple[tuple[int, float], PairDecision]] = []
    for each in decisions:
        about = [time_of(each.qa_id), *([time_of(each.by)] if isinstance(each, Replaced) else ())]
        # Moves come one by one at the end of an epoch.
        known = [] if isinstance(each, Moved) else [places[time] for time in about if time in places]
        place = max([max(known, default=(now, inf)), *(told[time] for time in about if time in told)])
        now = max(now, place[0])
        told[about[0]] = place
        placed.append((place, each))
    return [each for _, each in sorted(placed, key=lambda item: item[0])]
