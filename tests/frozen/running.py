"""The frozen checks start the program by its console script, and use no module of it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

import tomli

SOURCE_TREE: Final = Path(__file__).parents[2]
_DRIVER: Final = Path(__file__).with_name("driving.py")
_PATIENCE: Final = 100  # seconds


class Ended(NamedTuple):
    """The result of a command."""

    code: int
    out: str
    err: str


def entry_point() -> str:
    """Return the console script `intern` as pyproject.toml names it, `module:function`."""
    project = tomli.loads((SOURCE_TREE / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return str(project["scripts"]["intern"])


def start(folder: Path, *arguments: str) -> Ended:
    """Run a command line as a process that starts cold, as a shell would."""
    module, _, function = entry_point().partition(":")
    program = f"import sys; from {module} import {function}; sys.argv[0] = 'intern'; sys.exit({function}())"
    done = subprocess.run(
        [sys.executable, "-P", "-c", program, *arguments],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        cwd=folder,
        env=_environment(folder),
        timeout=_PATIENCE,
        check=False,
    )
    return Ended(done.returncode, done.stdout.decode(), done.stderr.decode())


class Shell:
    """Runs command lines in a folder, each as a process that is forked from one that has imported much already."""

    def __init__(self, driver: subprocess.Popen[str], streams: Path) -> None:
        self._driver = driver
        self._out, self._err = streams / "out", streams / "err"

    def run(self, *arguments: str) -> Ended:
        for stream in (self._out, self._err):
            stream.write_bytes(b"")
        job = {"arguments": arguments, "streams": [os.devnull, str(self._out), str(self._err)]}
        assert self._driver.stdin is not None
        assert self._driver.stdout is not None
        self._driver.stdin.write(json.dumps(job) + "\n")
        self._driver.stdin.flush()
        code = self._driver.stdout.readline()
        assert code, "the driver of the frozen checks has died"
        return Ended(int(code), self._out.read_bytes().decode(), self._err.read_bytes().decode())


@contextmanager
def shell(folder: Path, beside: Path) -> Generator[Shell]:
    """Open a shell in `folder`; its own files lie in `beside`."""
    beside.mkdir()
    with subprocess.Popen(
        [sys.executable, "-P", str(_DRIVER), entry_point(), str(beside / "modules")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=folder,
        env=_environment(folder),
    ) as driver:
        try:
            yield Shell(driver, beside)
        finally:
            assert driver.stdin is not None
            driver.stdin.close()


def _environment(home: Path) -> dict[str, str]:
    """Return little, and no settings of whoever runs the tests."""
    return {
        "PATH": os.defpath,
        "PYTHONPATH": str(SOURCE_TREE),
        "LANG": "C.UTF-8",
        "TZ": "UTC",
        "HOME": str(home),
        "TMPDIR": str(home.parent),
    }
