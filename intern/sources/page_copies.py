"""The web pages that the operator lists: their state, and the copies of their text that answers read. Fetches nothing.

A copy's file is named by a hash of the address, so no address makes a path. Lost or damaged copies are fetched again.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection
from datetime import datetime
from pathlib import Path
from typing import Literal, NamedTuple

import msgspec
from msgspec import Struct

from intern.core.errors import KnowledgeError, SourceError
from intern.core.log import get_logger
from intern.stores.files import FileLayer
from intern.stores.indices import NEEDS_SCRIPTS, RENDERED, CachedPage

MOST_MISSING = 4
"""Times in a row, over three and a half hours at least, that a site may say "no such page" before it is believed."""


class PageState(NamedTuple):
    """The state of a page, for people."""

    url: str
    state: Literal["fresh", "pending", "failing", "gone", "unseen"]
    """`pending`: its summary is owed. `failing`: the index holds an older text, or none yet, and `error` says why."""
    error: str
    note: str
    """How it was read, where that is worth knowing: `NEEDS_SCRIPTS`, `RENDERED`."""
    next_check_at: datetime | None


def page_state(page: CachedPage) -> PageState:
    """Return the state of a page."""
    failing = page.failures > 0
    state: Literal["fresh", "pending", "failing", "gone", "unseen"]
    if page.missing >= MOST_MISSING:
        state = "gone"
    elif failing:
        state = "failing"
    elif page.next_check_at is None:
        state = "unseen"
    else:
        state = "pending" if page.summary_pending else "fresh"
    said = page.fetch_status or ""
    note = said if said in {NEEDS_SCRIPTS, RENDERED} else ""
    return PageState(page.url, state, said if failing else "", note, page.next_check_at)


_log = get_logger(__name__)

_COPY = re.compile(r"\.?[0-9a-f]{64}\.json(\.tmp)?")
_COMMENT = re.compile(r"(?:^|\s)#.*")


class ListedLink(NamedTuple):
    """A line of the list, not checked yet."""

    line: int
    text: str


class Rendering(Struct, frozen=True, kw_only=True):
    """A rendering that did not help."""

    failures: int = 0
    """Times in a row that it failed; 0: it worked, and there was no more to read than without it."""
    again_at: datetime | None = None
    """When to try once more, though the page did not change; None: not before it does."""


class PageCopy(Struct, frozen=True, kw_only=True):
    """A page's text, as it was last read."""

    url: str
    title: str
    text: str
    status: str
    """How it was read."""
    body_hash: str
    """SHA-256 of what the site served; the same again needs no reading."""
    rendering: Rendering | None = None
    """The rendering of a page that still needs scripts; None if it was not tried."""


def read_links(path: Path, *, files: FileLayer | None = None) -> tuple[ListedLink, ...]:
    """Return the lines of the list without comments; none without a list. Raises KnowledgeError.

    A `#` begins a comment at the start of a line or after a blank; elsewhere it is part of the address.
    """
    data = (files or FileLayer()).read(path)
    lines = (data or b"").decode("utf-8-sig", "replace").splitlines()
    bare = (ListedLink(number, _COMMENT.sub("", line).strip()) for number, line in enumerate(lines, start=1))
    return tuple(link for link in bare if link.text)


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

    def keep(self, copy: PageCopy) -> None:
        """Replace the copy of a page. Raises KnowledgeError."""
        self._files.write_atomically(self._path(copy.url), msgspec.json.encode(copy))

    def keep_only(self, urls: Collection[str]) -> int:
        """Remove the copies of all other pages; return how many. Raises KnowledgeError."""
        kept = {self._path(url).name for url in urls}
        try:
            names = [path.name for path in self._folder.iterdir()]
        except FileNotFoundError:
            return 0
        except OSError as error:
            raise KnowledgeError(
                f"{self._folder} could not be read ({error.strerror}); check its permissions"
            ) from error
        gone = [name for name in names if _COPY.fullmatch(name) and name not in kept]
        for name in gone:
            self._files.remove(self._folder / name)
        return len(gone)

    def _path(self, url: str) -> Path:
        return self._folder / f"{hashlib.sha256(url.encode('utf-8', 'replace')).hexdigest()}.json"
