"""Access to the page, for viewing and for acting: hosts, tokens, sessions, and requests that another site forged.

Plain decisions over plain values; the server asks them before anything else.
"""

from __future__ import annotations

import hmac
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping
from ipaddress import IPv6Address, ip_address
from secrets import token_urlsafe
from urllib.parse import SplitResult, urlsplit

from intern.service import PageOptions, is_loopback

SESSION_SECONDS = 12 * 3600.0  # a working day; then the page asks for the token again
_MOST_SESSIONS = 100  # of one operator's browsers
_MOST_FAILURES, _WITHIN_SECONDS = 10, 60.0  # wrong tokens from one place; a person mistypes a few times
_MOST_PLACES = 1000  # addresses whose wrong tokens are counted; the one without a try for longest is forgotten first


class AccessGuard:
    """Knows the token and the sessions that have shown it. `now` is a monotonic clock in seconds."""

    def __init__(self, options: PageOptions, *, now: Callable[[], float]) -> None:
        self._token = options.token.reveal().encode()
        self._now = now
        self._sessions: OrderedDict[str, float] = OrderedDict()
        self._failures: OrderedDict[str, deque[float]] = OrderedDict()
        self._secret = token_urlsafe(32).encode()

    @property
    def asks_for_token(self) -> bool:
        """Whether the page needs a token."""
        return bool(self._token)

    def is_allowed_host(self, host: str) -> bool:
        """Return whether a request may name this host.

        Without a token, only names of this machine: another site could have its name point here, and its scripts could
        then read this page as their own (DNS rebinding). With a token, such a site has no cookie, and a proxy may give
        any name.
        """
        return self.asks_for_token or is_loopback(_split_url(f"//{host}").hostname or "")

    def has_session(self, session: str) -> bool:
        """Return whether a browser has shown the token, and not too long ago."""
        began = self._sessions.get(session)
        return began is not None and self._now() - began < SESSION_SECONDS

    def is_token(self, shown: str) -> bool:
        """Return whether this is the token, in a time that does not depend on the text."""
        return bool(self._token) and hmac.compare_digest(shown.encode("utf-8", "replace"), self._token)

    def is_locked_out(self, remote: str) -> bool:
        """Return whether too many wrong tokens came from this address lately: for a while, its tokens are ignored."""
        failures = self._failures.get(_failure_key(remote), deque())
        while failures and self._now() - failures[0] >= _WITHIN_SECONDS:
            failures.popleft()
        return len(failures) >= _MOST_FAILURES

    def accepts_token(self, shown: str, remote: str) -> bool:
        """Return whether this is the token, and its address is not locked out. A wrong one counts."""
        if self.is_locked_out(remote):
            return False
        if self.is_token(shown):
            return True
        place = _failure_key(remote)
        self._failures.setdefault(place, deque()).append(self._now())
        self._failures.move_to_end(place)
        if len(self._failures) > _MOST_PLACES:
            self._failures.popitem(last=False)
        return False

    def log_in(self, shown: str, remote: str) -> str | None:
        """Return a new session if the token is right, else None."""
        if not self.accepts_token(shown, remote):
            return None
        session = token_urlsafe(32)
        self._sessions[session] = self._now()
        if len(self._sessions) > _MOST_SESSIONS:
            self._sessions.popitem(last=False)
        return session

    def log_out(self, session: str) -> None:
        """Forget a session."""
        self._sessions.pop(session, None)

    def form_token(self, session: str) -> str:
        """Return the token of our forms, bound to the session, so that no other site can send one."""
        return hmac.new(self._secret, session.encode("utf-8", "replace"), "sha256").hexdigest()

    def is_own_form(self, session: str, shown: str, headers: Mapping[str, str]) -> bool:
        """Return whether a page of ours sent a form."""
        if not hmac.compare_digest(shown.encode("utf-8", "replace"), self.form_token(session).encode()):
            return False
        site, origin = headers.get("Sec-Fetch-Site"), headers.get("Origin")
        if site is not None:
            return site == "same-origin"
        # Our pages send no referrer, so browsers make their origin `null`: that says neither yes nor no.
        return origin is None or origin == "null" or _split_url(origin).netloc == headers.get("Host", "")


def _failure_key(remote: str) -> str:
    """Return the network whose wrong tokens count together: the owner of one IPv6 address has 2**64 of them."""
    try:
        address = ip_address(remote)
    except ValueError:
        return remote
    if not isinstance(address, IPv6Address):
        return str(address)
    return str(address.ipv4_mapped or IPv6Address(int(address) >> 64 << 64))


def _split_url(url: str) -> SplitResult:
    try:
        return urlsplit(url)
    except ValueError:
        return urlsplit("")  # `[`, for instance
