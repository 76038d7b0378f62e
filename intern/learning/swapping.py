"""A library that was built beside the old one takes its place, at once and for good, whenever the process is killed.

Either library stands: the old one until the new one says `COMPLETE`, the new one from then on. The decisions that
belong to the new one lie in its folder until they are in the log. What is no topic comes along. The old library is kept
as `topics.prev` until the next swap. `finish_swap`, called at start-up before the library is opened, completes a swap.
"""

from __future__ import annotations

import os
import shutil
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Protocol

import msgspec

from intern.domain import Decision, Forgotten, PairDecision, QAId, Withdrawn
from intern.errors import KnowledgeError
from intern.knowledge.blocks import time_of
from intern.knowledge.decisions import DecisionLog
from intern.knowledge.files import FileLayer
from intern.knowledge.topics import TopicLibrary
from intern.observe.log import get_logger

_log = get_logger(__name__)

COMPLETE = "COMPLETE"
"""A file of this name in `topics.next` says that it may take the old library's place; in `topics`, that it just did."""

DRAFTED = "decisions.jsonl"
"""A file of this name in `topics.next`, later in `topics`, holds the decisions that are still to be written down."""

JOURNAL = "regeneration.jsonl"
"""A file of this name in `topics.next` tells how far a regeneration came (see `intern.learning.unfinished`)."""


class DecisionBook(Protocol):
    """Where decisions are written down, many at a time (see `intern.knowledge.decisions`)."""

    def extend(self, decisions: Iterable[Decision], /) -> None:
        """Write all of them down, durably, or none."""
        ...

    def of(self, qa_id: QAId) -> PairDecision | None:
        """The last decision about a pair."""
        ...


def upcoming(topics_dir: Path) -> Path:
    """Where a library is built that is to take the place of this one."""
    return topics_dir.with_name(f"{topics_dir.name}.next")


def swap_in(topics_dir: Path, drafted: Iterable[Decision], decisions: DecisionBook, layer: FileLayer) -> None:
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


def finish_swap(topics_dir: Path, decisions: DecisionBook | None = None, files: FileLayer | None = None) -> bool:
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


def _write_down(drafted: Path, decisions: DecisionBook, layer: FileLayer) -> None:
    """Move drafted decisions into the log; what it holds already, or has newer, it keeps."""
    if drafted.exists():
        decisions.extend(_news(list(DecisionLog(drafted, layer).all()), decisions))
        layer.remove(drafted)


def _news(drafted: Sequence[Decision], decisions: DecisionBook) -> list[Decision]:
    """What the log has not heard of yet: it may hold the beginning."""
    of_pair: defaultdict[datetime, list[PairDecision]] = defaultdict(list)
    for each in drafted:
        if not isinstance(each, Withdrawn | Forgotten):
            of_pair[time_of(each.qa_id)].append(each)
    news = {id(each) for several in of_pair.values() for each in _news_of_pair(several, decisions)}
    return [each for each in drafted if id(each) in news]


def _news_of_pair(drafted: Sequence[PairDecision], decisions: DecisionBook) -> Sequence[PairDecision]:
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
