"""Keeping the index true to the web pages that the operator lists.

A page is fetched when it is due, and not before; an unchanged page costs no model call. A page that cannot be fetched
keeps its entry, with the reason, and is tried again after growing pauses, without holding up others. Many pages of one
site take half a second each, out of politeness, so results are listed part by part.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence, Set as AbstractSet
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import NamedTuple

import anyio
import httpx
from anyio.to_thread import run_sync
from msgspec.structs import replace

from intern.core.clock import Clock
from intern.core.errors import PageGoneError, PageRefusedError, PageUnavailableError, WebError
from intern.core.ids import SourceId
from intern.core.log import get_logger
from intern.core.tasks import run_each
from intern.core.text.masking import mask_start
from intern.documents.blocks import Document, write_blocks
from intern.documents.html import decode_page, read_html
from intern.documents.parsing import UnfitError, parse
from intern.models.prompt import Model
from intern.sources.addresses import Policy
from intern.sources.catalogue import Catalogue, rests
from intern.sources.descriptions import describe_source, source_material
from intern.sources.fetching import FetchedPage, PageFetcher
from intern.sources.files import SkippedFile
from intern.sources.library import MOST_MISSING, PageCopies, PageCopy, Rendering, read_links
from intern.sources.options import IndexingOptions
from intern.sources.refresh import Looked, Owed, Refresh, Refreshed
from intern.stores.library import FRESH, NEEDS_SCRIPTS, RENDERED, CachedPage, CachedSource, content_hash, is_source_id

_log = get_logger(__name__)

FIRST_PAUSE = timedelta(minutes=30)
"""After a first failure; doubled with each further one."""
LONGEST_PAUSE = timedelta(days=1)
GONE_PAUSE = timedelta(days=7)
"""A page that is gone may come back."""
LONGEST_RENDER_PAUSE = timedelta(days=7)
"""For a page whose rendering fails, which first waits for its next look; longer only where looks are further apart."""

# Sites at a time: each has at most one page in memory.
_SITES = 32
# Pages that are read at a time; Python runs one of them anyway.
_READERS = 2
# Pages that are rendered at a time: a browser takes some hundred megabytes.
_RENDERERS = 2
# Pages whose entries are written together at first; then twice as many each time. So a kill loses at most half of the
# results.
_FIRST_PART = 64
_LONGEST_STATUS = 300


IN_SETTINGS = "kb.links"
"""The place of an address that is no line of the list, with its number."""

OpenWeb = Callable[[], AbstractAsyncContextManager[PageFetcher]]


async def refresh_pages(
    model: Model,
    links: Path,
    copies: PageCopies,
    catalogue: Catalogue,
    *,
    web: OpenWeb,
    interval: timedelta,
    options: IndexingOptions,
    policy: Policy,
    renders: bool,
    also: Sequence[str] = (),
) -> Refreshed:
    """Fetch the pages of the list, and `also` those of the settings, that are due; bring their entries up to date.

    A page is due `interval` after it was last had. `renders` says that `web` can render pages that need it. Raises
    KnowledgeError where the list or the index cannot be read or written; what could not be fetched is `skipped`, with
    the reason.
    """
    lines = await run_sync(_lines, links, also)
    look = await run_sync(_look, lines, copies, catalogue, policy, options.max_source_chars)
    refresh = Refresh(model, catalogue, options)

    async def put(found: Sequence[Looked], drop: AbstractSet[SourceId]) -> list[Owed]:
        await catalogue.change({page.source_id: page.entry for page in found}, drop)
        return await refresh.summarise([page for page in found if page.material])

    found = list(look.owed)
    owed = await put(found, look.gone)
    if look.due:
        async with web() as opened:
            visits = _Round(opened, copies, catalogue.clock, interval, options, renders)
            for part in _parts(look.due):
                had = await visits.look_at(part)
                owed += await put(had, frozenset())
                found += had
    lost = {page.source_id for page in found if not page.entry.summary_text}
    await run_sync(copies.keep_only, [url for source_id, url in look.listed.items() if source_id not in lost])
    return _told(look, found, owed)


def _parts(due: Sequence[_Listed]) -> Iterator[Sequence[_Listed]]:
    """Divide the pages into growing parts, with some of each site in each: sites are slow, and work side by side."""
    of_site = Counter[bytes]()
    turns: dict[SourceId, int] = {}
    for page in due:
        turns[page.source_id] = of_site[page.site]
        of_site[page.site] += 1
    mixed = sorted(due, key=lambda page: turns[page.source_id])
    start, end = 0, _FIRST_PART
    while start < len(mixed):
        yield mixed[start:end]
        start, end = end, 2 * end


def _told(look: _Look, found: Sequence[Looked], owed: Sequence[Owed]) -> Refreshed:
    place = {source_id: n for n, source_id in enumerate(look.listed)}
    pages = sorted(found, key=lambda page: place[page.source_id])
    failed = {source_id for source_id, _ in owed}
    owing = (page for page in pages if page.entry.summary_pending and not page.material and not page.failure)
    resting = [Owed(page.source_id, page.entry.last_error or "") for page in owing]
    bare = (page.source_id for page in found if not page.entry.summary_text)
    withdrawn = {each for each in bare if (before := look.known.get(each)) and before.summary_text}
    unfetched = (SkippedFile(look.listed[page.source_id], page.failure) for page in pages if page.failure)
    result = Refreshed(
        changed=tuple(page.source_id for page in pages if page.material and page.source_id not in failed),
        removed=tuple(sorted({*look.gone, *withdrawn})),
        pending=(*owed, *look.resting, *resting),
        skipped=(*look.broken, *unfetched),
    )
    if look.due or look.gone:
        _log.info("pages_refreshed", checked=len(look.due), changed=len(result.changed), removed=len(result.removed))
    return result


class _Listed(NamedTuple):
    source_id: SourceId
    url: str
    cached: CachedPage | None

    @property
    def site(self) -> bytes:
        """The site that serves it."""
        return httpx.URL(self.url).netloc.lower()


class _Look(NamedTuple):
    known: Mapping[SourceId, CachedSource]
    listed: Mapping[SourceId, str]
    """The addresses."""
    due: Sequence[_Listed]
    owed: Sequence[Looked]
    resting: Sequence[Owed]
    """Their summary is owed, and not tried now."""
    gone: frozenset[SourceId]
    broken: Sequence[SkippedFile]


def _lines(links: Path, also: Sequence[str]) -> list[tuple[str, str]]:
    """Return each line of the list and of the settings, with its place."""
    listed = [(f"{links.name}:{line}", text) for line, text in read_links(links)]
    return [*listed, *((f"{IN_SETTINGS}:{n}", text) for n, text in enumerate(also, 1))]


def _look(
    lines: Sequence[tuple[str, str]], copies: PageCopies, catalogue: Catalogue, policy: Policy, longest: int
) -> _Look:
    """Read the list, and find the pages that are due."""
    known, now = catalogue.sources(), catalogue.clock.now()
    listed: dict[SourceId, str] = {}
    broken: list[SkippedFile] = []
    for place, text in lines:
        try:
            policy.url(text)
            reason = "" if is_source_id(f"kb:{text}") else "no index can hold this address"
        except PageRefusedError as error:
            reason = str(error)
        if reason:
            broken.append(SkippedFile(place, f"{mask_start(text, 100)!a}: {reason}"))
        else:
            listed[SourceId(f"kb:{text}")] = text
    due: list[_Listed] = []
    owed: list[Looked] = []
    resting: list[Owed] = []
    for source_id, url in listed.items():
        source = known.get(source_id)
        cached = source if isinstance(source, CachedPage) else None
        copy = copies.get(url) if cached and cached.summary_text else None
        if cached is None or _is_due(cached, copy, now):
            due.append(_Listed(source_id, url, cached))
        elif rests(cached, now):
            resting.append(Owed(source_id, cached.last_error or ""))
        elif cached.summary_pending and copy:
            owed.append(Looked(source_id, cached, source_material(_titled(copy), longest)))
    pages = {source_id for source_id, source in known.items() if isinstance(source, CachedPage)}
    return _Look(known, listed, due, owed, resting, frozenset(pages.difference(listed)), broken)


def _is_due(cached: CachedPage, copy: PageCopy | None, now: datetime) -> bool:
    is_lost = bool(cached.summary_text) and copy is None and not cached.failures
    return is_lost or cached.next_check_at is None or cached.next_check_at <= now


@dataclass
class _Round:
    """One look at the pages that are due."""

    web: PageFetcher
    copies: PageCopies
    clock: Clock
    interval: timedelta
    options: IndexingOptions
    renders: bool
    readers: anyio.CapacityLimiter = field(default_factory=partial(anyio.CapacityLimiter, _READERS))
    renderers: anyio.CapacityLimiter = field(default_factory=partial(anyio.CapacityLimiter, _RENDERERS))

    async def look_at(self, due: Sequence[_Listed]) -> list[Looked]:
        """Look at all of them, those of each site one after the other."""
        sites: dict[bytes, list[_Listed]] = {}
        for page in due:
            sites.setdefault(page.site, []).append(page)
        found: dict[SourceId, Looked] = {}

        async def visit(pages: Sequence[_Listed]) -> None:
            for page in pages:
                found[page.source_id] = await self._look(page)

        await run_each(visit, [*sites.values()], _SITES)
        return [found[page.source_id] for page in due]

    async def _look(self, page: _Listed) -> Looked:
        copy = await run_sync(self.copies.get, page.url) if page.cached and page.cached.summary_text else None
        unread = copy is None or self._is_to_render(copy)
        known = None if unread else page.cached
        try:
            validators = {"etag": known.etag, "last_modified": known.last_modified} if known else {}
            fetched = await self.web.fetch(page.url, **validators)
            if fetched is None:
                assert copy is not None, "nothing else was asked for"
                return self._same(page, copy, known)
            body_hash = hashlib.sha256(fetched.body).hexdigest()
            if copy is not None and not unread and copy.body_hash == body_hash:
                return self._same(page, copy, fetched)
            read, status, rendering = await self._read(fetched, copy.rendering if copy else None)
        except WebError as error:
            return self._failed(page, error)
        new = PageCopy(
            url=page.url, title=read.title, text=read.text, status=status, body_hash=body_hash, rendering=rendering
        )
        if new != copy:
            # Before the index lists it: what is listed can be loaded.
            await run_sync(self.copies.keep, new)
        return self._same(page, new, fetched)

    def _is_to_render(self, copy: PageCopy) -> bool:
        """Return whether the page is read again, changed or not: its rendering was never tried, or is due again.

        Without validators: what is rendered is the place where the page is found now, after redirects.
        """
        if not self.renders or copy.status != NEEDS_SCRIPTS:
            return False
        last = copy.rendering
        return last is None or (last.again_at is not None and last.again_at <= self.clock.now())

    async def _read(self, fetched: FetchedPage, last: Rendering | None) -> tuple[_PageText, str, Rendering | None]:
        """Return the page's text, its status, and a rendering that did not help. Raises PageRefusedError.

        `last` is the previous rendering that did not help. A page without a text is refused.
        """
        read = await run_sync(_read, fetched, fetched.body, limiter=self.readers)
        if not read.needs_scripts:
            return _with_text(read), FRESH, None
        status, rendering = NEEDS_SCRIPTS, None
        try:
            async with self.renderers:
                body = await self.web.render(fetched.url)
            if body is not None:
                shown = await run_sync(_read, replace(fetched, charset="utf-8"), body, limiter=self.readers)
                if len(shown.text) > len(read.text):
                    read, status = shown, RENDERED
                else:
                    rendering = Rendering()
        except WebError as error:
            _log.warning("page_not_rendered", url=fetched.url, reason=str(error))
            failures = last.failures + 1 if last else 1
            pause = _grown(self.interval, failures, max(self.interval, LONGEST_RENDER_PAUSE))
            rendering = Rendering(failures=failures, again_at=self.clock.now() + pause)
        return _with_text(read), status, rendering

    def _same(self, page: _Listed, copy: PageCopy, served: CachedPage | FetchedPage | None) -> Looked:
        """Make the entry of a page that was fetched, changed or not, from its copy."""
        now, cached, text = self.clock.now(), page.cached, _titled(copy)
        digest, provisional = content_hash(text), describe_source(text)
        unchanged = cached if cached and cached.content_hash == digest else None
        is_described = unchanged is not None and bool(unchanged.summary_text) and not unchanged.summary_pending
        tried = unchanged if unchanged and unchanged.summary_pending else None
        entry = CachedPage(
            content_hash=digest,
            summary_text=(cached.summary_text if cached else "") or provisional,
            last_indexed_at=cached.last_indexed_at if cached else now,
            summary_pending=not is_described,
            provisional=not is_described and (cached is None or not cached.summary_text or cached.provisional),
            # After a failed fetch, it holds the reason for that.
            last_error=tried.last_error if tried and not tried.failures else None,
            tries=tried.tries if tried else None,
            url=page.url,
            last_fetched_at=now,
            etag=served.etag if served else None,
            last_modified=served.last_modified if served else None,
            fetch_status=copy.status,
            next_check_at=now + self.interval,
        )
        is_due = not is_described and not rests(entry, now)
        material = source_material(text, self.options.max_source_chars) if is_due else ""
        return Looked(page.source_id, entry, material)

    def _failed(self, page: _Listed, error: WebError) -> Looked:
        """Make the entry of a failed page: the old one stays, until its site has reported it gone often enough."""
        now = self.clock.now()
        cached = page.cached or CachedPage(
            content_hash="", summary_text="", last_indexed_at=now, provisional=True, url=page.url
        )
        reason = " ".join(str(error).split())[:_LONGEST_STATUS]
        failures = cached.failures + 1
        missing = cached.missing + 1 if isinstance(error, PageGoneError) else 0
        pause = _grown(FIRST_PAUSE, failures, max(self.interval, LONGEST_PAUSE))
        if isinstance(error, PageUnavailableError) and error.retry_after is not None:
            pause = max(pause, timedelta(seconds=error.retry_after))
        if missing >= MOST_MISSING:
            pause = GONE_PAUSE
            cached = replace(
                cached,
                content_hash="",
                summary_text="",
                summary_pending=False,
                tries=None,
                etag=None,
                last_modified=None,
            )
        next_at, told = now + pause, {"last_error": reason, "fetch_status": reason}
        entry = replace(cached, failures=failures, missing=missing, next_check_at=next_at, **told)
        _log.info("page_not_fetched", url=page.url, reason=reason, failures=failures)
        return Looked(page.source_id, entry, failure=reason)


def _grown(first: timedelta, failures: int, longest: timedelta) -> timedelta:
    """Return the pause after so many failures in a row."""
    grown: timedelta = first * 2 ** min(failures - 1, 10)
    return min(grown, longest)


def _read(fetched: FetchedPage, body: bytes) -> _PageText:
    try:
        if fetched.is_html:
            page = read_html(decode_page(body, fetched.charset), fetched.url)
            return _page_text(page.document, needs_scripts=page.needs_scripts)
        name = httpx.URL(fetched.url).path.rpartition("/")[2] or "page.md"
        utf_8 = decode_page(body, fetched.charset).encode("utf-8", "replace")
        return _page_text(parse(utf_8, name, max_chars=len(utf_8) + 1), name=name)
    except (ValueError, UnfitError) as error:
        raise PageRefusedError(f"it cannot be read: {error}") from None


def _page_text(document: Document, *, name: str = "", needs_scripts: bool = False) -> _PageText:
    return _PageText(document.title or name, write_blocks(document.blocks), needs_scripts)


class _PageText(NamedTuple):
    """A page, read."""

    title: str
    """Empty where it has none."""
    text: str
    needs_scripts: bool
    """There is almost nothing to read before its scripts have run."""


def _with_text(read: _PageText) -> _PageText:
    if not read.text.strip() and not read.title:
        raise PageRefusedError("there is nothing to read on it")
    return read if read.text.strip() else read._replace(text=read.title)


def _titled(copy: PageCopy) -> str:
    """Put the title above a text that does not contain it: pages are found by it."""
    return copy.text if not copy.title or copy.title in copy.text else f"# {copy.title}\n\n{copy.text}"
