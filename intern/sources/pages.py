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
from intern.documents.parsing import NotADocumentError, parse_document
from intern.models.prompt import Model
from intern.sources.addresses import DialPolicy
from intern.sources.catalogue import Catalogue, is_paused
from intern.sources.descriptions import describe_source, source_excerpt
from intern.sources.fetching import FetchedPage, PageFetcher
from intern.sources.library import MOST_MISSING, PageCopies, PageCopy, RenderingAttempt, read_links
from intern.sources.options import IndexingOptions
from intern.sources.refresh import CheckedSource, IndexRefresh, PendingSummary, RefreshReport
from intern.sources.source_folder import SkippedFile
from intern.stores.source_cache import (
    FRESH,
    NEEDS_SCRIPTS,
    RENDERED,
    CachedPage,
    CachedSource,
    content_hash,
    is_source_id,
)

_log = get_logger(__name__)

FIRST_PAUSE = timedelta(minutes=30)
"""After a first failure; doubled with each further one."""
LONGEST_PAUSE = timedelta(days=1)
GONE_PAUSE = timedelta(days=7)
"""A page that is gone may come back."""
LONGEST_RENDER_PAUSE = timedelta(days=7)
"""The longest pause after failed renderings, unless visits are further apart. The first lasts until the next visit."""

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
    policy: DialPolicy,
    renders: bool,
    also: Sequence[str] = (),
) -> RefreshReport:
    """Fetch the due pages of the list, and `also` those of the settings; bring their entries up to date.

    A page is due `interval` after it was last fetched. `renders` says that `web` can render pages that need it. Raises
    KnowledgeError if the list or the index cannot be read or written; pages that could not be fetched are `skipped`,
    with the reason.
    """
    lines = await run_sync(_read_link_lines, links, also)
    look = await run_sync(_plan_refresh, lines, copies, catalogue, policy, options.max_source_chars)
    refresh = IndexRefresh(model, catalogue, options)

    async def write_entries(found: Sequence[CheckedSource], drop: AbstractSet[SourceId]) -> list[PendingSummary]:
        await catalogue.change({page.source_id: page.entry for page in found}, drop)
        return await refresh.summarise_sources([page for page in found if page.material])

    found = list(look.owed)
    owed = await write_entries(found, look.gone)
    if look.due:
        async with web() as opened:
            visits = _PageVisitor(opened, copies, catalogue.clock, interval, options, renders)
            for part in _divide_pages(look.due):
                had = await visits.visit_pages(part)
                owed += await write_entries(had, frozenset())
                found += had
    lost = {page.source_id for page in found if not page.entry.summary_text}
    await run_sync(copies.remove_others, [url for source_id, url in look.listed.items() if source_id not in lost])
    return _build_report(look, found, owed)


def _divide_pages(due: Sequence[_ListedPage]) -> Iterator[Sequence[_ListedPage]]:
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


def _build_report(
    look: _PageRefreshPlan, found: Sequence[CheckedSource], owed: Sequence[PendingSummary]
) -> RefreshReport:
    place = {source_id: n for n, source_id in enumerate(look.listed)}
    pages = sorted(found, key=lambda page: place[page.source_id])
    failed = {source_id for source_id, _ in owed}
    owing = (page for page in pages if page.entry.summary_pending and not page.material and not page.failure)
    resting = [PendingSummary(page.source_id, page.entry.last_error or "") for page in owing]
    bare = (page.source_id for page in found if not page.entry.summary_text)
    withdrawn = {each for each in bare if (before := look.known.get(each)) and before.summary_text}
    unfetched = (SkippedFile(look.listed[page.source_id], page.failure) for page in pages if page.failure)
    result = RefreshReport(
        changed=tuple(page.source_id for page in pages if page.material and page.source_id not in failed),
        removed=tuple(sorted({*look.gone, *withdrawn})),
        pending=(*owed, *look.resting, *resting),
        skipped=(*look.broken, *unfetched),
    )
    if look.due or look.gone:
        _log.info("pages_refreshed", checked=len(look.due), changed=len(result.changed), removed=len(result.removed))
    return result


class _ListedPage(NamedTuple):
    source_id: SourceId
    url: str
    cached: CachedPage | None

    @property
    def site(self) -> bytes:
        """The site that serves it."""
        return httpx.URL(self.url).netloc.lower()


class _PageRefreshPlan(NamedTuple):
    known: Mapping[SourceId, CachedSource]
    listed: Mapping[SourceId, str]
    """The addresses."""
    due: Sequence[_ListedPage]
    owed: Sequence[CheckedSource]
    resting: Sequence[PendingSummary]
    """Their summary is owed, and not tried now."""
    gone: frozenset[SourceId]
    broken: Sequence[SkippedFile]


def _read_link_lines(links: Path, also: Sequence[str]) -> list[tuple[str, str]]:
    """Return each line of the list and of the settings, with its place."""
    listed = [(f"{links.name}:{line}", text) for line, text in read_links(links)]
    return [*listed, *((f"{IN_SETTINGS}:{n}", text) for n, text in enumerate(also, 1))]


def _plan_refresh(
    lines: Sequence[tuple[str, str]], copies: PageCopies, catalogue: Catalogue, policy: DialPolicy, longest: int
) -> _PageRefreshPlan:
    """Read the list, and find the pages that are due."""
    known, now = catalogue.sources(), catalogue.clock.now()
    listed: dict[SourceId, str] = {}
    broken: list[SkippedFile] = []
    for place, text in lines:
        try:
            policy.parse_url(text)
            reason = "" if is_source_id(f"kb:{text}") else "no index can hold this address"
        except PageRefusedError as error:
            reason = str(error)
        if reason:
            broken.append(SkippedFile(place, f"{mask_start(text, 100)!a}: {reason}"))
        else:
            listed[SourceId(f"kb:{text}")] = text
    due: list[_ListedPage] = []
    owed: list[CheckedSource] = []
    resting: list[PendingSummary] = []
    for source_id, url in listed.items():
        source = known.get(source_id)
        cached = source if isinstance(source, CachedPage) else None
        copy = copies.get(url) if cached and cached.summary_text else None
        if cached is None or _is_due(cached, copy, now):
            due.append(_ListedPage(source_id, url, cached))
        elif is_paused(cached, now):
            resting.append(PendingSummary(source_id, cached.last_error or ""))
        elif cached.summary_pending and copy:
            owed.append(CheckedSource(source_id, cached, source_excerpt(_prepend_title(copy), longest)))
    pages = {source_id for source_id, source in known.items() if isinstance(source, CachedPage)}
    return _PageRefreshPlan(known, listed, due, owed, resting, frozenset(pages.difference(listed)), broken)


def _is_due(cached: CachedPage, copy: PageCopy | None, now: datetime) -> bool:
    is_lost = bool(cached.summary_text) and copy is None and not cached.failures
    return is_lost or cached.next_check_at is None or cached.next_check_at <= now


@dataclass
class _PageVisitor:
    """One visit of the due pages."""

    web: PageFetcher
    copies: PageCopies
    clock: Clock
    interval: timedelta
    options: IndexingOptions
    renders: bool
    readers: anyio.CapacityLimiter = field(default_factory=partial(anyio.CapacityLimiter, _READERS))
    renderers: anyio.CapacityLimiter = field(default_factory=partial(anyio.CapacityLimiter, _RENDERERS))

    async def visit_pages(self, due: Sequence[_ListedPage]) -> list[CheckedSource]:
        """Visit all of them, those of each site one after the other."""
        sites: dict[bytes, list[_ListedPage]] = {}
        for page in due:
            sites.setdefault(page.site, []).append(page)
        found: dict[SourceId, CheckedSource] = {}

        async def visit_site(pages: Sequence[_ListedPage]) -> None:
            for page in pages:
                found[page.source_id] = await self._visit_page(page)

        await run_each(visit_site, [*sites.values()], _SITES)
        return [found[page.source_id] for page in due]

    async def _visit_page(self, page: _ListedPage) -> CheckedSource:
        copy = await run_sync(self.copies.get, page.url) if page.cached and page.cached.summary_text else None
        unread = copy is None or self._is_to_render(copy)
        known = None if unread else page.cached
        try:
            validators = {"etag": known.etag, "last_modified": known.last_modified} if known else {}
            fetched = await self.web.fetch(page.url, **validators)
            if fetched is None:
                assert copy is not None, "nothing else was asked for"
                return self._build_entry(page, copy, known)
            body_hash = hashlib.sha256(fetched.body).hexdigest()
            if copy is not None and not unread and copy.body_hash == body_hash:
                return self._build_entry(page, copy, fetched)
            read, status, rendering = await self._read_or_render(fetched, copy.rendering if copy else None)
        except WebError as error:
            return self._build_failed_entry(page, error)
        new = PageCopy(
            url=page.url, title=read.title, text=read.text, status=status, body_hash=body_hash, rendering=rendering
        )
        if new != copy:
            # Before the index lists it, so that every listed page can be loaded.
            await run_sync(self.copies.save, new)
        return self._build_entry(page, new, fetched)

    def _is_to_render(self, copy: PageCopy) -> bool:
        """Return whether the page is read again, changed or not: its rendering was never tried, or is due again.

        Without validators: the renderer gets the page's present address, after redirects.
        """
        if not self.renders or copy.status != NEEDS_SCRIPTS:
            return False
        last = copy.rendering
        return last is None or (last.again_at is not None and last.again_at <= self.clock.now())

    async def _read_or_render(
        self, fetched: FetchedPage, last: RenderingAttempt | None
    ) -> tuple[_PageText, str, RenderingAttempt | None]:
        """Return the page's text, its status, and a rendering that did not help. Raises PageRefusedError.

        `last` is the previous rendering that did not help. A page without a text is refused.
        """
        read = await run_sync(_read_page, fetched, fetched.body, limiter=self.readers)
        if not read.needs_scripts:
            return _require_text(read), FRESH, None
        status, rendering = NEEDS_SCRIPTS, None
        try:
            async with self.renderers:
                body = await self.web.render(fetched.url)
            if body is not None:
                shown = await run_sync(_read_page, replace(fetched, charset="utf-8"), body, limiter=self.readers)
                if len(shown.text) > len(read.text):
                    read, status = shown, RENDERED
                else:
                    rendering = RenderingAttempt()
        except WebError as error:
            _log.warning("page_not_rendered", url=fetched.url, reason=str(error))
            failures = last.failures + 1 if last else 1
            pause = _backoff_pause(self.interval, failures, max(self.interval, LONGEST_RENDER_PAUSE))
            rendering = RenderingAttempt(failures=failures, again_at=self.clock.now() + pause)
        return _require_text(read), status, rendering

    def _build_entry(self, page: _ListedPage, copy: PageCopy, served: CachedPage | FetchedPage | None) -> CheckedSource:
        """Make the entry of a page that was fetched, changed or not, from its copy."""
        now, cached, text = self.clock.now(), page.cached, _prepend_title(copy)
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
        is_due = not is_described and not is_paused(entry, now)
        material = source_excerpt(text, self.options.max_source_chars) if is_due else ""
        return CheckedSource(page.source_id, entry, material)

    def _build_failed_entry(self, page: _ListedPage, error: WebError) -> CheckedSource:
        """Make the entry of a failed page: the old one stays, until its site has reported it gone often enough."""
        now = self.clock.now()
        cached = page.cached or CachedPage(
            content_hash="", summary_text="", last_indexed_at=now, provisional=True, url=page.url
        )
        reason = " ".join(str(error).split())[:_LONGEST_STATUS]
        failures = cached.failures + 1
        missing = cached.missing + 1 if isinstance(error, PageGoneError) else 0
        pause = _backoff_pause(FIRST_PAUSE, failures, max(self.interval, LONGEST_PAUSE))
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
        return CheckedSource(page.source_id, entry, failure=reason)


def _backoff_pause(first: timedelta, failures: int, longest: timedelta) -> timedelta:
    """Return the pause after so many failures in a row."""
    grown: timedelta = first * 2 ** min(failures - 1, 10)
    return min(grown, longest)


def _read_page(fetched: FetchedPage, body: bytes) -> _PageText:
    try:
        if fetched.is_html:
            page = read_html(decode_page(body, fetched.charset), fetched.url)
            return _build_page_text(page.document, needs_scripts=page.needs_scripts)
        name = httpx.URL(fetched.url).path.rpartition("/")[2] or "page.md"
        utf_8 = decode_page(body, fetched.charset).encode("utf-8", "replace")
        return _build_page_text(parse_document(utf_8, name, max_chars=len(utf_8) + 1), name=name)
    except (ValueError, NotADocumentError) as error:
        raise PageRefusedError(f"it cannot be read: {error}") from None


def _build_page_text(document: Document, *, name: str = "", needs_scripts: bool = False) -> _PageText:
    return _PageText(document.title or name, write_blocks(document.blocks), needs_scripts)


class _PageText(NamedTuple):
    """A page, read."""

    title: str
    """Empty where it has none."""
    text: str
    needs_scripts: bool
    """It has almost no text before its scripts have run."""


def _require_text(read: _PageText) -> _PageText:
    if not read.text.strip() and not read.title:
        raise PageRefusedError("there is nothing to read on it")
    return read if read.text.strip() else read._replace(text=read.title)


def _prepend_title(copy: PageCopy) -> str:
    """Put the title above a text that does not contain it: pages are found by it."""
    return copy.text if not copy.title or copy.title in copy.text else f"# {copy.title}\n\n{copy.text}"
