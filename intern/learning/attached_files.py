"""Choose and read text files that people attach, or paste on the sites of `discord.paste_hosts`; digest them."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from datetime import datetime
from typing import Any, Protocol

from anyio.to_thread import run_sync
from msgspec.structs import replace

from intern.core.errors import ChatError, UnusableFileError, WebError
from intern.core.ids import UserId
from intern.core.log import get_logger
from intern.core.messages import MOST_FILE_BYTES, Attachment, FileDigest, Image
from intern.core.tasks import open_task_group
from intern.documents.file_digests import digest_file
from intern.sources.fetching import PageFetcher
from intern.sources.options import WebOptions

_log = get_logger(__name__)

MOST_FILES = 4
"""The most files that are read of a message."""
_DIGESTS_KEPT = 200  # in memory, because other questions and a capture follow a question
_HOURS_KEPT = 10_000  # of members; each is as long as a few ids
_LINK = re.compile(r"https://([^\s/<>\"?#]+)/[^\s<>\"]+(?<![.,;:!?)*_|~`'\]])")
_PAGES = (b"<!doctype html", b"<html")
UNREAD = FileDigest(problem="could not be read")


class FileHost(Protocol):
    """Fetches attached files; see `intern.platforms.discord.attachments`."""

    async def fetch_image(self, attachment: Attachment, /) -> Image:
        """Fetch an image. Raises LinkExpiredError, UnusableFileError or ChatUnavailableError."""
        ...

    async def fetch(self, attachment: Attachment, most: int, /) -> bytes:
        """Fetch a file of at most `most` bytes. Raises as `fetch_image` does."""
        ...


def _is_media(file: Attachment) -> bool:
    """Whether a file is surely no text. Discord judges by the name: `relay.ts` is a video to it, without a width."""
    kind = file.content_type or ""
    return file.is_image or kind.startswith("audio/") or (kind.startswith("video/") and bool(file.width))


async def fetch_paste(url: str) -> bytes:
    """Fetch a text from a paste site: from public addresses, without redirects. Raises the WebError family."""
    async with PageFetcher(WebOptions(max_bytes=MOST_FILE_BYTES)) as pages:
        return await pages.fetch_file(url)


@dataclass
class FileReader:
    """Reads the files of messages, `per_hour` of a member in an hour by the clock of their messages; 0: no limit.

    So reading a message again, or later, costs no more of the limit, and gives the same result.
    """

    host: FileHost
    reads: bool = True
    per_hour: int = 0
    paste_hosts: Collection[str] = ()
    _: KW_ONLY
    fetch_paste: Callable[[str], Awaitable[bytes]] = fetch_paste
    digests: dict[str, list[FileDigest | None]] = field(default_factory=dict[str, list[FileDigest | None]])
    """The digests that were read. It is emptied when a message is deleted or forgotten."""
    _sent: dict[tuple[UserId | None, int], set[str]] = field(default_factory=dict[Any, Any], init=False)

    def choose(
        self, author_id: UserId | None, at: datetime | None, text: str, attachments: Sequence[Attachment]
    ) -> list[Attachment]:
        """Return the files of a message to read, including those behind its links to paste sites."""
        files = [each for each in attachments if not _is_media(each) and each.size <= MOST_FILE_BYTES]
        links = dict.fromkeys(link[0] for link in _LINK.finditer(text) if link[1].lower() in self.paste_hosts)
        files += [Attachment(id=url, filename=url.removeprefix("https://"), url=url, size=0) for url in links]
        if not files or not self.reads:
            return []
        if len(self._sent) > _HOURS_KEPT:
            self._sent.clear()
        sent = self._sent.setdefault((author_id, int(at.timestamp() // 3600) if at else 0), set())
        chosen: list[Attachment] = []
        for each in files[:MOST_FILES]:
            if each.id in sent or not self.per_hour or len(sent) < self.per_hour:
                sent.add(each.id)
                chosen.append(each)
        return chosen

    async def read(self, file: Attachment) -> FileDigest | None:
        """Return the digest of a file; None if it is no text. Raises the errors of `FileHost`."""
        if len(self.digests) > _DIGESTS_KEPT:
            self.digests.clear()
        known = self.digests.setdefault(file.id, [])  # no longer in `digests` if it is cleared during the reading
        if known:
            return known[0]
        try:
            data = await (self.fetch_paste(file.url) if file.is_linked else self.host.fetch(file, MOST_FILE_BYTES))
        except WebError as error:
            raise UnusableFileError(str(error)) from error
        is_page = file.is_linked and data[:200].lstrip(b"\xef\xbb\xbf\r\n\t ").lower().startswith(_PAGES)
        known[:] = [None if is_page else await run_sync(digest_file, data)]
        return known[0]

    async def read_each(self, files: Sequence[Attachment]) -> Mapping[str, Attachment]:
        """Return the files with their digests, by their ids. A failure is logged, and noted in place of the digest."""
        read: dict[str, Attachment] = {}

        async def read_file(file: Attachment) -> None:
            try:
                digest = await self.read(file)
            except ChatError as error:
                _log.warning("file_unread", attachment_id=file.id, reason=str(error))
                digest = UNREAD
            read[file.id] = replace(file, digest=digest)

        async with open_task_group() as tg:
            for file in files:
                tg.start_soon(read_file, file)
        return read
