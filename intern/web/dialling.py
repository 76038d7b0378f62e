"""Connections to addresses that were checked: a name is looked up once, judged, and the judged address is dialled.

So a name that leads elsewhere a moment later (DNS rebinding) changes nothing. The host's name still goes into the TLS
handshake and the request.
"""

from __future__ import annotations

import socket
from collections.abc import Awaitable, Callable, Iterable, Sequence
from ipaddress import ip_address
from typing import cast

import anyio
import httpcore

from intern.errors import PageRefusedError, PageUnavailableError
from intern.web.addresses import Address, Policy, literal

_MOST_ADDRESSES = 4  # are tried; each takes its share of the time

Resolve = Callable[[str, int], Awaitable[Sequence[str]]]
"""Where a name leads, best first. Raises OSError where nobody knows."""


async def resolved(host: str, port: int) -> Sequence[str]:
    """What the system's resolver says."""
    found = await anyio.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [str(place[4][0]) for place in found]


class GuardedBackend(httpcore.AsyncNetworkBackend):
    """Dials for a connection pool, and only what the policy allows."""

    def __init__(
        self, policy: Policy, *, resolve: Resolve = resolved, dial: httpcore.AsyncNetworkBackend | None = None
    ) -> None:
        """`dial` makes the connections; a test may record what it is asked for."""
        self._policy = policy
        self._resolve = resolve
        self._dial = dial or cast("httpcore.AsyncNetworkBackend", httpcore.AnyIOBackend())

    async def vetted(self, host: str, port: int) -> Sequence[Address]:
        """Where a host leads; all of it may be dialled. Raises PageRefusedError and PageUnavailableError."""
        address = literal(host)
        found = [address] if address is not None else await self._looked_up(host, port)
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
        addresses = (await self.vetted(host, port))[:_MOST_ADDRESSES]
        share = None if timeout is None else timeout / len(addresses)
        failure: Exception = PageUnavailableError(f"{host} has no address")
        for address in addresses:
            try:
                return await self._dial.connect_tcp(str(address), port, share, local_address, socket_options)
            except (httpcore.ConnectError, httpcore.ConnectTimeout) as error:
                failure = error
        raise failure

    async def _looked_up(self, host: str, port: int) -> Sequence[Address]:
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
