"""Memory: one bound for the caches of a process, and what nothing uses any more, given back to the system."""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from threading import Lock
from typing import Protocol

from anyio import sleep
from anyio.to_thread import run_sync

EVERY_SECONDS = 10.0
"""Memory that was freed since counts as in use for the system: in a minute under load, some 15 MB."""


class SharedCache(Protocol):
    """Something that can be read again."""

    def release(self) -> None:
        """Hold nothing any more. Called on any thread, also while a reader goes on with what it took."""
        ...


class CacheBudget:
    """The bytes that caches may hold together. Those that were used least recently go first. For any thread."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._held: dict[SharedCache, int] = {}
        self._lock = Lock()

    @property
    def held(self) -> int:
        """The bytes that all caches hold."""
        return sum(self._held.values())

    def reserve(self, cache: SharedCache, size: int) -> bool:
        """Note that a cache is used now and holds so many bytes. Return False where it would never fit."""
        with self._lock:
            self._held.pop(cache, None)
            if size > self.most:
                return False
            self._held[cache] = size
            while self.held > self.most:
                oldest = next(iter(self._held))
                del self._held[oldest]
                oldest.release()
            return True

    def remove(self, cache: SharedCache) -> None:
        """Count a cache no more."""
        with self._lock:
            self._held.pop(cache, None)


def release_free_memory() -> None:
    """Let the system have the pages that are free. Takes some milliseconds; does nothing but with glibc.

    glibc keeps what is freed below anything that is in use, up to megabytes between small things that stay: a busy
    process kept 19 MB so after half an hour, 6 of them from its last six minutes, in which what it held did not grow.
    """
    with suppress(OSError, AttributeError):  # other C libraries give back by themselves, or have no word for it
        ctypes.CDLL(None).malloc_trim(0)


def limit_malloc_arenas() -> None:
    """Let all threads share two arenas of glibc. Call it before they start; does nothing but with glibc.

    By itself, glibc gives each thread an arena, up to eight for a core. What is free at the end of one stays there, up
    to twice the largest block that was ever freed, and `give_back` does not reach it: after eight communities had
    their vectors in turn, 30 MB beside the 16 that were in use.
    """
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).mallopt(_ARENA_MAX, 2)


_ARENA_MAX = -8  # in <malloc.h>


@contextmanager
def freeze_garbage_collector() -> Generator[None]:
    """Let the collector pass over what is there when this begins: modules, classes, functions. For when all is loaded.

    They are more than 110,000 objects, and it looks through all only once a quarter as many others have outlived its
    smaller rounds: until then, megabytes stay that hang together in circles and that nothing else holds.
    """
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


async def release_memory_regularly(
    every: float = EVERY_SECONDS, give: Callable[[], None] = release_free_memory
) -> None:
    """Do it every so many seconds until cancelled, beside the loop."""
    while True:
        await sleep(every)
        await run_sync(give)
