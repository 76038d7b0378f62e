"""The conditions of a measurement: the machine, the versions, and the commit."""

from __future__ import annotations

import os
import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import apsw

from intern import __version__

_LIBRARIES = ("anyio", "hikari", "aiohttp", "httpx", "msgspec", "numpy", "onnxruntime")


def machine() -> dict[str, str]:
    """Return processor, cores, memory and system."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return {
        "processor": _processor(),
        "cores": f"{os.cpu_count()} cores",
        "memory": f"{memory:.0f} GB",
        "system": f"{platform.system()} {platform.release()}",
    }


def versions() -> dict[str, str]:
    """Return the versions of intern, Python, SQLite and the libraries that figures depend on."""
    found = {"intern": __version__, "Python": platform.python_version(), "SQLite": apsw.sqlite_lib_version()}
    for name in _LIBRARIES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "none"
    return found


def commit() -> str:
    """Return the commit that is checked out, with a `+` if files differ from it; `unknown` without git."""
    try:
        named = _git("rev-parse", "--short", "HEAD").strip()
        # The figures do not depend on the results of earlier runs.
        return named + ("+" if _git("status", "--porcelain", "--", ".", ":!benchmarks/results").strip() else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def _git(*arguments: str) -> str:
    folder = Path(__file__).parent.parent
    return subprocess.run(["git", *arguments], cwd=folder, check=True, capture_output=True, text=True).stdout


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, "") or platform.processor() or platform.machine()
