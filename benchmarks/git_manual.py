"""Indexing git's manual (Debian's `git-doc`: 533 pages as text and HTML), by the command as people run it.

The package is downloaded by `apt-get` into a temporary folder. Without it, there are no figures.
"""

from __future__ import annotations

import re
import resource
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from time import perf_counter
from typing import NamedTuple

from benchmarks.figures import Figure

BEFORE = 578.0
"""Seconds of CPU for words and vectors, before the model was multiplied in 8 bits."""


class _Cost(NamedTuple):
    cpu: float
    written: float
    """Bytes written to any file."""
    said: str
    first: float
    """Seconds until the first line of progress."""


def measure() -> Iterator[Figure]:
    """Measure words first, then all vectors in a second run, which continues the first."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        pages = _manual(folder)
        if pages is None:
            return
        texts = sum(path.stat().st_size for path in pages.rglob("*"))
        name = f"git's manual ({sum(path.is_file() for path in pages.rglob('*'))} documents)"
        words = _intern(folder, pages, "index")
        found = _intern(folder, pages, "search", "rebase", "--top", "1")
        yield Figure(f"{name}, the first line of progress after", words.first, "s", 1)
        yield Figure(f"{name}, indexed and searched by words (CPU)", words.cpu + found.cpu, "s", 60)
        yield Figure(f"{name}, a search by words finds", float(found.said.count("kb:")), "", least=1)
        yield Figure(f"{name}, bytes written for that, to the bytes of its files", words.written / texts, "x", 10)
        vectors = _intern(folder, pages, "index", "--wait")
        yield Figure(f"{name}, words and vectors (CPU)", words.cpu + vectors.cpu, "s", BEFORE / 2)
        found = _intern(folder, pages, "search", "rebase", "--top", "1")
        yield Figure(f"{name}, a search by words and vectors finds", float(found.said.count("kb:")), "", least=1)


def _intern(folder: Path, pages: Path, *arguments: str) -> _Cost:
    """Run the command in a process of its own, which reports its written bytes at its end."""
    code = "import atexit; from intern.frontends.cli import main; "
    code += (
        "atexit.register(lambda: print('wrote', open('/proc/self/io').read().split('wchar: ')[1].split()[0])); main()"
    )
    environment = {
        "INTERN__DATA__DIR": str(folder / "data"),
        "INTERN__KB__SOURCES_DIR": str(pages),
        "INTERN__EMBEDDINGS__PROVIDER": "local",
        "PYTHONPATH": str(Path(__file__).parents[1]),
        "PATH": "/usr/bin:/bin",
    }
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-c", code, *arguments],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert process.stdout is not None
    first_line, first = process.stdout.readline(), perf_counter() - began
    said = first_line + process.stdout.read()
    if process.wait():
        raise RuntimeError(said)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return _Cost(cpu, float(re.findall(r"wrote (\d+)", said)[-1]), said, first)


def _manual(folder: Path) -> Path | None:
    """Return the pages, unpacked; None if they are unavailable."""
    if not all(map(shutil.which, ("apt-get", "dpkg"))):
        return None
    try:
        subprocess.run(["apt-get", "download", "git-doc"], cwd=folder, check=True, capture_output=True, timeout=120)
        [package] = folder.glob("git-doc*.deb")
        subprocess.run(["dpkg", "-x", package, folder / "unpacked"], check=True, capture_output=True)
    except (OSError, subprocess.SubprocessError, ValueError):
        return None
    pages = folder / "pages"
    for source in (folder / "unpacked").rglob("*"):
        if source.suffix in {".txt", ".html"} and source.is_file() and not source.is_symlink():
            target = pages / source.relative_to(folder / "unpacked")
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, target)
    return pages
