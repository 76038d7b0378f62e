"""Refreshing an index from its sources: one model call for each that changed, none for all others.

Size and mtime are the fast path, the hash decides. A new source is listed at once by its own beginning; one whose
summary fails keeps its description, and a later refresh tries again (see `catalogue.PAUSES`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import count
from typing import NamedTuple

import anyio
import anyio.to_thread
from msgspec import Struct, structs

from intern.core.errors import KnowledgeError, ModelError, ModelReplyError, SourceError
from intern.core.ids import SourceId, TopicName
from intern.core.log import failure_level, get_logger
from intern.core.progress import report_progress
from intern.core.tasks import run_each
from intern.core.text.words import shorten_to_line
from intern.models.prompt import Model, Prompt
from intern.sources.catalogue import Catalogue, apply_description, apply_description_failure, is_paused
from intern.sources.descriptions import (
    SUMMARIZE_SOURCE,
    SUMMARIZE_TOPIC,
    SummarizeIn,
    SummarizeOut,
    describe_source,
    describe_topic,
    source_excerpt,
    topic_excerpt,
)
from intern.sources.options import IndexingOptions
from intern.sources.scanning import is_below
from intern.sources.source_folder import NotASourceError, SkippedFile, SourceFile, SourceFolder
from intern.stores.source_cache import (
    CachedFile,
    CachedSource,
    CachedTopic,
    IncludedFile,
    content_hash,
    is_source_id,
    topic_id,
)
from intern.stores.tables.knowledge import KnowledgeChange, KnowledgeStore

_log = get_logger(__name__)

_NOT_ASKED = "no model was asked yet"
_UNFIT = "no index can list a name of blanks; rename it"


class PendingSummary(NamedTuple):
    """A source that has no summary of its present text yet."""

    source_id: SourceId
    reason: str


class RefreshReport(Struct, frozen=True, kw_only=True):
    """The result of a refresh."""

    changed: tuple[SourceId, ...] = ()
    """New or changed, and summarised."""
    removed: tuple[SourceId, ...] = ()
    pending: tuple[PendingSummary, ...] = ()
    """Listed, but their summary failed, now or before; a later refresh asks again."""
    skipped: tuple[SkippedFile, ...] = ()
    """Files that were passed over or could not be read."""


async def refresh_sources(
    model: Model, folder: SourceFolder, catalogue: Catalogue, options: IndexingOptions, *, describe: bool = True
) -> RefreshReport:
    """Bring the index of the operator's documents up to date.

    Without `describe`, no model is asked: changed documents are listed without a new description until one is made.
    Raises SourceError if the folder cannot be read, and KnowledgeError if the index cannot be written.
    """

    def scan_sources() -> _SourceInventory:
        known = catalogue.sources()
        scan = folder.scan(source for source in known.values() if isinstance(source, CachedFile))
        every = {SourceId(f"kb:{file.rel_path}"): file for file in scan.files}
        items = {source_id: file for source_id, file in every.items() if is_source_id(source_id)}
        unfit = (SkippedFile(f'"{every[each].rel_path}"', _UNFIT) for each in every.keys() - items.keys())
        files = ((source_id, source) for source_id, source in known.items() if isinstance(source, CachedFile))
        gone = frozenset(each for each, source in files if not is_below(source.rel_path, scan.unreadable))
        return _SourceInventory(known, items, gone.difference(items), (*scan.skipped, *sorted(unfit)))

    def read_source(rel_path: str) -> _DescribableText:
        text = folder.read(rel_path)
        return _DescribableText(
            text,
            lambda: source_excerpt(text, options.max_source_chars),
            lambda: describe_source(text),
            folder.includes.get(rel_path, ()),
        )

    refresh = IndexRefresh(model, catalogue, options)
    return await refresh.run(scan_sources, read_source, describe=describe)


async def refresh_topics(
    model: Model, knowledge: KnowledgeStore, catalogue: Catalogue, options: IndexingOptions, *, describe: bool = True
) -> RefreshReport:
    """Bring the team index up to date with the topics.

    Without `describe`, no model is asked, as in `refresh_sources`. Raises KnowledgeError.
    """

    def list_topics() -> _SourceInventory:
        # The index first, so that a topic that is listed meanwhile does not count as gone.
        known = catalogue.sources()
        # The position of the newest change replaces a file's time.
        versions = knowledge.topic_versions().items()
        items = {topic_id(name): SourceFile(f"{name}.txt", length, at) for name, (length, at) in versions}
        return _SourceInventory(known, items, frozenset(known).difference(items), ())

    def read_topic(rel_path: str) -> _DescribableText:
        name = TopicName(rel_path.removesuffix(".txt"))
        # The text first: if the topic changes in between, its hash is the older one, so the next refresh reads it.
        text, blocks = knowledge.read_text(name), knowledge.read_topic(name)
        # A topic of one conversation is described by its question: a model would say little else.
        material = (lambda: topic_excerpt(blocks, options.max_topic_chars)) if len(blocks) > 1 else str
        return _DescribableText(text, material, lambda: describe_topic(blocks))

    refresh = IndexRefresh(model, catalogue, options, SUMMARIZE_TOPIC, "topics")
    return await refresh.run(list_topics, read_topic, describe=describe)


class _SourceInventory(NamedTuple):
    """The known entries, the present files, and the gone ones."""

    known: Mapping[SourceId, CachedSource]
    items: Mapping[SourceId, SourceFile]
    gone: frozenset[SourceId]
    skipped: tuple[SkippedFile, ...]


class _DescribableText(NamedTuple):
    """A text, and the ways to describe it once its description is no longer true."""

    text: str
    material: Callable[[], str]
    provisional: Callable[[], str]
    includes: tuple[IncludedFile, ...] = ()


class CheckedSource(NamedTuple):
    """A source that was checked; with `material` or `description`, a summary is due."""

    source_id: SourceId
    entry: CachedSource
    """The entry of the index until there is a summary."""
    material: str = ""
    description: str = ""
    """The description, if there is nothing for a model to describe."""
    failure: str = ""
    """The reason why a page could not be fetched."""


class _SourceTriage(NamedTuple):
    touched: dict[SourceId, CachedSource]
    """Their text has not changed."""
    due: list[CheckedSource]
    resting: list[PendingSummary]
    """Their summary is owed, and not tried now."""
    skipped: list[SkippedFile]
    unfit: set[SourceId]
    """They turned out to be no sources, so their entries go."""


@dataclass
class IndexRefresh:
    """One refresh of one index."""

    model: Model
    catalogue: Catalogue
    options: IndexingOptions
    prompt: Prompt[SummarizeIn, SummarizeOut] = SUMMARIZE_SOURCE
    kind: str = "documents"
    """For the progress."""

    async def run(
        self, look: Callable[[], _SourceInventory], read: Callable[[str], _DescribableText], *, describe: bool
    ) -> RefreshReport:
        """Look for changes, describe them, and write the index. Without `describe`, no model is asked."""
        seen = await anyio.to_thread.run_sync(look)
        examined = await anyio.to_thread.run_sync(self._triage_sources, seen, read)
        due = examined.due
        put: dict[SourceId, CachedSource] = dict(examined.touched)
        gone = seen.gone | examined.unfit
        if not describe or any(source.source_id not in seen.known for source in due):
            # New sources can be found before the model has seen them.
            put.update((source.source_id, source.entry) for source in due)
        await self.catalogue.change(put, gone)
        owed = (
            await self.summarise_sources(due)
            if describe
            else [PendingSummary(each.source_id, _NOT_ASKED) for each in due]
        )
        failed = {one.source_id for one in owed}
        result = RefreshReport(
            changed=tuple(source.source_id for source in due if source.source_id not in failed),
            removed=tuple(sorted(gone)),
            pending=(*owed, *examined.resting),
            skipped=(*seen.skipped, *examined.skipped),
        )
        if due or gone:
            pending = len(result.pending)
            _log.info("index_refreshed", changed=len(result.changed), removed=len(result.removed), pending=pending)
        return result

    def _triage_sources(self, seen: _SourceInventory, read: Callable[[str], _DescribableText]) -> _SourceTriage:
        examined = _SourceTriage({}, [], [], [], set())
        now = self.catalogue.clock.now()
        for n, (source_id, file) in enumerate(seen.items.items(), 1):
            report_progress(f"Reading {{total}} {self.kind}", n, len(seen.items))
            known = seen.known.get(source_id)
            cached = known if isinstance(known, CachedFile) else None
            settled = cached is not None and not cached.summary_pending
            resting = cached is not None and is_paused(cached, now)
            is_same = cached and (cached.size_bytes, cached.version, cached.includes) == file[1:]
            if cached and is_same and (settled or resting):
                if resting:
                    examined.resting.append(PendingSummary(source_id, cached.last_error or ""))
                continue
            try:
                found = read(file.rel_path)
            except SourceError as error:
                unfit = error.reason if isinstance(error, NotASourceError) else ""
                examined.skipped.append(SkippedFile(file.rel_path, unfit or str(error)))
                examined.unfit.update([source_id] if unfit and known else [])
                continue
            entry = self._build_entry(file, cached, found)
            if cached and settled and cached.content_hash == entry.content_hash:
                examined.touched[source_id] = structs.replace(entry, summary_pending=False, provisional=False)
            elif cached and resting and cached.content_hash == entry.content_hash:
                examined.touched[source_id] = entry
                examined.resting.append(PendingSummary(source_id, cached.last_error or ""))
            else:
                material = found.material()
                own = "" if material.strip() else found.provisional()
                examined.due.append(CheckedSource(source_id, entry, material, own))
        return examined

    def _build_entry(self, file: SourceFile, cached: CachedFile | None, found: _DescribableText) -> CachedFile:
        """Make the entry until there is a summary, with the old description or a provisional one."""
        digest = content_hash(found.text)
        tried = cached if cached and cached.content_hash == digest else None
        # Not all entries record that their description is not by a model.
        is_ours = cached is not None and cached.summary_pending and cached.summary_text == found.provisional()
        return (CachedTopic if self.kind == "topics" else CachedFile)(
            content_hash=digest,
            summary_text=cached.summary_text if cached else found.provisional(),
            last_indexed_at=cached.last_indexed_at if cached else self.catalogue.clock.now(),
            summary_pending=True,
            provisional=cached is None or cached.provisional or is_ours,
            last_error=tried.last_error if tried else None,
            tries=tried.tries if tried else None,
            rel_path=file.rel_path,
            size_bytes=file.size_bytes,
            version=file.version,
            includes=found.includes,
        )

    async def summarise_sources(self, due: Sequence[CheckedSource]) -> list[PendingSummary]:
        """Describe all due sources, several at a time; return failures in the order of `due`."""
        unwritten: dict[SourceId, CachedSource] = {}
        done = count(1)

        async def summarise_source(source: CheckedSource) -> CachedSource:
            entry = await self._describe_source(source)  # a failure is a value, or it would end the others
            if not await self._write_entry(source.source_id, entry):
                unwritten[source.source_id] = entry
            report_progress(f"Describing {{total}} {self.kind}", next(done), len(due))
            return entry

        settled = await run_each(summarise_source, due, self.options.concurrency)
        await self.catalogue.change(unwritten)
        ended = zip(due, settled, strict=True)
        return [
            PendingSummary(each.source_id, entry.last_error or "") for each, entry in ended if entry.summary_pending
        ]

    async def _write_entry(self, source_id: SourceId, source: CachedSource) -> bool:
        """Write a paid description at once, also during a stop, so that a kill repeats no call."""
        with anyio.CancelScope(shield=True):
            try:
                await self.catalogue.change({source_id: source})
            except KnowledgeError as error:  # it is tried again after the others, and raises then
                _log.log(failure_level(error), "description_not_written", source_id=source_id, reason=str(error))
                return False
        return True

    async def _describe_source(self, source: CheckedSource) -> CachedSource:
        if source.description:
            return apply_description(source.entry, source.description, self.catalogue.clock.now())
        try:
            out = await self.model.ask(self.prompt, SummarizeIn(source_id=source.source_id, text=source.material))
            description = shorten_to_line(out.description, self.options.max_description_chars)
            if not description:
                raise ModelReplyError(f"{self.prompt.name} gave no description of {source.source_id}")
        except ModelError as error:
            _log.warning("summary_failed", source_id=source.source_id, reason=str(error))
            return apply_description_failure(source.entry, error, self.catalogue.clock.now())
        return apply_description(source.entry, description, self.catalogue.clock.now())


def list_topic(change: KnowledgeChange, name: TopicName, now: datetime) -> None:
    """List a topic in the team index unless it is there; its summary stays owed."""
    if not change.has_entry("team", topic_id(name)):
        change.update_sources("team", {topic_id(name): _build_topic_entry(change, name, now)})


def describe_provisionally(change: KnowledgeChange, outdated: Collection[TopicName], now: datetime) -> None:
    """Replace the descriptions of these topics by provisional ones, however new those are.

    Topics that are gone leave the index, and unlisted ones stay unlisted; a summary is owed for the others.
    """
    # The time of a description proves nothing: the clock may have gone back since.
    there = set(change.topic_names())
    listed = [name for name in outdated if change.has_entry("team", topic_id(name))]
    put = {topic_id(name): _build_topic_entry(change, name, now) for name in listed if name in there}
    change.update_sources("team", put, [topic_id(name) for name in listed if name not in there])


def _build_topic_entry(change: KnowledgeChange, name: TopicName, now: datetime) -> CachedTopic:
    text = change.read_text(name)
    return CachedTopic(
        content_hash=content_hash(text),
        summary_text=describe_topic(change.read_topic(name)),
        last_indexed_at=now,
        summary_pending=True,
        provisional=True,
        rel_path=f"{name}.txt",
        size_bytes=len(text.encode()),
        version=0,
    )
