"""The memory of a process, in the megabytes of every bar: a million bytes each."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

KILOBYTE: Final = 1024 / 1_000_000
"""The kernel's kB in megabytes."""


def resident(pid: int | None = None) -> float:
    """Return the present memory of another process, or of this one."""
    return _told(pid, "VmRSS")


def peak() -> float:
    """Return the most that this process ever had."""
    return _told(None, "VmHWM")


def _told(pid: int | None, name: str) -> float:
    status = Path(f"/proc/{pid or os.getpid()}/status").read_text(encoding="utf-8", errors="replace")
    kilobytes = next(line for line in status.splitlines() if line.startswith(name)).split()[1]
    return int(kilobytes) * KILOBYTE
