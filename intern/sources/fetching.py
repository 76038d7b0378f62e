"""Pages over HTTP: requested politely, only at checked addresses, and read up to a limit.

One request at a time for each site, with a pause in between, and only what its robots.txt allows (RFC 9309: our group
of rules, the longest match wins, `*` and `$` mean something; the standard library's parser knows neither, and takes the
first match; Protego's time grows with agents times rules, and rules for `in` bind us there). A page that has not
changed costs no body. Redirects are followed a few steps, and each step is checked like the first. No cookies, no
proxies: a proxy would resolve names itself, so its connections could not be checked.

A page that needs its scripts is printed by a command of the operator's, such as a headless browser. The command gets
the address as its last argument, no shell, no input and none of our settings. If it takes too long or prints too
much, it is killed with all its children.
"""

from __future__ import annotations

import os
import signal
import ssl
import subprocess
import zlib
from collections import defaultdict
from contextlib import suppress
from datetime import UTC, datetime
from email.message import Message
from functools import cache
from http import HTTPStatus
from typing import NamedTuple, Self
from urllib.parse import quote, unquote

import anyio
import httpcore
import httpx
from anyio.abc import Process
from anyio.to_thread import run_sync
from msgspec import Struct

from intern import __version__
from intern.core.errors import PageGoneError, PageRefusedError, PageUnavailableError, WebError
from intern.models.clients import read_length, read_most
from intern.models.endpoint_failures import is_transient, parse_retry_after
from intern.sources.addresses import DialPolicy, GuardedBackend, effective_port
from intern.sources.options import WebOptions

AGENT = "intern"
"""Our name in robots.txt."""
LARGEST = 500 * 1024
"""Bytes that are read of a robots.txt; the standard wants no less."""

_MOST_RULES = 5000
_LONGEST_DELAY = 5.0  # seconds; a longer delay would hold up all other sites' pages


class _RobotsRule(NamedTuple):
    pattern: str
    allows: bool

    def matches(self, path: str) -> bool:
        pieces = self.pattern.removesuffix("$").split("*")
        if not path.startswith(pieces[0]):
            return False
        at = len(pieces[0])
        for piece in pieces[1:]:
            found = path.find(piece, at)
            if found < 0:
                return False
            at = found + len(piece)
        if not self.pattern.endswith("$"):
            return True
        return at == len(path) if len(pieces) == 1 else path.endswith(pieces[-1])


class RobotsRules(NamedTuple):
    """The rules of a site for us."""

    rules: tuple[_RobotsRule, ...] = ()
    delay: float = 0.0
    """Seconds that it wants between two requests."""

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse our group, or the one for all; ignore malformed lines."""
        # Only groups that we may need: a file can name thousands of agents before thousands of rules.
        groups: dict[str, list[tuple[str, str]]] = {}
        agents: set[str] = set()
        in_rules = False
        for line in text.splitlines():
            key, colon, value = line.partition("#")[0].partition(":")
            key, value = key.strip().lower(), value.strip()
            if key == "user-agent" and colon:
                agents = set() if in_rules else agents
                in_rules = False
                if (agent := value.partition("/")[0].strip().lower()) in {AGENT, "*"}:
                    agents.add(agent)
                    groups.setdefault(agent, [])
            elif key in {"allow", "disallow", "crawl-delay"} and colon:
                in_rules = True
                for agent in agents:
                    groups[agent].append((key, value))
        group = groups.get(AGENT, groups.get("*", []))
        rules = [
            _RobotsRule(_normalise_path(value), key == "allow")
            for key, value in group
            if key != "crawl-delay" and value
        ]
        delays = [_parse_delay(value) for key, value in group if key == "crawl-delay"]
        return cls(tuple(rules[:_MOST_RULES]), delays[-1] if delays else 0.0)

    def allows(self, target: str) -> bool:
        """Return whether we may fetch this path and query."""
        path = _normalise_path(target)
        matching = [rule for rule in self.rules if rule.matches(path)]
        return max(matching, key=lambda rule: (len(rule.pattern), rule.allows)).allows if matching else True


NOBODY = RobotsRules((_RobotsRule("/", allows=False),))
"""The rules of a site whose robots.txt is unusable: nothing is allowed."""


def _normalise_path(path: str) -> str:
    """Normalise percent-encoding."""
    return quote(unquote(path, errors="replace"), safe="/?&=*$;,:@!+'()~-._%#[]")


def _parse_delay(value: str) -> float:
    try:
        return min(max(0.0, float(value)), _LONGEST_DELAY)  # NaN is not larger than 0
    except ValueError:
        return 0.0


# All variables that a browser needs; the rest, above all tokens, is not passed on.
_HANDED_ON = ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "USER", "DISPLAY", "XDG_RUNTIME_DIR", "XDG_CACHE_HOME")


async def run_render_command(options: WebOptions, url: str) -> bytes:
    """Return the output of the command for the page. Raises PageUnavailableError and PageRefusedError."""
    printed, seconds = bytearray(), options.render_seconds
    environment = {name: os.environ[name] for name in _HANDED_ON if name in os.environ}
    try:
        with anyio.fail_after(seconds):
            process = await anyio.open_process(
                [*options.render_command, url],
                stdin=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=environment,
                start_new_session=True,
            )
            try:
                assert process.stdout is not None, "it is piped"
                async for chunk in process.stdout:
                    printed += chunk
                    if len(printed) > options.max_rendered_bytes:
                        raise PageRefusedError(f"rendered, it is larger than {options.max_rendered_bytes} bytes")
                code = await process.wait()
            finally:
                await _kill_process(process)
    except TimeoutError:
        raise PageUnavailableError(f"rendering took longer than {seconds:g} s") from None
    except OSError as error:
        raise PageUnavailableError(f"kb.render_command cannot be started ({error.strerror})") from None
    if code != 0:
        raise PageUnavailableError(f"kb.render_command ended with code {code}")
    return bytes(printed)


async def _kill_process(process: Process) -> None:
    """Kill the process and its children, also when cancelled."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    with anyio.CancelScope(shield=True):
        await process.aclose()


_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_MOST_REDIRECTS = 5
_GONE = frozenset({HTTPStatus.NOT_FOUND, HTTPStatus.GONE})
_HTML = ("text/html", "application/xhtml+xml")
_READABLE = (*_HTML, "text/plain", "text/markdown", "text/x-markdown")
# Unanswered pages in a row after which a site's other pages are skipped in this round.
_MOST_SILENCES = 2
_LONGEST_RETRY_AFTER = 7 * 24 * 3600.0
_LONGEST_VALIDATOR = 1000  # characters; it is kept and sent back


class FetchedPage(Struct, frozen=True, kw_only=True):
    """A page as its site served it."""

    url: str
    """Its address after redirects."""
    body: bytes
    is_html: bool
    charset: str | None
    etag: str | None
    last_modified: str | None


class _HttpResponse(NamedTuple):
    url: httpx.URL
    status: int
    headers: httpx.Headers
    body: bytes
    is_too_large: bool


class _SiteState:
    """The state of a host while pages are fetched."""

    def __init__(self) -> None:
        self.turn = anyio.Lock()
        self.free_at = float("-inf")
        self.robots: RobotsRules | WebError | None = None
        self.silences = 0


class PageFetcher:
    """Fetches pages, for as long as it is used as an async context manager.

    A site's robots.txt is requested once, also if that fails.
    """

    def __init__(
        self,
        options: WebOptions | None = None,
        *,
        policy: DialPolicy | None = None,
        backend: GuardedBackend | None = None,
    ) -> None:
        """Take `policy`, the allowed addresses, and `backend`, which connects; both are for tests."""
        self._options = options or WebOptions()
        self._policy = policy or DialPolicy()
        self._backend = backend or GuardedBackend(self._policy)
        self._sites: defaultdict[str, _SiteState] = defaultdict(_SiteState)
        self._requests = anyio.CapacityLimiter(self._options.concurrency)

    async def __aenter__(self) -> Self:
        tls = await run_sync(_load_certificates)
        self._pool = httpcore.AsyncConnectionPool(tls, network_backend=self._backend, keepalive_expiry=5)
        return self

    async def __aexit__(self, *_: object) -> None:
        with anyio.move_on_after(2, shield=True):
            await self._pool.aclose()

    async def fetch(self, url: str, *, etag: str | None = None, last_modified: str | None = None) -> FetchedPage | None:
        """Fetch a page; None if it is unchanged by its `etag` or `last_modified`. Raises the WebError family."""
        target = self._policy.parse_url(url)
        asked = {"If-None-Match": etag, "If-Modified-Since": last_modified}
        headers = {name: value for name, value in asked.items() if value}
        headers["Accept"] = "text/html, text/markdown, text/plain;q=0.9, application/xhtml+xml;q=0.8"
        answer = await self._follow_redirects(target, headers, obeying=True)
        if answer.status == HTTPStatus.NOT_MODIFIED and (etag or last_modified):
            return None
        return self._build_page(answer, target.fragment)

    async def fetch_file(self, url: str) -> bytes:
        """Fetch a file that a person linked, from that very address: no robot walks, no redirect is followed.

        Raises the WebError family.
        """
        answer = await self._request_in_turn(
            self._policy.parse_url(url), {"Accept": "text/plain"}, self._options.max_bytes
        )
        _check_status(answer)
        body = b"" if answer.is_too_large else _unpack_body(answer, self._options.max_bytes)
        if answer.is_too_large or len(body) > self._options.max_bytes:
            raise PageRefusedError(f"it is larger than {self._options.max_bytes} bytes")
        return body

    async def render(self, url: str) -> bytes | None:
        """Return the page after its scripts have run; None without a command for it. Raises the WebError family.

        The command makes its own connections; only the address of the page itself is checked, at this moment.
        """
        if not self._options.render_command:
            return None
        target = self._policy.parse_url(url)
        await self._obey_robots(target)
        await self._backend.resolve_checked(target.raw_host.decode("ascii"), effective_port(target))
        return await run_render_command(self._options, url)

    async def _follow_redirects(self, url: httpx.URL, headers: dict[str, str], *, obeying: bool) -> _HttpResponse:
        """Return the answer at the end of the redirects."""
        for _ in range(_MOST_REDIRECTS + 1):
            if obeying:
                await self._obey_robots(url)
            limit = self._options.max_bytes if obeying else LARGEST
            answer = await self._request_in_turn(url, headers, limit)
            location = answer.headers.get("Location", "")
            if answer.status not in _REDIRECTS or not location:
                return answer
            url = self._resolve_redirect(url, location)
        raise PageRefusedError(f"it leads through more than {_MOST_REDIRECTS} redirects")

    def _resolve_redirect(self, url: httpx.URL, location: str) -> httpx.URL:
        try:
            following = self._policy.parse_url(location, base=url)
        except PageRefusedError as error:
            raise PageRefusedError(f"it redirects to a place that is not fetched: {error}") from None
        if url.scheme == "https" and following.scheme == "http":
            raise PageRefusedError("it redirects from https to http")
        return following

    async def _obey_robots(self, url: httpx.URL) -> None:
        """Raise if the site's robots.txt forbids the page, or cannot be fetched."""
        site = self._site_state(url)
        if site.robots is None:
            site.robots = await self._fetch_robots(url.copy_with(raw_path=b"/robots.txt", fragment=None))
        if isinstance(site.robots, PageUnavailableError):
            raise PageUnavailableError(str(site.robots), site.robots.retry_after)
        if isinstance(site.robots, WebError):
            raise PageRefusedError(str(site.robots))
        if not site.robots.allows(url.raw_path.decode("ascii")):
            raise PageRefusedError(f"{url.host}/robots.txt asks {AGENT} not to fetch it")

    async def _fetch_robots(self, url: httpx.URL) -> RobotsRules | WebError:
        try:
            answer = await self._follow_redirects(url, {"Accept": "text/plain"}, obeying=False)
        except WebError as error:
            return error
        if answer.status == HTTPStatus.OK:
            return RobotsRules.parse(answer.body.decode("utf-8-sig", "replace"))
        if is_transient(answer.status):
            # By the standard, such a site allows nothing for the time being.
            return PageUnavailableError(f"{url.host}/robots.txt cannot be fetched: it answered {answer.status}")
        # Any other answer, "not found" for the most part, means that there are no rules.
        return RobotsRules() if answer.status >= HTTPStatus.BAD_REQUEST else NOBODY

    async def _request_in_turn(self, url: httpx.URL, headers: dict[str, str], limit: int) -> _HttpResponse:
        """Make one request, in its site's turn. Redirects are answers here."""
        site = self._site_state(url)
        async with site.turn:
            if site.silences >= _MOST_SILENCES:
                raise PageUnavailableError(f"{url.host} does not answer")
            await anyio.sleep_until(site.free_at)
            async with self._requests:
                try:
                    answer = await self._send_request(url, headers, limit)
                except PageUnavailableError:
                    site.silences += 1
                    raise
                finally:
                    delay = site.robots.delay if isinstance(site.robots, RobotsRules) else 0.0
                    site.free_at = anyio.current_time() + max(self._options.pause_seconds, delay)
            site.silences = 0
            return answer

    async def _send_request(self, url: httpx.URL, headers: dict[str, str], limit: int) -> _HttpResponse:
        seconds = self._options.timeout_seconds
        # A pool does not know of redirects, cookies, passwords or proxies.
        asking = self._pool.stream(
            "GET",
            httpcore.URL(scheme=url.raw_scheme, host=url.raw_host, port=url.port, target=url.raw_path),
            headers=[("User-Agent", f"{AGENT}/{__version__}"), ("Accept-Encoding", "gzip"), *headers.items()],
            extensions={"timeout": {"connect": seconds}},
        )
        try:
            with anyio.fail_after(seconds):
                async with asking as response:
                    return await _read_response(url, response, limit)
        except (TimeoutError, httpcore.TimeoutException) as error:
            raise PageUnavailableError(f"{url.host} did not answer within {seconds:g} s") from error
        except (httpcore.NetworkError, httpcore.ProtocolError) as error:
            raise PageUnavailableError(f"{url.host} cannot be reached: {_format_error(error)}") from error

    def _site_state(self, url: httpx.URL) -> _SiteState:
        return self._sites[url.netloc.decode("ascii").lower()]

    def _build_page(self, answer: _HttpResponse, fragment: str) -> FetchedPage:
        """Return the page. Raises the WebError family for its status, its type or its size."""
        _check_status(answer)
        declared = Message()
        declared["Content-Type"] = answer.headers.get("Content-Type", "")
        kind = declared.get_content_type() if declared["Content-Type"] else _guess_content_type(answer.body)
        if kind not in _READABLE:
            raise PageRefusedError(f"it is {kind[:100]}, which is not read; pages are HTML, Markdown or plain text")
        limit = self._options.max_bytes
        body = b"" if answer.is_too_large else _unpack_body(answer, limit)
        if answer.is_too_large or len(body) > limit:
            raise PageRefusedError(f"it is larger than the {limit} bytes allowed (kb.max_source_bytes)")
        return FetchedPage(
            # The fragment is never sent, but a script may choose its content by it.
            url=str(answer.url.copy_with(fragment=fragment or None)),
            body=body,
            is_html=kind in _HTML,
            charset=declared.get_content_charset(),
            etag=_cache_validator(answer.headers, "ETag"),
            last_modified=_cache_validator(answer.headers, "Last-Modified"),
        )


@cache
def _load_certificates() -> ssl.SSLContext:
    """Load the certificates once: that takes longer than many a page."""
    return httpx.create_ssl_context()


def _check_status(answer: _HttpResponse) -> None:
    status, host = answer.status, answer.url.host
    if status == HTTPStatus.OK:
        return
    if status in _GONE:
        raise PageGoneError(f"{host} answered {status}: there is no such page")
    if is_transient(status):
        wait = parse_retry_after(answer.headers.get("Retry-After"), datetime.now(UTC), longest=_LONGEST_RETRY_AFTER)
        raise PageUnavailableError(f"{host} answered {status}", wait)
    raise PageRefusedError(f"{host} answered {status} instead of a page")


async def _read_response(url: httpx.URL, response: httpcore.Response, limit: int) -> _HttpResponse:
    headers = httpx.Headers(response.headers)
    # The body of any other status is not needed.
    is_read = response.status == HTTPStatus.OK and read_length(headers) <= limit
    read = await read_most(response.aiter_stream(), limit) if is_read else b""
    is_too_large = max(len(read), read_length(headers)) > limit
    return _HttpResponse(url, response.status, headers, read[:limit], is_too_large)


def _unpack_body(answer: _HttpResponse, limit: int) -> bytes:
    """Unpack the body. One that would grow beyond the limit is cut a byte behind it."""
    packing = answer.headers.get("Content-Encoding", "").strip().lower()
    if packing in {"", "identity"}:
        return answer.body
    if packing not in {"gzip", "x-gzip", "deflate"}:
        raise PageRefusedError(f"it is packed as {packing[:30]}, which was not requested")
    unpacking = zlib.decompressobj(zlib.MAX_WBITS | 32)  # either header
    try:
        body = unpacking.decompress(answer.body, limit + 1)
    except zlib.error:
        raise PageUnavailableError(f"{answer.url.host} sent a damaged page") from None
    if not unpacking.eof and len(body) <= limit:
        raise PageUnavailableError(f"{answer.url.host} sent a damaged page")
    return body


def _cache_validator(headers: httpx.Headers, name: str) -> str | None:
    """Return a validator to send back; None for one that does not fit into a header."""
    value = headers.get(name, "").strip()
    return value if value.isascii() and value.isprintable() and 0 < len(value) <= _LONGEST_VALIDATOR else None


def _guess_content_type(body: bytes) -> str:
    return "text/html" if body.lstrip()[:1] == b"<" else "text/plain" if b"\0" not in body else "binary data"


def _format_error(error: Exception) -> str:
    """Return the message of a network error on one line; parts may come from the site."""
    return " ".join(str(error).split())[:200] or type(error).__name__
