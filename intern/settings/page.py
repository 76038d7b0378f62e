"""What an operator can set about the status page: the table `[page]`."""

from __future__ import annotations

from ipaddress import ip_address
from typing import Annotated

from msgspec import Meta, Struct

from intern.core.secret import Secret

SHORTEST_TOKEN = 16  # signs; beyond the own machine, anybody may try


class PageOptions(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where the page is served, and who gets in."""

    enabled: bool = False
    """Off unless asked for: whoever can reach the port can read what the bot knows, and decide what it learns."""
    host: str = "127.0.0.1"
    port: Annotated[int, Meta(ge=0, le=65_535)] = 8300
    """0: any that is free; the log says which."""
    token: Secret = Secret()
    """What lets in; empty: everybody who reaches a port on the own machine."""

    @property
    def is_local(self) -> bool:
        """Nobody beyond this machine can reach it."""
        return is_loopback(self.host)

    @property
    def problem(self) -> str:
        """What is wrong with the token; empty where nothing is."""
        if not self.enabled:
            return ""
        if not self.is_local and not self.token:
            return (
                "must be set where page.host is beyond this machine: whoever reaches the page decides what the "
                "bot learns. Set INTERN__PAGE__TOKEN, for instance to what `openssl rand -hex 24` prints"
            )
        if self.token and len(self.token.reveal()) < SHORTEST_TOKEN:
            return f"must have at least {SHORTEST_TOKEN} signs, so that nobody can guess it"
        return ""


def is_loopback(host: str) -> bool:
    """Whether a name or an address means this very machine."""
    if host.rstrip(".").lower() == "localhost":
        return True
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
