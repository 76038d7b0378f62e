"""Keeping an index true to its sources: one model call for each that changed, none for all others.

Size and mtime are the fast path, the hash decides. A new source is listed at once by its own beginning; one whose
summary fails keeps the description it had, and is asked for again at the next refresh.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import anyio
import anyio.to_thread
from msgspec import Struct
from msgspec.structs import replace

from intern.domain import SourceId, TopicName
from intern.errors import KnowledgeError, ModelError, ModelReplyError, SourceError
from intern.indexing.catalogue import Catalogue
from intern.indexing.material import shortened, source_material, topic_material
from intern.indexing.options import IndexingOptions
from intern.indexing.prompts import SUMMARIZE_SOURCE, SUMMARIZE_TOPIC, SummarizeIn, SummarizeOut
from intern.indexing.provisional import describe_source, describe_topic
from intern.knowledge.indices import CachedFile, CachedSource, content_hash
from intern.knowledge.sources import SkippedFile, SourceFile, SourceFolder
from intern.knowledge.topics import TopicLibrary
from intern.llm.prompt import Model, Prompt
from intern.observe.clock import Clock
from intern.observe.log import get_logger

_log = get_logger(__name__)

# Summaries made between two writes: a kill in a first indexing of thousands loses no more than these.
_CHUNK = 64

Progress = Callable[[int, int], None]
"""Told how many of the changed sources are done, and how many there are."""


class Owed(NamedTuple):
    """A source that has no summary of its present text yet."""

    source_id: SourceId
    reason: str


class Refreshed(Struct, frozen=True, kw_only=True):
    """What a refresh found and did."""

    changed: tuple[SourceId, ...] = ()
    """New or changed, and summarised."""
    removed: tuple[SourceId, ...] = ()
    pending: tuple[Owed, ...] = ()
    """Listed, but their summary failed; the next refresh asks again."""
    skipped: tuple[SkippedFile, ...] = ()
    """Files that were passed over or could not be read."""


async def refresh_sources(
    model: Model,
    folder: SourceFolder,
    catalogue: Catalogue,
    *,
    clock: Clock,
    options: IndexingOptions | None = None,
    progress: Progress | None = None,
) -> Refreshed:
    """Bring the index of the operator's documents up to date.

    Raises SourceError where the folder cannot be read, and KnowledgeError where the index cannot be written.
    """
    bounds = options or IndexingOptions()

    def look() -> _Look:
        known = catalogue.sources()
        scan = folder.scan()
        items = [_Item(SourceId(f"kb:{file.rel_path}"), *file) for file in scan.files]
        gone = frozenset(
            source_id
            for source_id, source in known.items()
            if isinstance(source, CachedFile) and not _is_below(source.rel_path, scan.unreadable)
        )
        return _Look(known, items, gone.difference(item.source_id for item in items), scan.skipped)

    def read(rel_path: str) -> _Read:
        text = folder.read(rel_path)
        return _Read(text, source_material(text, bounds.max_source_chars), describe_source(text))

    refresh = _Refresh(model, SUMMARIZE_SOURCE, catalogue, clock, bounds)
    return await refresh.run(look, read, progress)


async def refresh_topics(
    model: Model,
    topics: TopicLibrary,
    topics_dir: Path,
    catalogue: Catalogue,
    *,
    clock: Clock,
    options: IndexingOptions | None = None,
    progress: Progress | None = None,
) -> Refreshed:
    """Bring the team index up to date with the topic files; `topics_dir` is the library's folder.

    Raises KnowledgeError where a topic cannot be looked at, or the index cannot be written.
    """
    bounds = options or IndexingOptions()

    def look() -> _Look:
        # The index first: a topic that is listed meanwhile is then not taken for one that is gone.
        known = catalogue.sources()
        listed = (source.rel_path for source in known.values() if isinstance(source, CachedFile))
        paths = sorted({*listed, *(f"{name}.txt" for name in topics.names())})
        found = [file for path in paths if (file := _stat(topics_dir, path)) is not None]
        items = [_Item(SourceId(f"team:{file.rel_path}"), *file) for file in found]
        return _Look(known, items, frozenset(known).difference(item.source_id for item in items), ())

    def read(rel_path: str) -> _Read:
        name = TopicName(rel_path.removesuffix(".txt"))
        blocks = topics.read(name)
        return _Read(topics.text(name), topic_material(blocks, bounds.max_topic_chars), describe_topic(blocks))

    refresh = _Refresh(model, SUMMARIZE_TOPIC, catalogue, clock, bounds)
    return await refresh.run(look, read, progress)


class _Item(NamedTuple):
    source_id: SourceId
    rel_path: str
    size_bytes: int
    mtime_ns: int


class _Look(NamedTuple):
    """What was known, what is there now, and what is gone."""

    known: Mapping[SourceId, CachedSource]
    items: Sequence[_Item]
    gone: frozenset[SourceId]
    skipped: tuple[SkippedFile, ...]


class _Read(NamedTuple):
    text: str
    material: str
    provisional: str


class _Due(NamedTuple):
    """A source to summarise; `entry` is what stands in the index until that is done."""

    source_id: SourceId
    material: str
    entry: CachedFile
    is_new: bool


class _Examined(NamedTuple):
    touched: dict[SourceId, CachedSource]
    """Their text is what it was."""
    due: list[_Due]
    unreadable: list[SkippedFile]


class _Settled(NamedTuple):
    source_id: SourceId
    source: CachedFile
    failure: str
    """Why there is no summary; empty where there is one."""


class _Refresh:
    """One refresh of one index."""

    def __init__(
        self,
        model: Model,
        prompt: Prompt[SummarizeIn, SummarizeOut],
        catalogue: Catalogue,
        clock: Clock,
        options: IndexingOptions,
    ) -> None:
        self._model = model
        self._prompt = prompt
        self._catalogue = catalogue
        self._clock = clock
        self._options = options

    async def run(
        self, look: Callable[[], _Look], read: Callable[[str], _Read], progress: Progress | None
    ) -> Refreshed:
        seen = await anyio.to_thread.run_sync(look)
        examined = await anyio.to_thread.run_sync(self._examine, seen, read)
        due = examined.due
        put: dict[SourceId, CachedSource] = dict(examined.touched)
        drop = seen.gone
        if not due or any(source.is_new for source in due):
            # New sources can be found before the model has seen them. With nothing due, an index that was lost is
            # written again from its cache, and one that is as it should be is left alone.
            put.update((source.source_id, source.entry) for source in due)
            await anyio.to_thread.run_sync(self._catalogue.change, put, drop)
            put, drop = {}, frozenset[SourceId]()
        owed: list[Owed] = []
        for start in range(0, len(due), _CHUNK):
            settled = await self._summarised(due[start : start + _CHUNK], _Count(start, len(due), progress))
            put.update((one.source_id, one.source) for one in settled)
            await anyio.to_thread.run_sync(self._catalogue.change, put, drop)
            put, drop = {}, frozenset[SourceId]()
            owed += [Owed(one.source_id, one.failure) for one in settled if one.failure]
        failed = {source_id for source_id, _ in owed}
        result = Refreshed(
            changed=tuple(source.source_id for source in due if source.source_id not in failed),
            removed=tuple(sorted(seen.gone)),
            pending=tuple(owed),
            skipped=(*seen.skipped, *examined.unreadable),
        )
        if due or seen.gone:
            _log.info(
                "index_refreshed", changed=len(result.changed), removed=len(result.removed), pending=len(result.pending)
            )
        return result

    def _examine(self, seen: _Look, read: Callable[[str], _Read]) -> _Examined:
        examined = _Examined({}, [], [])
        for item in seen.items:
            known = seen.known.get(item.source_id)
            cached = known if isinstance(known, CachedFile) else None
            settled = cached is not None and not cached.summary_pending
            if cached and settled and (cached.size_bytes, cached.mtime_ns) == (item.size_bytes, item.mtime_ns):
                continue
            try:
                found = read(item.rel_path)
            except SourceError as error:
                examined.unreadable.append(SkippedFile(item.rel_path, str(error)))
                continue
            entry = self._entry(item, cached, found)
            if cached and settled and cached.content_hash == entry.content_hash:
                examined.touched[item.source_id] = replace(entry, summary_pending=False)
            else:
                examined.due.append(_Due(item.source_id, found.material, entry, cached is None))
        return examined

    def _entry(self, item: _Item, cached: CachedFile | None, found: _Read) -> CachedFile:
        """What the index holds until there is a summary: the old description, or else a provisional one."""
        return CachedFile(
            content_hash=content_hash(found.text),
            summary_text=cached.summary_text if cached else found.provisional,
            last_indexed_at=cached.last_indexed_at if cached else self._clock.now(),
            summary_pending=True,
            rel_path=item.rel_path,
            size_bytes=item.size_bytes,
            mtime_ns=item.mtime_ns,
        )

    async def _summarised(self, due: Sequence[_Due], count: _Count) -> list[_Settled]:
        """All of them, several at a time; a failure is a value here, or it would end the others."""
        limiter = anyio.CapacityLimiter(self._options.concurrency)
        settled: dict[SourceId, _Settled] = {}

        async def settle(source: _Due) -> None:
            async with limiter:
                settled[source.source_id] = await self._settle(source)
            count.one_more()

        async with anyio.create_task_group() as tg:
            for source in due:
                tg.start_soon(settle, source)
        return [settled[source.source_id] for source in due]

    async def _settle(self, source: _Due) -> _Settled:
        try:
            out = await self._model.ask(self._prompt, SummarizeIn(source_id=source.source_id, text=source.material))
            description = shortened(out.description, self._options.max_description_chars)
            if not description:
                raise ModelReplyError(f"{self._prompt.name} gave no description of {source.source_id}")
        except ModelError as error:
            _log.warning("summary_failed", source_id=source.source_id, reason=str(error))
            return _Settled(source.source_id, source.entry, str(error) or type(error).__name__)
        entry = replace(
            source.entry, summary_text=description, last_indexed_at=self._clock.now(), summary_pending=False
        )
        return _Settled(source.source_id, entry, "")


class _Count:
    """Tells how far the summaries are."""

    def __init__(self, done: int, total: int, progress: Progress | None) -> None:
        self._done = done
        self._total = total
        self._progress = progress

    def one_more(self) -> None:
        self._done += 1
        if self._progress is not None:
            self._progress(self._done, self._total)


def _is_below(rel_path: str, folders: Iterable[str]) -> bool:
    """Whether the file is one of these, or lies below one of them."""
    return any(rel_path == folder or rel_path.startswith(f"{folder}/") for folder in folders)


def _stat(topics_dir: Path, rel_path: str) -> SourceFile | None:
    """None where the topic is gone."""
    try:
        stat = (topics_dir / rel_path).stat()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise KnowledgeError(f"topic file {rel_path} could not be looked at ({error.strerror})") from error
    return SourceFile(rel_path, stat.st_size, stat.st_mtime_ns)
