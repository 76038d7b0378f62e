"""Memory: one bound for the caches of a process, and the release of unused memory to the system."""

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
"""The system counts memory that was freed since then as in use: some 15 MB in a minute under load."""


class SharedCache(Protocol):
    """A cache whose content can be read again."""

    def release(self) -> None:
        """Drop the content. Called on any thread, also while a reader still uses the part that it took."""
        ...


class CacheBudget:
    """The bytes that caches may hold together. The least recently used ones go first. For any thread."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._held: dict[SharedCache, int] = {}
        self._lock = Lock()

    @property
    def held(self) -> int:
        """The bytes that all caches hold."""
        return sum(self._held.values())

    def reserve(self, cache: SharedCache, size: int) -> bool:
        """Note that a cache is used now and holds so many bytes. Return False if it can never fit."""
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
        """Stop counting a cache."""
        with self._lock:
            self._held.pop(cache, None)


def release_free_memory() -> None:
    """Return free pages to the system. Takes some milliseconds; works with glibc only.

    glibc keeps freed memory below any block in use, so small blocks that stay can hold back megabytes. A busy process
    kept 19 MB so after half an hour: 6 of them from its last six minutes, in which its data did not grow.
    """
    with suppress(OSError, AttributeError):  # other C libraries return memory by themselves, or have no function for it
        ctypes.CDLL(None).malloc_trim(0)


def limit_malloc_arenas() -> None:
    """Let all threads share two arenas of glibc. Call it before they start; works with glibc only.

    By itself, glibc gives each thread an arena, up to eight for a core. Free memory at the end of one stays there, up
    to twice the largest block that was ever freed, and `release_free_memory` does not reach it. After eight
    communities had their vectors in turn, that was 30 MB beside the 16 in use.
    """
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).mallopt(_ARENA_MAX, 2)


_ARENA_MAX = -8  # in <malloc.h>


@contextmanager
def freeze_garbage_collector() -> Generator[None]:
    """Exempt all present objects (modules, classes, functions) from garbage collection. Enter it once all is loaded.

    They are more than 110,000 objects. The collector examines all only once a quarter as many others have outlived its
    smaller rounds. Until then, megabytes of unreachable cycles stay; then the event loop stands still, on a busy
    machine for .4 to 1 s instead of .03 to .1, once in 200 questions.
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
    """Release free memory every so many seconds until cancelled, on a worker thread."""
    while True:
        await sleep(every)
        await run_sync(give)
