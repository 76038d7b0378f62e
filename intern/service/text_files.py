"""The text files that people and other programs read: topics, indices, decisions, written from the database.

They follow the change log. The database holds the position that they have reached, and the size and time of each file,
so a start reads only changed files. Each is written at once, so that a reader sees it whole. Before a file is written,
its hash is in the database: so after a crash our own files are known. A file that a person edited is kept beside as
`.name.edited`, and reported.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from glob import escape
from itertools import chain, count
from pathlib import Path
from typing import NamedTuple

import msgspec
from anyio import Lock
from anyio.to_thread import run_sync

from intern.core.clock import Wakeup
from intern.core.decisions import Decision, MessagesForgotten, MessagesWithdrawn
from intern.core.errors import ConfigError
from intern.core.ids import TopicName
from intern.core.log import get_logger
from intern.service.hidden_files import find_edited_files
from intern.settings.settings import Paths
from intern.sources.catalogue import Catalogue
from intern.stores.archive import encode_decision, parse_decisions
from intern.stores.block_format import remove_blocks
from intern.stores.database import Transaction
from intern.stores.files import FileLayer
from intern.stores.qa_ids import qa_id_time
from intern.stores.source_cache import Index, IndexCache, format_index
from intern.stores.tables.change_log import read_changes
from intern.stores.tables.knowledge import TOPIC, KnowledgeChange, KnowledgeStore
from intern.stores.tables.positions import read_position, save_position
from intern.stores.tables.projected_files import ProjectedFile, read_projected_files, record_projected_files

_log = get_logger(__name__)

_FOLLOWER = "files"
_TOPICS = "topics/"
FILES_OF: dict[Index, tuple[str, str]] = {"kb": ("index", "index_cache"), "team": ("team_index", "team_index_cache")}
"""The listing and the cache of each index. The database names files as `Paths` does, and topics by themselves."""


class _FileChanges(NamedTuple):
    """The file changes that lead to a position."""

    position: int
    files: Mapping[str, tuple[bytes, bytes]]
    """The new content of each file (empty: delete it), and its present content."""
    lines: bytes
    """Decisions to append if their file is unchanged; otherwise it is among `files`."""


class TextFiles:
    """The text files of a data folder. Only the process that holds the folder's lock writes them."""

    def __init__(
        self,
        knowledge: KnowledgeStore,
        paths: Paths,
        files: FileLayer | None = None,
        *,
        tracked: bool = True,
        kept: bool = True,
        traces: Callable[[], Sequence[bytes]] = tuple,
        changes: Wakeup | None = None,
    ) -> None:
        """Without `tracked` (an export), the database keeps no state of the files. Without `kept`, there are no files.

        `traces` finds the ids and lines that identify withdrawn or forgotten messages. `changes` is woken by changes of
        the knowledge. Blocks.
        """
        self.wait = (changes or Wakeup()).wait
        """Waits for a change."""
        self.layer = files or FileLayer()
        self._knowledge = knowledge
        self._paths = paths
        self._tracked, self._kept = tracked, kept
        self._traces = traces
        self._catalogues = {index: Catalogue(knowledge, index) for index in FILES_OF}
        self._turn = Lock()
        self._position = None if tracked else 0
        self._written: Mapping[str, ProjectedFile | None] = {}
        self._touched: Collection[str] = ()
        """Changed files that were not checked yet."""

    async def catch_up(self, *topics: TopicName) -> None:
        """Write the changes since the last time, and `topics`; the first time, also check files that were changed.

        Raises KnowledgeError.
        """
        if not self._kept:
            return
        async with self._turn:
            if self._position is None:
                await run_sync(self._load)
            due = await run_sync(self._knowledge.db.read_blocking, partial(self._plan_changes, topics))
            changed = {file: (new, old) for file, (new, old) in due.files.items() if new != old}
            if self._tracked and changed:
                await run_sync(self._keep_edited, changed)
                await self._save_file_states(
                    {file: ProjectedFile(_digest(new), _digest(old)) for file, (new, old) in changed.items()}
                )
            await run_sync(self._write, due, changed)
            self._position, self._touched = due.position, ()
            if self._tracked and (due.files or due.lines):
                await self._save_file_states(await run_sync(self._read_new_states, due))

    async def clear_edited(self) -> None:
        """Remove withdrawn or forgotten messages from the kept edits. Raises KnowledgeError."""
        async with self._turn:
            await run_sync(self._clear_edited)

    def foreign_decisions(self) -> list[Decision]:
        """Return the content of `decisions.jsonl` if this database did not write it. Blocks."""
        self._load()
        return [] if self._is_left("decisions") else parse_decisions(self._read_file("decisions"), "decisions.jsonl")[0]

    def read_file_states(self, topics: Iterable[TopicName]) -> dict[str, ProjectedFile]:
        """Return the states of these topics, the indices and `state.json`, to be taken as ours. Blocks."""
        files = [*(f"{_TOPICS}{name}.txt" for name in topics), "state", *chain(*FILES_OF.values())]
        data = {file: there for file in files if (there := self._read_file(file))}
        return {file: ProjectedFile(_digest(there), _digest(there)) for file, there in data.items()}

    def find_edit(self, topic: TopicName) -> Path:
        """Return the oldest kept edit of a topic. Blocks; raises ConfigError if there is none."""
        path = self._path(f"{_TOPICS}{topic}.txt")
        edits = list(path.parent.glob(f".{path.name}*.edited"))
        if not edits:
            raise ConfigError(f"there is no edited topic {path}; `intern doctor` lists those that there are")
        return min(edits, key=lambda each: each.stat().st_mtime_ns)

    def _load(self) -> None:
        self._position = self._knowledge.db.read_blocking(lambda db: int(read_position(db, _FOLLOWER) or 0))
        self._written = self._knowledge.db.read_blocking(read_projected_files)
        self._touched = {file for file in self._written if not self._is_left(file)}

    def _plan_changes(self, also: Iterable[TopicName], db: Transaction) -> _FileChanges:
        """Collect the files that may have to be written, all at one moment."""
        view, reached, anew = KnowledgeChange(db, 0), self._position or 0, not self._is_left("decisions")
        placed = view.decisions_after(0 if anew else reached, -1)
        decisions = [each.decision for each in placed]
        lines = b"".join(map(encode_decision, decisions))
        # The decisions first: a tombstone is on disk before anything else is.
        data = {"decisions": lines} if anew else {}
        changes = read_changes(db, reached, [TOPIC, *FILES_OF])
        topics = {f"{_TOPICS}{name}.txt" for name in (*also, *(each.name for each in changes if each.kind == TOPIC))}
        topics |= {file for file in self._touched if file.startswith(_TOPICS)}
        data |= {file: view.read_topic_file(TopicName(self._path(file).stem)) for file in topics}
        for index, pair in FILES_OF.items():
            if not set(pair).isdisjoint(self._touched) or any(each.kind == index for each in changes):
                data |= zip(pair, _render_index(self._catalogues[index]), strict=True)
        if decisions or "state" in self._touched:
            # The database may know of decisions that are not in memory yet.
            ids = [each.qa_id for each in decisions if not isinstance(each, MessagesWithdrawn | MessagesForgotten)]
            newest = max(filter(None, [self._knowledge.cursor(), *ids]), key=qa_id_time, default=None)
            data["state"] = b"" if newest is None else msgspec.json.encode({"last_processed_qa_id": newest}) + b"\n"
        files = {file: (each, self._read_file(file)) for file, each in data.items()}
        position = max([reached, *(each.position for each in changes), *(each.position for each in placed)])
        return _FileChanges(position, files, b"" if anew else lines)

    def _path(self, file: str) -> Path:
        path: Path = getattr(self._paths, file, self._paths.topics / file.removeprefix(_TOPICS))
        return path

    def _read_file(self, file: str) -> bytes:
        return self.layer.read(self._path(file)) or b""

    def _is_left(self, file: str) -> bool:
        """Whether a file is unchanged since it was written, by its size and its time."""
        written = self._written.get(file)
        return _size_and_time(self._path(file)) == (written and written[2:])

    async def _save_file_states(self, files: Mapping[str, ProjectedFile | None]) -> None:
        def work(db: Transaction) -> None:
            record_projected_files(db, files)
            save_position(db, _FOLLOWER, str(self._position))

        await self._knowledge.db.write(work)
        self._written = {**self._written, **files}

    def _write(self, due: _FileChanges, changed: Mapping[str, tuple[bytes, bytes]]) -> None:
        if due.lines:
            self.layer.append_durably(self._paths.decisions, due.lines)
        for file, (data, _) in changed.items():
            if data:
                self.layer.write_atomically(self._path(file), data)
            else:
                self.layer.remove(self._path(file))

    def _read_new_states(self, due: _FileChanges) -> dict[str, ProjectedFile | None]:
        """Return the present states of the files."""
        data = {file: new for file, (new, _) in due.files.items()} | ({"decisions": b""} if due.lines else {})
        return {
            file: ProjectedFile(_digest(each), b"", *at) if (at := _size_and_time(self._path(file))) else None
            for file, each in data.items()
        }

    def _keep_edited(self, changed: Mapping[str, tuple[bytes, bytes]]) -> None:
        """Keep files that differ from the written ones, because a person edited them. Append decisions to theirs."""
        for file, (data, there) in changed.items():
            ours = _digest(there) in (self._written.get(file) or ())[:2]
            if there and not (data.startswith(there) if file == "decisions" else ours):
                self._set_aside(self._path(file), there)

    def _set_aside(self, path: Path, there: bytes) -> None:
        left = self._remove_traced(path, there, self._traces())
        kept = [each for each in path.parent.glob(f".{escape(path.name)}*.edited") if self.layer.read(each) == left]
        if left and not kept:
            names = (path.with_name(f".{path.name}{'' if n == 1 else f'.{n}'}.edited") for n in count(1))
            edited = next(each for each in names if not each.exists())
            self._write_edit(edited, left, path.stat().st_mtime_ns if left == there else 0)
            _log.warning("edited_file_set_aside", file=str(path), kept=str(edited))

    def _clear_edited(self) -> None:
        edited = find_edited_files(self._paths)
        traces = self._traces() if edited else ()
        for path in edited:
            data = self.layer.read(path) or b""
            left = self._remove_traced(path, data, traces)
            if not left:
                self.layer.remove(path)
            elif left != data:
                self._write_edit(path, left, 0)

    def _write_edit(self, path: Path, data: bytes, mtime_ns: int) -> None:
        """Write an edit, with the time when it was made; 1970 if a part was removed from it.

        `intern topics adopt` removes pairs that an edit lacks, but not those that were decided later.
        """
        self.layer.write_atomically(path, data)
        os.utime(path, ns=(mtime_ns, mtime_ns))

    def _remove_traced(self, path: Path, data: bytes, traces: Sequence[bytes]) -> bytes:
        """Return a file without the pairs, or else the lines, that have one of the traces."""

        def is_traced(piece: bytes) -> bool:
            return any(trace in piece for trace in traces)

        if path.parent == self._paths.topics:
            return remove_blocks(data, is_traced)
        return b"".join(line for line in data.splitlines(keepends=True) if not is_traced(line))


def _render_index(catalogue: Catalogue) -> tuple[bytes, bytes]:
    """Return the text of an index, and its cache."""
    sources = catalogue.sources()
    # The time comes from the content and not from the clock: two exports of the same database are equal.
    newest = max((source.last_indexed_at for source in sources.values()), default=None)
    cache = IndexCache(sources=sources, generated_at=newest)
    return format_index(catalogue.entries().values()).encode(), cache.encode()


def _digest(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()


def _size_and_time(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except OSError:  # reading or writing it reports the problem
        return None
    return found.st_size, found.st_mtime_ns
