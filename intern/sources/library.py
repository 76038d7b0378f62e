"""Reading all knowledge: the listed sources, their texts, and links to the messages that answered.

Only listed sources are ever opened. An id may come from a model; it is looked up, never made into a path. Web pages
are read from copies: the file of a copy is named by a hash of the address. Lost or damaged copies are fetched again.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from operator import is_not
from pathlib import Path
from typing import Literal, Protocol

import msgspec
from anyio import to_thread
from msgspec import Struct

from intern.core.captures import CapturedPair
from intern.core.errors import KnowledgeError, SourceError
from intern.core.ids import MessageId, QAId, SourceId, TopicName
from intern.core.knowledge import IndexEntry, LearnedMatches, SourceText
from intern.core.log import get_logger
from intern.core.messages import is_distilled, is_team_source
from intern.core.search_documents import PassageHit
from intern.core.text.passages import find_blocks
from intern.sources.catalogue import Catalogue
from intern.sources.source_folder import SourceFolder
from intern.stores.archive import Archive
from intern.stores.files import FileLayer
from intern.stores.qa_ids import bare_message_id
from intern.stores.source_cache import CachedPage, flatten_description, is_url, topic_from_id
from intern.stores.tables.knowledge import KnowledgeStore

_log = get_logger(__name__)
MOST_MISSING = 4
"""Replies "no such page" in a row, over three and a half hours at least, before a page counts as gone."""


PageState = Literal["fresh", "pending", "failing", "gone", "unseen"]
"""`pending`: its summary is owed. `failing`: the index holds an older text, or none yet."""


def page_state(page: CachedPage) -> PageState:
    """Return the state of a page."""
    if page.missing >= MOST_MISSING:
        return "gone"
    if page.failures:
        return "failing"
    if page.next_check_at is None:
        return "unseen"
    return "pending" if page.summary_pending else "fresh"


_COPY = re.compile(r"\.?[0-9a-f]{64}\.json(\.tmp)?")
_COMMENT = re.compile(r"(?:^|\s)#.*")


class RenderingAttempt(Struct, frozen=True, kw_only=True):
    """A rendering that did not help."""

    failures: int = 0
    """Failures in a row; 0: it worked, and the page had no more text than without it."""
    again_at: datetime | None = None
    """When to try once more, though the page did not change; None: not before it does."""


class PageCopy(Struct, frozen=True, kw_only=True):
    """A page's text, as it was last read."""

    url: str
    title: str
    text: str
    status: str
    """The way it was read: plainly, rendered, or without the scripts that it needs."""
    body_hash: str
    """SHA-256 of the site's reply; an equal reply is not read again."""
    rendering: RenderingAttempt | None = None
    """The rendering of a page that still needs scripts; None if it was not tried."""


def read_links(path: Path, *, files: FileLayer | None = None) -> tuple[tuple[int, str], ...]:
    """Return the numbers and texts of the list's lines, without comments; none without a list. Raises KnowledgeError.

    A `#` begins a comment at the start of a line or after a blank; elsewhere it is part of the address.
    """
    data = (files or FileLayer()).read(path)
    lines = (data or b"").decode("utf-8-sig", "replace").splitlines()
    bare = ((number, _COMMENT.sub("", line).strip()) for number, line in enumerate(lines, start=1))
    return tuple((number, text) for number, text in bare if text)


class PageCopies:
    """The copies, one file each. Any thread may use it."""

    def __init__(self, folder: Path, files: FileLayer | None = None) -> None:
        self._folder = folder
        self._files = files or FileLayer()

    def get(self, url: str) -> PageCopy | None:
        """Return the copy; None if there is none, or it is damaged. Raises KnowledgeError."""
        path = self._path(url)
        data = self._files.read(path)
        if data is None:
            return None
        try:
            copy = msgspec.json.decode(data, type=PageCopy)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            _log.warning("page_copy_damaged", file=str(path), reason=str(error))
            return None
        return copy if copy.url == url else None

    def load(self, url: str) -> PageCopy:
        """Return the copy. Raises SourceError if there is none, and KnowledgeError."""
        copy = self.get(url)
        if copy is None:
            raise SourceError(f"there is no copy of {url} in {self._folder}; the next indexing fetches the page again")
        return copy

    def save(self, copy: PageCopy) -> None:
        """Replace the copy of a page. Raises KnowledgeError."""
        self._files.write_atomically(self._path(copy.url), msgspec.json.encode(copy))

    def remove_others(self, urls: Collection[str]) -> int:
        """Remove the copies of all other pages; return how many. Raises KnowledgeError."""
        kept = {self._path(url).name for url in urls}
        try:
            names = [path.name for path in self._folder.iterdir()]
        except FileNotFoundError:
            return 0
        except OSError as error:
            why = f"{self._folder} could not be read ({error.strerror})"
            raise KnowledgeError(f"{why}; check its permissions") from error
        gone = [name for name in names if _COPY.fullmatch(name) and name not in kept]
        for name in gone:
            self._files.remove(self._folder / name)
        return len(gone)

    def _path(self, url: str) -> Path:
        return self._folder / f"{hashlib.sha256(url.encode('utf-8', 'replace')).hexdigest()}.json"


# Titles are shown in the list of sources below an answer.
_LONGEST_TITLE = 120


Rank = Callable[[str, int], Awaitable[Sequence[PassageHit]]]
"""Returns the best passages for a text, best first. Raises KnowledgeError."""


class UnindexedSources(Protocol):
    """Sources that are in no index on disk."""

    async def entries(self) -> Sequence[IndexEntry]:
        """Return their entries. Raises KnowledgeError."""
        ...

    async def load(self, source_id: SourceId, /) -> SourceText | None:
        """Return the text of one; None if it is none of these. Raises SourceError."""
        ...


class NuggetsAndFacts(Protocol):
    """Nuggets and facts. Each raises KnowledgeError."""

    async def find_distilled(self, query: str, /) -> LearnedMatches:
        """Return those that fit a question."""
        ...

    async def load_each(self, source_ids: Collection[SourceId], /) -> Mapping[SourceId, SourceText | KnowledgeError]:
        """Return the nuggets and facts among these, or an error for each."""
        ...


DISCORD = "https://discord.com"


@dataclass(kw_only=True, eq=False)
class Library:
    """The sources of the operator and the topics of the team, as their indices list them."""

    indices: Sequence[Catalogue]
    sources: SourceFolder
    topics: KnowledgeStore
    archive: Archive
    rank: Rank | None = None
    more: UnindexedSources | None = None
    distilled: NuggetsAndFacts | None = None
    pages: PageCopies | None = None
    site: str = DISCORD
    """The beginning of links to messages."""
    _looked_at: tuple[int, Sequence[Mapping[SourceId, IndexEntry]]] = field(default=(-1, ()), init=False)
    _listed: tuple[Sequence[Mapping[SourceId, IndexEntry]], tuple[IndexEntry, ...]] = field(
        default=((), ()), init=False
    )

    async def entries(self) -> tuple[IndexEntry, ...]:
        """Return all entries, documents before topics; empty before the first indexing.

        The very same tuple as before if nothing has changed and no sources but those of the indices are listed.
        Raises KnowledgeError if an index cannot be read.
        """
        listed = await to_thread.run_sync(self._list_entries)
        return listed if self.more is None else (*listed, *await self.more.entries())

    async def load(self, source_id: SourceId) -> SourceText:
        """Return the whole text of a listed source. Raises SourceError if it is not listed, gone, or unreadable."""
        if self.more is not None and (found := await self.more.load(source_id)) is not None:
            return found
        [loaded] = await to_thread.run_sync(self._load_each, [source_id])
        if isinstance(loaded, KnowledgeError):
            raise loaded
        return loaded

    async def load_each(self, source_ids: Sequence[SourceId]) -> tuple[SourceText | KnowledgeError, ...]:
        """Return the result or the error of `load` for each."""
        found = {} if self.more is None else await _load_unindexed(self.more, source_ids)
        if self.distilled is not None and any(map(is_distilled, source_ids)):
            try:
                found.update(await self.distilled.load_each(source_ids))
            except KnowledgeError as error:
                found.update((each, error) for each in source_ids if is_distilled(each))
        others = [source_id for source_id in source_ids if source_id not in found]
        # In one thread: a switch of threads costs as much as reading a small file.
        if others:
            found.update(zip(others, await to_thread.run_sync(self._load_each, others), strict=True))
        return tuple(found[source_id] for source_id in source_ids)

    async def find_hits(self, query: str, limit: int) -> Sequence[PassageHit] | None:
        """Return the best passages, best first; None without a search, or if it failed."""
        try:
            return None if self.rank is None else await self.rank(query, limit)
        except KnowledgeError as error:
            # The descriptions still show which sources to read.
            _log.warning("search_failed", reason=str(error))
            return None

    async def find_distilled(self, query: str) -> LearnedMatches:
        """Return the nuggets and facts that fit a question; none without a search, or if it failed."""
        if self.distilled is None:
            return LearnedMatches()
        try:
            return await self.distilled.find_distilled(query)
        except KnowledgeError as error:
            # Documents and topics still answer.
            _log.warning("learned_search_failed", reason=str(error))
            return LearnedMatches()

    async def citation_link(self, source_id: SourceId) -> str | None:
        """Return a link for readers: a web page, or for `team:<topic>.txt#<qa id>` the message that answered.

        None for files, whole topics, imported pairs, and sources that are not listed. Raises KnowledgeError.
        """
        return await to_thread.run_sync(self._citation_link, source_id)

    def _list_entries(self) -> tuple[IndexEntry, ...]:
        kept, listed = self._listed
        parts = self._read_indices()
        if not kept or any(map(is_not, kept, parts)):
            listed = tuple(entry for part in parts for entry in part.values())
            self._listed = (parts, listed)  # at once, as several threads may come here
        return listed

    def _read_indices(self) -> Sequence[Mapping[SourceId, IndexEntry]]:
        """Return the entries of each index; read each again once anything has changed."""
        at, parts = self._looked_at
        position = self.topics.position()
        if position != at:
            parts = tuple(each.entries() for each in self.indices)
            self._looked_at = (position, parts)  # at once, as several threads may come here
        return parts

    def _load_each(self, source_ids: Sequence[SourceId]) -> list[SourceText | KnowledgeError]:
        found: list[SourceText | KnowledgeError] = []
        try:
            # Once: each look asks the database.
            listed = self._find_listed(source_ids)
            topics = self.topics.read_texts([topic_from_id(each) for each in listed if is_team_source(each)])
        except KnowledgeError as error:
            return [error for _ in source_ids]
        for source_id in source_ids:
            try:
                found.append(self._load(source_id, listed, topics))
            except KnowledgeError as error:
                found.append(error)
        return found

    def _find_listed(self, source_ids: Collection[SourceId]) -> Collection[SourceId]:
        parts = self._read_indices()
        return {source_id for source_id in source_ids if any(source_id in each for each in parts)}

    def _load(self, source_id: SourceId, listed: Collection[SourceId], topics: Mapping[TopicName, str]) -> SourceText:
        if source_id not in listed:
            raise SourceError(f"{source_id!a} is in no index")
        if is_url(source_id):
            return self._load_page(source_id)
        if is_team_source(source_id):
            topic = topic_from_id(source_id)
            if topic not in topics:
                raise SourceError(f"there is no topic {topic}")
            return SourceText(source_id=source_id, text=topics[topic], title=topic.replace("-", " "))
        name = source_id.partition(":")[2]
        try:
            text = self.sources.read(name)
        except KnowledgeError as error:
            raise SourceError(str(error)) from error
        return SourceText(source_id=source_id, text=text, title=document_title(name, text))

    def _load_page(self, source_id: SourceId) -> SourceText:
        if self.pages is None:
            raise SourceError(f"{source_id} is a web page that no copy is kept of")
        try:
            copy = self.pages.load(source_id.removeprefix("kb:"))
        except KnowledgeError as error:
            raise SourceError(str(error)) from error
        return SourceText(source_id=source_id, text=copy.text, title=copy.title or copy.url, url=copy.url)

    def _citation_link(self, source_id: SourceId) -> str | None:
        listed, _, qa_id = source_id.partition("#")
        if is_url(source_id):  # its `#` is part of the address
            return source_id.removeprefix("kb:") if self._find_listed([source_id]) else None
        if not qa_id or not self._find_listed([SourceId(listed)]):
            return None
        if self.topics.find_topic(QAId(qa_id)) != topic_from_id(listed):
            return None
        pair = self.archive.get(QAId(qa_id))
        return None if pair is None else jump_link(pair, self.site)


async def _load_unindexed(
    more: UnindexedSources, source_ids: Sequence[SourceId]
) -> dict[SourceId, SourceText | KnowledgeError]:
    found: dict[SourceId, SourceText | KnowledgeError] = {}
    for source_id in source_ids:
        try:
            if (text := await more.load(source_id)) is not None:
                found[source_id] = text
        except KnowledgeError as error:
            found[source_id] = error
    return found


def jump_link(pair: CapturedPair, site: str = DISCORD) -> str | None:
    """Return the link to the last message of a pair; None if an id is missing or foreign."""
    return message_link(pair.guild_id, pair.channel_id, pair.message_ids[-1] if pair.message_ids else None, site)


def message_link(
    guild_id: str | None, channel_id: str | None, message_id: str | None, site: str = DISCORD
) -> str | None:
    """Return the link to a message; None if an id is missing or foreign."""
    ids = (guild_id or "", channel_id or "", bare_message_id(MessageId(message_id or "")))
    if not all(part.isascii() and part.isdigit() for part in ids):
        return None
    return f"{site}/channels/{'/'.join(ids)}"


def document_title(rel_path: str, text: str) -> str:
    """Return the first heading of a document, else its file name."""
    name = rel_path.rpartition("/")[2]
    if name.lower().endswith(".txt"):
        return name
    headings = (span.path[-1] for span in find_blocks(text) if span.kind == "heading")
    return next((flatten_description(heading)[:_LONGEST_TITLE] for heading in headings), name)
