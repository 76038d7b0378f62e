"""The library that answers are drawn from: one file a topic, rewritten whole and at once.

Everything here can be rebuilt from the archive. A file is a topic if it is called `<slug>.txt`; hidden, temporary
and foreign files, folders and links are none.

One thread at a time may update; any may read meanwhile.
"""

from __future__ import annotations

import re
import threading
from collections import defaultdict
from collections.abc import Collection, Iterable
from datetime import datetime
from functools import lru_cache
from pathlib import Path

from intern.core.errors import SourceError
from intern.core.ids import ConversationId, QAId, TopicName
from intern.core.log import get_logger
from intern.core.records import TopicBlock
from intern.core.text.masking import whole
from intern.stores.blocks import BlockWarning, Parsed, format_topic, parse_blocks, time_of
from intern.stores.files import FileLayer, unreadable

_log = get_logger(__name__)

# What `intern.core.text.words.topic_name` makes.
_SLUG = re.compile(r"[a-z0-9-]{1,64}")


class TopicLibrary:
    """The topics in `topics_dir`. Opening reads every file once. Raises KnowledgeError where one cannot be read."""

    def __init__(self, topics_dir: Path, files: FileLayer | None = None) -> None:
        self._dir = topics_dir
        self._files = files or FileLayer()
        self._places = _Places()
        self.damaged: tuple[BlockWarning, ...] = ()
        """What was passed over when the files were read."""
        self.reload()

    def reload(self) -> None:
        """Read every file again, after the folder was replaced as a whole. Raises KnowledgeError."""
        places = _Places()
        damaged: list[BlockWarning] = []
        for name in self._names_on_disk():
            blocks, warnings = self._parsed(name, self._files.read(self._path(name)) or b"")
            places.put(name, blocks)
            damaged += warnings
        self._places = places
        self.damaged = tuple(damaged)

    def names(self) -> tuple[TopicName, ...]:
        """Return all topics, sorted."""
        return self._places.names()

    def read(self, name: TopicName) -> tuple[TopicBlock, ...]:
        """Return the blocks of a topic, in order of `answered_at`; none where there is no such topic.

        A damaged block is passed over with a warning. Raises KnowledgeError where the file cannot be read, and
        ValueError for a name that is no slug.
        """
        return self._parsed(name, self._files.read(self._path(name)) or b"")[0]

    def text(self, name: TopicName) -> str:
        """Return the file as it is, for a model to read. Raises SourceError where there is no such topic."""
        data = self._files.read(self._path(name))
        if data is None:
            raise SourceError(f"there is no topic {name}")
        return data.decode("utf-8-sig", errors="replace")

    def update(self, name: TopicName, add: TopicBlock | None = None, remove: Collection[QAId] = ()) -> tuple[QAId, ...]:
        """Put a block into a topic, making it if it is new, and take others out; return those that were there.

        All at once: on disk when this returns. A block of the same id is replaced; ids that are not in this topic
        are passed over; a topic without blocks is gone. Raises KnowledgeError, and nothing has changed then.
        """
        return self._rewrite(name, () if add is None else (add,), remove)

    def put(self, name: TopicName, blocks: Collection[TopicBlock]) -> None:
        """Put many blocks into a topic, as `update` does with one."""
        self._rewrite(name, blocks, ())

    def doubles(self) -> dict[QAId, tuple[TopicName, ...]]:
        """Return the blocks that are in several topics, with these topics: a move was interrupted."""
        return self._places.doubles()

    def _rewrite(self, name: TopicName, add: Iterable[TopicBlock], remove: Collection[QAId]) -> tuple[QAId, ...]:
        path = self._path(name)
        data = self._files.read(path)
        before, damaged = self._parsed(name, data or b"")
        doomed = set(_times(remove))
        kept = {time: block for block in before if (time := time_of(block.qa_id)) not in doomed}
        removed = tuple(block.qa_id for block in before if time_of(block.qa_id) in doomed)
        kept.update((time_of(block.qa_id), block) for block in add)
        blocks = tuple(sorted(kept.values(), key=_by_answer))
        if blocks != before:
            if damaged and data:
                # A person may have edited it: we keep a copy of the text that we cannot read.
                self._files.append_durably(path.with_name(f".{path.name}.damaged"), data, fresh_line=True)
            self._write(path, blocks)
        self._places.put(name, blocks)
        return removed

    def topic_of(self, qa_id: QAId) -> TopicName | None:
        """Return the topic with the pair's block; None where there is none."""
        return next((self._places.topic_at(time) for time in _times((qa_id,))), None)

    def of_conversation(self, conversation_id: ConversationId) -> list[tuple[TopicName, QAId]]:
        """Return topic and id of each block of a conversation, oldest first."""
        return self._places.of_conversation(conversation_id)

    def _path(self, name: TopicName) -> Path:
        if not _SLUG.fullmatch(name):
            raise ValueError(f"{name[:80]!r} is no topic name; topic names are slugs")
        return self._dir / f"{name}.txt"

    def _names_on_disk(self) -> list[TopicName]:
        try:
            entries = list(self._dir.iterdir()) if self._dir.exists() else []
            return sorted(
                TopicName(entry.stem)
                for entry in entries
                if entry.suffix == ".txt" and _SLUG.fullmatch(entry.stem) and entry.is_file() and not entry.is_symlink()
            )
        except OSError as error:
            raise unreadable(self._dir, error) from error

    def _parsed(self, name: TopicName, data: bytes) -> Parsed[TopicBlock]:
        parsed = _parse(data, f"{name}.txt")
        for warning in parsed.warnings:
            _log.warning("topic_block_damaged", file=warning.file, line=warning.line, reason=warning.reason)
        return Parsed(tuple(sorted(parsed.blocks, key=_by_answer)), parsed.warnings)

    def _write(self, path: Path, blocks: Iterable[TopicBlock]) -> None:
        text = whole("".join(map(format_topic, blocks)))
        if text:
            self._files.write_atomically(path, text.encode())
        else:
            self._files.remove(path)


# A topic that a pair is filed in is read several times before it changes.
@lru_cache(maxsize=8)
def _parse(data: bytes, file: str) -> Parsed[TopicBlock]:
    return parse_blocks(data, file=file)


class _Places:
    """Which blocks stand where. Any thread may ask at any moment, and sees a topic as it was or as it is."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ids: dict[TopicName, dict[datetime, QAId]] = {}
        self._topics_at: dict[datetime, set[TopicName]] = defaultdict(set)
        self._conversations: dict[ConversationId, dict[tuple[TopicName, datetime], QAId]] = defaultdict(dict)
        self._conversation_at: dict[tuple[TopicName, datetime], ConversationId] = {}

    def names(self) -> tuple[TopicName, ...]:
        with self._lock:
            return tuple(sorted(self._ids))

    def topic_at(self, time: datetime) -> TopicName | None:
        with self._lock:
            return min(self._topics_at.get(time, ()), default=None)

    def doubles(self) -> dict[QAId, tuple[TopicName, ...]]:
        with self._lock:
            several = {time: tuple(sorted(names)) for time, names in self._topics_at.items() if len(names) > 1}
            return {self._ids[names[0]][time]: names for time, names in sorted(several.items())}

    def of_conversation(self, conversation_id: ConversationId) -> list[tuple[TopicName, QAId]]:
        with self._lock:
            found = sorted(self._conversations.get(conversation_id, {}).items(), key=lambda item: item[0][::-1])
        return [(name, qa_id) for (name, _), qa_id in found]

    def put(self, name: TopicName, blocks: Collection[TopicBlock]) -> None:
        """Replace the blocks of a topic."""
        with self._lock:
            self._forget(name)
            ids = {time_of(block.qa_id): block.qa_id for block in blocks}
            if ids:
                self._ids[name] = ids
            for time in ids:
                self._topics_at[time].add(name)
            for block in blocks:
                if block.conversation_id is not None:
                    place = (name, time_of(block.qa_id))
                    self._conversation_at[place] = block.conversation_id
                    self._conversations[block.conversation_id][place] = block.qa_id

    def _forget(self, name: TopicName) -> None:
        for time in self._ids.pop(name, {}):
            self._topics_at[time].discard(name)
            if not self._topics_at[time]:
                del self._topics_at[time]
            conversation = self._conversation_at.pop((name, time), None)
            if conversation is not None:
                del self._conversations[conversation][name, time]
                if not self._conversations[conversation]:
                    del self._conversations[conversation]


def _by_answer(block: TopicBlock) -> tuple[datetime, datetime]:
    """Older knowledge first."""
    return block.answered_at or block.timestamp, block.timestamp


def _times(qa_ids: Iterable[QAId]) -> Iterable[datetime]:
    """Yield the times of those that are ids; a model may name anything."""
    for qa_id in qa_ids:
        try:
            yield time_of(qa_id)
        except ValueError:
            continue
