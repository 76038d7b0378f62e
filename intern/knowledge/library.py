"""The reading side of all knowledge: what is listed, the text of a listed source, and where an answer was given.

Only what an index lists is ever opened. An id may come from a model; it is looked up, never made into a path.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import Protocol

from anyio import to_thread

from intern.domain import CapturedPair, IndexEntry, QAId, SourceId, SourceText, TopicName
from intern.errors import KnowledgeError, SourceError
from intern.knowledge.archive import Archive
from intern.knowledge.files import FileLayer, unreadable
from intern.knowledge.indices import folded, is_url, read_index
from intern.knowledge.pages import PageCopies
from intern.knowledge.sources import SourceFolder
from intern.knowledge.topics import TopicLibrary
from intern.observe.log import get_logger

_log = get_logger(__name__)

_HEADING = re.compile(r"#{1,6}[ \t]+(?P<title>.*?)(?:[ \t]+#+)?[ \t]*")
_UNDERLINE = re.compile(r"={3,}[ \t]*")
_FENCE = re.compile(r" {0,3}(```|~~~)")

# A title stands in a list of sources below an answer.
_LONGEST_TITLE = 120


class Ranks(Protocol):
    """A search in the texts of the sources."""

    async def rank(self, text: str, limit: int, /) -> Sequence[SourceId]:
        """The best sources for a text, best first. Raises KnowledgeError."""
        ...


class MoreSources(Protocol):
    """Sources that stand in no index on disk."""

    async def entries(self) -> Sequence[IndexEntry]:
        """What they cover. Raises KnowledgeError."""
        ...

    async def load(self, source_id: SourceId, /) -> SourceText | None:
        """The text of one; None where it is none of these. Raises SourceError."""
        ...


class Library:
    """The sources of the operator and the topics of the team, as their indices on disk list them.

    Indices are read again when their files change, so whoever writes them need not tell.
    """

    def __init__(
        self,
        *,
        kb_index: Path,
        team_index: Path,
        sources: SourceFolder,
        topics: TopicLibrary,
        archive: Archive,
        files: FileLayer | None = None,
        ranks: Ranks | None = None,
        more: MoreSources | None = None,
        pages: PageCopies | None = None,
    ) -> None:
        layer = files or FileLayer()
        self._indices = (_WatchedIndex(kb_index, layer), _WatchedIndex(team_index, layer))
        self._sources = sources
        self._pages = pages
        self._topics = topics
        self._archive = archive
        self._ranks = ranks
        self._more = more

    async def entries(self) -> tuple[IndexEntry, ...]:
        """All that is listed, documents before topics; empty before the first indexing.

        Raises KnowledgeError where an index cannot be read.
        """
        listed = await to_thread.run_sync(self._entries)
        return listed if self._more is None else (*listed, *await self._more.entries())

    async def load(self, source_id: SourceId) -> SourceText:
        """The whole text of a listed source. Raises SourceError where it is not listed, gone, or unreadable."""
        if self._more is not None and (found := await self._more.load(source_id)) is not None:
            return found
        return await to_thread.run_sync(self._load, source_id)

    async def best(self, query: str, limit: int) -> Sequence[SourceId] | None:
        """The sources whose text fits a query best, best first; None where nobody can tell, or the search failed."""
        if self._ranks is None:
            return None
        try:
            return await self._ranks.rank(query, limit)
        except KnowledgeError as error:
            # The descriptions still tell which sources to look at.
            _log.warning("search_failed", reason=str(error))
            return None

    async def citation_link(self, source_id: SourceId) -> str | None:
        """A link for readers: the page of a web source, or for `team:<topic>.txt#<qa id>` the message that answered.

        None where there is none to give: files, whole topics, imported pairs, and what is not listed. Raises
        KnowledgeError.
        """
        return await to_thread.run_sync(self._citation_link, source_id)

    def _entries(self) -> tuple[IndexEntry, ...]:
        return tuple(entry for index in self._indices for entry in index.entries().values())

    def _is_listed(self, source_id: SourceId) -> bool:
        return any(source_id in index.entries() for index in self._indices)

    def _load(self, source_id: SourceId) -> SourceText:
        if not self._is_listed(source_id):
            raise SourceError(f"{source_id!a} is in no index")
        if is_url(source_id):
            return self._page(source_id)
        kind, _, name = source_id.partition(":")
        try:
            if kind == "team":
                topic = TopicName(name.removesuffix(".txt"))
                return SourceText(source_id=source_id, text=self._topics.text(topic), title=topic.replace("-", " "))
            text = self._sources.read(name)
        except ValueError as error:  # an index that somebody edited may list what can be no topic
            raise SourceError(f"{source_id!a} is listed, but cannot be a source: {error}") from error
        except KnowledgeError as error:
            raise SourceError(str(error)) from error
        return SourceText(source_id=source_id, text=text, title=title_of(name, text))

    def _page(self, source_id: SourceId) -> SourceText:
        if self._pages is None:
            raise SourceError(f"{source_id} is a web page that no copy is kept of")
        try:
            copy = self._pages.load(source_id.removeprefix("kb:"))
        except KnowledgeError as error:
            raise SourceError(str(error)) from error
        return SourceText(source_id=source_id, text=copy.text, title=copy.title or copy.url, url=copy.url)

    def _citation_link(self, source_id: SourceId) -> str | None:
        listed, _, qa_id = source_id.partition("#")
        if is_url(source_id):  # its `#` is part of the address
            return source_id.removeprefix("kb:") if self._is_listed(source_id) else None
        if not qa_id or not self._is_listed(SourceId(listed)):
            return None
        topic = TopicName(listed.removeprefix("team:").removesuffix(".txt"))
        if self._topics.topic_of(QAId(qa_id)) != topic:
            return None
        pair = self._archive.get(QAId(qa_id))
        return None if pair is None else jump_link(pair)


def jump_link(pair: CapturedPair) -> str | None:
    """Discord's link to the last message of a pair; None where one of the ids it needs is missing or foreign."""
    message_id = pair.message_ids[-1].removeprefix("msg_") if pair.message_ids else ""
    ids = (pair.guild_id or "", pair.channel_id or "", message_id)
    if not all(part.isascii() and part.isdigit() for part in ids):
        return None
    return "https://discord.com/channels/" + "/".join(ids)


def title_of(rel_path: str, text: str) -> str:
    """The first heading of a document (Markdown's `#`, or a line underlined with `===`), else its file name."""
    name = PurePosixPath(rel_path).name
    if name.lower().endswith(".txt"):
        return name
    fence = ""
    above = ""
    for line in text.splitlines():
        if marker := _FENCE.match(line):
            fence = "" if fence == marker[1] else fence or marker[1]
        elif not fence:
            heading = _HEADING.fullmatch(line)
            title = folded(heading["title"] if heading else above if _UNDERLINE.fullmatch(line) else "")
            if title:
                return title[:_LONGEST_TITLE]
        above = line
    return name


class _WatchedIndex:
    """An index on disk, read again only when its file is another one."""

    def __init__(self, path: Path, files: FileLayer) -> None:
        self._path = path
        self._files = files
        # One attribute, set at once: several threads may come here, and the worst is that two of them read.
        self._known: tuple[object, dict[SourceId, IndexEntry]] = (None, {})

    def entries(self) -> dict[SourceId, IndexEntry]:
        """By id, in the order of the file; empty where there is no file. Raises KnowledgeError."""
        stamp = self._stamp()
        known, entries = self._known
        if stamp != known:
            entries = {entry.source_id: entry for entry in read_index(self._path, files=self._files)}
            self._known = (stamp, entries)
        return entries

    def _stamp(self) -> tuple[int, int, int] | None:
        # Taken before reading: a file that is replaced in between is read once more than needed, never once too few.
        try:
            status = self._path.stat()
        except FileNotFoundError:
            self._known = (None, {})
            return None
        except OSError as error:
            raise unreadable(self._path, error) from error
        return status.st_mtime_ns, status.st_size, status.st_ino
