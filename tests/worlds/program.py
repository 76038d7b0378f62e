"""intern as a process of this source tree, with the packages of a plain installation."""

from __future__ import annotations

import sys

_STRANGE = ("greenlet", "h2", "pygments", "rich", "trio")
PLAIN = f"import sys; sys.modules.update(dict.fromkeys({_STRANGE}))"
"""Hides the packages of development. Libraries load them if possible: 7 MB and a quarter of the CPU of a start."""
MAIN = f"{PLAIN}; from intern.frontends.cli import main; main()"


def program(*arguments: str) -> list[str]:
    """Return the command that starts intern with these arguments."""
    return [sys.executable, "-c", MAIN, *arguments]
