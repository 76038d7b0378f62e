"""The text files that people and other programs read: topics, indices, decisions, written from the database.

They follow the change log by position. Each is written at once, so that a reader sees it whole. Before a file is
written, its hash is in the database: so after a crash it is known what was ours, and a file that a person edited is
kept beside as `.name.edited`, and told.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import msgspec
from anyio import Event, Lock
from anyio.to_thread import run_sync
from msgspec import Struct

from intern.core.clock import Clock
from intern.core.ids import QAId, TopicName
from intern.core.log import get_logger
from intern.settings.loading import Paths
from intern.sources.catalogue import Catalogue
from intern.stores.blocks import without_blocks
from intern.stores.database import Transaction
from intern.stores.decisions import decision_line
from intern.stores.files import FileLayer
from intern.stores.library import Index, IndexCache, format_index
from intern.stores.sqlite.knowledge import TOPIC, Knowledge, LogEntry, changes_after

_log = get_logger(__name__)

_INDICES: tuple[Index, ...] = ("kb", "team")


class _State(Struct):
    last_processed_qa_id: QAId


class _Written(NamedTuple):
    """The hashes of a file: as it is to be, and as it was before that."""

    digest: bytes
    before: bytes


class _Wanted(NamedTuple):
    """A file to write, to remove where `data` is empty, and what is there now."""

    data: bytes
    there: bytes


class TextFiles:
    """The text files of a data folder. Only the process that holds the folder's lock writes them."""

    def __init__(
        self, knowledge: Knowledge, paths: Paths, clock: Clock, files: FileLayer | None = None, *, tracked: bool = True
    ) -> None:
        """Without `tracked`, for an export: nothing is kept of what is written."""
        self._knowledge = knowledge
        self._paths = paths
        self._clock = clock
        self._files = files or FileLayer()
        self._tracked = tracked
        self._catalogues: Mapping[Index, Catalogue] = {each: Catalogue(knowledge, each) for each in _INDICES}
        self._turn = Lock()
        self._wakeup = Event()
        self._position: int | None = None
        self._decided = 0
        self._length = -1
        self._written: dict[str, _Written] = {}

    def wake(self) -> None:
        """Wake the task in `wait`: something was changed."""
        self._wakeup.set()

    async def wait(self) -> None:
        """Return after the next `wake`, or at once if there was one since the last return."""
        await self._wakeup.wait()
        self._wakeup = Event()

    async def catch_up(self, *topics: TopicName) -> None:
        """Write what changed since the last time, and `topics`; the first time, compare every file.

        Raises KnowledgeError.
        """
        async with self._turn:
            position, wanted = await run_sync(self._wanted, topics)
            if self._tracked and wanted:
                await run_sync(self._keep_edited, wanted)
                await self._knowledge.db.write(lambda db: self._note(db, wanted))
            await run_sync(self._write, wanted)
            self._position = position

    def _wanted(self, also: Sequence[TopicName]) -> tuple[int, dict[Path, _Wanted]]:
        """Return the position that is reached, and what is to be written; nothing for a file that is to go."""
        if self._position is None:
            self._written = self._knowledge.db.look(_recorded)
            changes = self._changes(0)  # first: what is changed after that is looked at again
            everything = {*map(self._topic, (*self._knowledge.names(), *also)), *self._topic_files()}
            wanted = {path: self._knowledge.data(TopicName(path.stem)) for path in everything}
            indices: Iterable[Index] = _INDICES
        else:
            changes = self._changes(self._position)
            topics = (*also, *(TopicName(each.name) for each in changes if each.kind == TOPIC))
            wanted = {self._topic(name): self._knowledge.data(name) for name in topics}
            indices = [index for index in _INDICES if any(each.kind == index for each in changes)]
        for index in indices:
            wanted |= self._index(index)
        if (cursor := self._knowledge.cursor()) is not None:
            wanted[self._paths.state] = msgspec.json.encode(_State(cursor)) + b"\n"
        position = max((each.position for each in changes), default=self._position or 0)
        files = {path: _Wanted(data, self._files.read(path) or b"") for path, data in wanted.items()}
        return position, {path: each for path, each in files.items() if each.data != each.there}

    def is_behind(self) -> bool:
        """Return whether something was changed since. Blocks."""
        return bool(self._changes(self._position or 0) or self._knowledge.after(self._decided, 1))

    def _changes(self, position: int) -> list[LogEntry]:
        return self._knowledge.db.look(lambda db: changes_after(db, position, [TOPIC, *_INDICES]))

    def _topic(self, name: TopicName) -> Path:
        return self._paths.topics / f"{name}.txt"

    def _topic_files(self) -> list[Path]:
        """List the topic files that were written; those of people and other programs are left alone."""
        return [
            self._paths.topics / each.removeprefix("topics/") for each in self._written if each.startswith("topics/")
        ]

    def _index(self, index: Index) -> dict[Path, bytes]:
        sources = self._catalogues[index].sources()
        paths = self._paths
        listing, cache = (
            (paths.index, paths.index_cache) if index == "kb" else (paths.team_index, paths.team_index_cache)
        )
        with suppress(msgspec.DecodeError, UnicodeDecodeError):
            if IndexCache.decode(self._files.read(cache) or b"").sources == sources:
                return {listing: format_index(self._catalogues[index].entries().values()).encode()} if sources else {}
        data = IndexCache(sources=sources, generated_at=self._clock.now()).encode()
        return {listing: format_index(self._catalogues[index].entries().values()).encode(), cache: data}

    def _note(self, db: Transaction, wanted: Mapping[Path, _Wanted]) -> None:
        """Record the hashes before anything is written."""
        for path, (data, there) in wanted.items():
            label = self._label(path)
            self._written[label] = _Written(_digest(data), _digest(there))
            note_written(db, label, data, there)

    def _label(self, path: Path) -> str:
        return f"topics/{path.name}" if path.parent == self._paths.topics else path.name

    def _write(self, wanted: Mapping[Path, _Wanted]) -> None:
        # The decisions first: a tombstone is on disk before anything else is.
        self._append_decisions()
        for path, (data, _) in wanted.items():
            if data:
                self._files.write_atomically(path, data)
            else:
                self._files.remove(path)

    def _keep_edited(self, wanted: Mapping[Path, _Wanted]) -> None:
        """Keep files that are not as they were written, for a person edited them."""
        for path, (_, there) in wanted.items():
            if there and _digest(there) not in self._written.get(self._label(path), ()):
                self._set_aside(path, there)

    def _set_aside(self, path: Path, there: bytes) -> None:
        edited = path.with_name(f".{path.name}.edited")
        at = path.stat()
        self._files.write_atomically(edited, there)
        os.utime(edited, ns=(at.st_atime_ns, at.st_mtime_ns))  # `intern topics adopt` asks when it was edited
        _log.warning("edited_file_set_aside", file=str(path), kept=str(edited))

    def _append_decisions(self) -> None:
        path, fresh = self._paths.decisions, self._knowledge.after(self._decided, -1)
        lines = b"".join(decision_line(each.decision) for each in fresh)
        if self._length < 0 or (path.stat().st_size if path.exists() else 0) != self._length:
            there = self._files.read(path) or b""
            whole = b"".join(map(decision_line, self._knowledge.all()))
            if whole.startswith(there):
                lines, self._length = whole[len(there) :], len(there)
            else:
                self._set_aside(path, there)
                self._files.write_atomically(path, whole)
                lines, self._length = b"", len(whole)
        if lines:
            self._files.append_durably(path, lines)
            self._length += len(lines)
        if fresh:
            self._decided = fresh[-1].position


def _recorded(db: Transaction) -> dict[str, _Written]:
    rows = db.rows("select file, digest, before from projected where community = :community")
    return {str(file): _Written(bytes(digest), bytes(before)) for file, digest, before in rows}  # type: ignore[arg-type]


def note_written(db: Transaction, label: str, data: bytes, there: bytes) -> None:
    """Record that a file is ours: what it is to hold, and what it holds until then."""
    db.run(
        "insert into projected (community, file, digest, before) values (:community, ?, ?, ?)"
        " on conflict (community, file) do update set digest = excluded.digest, before = excluded.before",
        (label, _digest(data), _digest(there)),
    )


def _digest(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()


def edited_files(paths: Paths) -> list[Path]:
    """List the files that a person edited, as they are kept beside. Raises OSError."""
    folders = {paths.topics, paths.index.parent, paths.team_index.parent, paths.decisions.parent}
    return sorted(each for folder in folders if folder.is_dir() for each in folder.glob(".*.edited"))


def clear_edited(paths: Paths, traces: Sequence[bytes], files: FileLayer | None = None) -> None:
    """Delete the pieces with one of the traces from edited topics, and other edited files with a trace. Blocks.

    Raises KnowledgeError.
    """
    layer = files or FileLayer()

    def is_traced(data: bytes) -> bool:
        return any(trace in data for trace in traces)

    for path in edited_files(paths) if traces else ():
        data = layer.read(path) or b""
        left = without_blocks(data, is_traced) if path.parent == paths.topics else b"" if is_traced(data) else data
        if not left:
            layer.remove(path)
        elif left != data:
            layer.write_atomically(path, left)
