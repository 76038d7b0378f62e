"""Refreshing an index from its sources: one model call for each that changed, none for all others.

Size and mtime are the fast path, the hash decides. A new source is listed at once by its own beginning; one whose
summary fails keeps its description, and a later refresh tries again (see `catalogue.PAUSES`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import NamedTuple

import anyio
import anyio.to_thread
from msgspec import Struct
from msgspec.structs import replace

from intern.core.clock import Clock
from intern.core.errors import KnowledgeError, ModelError, ModelReplyError, SourceError
from intern.core.ids import SourceId, TopicName
from intern.core.log import get_logger
from intern.core.progress import tell
from intern.models.prompt import Model, Prompt
from intern.sources.catalogue import Catalogue, described, is_recovered, not_described, rests
from intern.sources.descriptions import (
    SUMMARIZE_SOURCE,
    SUMMARIZE_TOPIC,
    SummarizeIn,
    SummarizeOut,
    describe_source,
    describe_topic,
    shortened,
    source_material,
    topic_material,
)
from intern.sources.files import NotASourceError, SkippedFile, SourceFile, SourceFolder
from intern.sources.options import IndexingOptions
from intern.stores.library import CachedFile, CachedSource, TopicLibrary, content_hash, is_source_id

_log = get_logger(__name__)

# Index and cache are written as a whole: with many due in some parts, so that answers see descriptions as they come.
_LEAST_PART = 64
_PARTS = 3

_NOT_ASKED = "no model was asked yet"
_UNFIT = "no index can list a name of blanks; rename it"


class Owed(NamedTuple):
    """A source that has no summary of its present text yet."""

    source_id: SourceId
    reason: str


class Refreshed(Struct, frozen=True, kw_only=True):
    """The result of a refresh."""

    changed: tuple[SourceId, ...] = ()
    """New or changed, and summarised."""
    removed: tuple[SourceId, ...] = ()
    pending: tuple[Owed, ...] = ()
    """Listed, but their summary failed, now or before; a later refresh asks again."""
    skipped: tuple[SkippedFile, ...] = ()
    """Files that were passed over or could not be read."""


async def refresh_sources(
    model: Model,
    folder: SourceFolder,
    catalogue: Catalogue,
    *,
    options: IndexingOptions | None = None,
    describe: bool = True,
) -> Refreshed:
    """Bring the index of the operator's documents up to date.

    Without `describe`, no model is asked: changed documents are listed without a new description until one is made.
    Raises SourceError where the folder cannot be read, and KnowledgeError where the index cannot be written.
    """
    bounds = options or IndexingOptions()

    def look() -> _Look:
        known = catalogue.sources()
        scan = folder.scan()
        every = {SourceId(f"kb:{file.rel_path}"): file for file in scan.files}
        items = {source_id: file for source_id, file in every.items() if is_source_id(source_id)}
        unfit = (SkippedFile(f'"{every[each].rel_path}"', _UNFIT) for each in every.keys() - items.keys())
        gone = frozenset(
            source_id
            for source_id, source in known.items()
            if isinstance(source, CachedFile) and not _is_below(source.rel_path, scan.unreadable)
        )
        return _Look(known, items, gone.difference(items), (*scan.skipped, *sorted(unfit)))

    def read(rel_path: str) -> _Read:
        text = folder.read(rel_path)
        return _Read(text, lambda: source_material(text, bounds.max_source_chars), lambda: describe_source(text))

    refresh = Refresh(model, catalogue, bounds)
    return await refresh.run(look, read, describe=describe)


async def refresh_topics(
    model: Model,
    topics: TopicLibrary,
    catalogue: Catalogue,
    *,
    options: IndexingOptions | None = None,
    describe: bool = True,
) -> Refreshed:
    """Bring the team index up to date with the topic files.

    Without `describe`, no model is asked, as in `refresh_sources`.
    Raises KnowledgeError where a topic cannot be looked at, or the index cannot be written.
    """
    bounds = options or IndexingOptions()

    def look() -> _Look:
        # The index first: a topic that is listed meanwhile is then not taken for one that is gone.
        known = catalogue.sources()
        listed = (source.rel_path for source in known.values() if isinstance(source, CachedFile))
        paths = sorted({*listed, *(f"{name}.txt" for name in topics.names())})
        found = [file for path in paths if (file := _stat(topics.folder, path)) is not None]
        items = {SourceId(f"team:{file.rel_path}"): file for file in found}
        return _Look(known, items, frozenset(known).difference(items), ())

    def read(rel_path: str) -> _Read:
        name = TopicName(rel_path.removesuffix(".txt"))
        blocks = topics.read(name)
        # A topic of one conversation is described by its question: a model would say little else.
        material = (lambda: topic_material(blocks, bounds.max_topic_chars)) if len(blocks) > 1 else str
        return _Read(topics.text(name), material, lambda: describe_topic(blocks))

    refresh = Refresh(model, catalogue, bounds, SUMMARIZE_TOPIC)
    return await refresh.run(look, read, describe=describe)


class _Look(NamedTuple):
    """The known entries, the present files, and the gone ones."""

    known: Mapping[SourceId, CachedSource]
    items: Mapping[SourceId, SourceFile]
    gone: frozenset[SourceId]
    skipped: tuple[SkippedFile, ...]


class _Read(NamedTuple):
    """A text, and what is made of it where its description is no longer true."""

    text: str
    material: Callable[[], str]
    provisional: Callable[[], str]


class Looked(NamedTuple):
    """A source that was looked at; with `material` or `description`, a summary is due."""

    source_id: SourceId
    entry: CachedSource
    """The entry of the index until there is a summary."""
    material: str = ""
    description: str = ""
    """The description, if there is nothing for a model to describe."""
    failure: str = ""
    """The reason why a page could not be fetched."""


class _Examined(NamedTuple):
    touched: dict[SourceId, CachedSource]
    """Their text is what it was."""
    due: list[Looked]
    resting: list[Owed]
    """Their summary is owed, and not tried now."""
    skipped: list[SkippedFile]
    unfit: set[SourceId]
    """They turned out to be no sources, so their entries go."""


@dataclass
class Refresh:
    """One refresh of one index."""

    model: Model
    catalogue: Catalogue
    options: IndexingOptions
    prompt: Prompt[SummarizeIn, SummarizeOut] = SUMMARIZE_SOURCE

    @property
    def _kind(self) -> str:
        return "topics" if self.prompt is SUMMARIZE_TOPIC else "documents"

    async def run(self, look: Callable[[], _Look], read: Callable[[str], _Read], *, describe: bool) -> Refreshed:
        """Look for changes, describe them, and write the index. Without `describe`, no model is asked."""
        seen = await anyio.to_thread.run_sync(look)
        examined = await anyio.to_thread.run_sync(self._examine, seen, read)
        due = examined.due
        put: dict[SourceId, CachedSource] = dict(examined.touched)
        gone = seen.gone | examined.unfit
        drop: Collection[SourceId] = gone
        if not describe or not due or any(source.source_id not in seen.known for source in due):
            # New sources can be found before the model has seen them. With nothing due, an index that was lost is
            # written again from its cache, and one that is as it should be is left alone.
            put.update((source.source_id, source.entry) for source in due)
            await anyio.to_thread.run_sync(self.catalogue.change, put, drop)
            put, drop = {}, ()
        if describe:
            owed = await self.summarise(due, put, drop)
        else:
            owed = [Owed(source.source_id, _NOT_ASKED) for source in due]
        failed = {one.source_id for one in owed}
        result = Refreshed(
            changed=tuple(source.source_id for source in due if source.source_id not in failed),
            removed=tuple(sorted(gone)),
            pending=(*owed, *examined.resting),
            skipped=(*seen.skipped, *examined.skipped),
        )
        if due or gone:
            _log.info(
                "index_refreshed", changed=len(result.changed), removed=len(result.removed), pending=len(result.pending)
            )
        return result

    def _examine(self, seen: _Look, read: Callable[[str], _Read]) -> _Examined:
        examined = _Examined({}, [], [], [], set())
        now = self.catalogue.clock.now()
        for n, (source_id, file) in enumerate(seen.items.items(), 1):
            tell(f"Reading {{total}} {self._kind}", n, len(seen.items))
            known = seen.known.get(source_id)
            cached = known if isinstance(known, CachedFile) else None
            settled = cached is not None and not cached.summary_pending
            resting = cached is not None and rests(cached, now)
            is_same = cached and (cached.size_bytes, cached.mtime_ns) == (file.size_bytes, file.mtime_ns)
            if cached and is_same and (settled or resting):
                if resting:
                    examined.resting.append(Owed(source_id, cached.last_error or ""))
                continue
            try:
                found = read(file.rel_path)
            except NotASourceError as error:
                examined.skipped.append(SkippedFile(file.rel_path, error.reason))
                if known is not None:
                    examined.unfit.add(source_id)
                continue
            except SourceError as error:
                examined.skipped.append(SkippedFile(file.rel_path, str(error)))
                continue
            entry = self._entry(file, cached, found)
            if cached and settled and _describes(cached, entry, found):
                examined.touched[source_id] = replace(entry, summary_pending=False, provisional=False)
            elif cached and resting and cached.content_hash == entry.content_hash:
                examined.touched[source_id] = entry
                examined.resting.append(Owed(source_id, cached.last_error or ""))
            else:
                material = found.material()
                own = "" if material.strip() else found.provisional()
                examined.due.append(Looked(source_id, entry, material, own))
        return examined

    def _entry(self, file: SourceFile, cached: CachedFile | None, found: _Read) -> CachedFile:
        """Make the entry until there is a summary, with the old description or a provisional one."""
        digest = content_hash(found.text)
        tried = cached if cached and cached.content_hash == digest else None
        return CachedFile(
            content_hash=digest,
            summary_text=cached.summary_text if cached else found.provisional(),
            last_indexed_at=cached.last_indexed_at if cached else self.catalogue.clock.now(),
            summary_pending=True,
            provisional=cached is None or cached.provisional or _is_provisional(cached, found),
            last_error=tried.last_error if tried else None,
            tries=tried.tries if tried else None,
            rel_path=file.rel_path,
            size_bytes=file.size_bytes,
            mtime_ns=file.mtime_ns,
        )

    async def summarise(
        self, due: Sequence[Looked], put: dict[SourceId, CachedSource], drop: Collection[SourceId]
    ) -> list[Owed]:
        """Describe all due sources, several at a time, written in few parts; return failures in the order of `due`."""
        if not due and (put or drop):
            await anyio.to_thread.run_sync(self.catalogue.change, put, drop)
        part = max(_LEAST_PART, -(-len(due) // _PARTS))
        settled: dict[SourceId, CachedSource] = {}
        done = count(1)
        for start in range(0, len(due), part):
            waiting = iter(due[start : start + part])

            async def work(waiting: Iterator[Looked] = waiting) -> None:
                for source in waiting:
                    # A failure is a value, or it would end the others.
                    settled[source.source_id] = await self._settle(source)
                    await self._note(source.source_id, settled[source.source_id])
                    tell(f"Describing {{total}} {self._kind}", next(done), len(due))

            async with anyio.create_task_group() as tg:
                for _ in range(min(self.options.concurrency, len(due) - start)):
                    tg.start_soon(work)
            put.update((each.source_id, settled[each.source_id]) for each in due[start : start + part])
            await anyio.to_thread.run_sync(self.catalogue.change, put, drop)
            put, drop = {}, ()
        return [
            Owed(source_id, source.last_error or "")
            for source_id, source in ((each.source_id, settled[each.source_id]) for each in due)
            if source.summary_pending
        ]

    async def _note(self, source_id: SourceId, source: CachedSource) -> None:
        """Write a paid description at once, also during a stop, so that a kill repeats no call."""
        with anyio.CancelScope(shield=True):
            try:
                await anyio.to_thread.run_sync(self.catalogue.note, source_id, source)
            except KnowledgeError as error:  # the write of all entries follows, and raises
                _log.warning("description_not_noted", source_id=source_id, reason=str(error))

    async def _settle(self, source: Looked) -> CachedSource:
        if source.description:
            return described(source.entry, source.description, self.catalogue.clock.now())
        try:
            out = await self.model.ask(self.prompt, SummarizeIn(source_id=source.source_id, text=source.material))
            description = shortened(out.description, self.options.max_description_chars)
            if not description:
                raise ModelReplyError(f"{self.prompt.name} gave no description of {source.source_id}")
        except ModelError as error:
            _log.warning("summary_failed", source_id=source.source_id, reason=str(error))
            return not_described(source.entry, error, self.catalogue.clock.now())
        return described(source.entry, description, self.catalogue.clock.now())


def _is_provisional(cached: CachedFile, found: _Read) -> bool:
    """Return whether the description of an entry is not by a model, though the entry does not say so."""
    return (cached.summary_pending or is_recovered(cached)) and cached.summary_text == found.provisional()


def _describes(cached: CachedFile, entry: CachedFile, found: _Read) -> bool:
    """Return whether the known description fits the present text."""
    if is_recovered(cached):
        return entry.mtime_ns <= cached.mtime_ns and cached.summary_text != found.provisional()
    return cached.content_hash == entry.content_hash


def _is_below(rel_path: str, folders: Iterable[str]) -> bool:
    """Return whether a file is one of these, or lies below one of them."""
    return any(rel_path == folder or rel_path.startswith(f"{folder}/") for folder in folders)


def _stat(topics_dir: Path, rel_path: str) -> SourceFile | None:
    """Return the file of a topic; None if it is gone."""
    try:
        stat = (topics_dir / rel_path).stat()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise KnowledgeError(f"topic file {rel_path} could not be looked at ({error.strerror})") from error
    return SourceFile(rel_path, stat.st_size, stat.st_mtime_ns)


def add_topic_provisionally(
    topics: TopicLibrary, name: TopicName, catalogue: Catalogue, *, behind: bool = False
) -> bool:
    """List a new topic in the team index at once; its summary stays owed. Say whether it was not listed yet.

    `behind` as in `Catalogue.add`. A topic that is listed already costs nothing but a look. Blocks; raises
    KnowledgeError.
    """
    source_id = SourceId(f"team:{name}.txt")
    if source_id in catalogue.sources():
        return False
    return catalogue.add(source_id, _entry(topics, name, catalogue.clock), behind=behind)


def describe_provisionally(topics: TopicLibrary, outdated: Collection[TopicName], catalogue: Catalogue) -> None:
    """Replace the descriptions of these topics by provisional ones, however new those are.

    Topics that are gone are listed no more, and those that are not listed stay so; a summary is owed for the others.
    Blocks; raises KnowledgeError.
    """
    listed = catalogue.sources()
    # The time of a description proves nothing: the clock may have gone back since.
    stale = {source_id: name for name in outdated if (source_id := SourceId(f"team:{name}.txt")) in listed}
    there = set(topics.names())
    put = {each: _entry(topics, name, catalogue.clock) for each, name in stale.items() if name in there}
    catalogue.change(put, frozenset(stale).difference(put))


def _entry(topics: TopicLibrary, name: TopicName, clock: Clock) -> CachedFile:
    rel_path = f"{name}.txt"
    try:
        stat = (topics.folder / rel_path).stat()
    except OSError as error:
        raise KnowledgeError(f"topic {name} could not be read ({error.strerror}), so it was not listed") from error
    return CachedFile(
        content_hash=content_hash(topics.text(name)),
        summary_text=describe_topic(topics.read(name)),
        last_indexed_at=clock.now(),
        summary_pending=True,
        provisional=True,
        rel_path=rel_path,
        size_bytes=stat.st_size,
        mtime_ns=stat.st_mtime_ns,
    )
