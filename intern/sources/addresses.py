"""Guarded dialling: only http and https on public hosts, and only addresses that were checked.

An address is parsed once, by httpx, and dialled as parsed, so no two parsers can differ on it. A refused address never
reaches the network. A name is resolved once, its addresses are checked, and one of these is dialled. So a name that
changes a moment later (DNS rebinding) has no effect. The TLS handshake and the request still use the host's name.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from typing import cast

import anyio
import httpcore
import httpx

from intern.core.errors import PageRefusedError, PageUnavailableError

Address = IPv4Address | IPv6Address

LONGEST_URL = 2000  # characters; longer ones are useless below an answer

PORTS = frozenset({80, 443, 8000, 8080, 8443, 8888})
"""Ports of web pages. Other servers (mail, databases) must not be contacted."""

# The special-purpose registries, by ourselves: what `ipaddress` calls global differs from one Python to the next.
# 168.63.129.16 is Azure's metadata and DNS, on a public address.
_NOT_PUBLIC_V4 = """
0.0.0.0/8 10.0.0.0/8 100.64.0.0/10 127.0.0.0/8 168.63.129.16/32 169.254.0.0/16 172.16.0.0/12 192.0.0.0/24 192.0.2.0/24
192.88.99.0/24 192.168.0.0/16 198.18.0.0/15 198.51.100.0/24 203.0.113.0/24 224.0.0.0/4 240.0.0.0/4
"""
# All routed addresses lie in here. So those that represent an IPv4 address (mapped, NAT64, ::a.b.c.d) are out.
_ROUTED_V6 = ip_network("2000::/3")
_NOT_PUBLIC_V6 = "2001::/23 2001:db8::/32 2002::/16 3fff::/20"
_NOT_PUBLIC = tuple(map(ip_network, (_NOT_PUBLIC_V4 + _NOT_PUBLIC_V6).split()))

# Names of local networks, or without a meaning.
_PRIVATE_ENDINGS = frozenset(
    {"alt", "arpa", "corp", "domain", "home", "internal", "intranet", "invalid", "lan", "local", "localdomain"}
    | {"localhost", "onion", "private", "test", "workgroup"}
)

_AUTHORITY = re.compile(r"https?://([^/?#]*)", re.IGNORECASE)
_UNFIT = re.compile(r"[\x00-\x20\x7f-\xa0\\\ud800-\udfff\u2028\u2029]")
_LABEL = re.compile(r"(?!-)[a-z0-9_-]{1,63}(?<!-)")
# Some programs read any name that ends in a number as an IPv4 address: 2130706433, 127.1, 0x7f.0.0.1.
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")


class DialPolicy:
    """The addresses that may be dialled: public ones on `PORTS`, and for tests the pairs in `also`."""

    def __init__(self, *, also: Collection[tuple[str, int]] = ()) -> None:
        self._also = frozenset((ip_address(address), port) for address, port in also)

    def allows(self, address: Address, port: int) -> bool:
        """Return whether a connection is allowed."""
        return (address, port) in self._also or (port in PORTS and is_public(address))

    def parse_url(self, text: str, *, base: httpx.URL | None = None) -> httpx.URL:
        """Parse an address; one relative to `base` is resolved. Raises PageRefusedError."""
        if len(text) > LONGEST_URL:
            raise PageRefusedError(f"the address is longer than {LONGEST_URL} characters")
        if _UNFIT.search(text):
            raise PageRefusedError("the address holds blanks, backslashes or control characters")
        spelt = _AUTHORITY.match(text)
        try:
            url = httpx.URL(text) if base is None else base.join(text)
            host = url.raw_host.decode("ascii").lower()
        except (httpx.InvalidURL, ValueError):
            raise PageRefusedError("the address cannot be read") from None
        if url.scheme not in {"http", "https"} or (base is None and not spelt):
            raise PageRefusedError("the address does not begin with http:// or https://")
        if url.userinfo or (spelt and "@" in spelt[1]):
            raise PageRefusedError("the address holds a user name")
        self._check_host(host, effective_port(url))
        return url

    def _check_host(self, host: str, port: int) -> None:
        address = parse_ip_literal(host)
        if port not in PORTS and port not in {port for _, port in self._also}:
            raise PageRefusedError(f"pages are not served on port {port}")
        if address is not None:
            if not self.allows(address, port):
                raise PageRefusedError(f"{address} is no public address")
            return
        labels = host.split(".")
        if len(labels) < 2 or labels[-1] in _PRIVATE_ENDINGS:
            raise PageRefusedError(f"{host or 'an empty host'} is no public name")
        if not all(map(_LABEL.fullmatch, labels)) or len(host) > 253:
            raise PageRefusedError("the host is no name")
        if _NUMBER.fullmatch(labels[-1]):
            raise PageRefusedError(f"{host} is an odd spelling of a number")


def effective_port(url: httpx.URL) -> int:
    """Return the port of an address, or else the one of its scheme."""
    usual = 443 if url.scheme == "https" else 80
    return usual if url.port is None else url.port


def parse_ip_literal(host: str) -> Address | None:
    """Return a host as an IP address, in the standard spelling; None for names and other spellings."""
    try:
        return ip_address(host.removeprefix("[").removesuffix("]"))
    except ValueError:
        return None


def is_public(address: Address) -> bool:
    """Return whether an address is public: not private, local, reserved, multicast, or a cloud's metadata."""
    if isinstance(address, IPv6Address) and (address.scope_id is not None or address not in _ROUTED_V6):
        return False
    return not any(address in network for network in _NOT_PUBLIC)


_MOST_ADDRESSES = 4  # to try; each takes its share of the time

Resolve = Callable[[str, int], Awaitable[Sequence[str]]]
"""Returns the addresses of a name, best first. Raises OSError if it has none."""


async def resolve_host(host: str, port: int) -> Sequence[str]:
    """Ask the system's resolver."""
    found = await anyio.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [str(place[4][0]) for place in found]


class GuardedBackend(httpcore.AsyncNetworkBackend):
    """The dialler of a connection pool. It dials only addresses that the policy allows."""

    def __init__(
        self, policy: DialPolicy, *, resolve: Resolve = resolve_host, dial: httpcore.AsyncNetworkBackend | None = None
    ) -> None:
        """Take `dial`, which makes the connections; a test may record them."""
        self._policy = policy
        self._resolve = resolve
        self._dial = dial or cast("httpcore.AsyncNetworkBackend", httpcore.AnyIOBackend())

    async def resolve_checked(self, host: str, port: int) -> Sequence[Address]:
        """Return the addresses of a host if all may be dialled. Raises PageRefusedError and PageUnavailableError."""
        address = parse_ip_literal(host)
        found = [address] if address is not None else await self._resolve_addresses(host, port)
        for each in found:
            if not self._policy.allows(each, port):
                # One is enough: a public host has no business in a private network.
                raise PageRefusedError(f"{host} leads to {each}, which is no public address")
        return found

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ASYNC109 as httpcore has it
        local_address: str | None = None,
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        """Connect to the first of the host's addresses that answers."""
        addresses = (await self.resolve_checked(host, port))[:_MOST_ADDRESSES]
        share = None if timeout is None else timeout / len(addresses)
        failure: Exception = PageUnavailableError(f"{host} has no address")
        for address in addresses:
            try:
                return await self._dial.connect_tcp(str(address), port, share, local_address, socket_options)
            except (httpcore.ConnectError, httpcore.ConnectTimeout) as error:
                failure = error
        raise failure

    async def _resolve_addresses(self, host: str, port: int) -> Sequence[Address]:
        try:
            found = await self._resolve(host, port)
            addresses = list(dict.fromkeys(map(ip_address, found)))
        except (OSError, UnicodeError):
            raise PageUnavailableError(f"{host} cannot be found: its name leads nowhere") from None
        except ValueError:
            raise PageRefusedError(f"{host} leads to what is no address") from None
        if not addresses:
            raise PageUnavailableError(f"{host} cannot be found: its name leads nowhere")
        return addresses
