"""Waiting for a change below the scan paths, where `watchfiles` is installed; else nothing ever seems to change.

It only shortens a wait, so whatever it misses or cannot do is found by the next look all the same.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import aclosing
from fnmatch import fnmatchcase
from importlib import import_module
from pathlib import Path
from typing import Any

from anyio import sleep_forever
from anyio.to_thread import run_sync

from intern.discovery.options import DiscoveryOptions
from intern.observe.log import get_logger

_log = get_logger(__name__)

# Its thread looks this often whether anybody still waits: what a shutdown may take longer.
_LOOK_MS = 500


class Changes:
    """Changes below the scan paths."""

    def __init__(self, options: DiscoveryOptions, never: Sequence[Path] = ()) -> None:
        self._options = options
        self._never = tuple(f"{os.path.realpath(path)}{os.sep}" for path in never)
        self._watching = _watching()

    async def wait(self) -> None:
        """Return once something changed that the next cycle may want to look at."""
        paths = await run_sync(self._folders)
        if self._watching is not None and paths:
            try:
                watching = self._watching(*paths, watch_filter=self._concerns, rust_timeout=_LOOK_MS)
                async with aclosing(watching):
                    async for _ in watching:
                        return
            except OSError as error:  # too many folders for the system, or one that is gone
                _log.warning("files_not_watched", reason=str(error))
        await sleep_forever()

    def _folders(self) -> list[str]:
        paths = (os.path.realpath(os.path.expanduser(path)) for path in self._options.scan_paths)  # noqa: PTH111
        return [path for path in paths if os.path.exists(path)]  # noqa: PTH110

    def _concerns(self, _: object, path: str) -> bool:
        *above, name = Path(path).parts
        skipped = any(fnmatchcase(each, pattern) for each in (*above[-8:], name) for pattern in self._options.skip)
        wanted = any(fnmatchcase(name, pattern) for _, patterns in self._options.patterns for pattern in patterns)
        return wanted and not skipped and not path.startswith(self._never)


def _watching() -> Any:
    try:
        return import_module("watchfiles").awatch
    except ImportError:
        return None
