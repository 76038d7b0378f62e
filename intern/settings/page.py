"""Settings of the status page: the table `[page]`."""

from __future__ import annotations

from ipaddress import ip_address
from typing import Annotated

from msgspec import Meta, Struct

from intern.core.text.masking import Secret

SHORTEST_TOKEN = 16  # characters; from other machines, anyone may try to guess it


class PageOptions(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Address and password of the page."""

    enabled: bool = False
    """Off by default: a visitor can read what the bot knows, and decide what it learns."""
    host: str = "127.0.0.1"
    port: Annotated[int, Meta(ge=0, le=65_535)] = 8300
    """0: any free port; the log names it."""
    token: Secret = Secret()
    """The page's password. Empty: everyone on this machine gets in."""

    @property
    def is_local(self) -> bool:
        """Whether only this machine can reach it."""
        return is_loopback(self.host)

    @property
    def problem(self) -> str:
        """The problem with the token; empty if there is none."""
        if not self.enabled:
            return ""
        if not self.is_local and not self.token:
            return (
                "must be set if page.host is reachable from other machines: visitors decide what the bot learns. "
                "Set INTERN__PAGE__TOKEN, for instance to the output of `openssl rand -hex 24`"
            )
        if self.token and len(self.token.reveal()) < SHORTEST_TOKEN:
            return f"must have at least {SHORTEST_TOKEN} characters, so that it cannot be guessed"
        return ""


def is_loopback(host: str) -> bool:
    """Return whether a name or address is this machine."""
    if host.rstrip(".").lower() == "localhost":
        return True
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
