"""Memory that nothing uses any more, given back to the system."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from contextlib import suppress

from anyio import sleep
from anyio.to_thread import run_sync

EVERY_SECONDS = 10.0
"""What is freed in between counts as in use for whoever looks from outside: in a minute under load, some 15 MB."""


def give_back() -> None:
    """Let the system have the pages that are free. Takes some milliseconds; does nothing but with glibc.

    glibc keeps what is freed below anything that is in use, up to megabytes between small things that stay: a busy
    process kept 19 MB so after half an hour, 6 of them from its last six minutes, in which what it held did not grow.
    """
    with suppress(OSError, AttributeError):  # other C libraries give back by themselves, or have no word for it
        ctypes.CDLL(None).malloc_trim(0)


async def giving_back(every: float = EVERY_SECONDS, give: Callable[[], None] = give_back) -> None:
    """Do it every so many seconds until cancelled, beside the loop."""
    while True:
        await sleep(every)
        await run_sync(give)
