"""What an operator may set about fetching pages."""

from __future__ import annotations

from msgspec import Struct


class WebOptions(Struct, frozen=True, kw_only=True):
    """Bounds of fetching."""

    max_bytes: int = 1_000_000
    """Of a page; larger ones are left out."""
    concurrency: int = 8
    """Requests at the same time, to all sites together; one site is sent one at a time."""
    pause_seconds: float = 0.5
    """Between two requests to one site."""
    timeout_seconds: float = 30.0
    """For one request, from the first byte sent to the last one read."""
    render_command: tuple[str, ...] = ()
    """Prints a page as it stands once its scripts have run; the address is put behind it. Empty: none is rendered."""
    render_seconds: float = 30.0
    max_rendered_bytes: int = 10_000_000
    """Such a page carries its scripts' data along."""
