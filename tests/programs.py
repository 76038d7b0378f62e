"""intern as a process of this source tree, with what a plain installation brings."""

from __future__ import annotations

import sys

PLAIN = 'import sys; sys.modules.update(dict.fromkeys(("pygments", "rich", "trio", "greenlet")))'
"""Hides what development alone has: libraries load these wherever they are, 8 MB and a sixth of the CPU of a start."""
MAIN = f"{PLAIN}; from intern.frontends.cli import main; main()"


def program(*arguments: str) -> list[str]:
    """Return what starts intern with these arguments."""
    return [sys.executable, "-c", MAIN, *arguments]
