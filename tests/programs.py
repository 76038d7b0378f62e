"""intern as a process of this source tree, with what a plain installation brings."""

from __future__ import annotations

import sys

_STRANGE = ("greenlet", "h2", "pygments", "rich", "trio")
PLAIN = f"import sys; sys.modules.update(dict.fromkeys({_STRANGE}))"
"""Hides what development alone has. Libraries load it wherever it is: 7 MB and a quarter of the CPU of a start."""
MAIN = f"{PLAIN}; from intern.frontends.cli import main; main()"


def program(*arguments: str) -> list[str]:
    """Return what starts intern with these arguments."""
    return [sys.executable, "-c", MAIN, *arguments]
