"""`python -m benchmarks [NAME…]`: what intern costs and how good it is, one line a figure, each beside its bar.

Each benchmark runs in a process of its own, under a time limit: one that breaks costs its own figures and no
others, and no memory is counted twice. All of them together are kept in `benchmarks/results`, unless
`--no-save` is given; some of them only with `--save`.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path

import msgspec

from benchmarks.figures import Figure, Measured, Run, save, table
from benchmarks.machine import commit, machine, versions
from intern.core.log import configure_logging

RESULTS = Path(__file__).parent / "results"

# Seconds, some four times what each takes on two quiet cores.
BENCHMARKS = {
    "journey": 120,
    "help_cpu": 120,
    "binary": 180,
    "idle_memory": 120,
    "communities": 300,
    "switching": 60,
    "hosting": 480,
    "pages": 600,
    "socket_to_batch": 900,
    "capturing": 600,
    "regenerating": 600,
    "filing": 1800,
    "engines": 1800,
    "answering": 900,
    "recording": 1800,
    "archive": 600,
    "indexing": 900,
    "searching": 1800,
    "embedding": 900,
    "multilingual": 900,
    "git_manual": 1800,
    "documents": 3600,
    "retrieval": 3600,
    "attached_logs": 600,
    "triage": 1800,
    "calibration": 900,
    "quality": 1800,
    "conversations": 1800,
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Return 0 if all figures were measured and hold."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(BENCHMARKS)}; none: all, kept")
    parser.add_argument("--no-save", action="store_true", help="keep nothing")
    parser.add_argument("--save", action="store_true", help="keep the figures of some benchmarks, too")
    parser.add_argument("--bare", action="store_true", help="one benchmark in this very process, as JSON lines")
    given = parser.parse_args(arguments)
    if unknown := set(given.names) - BENCHMARKS.keys():
        parser.error(f"there is no benchmark {', '.join(sorted(unknown))}")
    if given.bare:
        return _bare(given.names)
    return _all(given.names or list(BENCHMARKS), keep=given.save or not (given.names or given.no_save))


def _all(names: Sequence[str], *, keep: bool) -> int:
    at, before = f"{datetime.now(UTC):%Y-%m-%dT%H:%M}", os.getloadavg()[0]
    figures, missing = list[Figure](), dict[str, str]()
    for name in names:
        print(f"{name} …", file=sys.stderr, flush=True)
        try:
            figures += measured(name, BENCHMARKS[name])
        except (subprocess.SubprocessError, msgspec.MsgspecError) as error:
            missing[name] = reason(error)
    run = Run.of(figures, at=at, machine=machine(), versions=versions(), load=before, commit=commit(), missing=missing)
    print("\n".join(table(run)))
    if keep:
        print(f"\nkept in {save(run, RESULTS).relative_to(RESULTS.parent.parent)}")
    return 0 if not missing and all(figure.holds for figure in run.all) else 1


def measured(name: str, seconds: float) -> list[Figure]:
    """Return the figures of one benchmark. Raises the SubprocessError family if it fails or takes too long."""
    command = [sys.executable, "-m", "benchmarks", name, "--bare"]
    ended = subprocess.run(command, check=True, timeout=seconds, stdout=subprocess.PIPE)
    said = [msgspec.json.decode(line, type=tuple[str, Measured]) for line in ended.stdout.splitlines()]
    return [each.figure(title) for title, each in said]


def reason(error: Exception) -> str:
    """Return the reason in a line why a benchmark gave no figures."""
    if isinstance(error, subprocess.TimeoutExpired):
        return f"it took longer than {error.timeout:g} s"
    if isinstance(error, subprocess.CalledProcessError):
        return f"it ended with exit code {error.returncode}; `python -m benchmarks {error.cmd[-2]}` shows the error"
    return str(error)


def _bare(names: Sequence[str]) -> int:
    # Logging would cost time, and its lines would be among the figures.
    configure_logging(log_format="json", level="error")
    for name in names:
        figures: Iterator[Figure] = import_module(f"benchmarks.{name}").measure()
        for figure in figures:
            sys.stdout.buffer.write(msgspec.json.encode((figure.name, figure.kept)) + b"\n")
            sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
