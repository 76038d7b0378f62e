"""The program that `running.Shell` starts: it runs command lines, each in a forked process of its own.

A cold start costs half a second of CPU, nearly all of it imports. So this process does no work, but imports what its
last child had imported. It knows the program's entry point alone, and no module behind it. A child ends as any process
does, but for the tidying up of Python's modules, which costs five times as much as most commands.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path


def main() -> None:
    module, _, function = sys.argv[1].partition(":")
    entry = getattr(import_module(module), function)
    modules = Path(sys.argv[2])
    for line in iter(sys.stdin.readline, ""):
        job = json.loads(line)
        child = os.fork()
        if child == 0:
            _be(job, entry, modules)
            return
        _, status = os.waitpid(child, 0)
        _warm_up(modules)
        print(os.waitstatus_to_exitcode(status), flush=True)


def _be(job: dict[str, list[str]], entry: Callable[[], object], modules: Path) -> None:
    """Be the process of a command line, with its arguments and streams."""
    sys.argv = ["intern", *job["arguments"]]
    for fd, path, flags in zip((0, 1, 2), job["streams"], (os.O_RDONLY, os.O_WRONLY, os.O_WRONLY), strict=True):
        opened = os.open(path, flags)
        os.dup2(opened, fd)
        os.close(opened)
    codes: list[int] = []
    # Registered first, so it comes after all that the program has to do at its end, and after its threads.
    atexit.register(_leave, codes, modules)
    try:
        code = entry()
    except SystemExit as end:
        code = end.code
    codes.append(code if isinstance(code, int) else int(code is not None))


def _leave(codes: list[int], modules: Path) -> None:
    modules.write_text("\n".join(sys.modules), encoding="utf-8")
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(codes[0] if codes else 1)  # without one, Python has printed a traceback


def _warm_up(modules: Path) -> None:
    if modules.exists():
        for name in modules.read_text(encoding="utf-8").splitlines():
            if name not in sys.modules:
                with contextlib.suppress(ImportError):
                    import_module(name)


if __name__ == "__main__":
    main()
