"""`python -m benchmarks.paired OTHER`: what a filed pair and a question cost here, beside another checkout of intern.

Both take turns, so that a busy machine slows both. Told are medians of CPU, and for one run of each, under `strace`
where it is installed, the synced files and the bytes written. `PAIRED_RUNS` is how often, by default 20.
"""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from shutil import which
from statistics import median
from time import process_time

import msgspec

MESSAGES = 2_000
QUESTIONS = 100
RUNS = int(os.environ.get("PAIRED_RUNS", "20"))

_SYNC = re.compile(r"\b(?:fsync|fdatasync)\(")
_WRITTEN = re.compile(r"\b(?:write|pwrite64)\(\d+<[^>]*/paired[^>]*>.* = (\d+)$", re.MULTILINE)


def main(other: Path) -> int:
    """Print each figure of the other checkout and of this one, and their ratio."""
    here = Path(__file__).parents[1]
    told: dict[Path, list[dict[str, float]]] = {other: [], here: []}
    for n in range(RUNS):
        for tree in (other, here) if n % 2 else (here, other):
            told[tree].append(one(tree))
    for name in told[here][0]:
        old, new = (median(each[name] for each in told[tree]) for tree in (other, here))
        print(f"{name}: {old:.3f} -> {new:.3f} (x{new / old:.2f})")
    if which("strace"):
        for name, old, new in zip(("synced files a pair", "bytes written a pair"), traced(other), traced(here)):  # noqa: B905
            print(f"{name}: {old:.1f} -> {new:.1f} (x{new / old:.2f})")
    return 0


def one(tree: Path, before: tuple[str, ...] = (), url: str = "") -> dict[str, float]:
    """Measure once, in a process of its own. `url`: on PostgreSQL."""
    environ = {**os.environ, "PYTHONPATH": str(tree), "PYTHONHASHSEED": "0", "PAIRED_URL": url}
    done = subprocess.run(
        (*before, sys.executable, __file__, "--one"), cwd=tree, env=environ, check=True, stdout=subprocess.PIPE
    )
    return msgspec.json.decode(done.stdout.splitlines()[-1], type=dict[str, float])


def traced(tree: Path, url: str = "") -> tuple[float, float]:
    """Return how many files the process synced for a pair, and how many bytes it wrote."""
    with tempfile.NamedTemporaryFile() as log:
        calls = "trace=fsync,fdatasync,write,pwrite64"
        pairs = one(tree, ("strace", "-f", "-y", "-qq", "-e", calls, "-o", log.name), url)["pairs"]
        text = Path(log.name).read_text(encoding="utf-8", errors="replace")
    return len(_SYNC.findall(text)) / pairs, sum(map(int, _WRITTEN.findall(text))) / pairs


async def _measured(folder: Path) -> dict[str, float]:
    # These belong to the measured checkout.
    from benchmarks.filing import export  # noqa: PLC0415
    from intern.core.messages import Conversation, Message  # noqa: PLC0415
    from intern.service.history_import import import_history  # noqa: PLC0415
    from intern.service.opening import open_intern  # noqa: PLC0415
    from intern.settings.loading import load_settings  # noqa: PLC0415

    (folder / "export").mkdir()
    wanted = export(folder / "export")
    url = os.environ.get("PAIRED_URL")
    settings = load_settings(
        environ={},
        overrides={
            "data": {"dir": str(folder / "data"), **({"url": url} if url else {})},
            "llm": {"provider": "offline"},
            "extraction": {"auto": False},
            "embeddings": {"provider": "none"},
        },
    )
    begun = process_time()
    done = await import_history(settings, wanted)
    filed = process_time() - begun
    assert done.filed is not None
    pairs = done.filed.filed + done.filed.skipped + done.filed.parked
    texts = [
        message["content"]
        for file in wanted.files
        for message in msgspec.json.decode(file.read_bytes())["messages"]
        if message["content"].endswith("?")
    ]
    async with open_intern(settings) as intern:
        begun = process_time()
        for text in texts[:QUESTIONS]:
            await intern.answer(Conversation((Message(role="user", text=text),)))
        asked = process_time() - begun
    return {"CPU ms a pair": filed * 1000 / pairs, "CPU ms a question": asked * 1000 / QUESTIONS, "pairs": pairs}


if __name__ == "__main__":
    if "--one" in sys.argv:
        os.environ["FILING_MESSAGES"] = str(MESSAGES)
        with tempfile.TemporaryDirectory(prefix="paired") as place:
            print(msgspec.json.encode(asyncio.run(_measured(Path(place)))).decode())
    elif len(sys.argv) == 2:
        sys.exit(main(Path(sys.argv[1]).resolve()))
    else:
        sys.exit(f"usage: {__doc__}")
