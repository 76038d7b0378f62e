"""A command line in a folder of its own: in this process where the code behind it is what matters, else as one."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Generator, Mapping
from io import BytesIO, TextIOWrapper
from pathlib import Path
from typing import NamedTuple, Protocol

import pytest

from intern.frontends.cli import main
from tests.worlds.program import program

SOURCE_TREE = Path(__file__).parents[3]


class Ended(NamedTuple):
    """The result of a command."""

    code: int
    out: str
    err: str


class Intern(Protocol):
    """`intern` with these arguments, in the test's own folder."""

    def __call__(self, *arguments: str, typed: str = "") -> Ended: ...


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder: empty, and an environment that sets nothing."""
    monkeypatch.chdir(tmp_path)
    for name in list(os.environ):
        if name.startswith("INTERN"):
            monkeypatch.delenv(name)
    return tmp_path


@pytest.fixture(autouse=True)
def logging_put_back() -> Generator[None]:
    """Commands set up logging for their process, which is ours here."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


@pytest.fixture
def made(folder: Path) -> Path:
    """A data folder with nothing in it."""
    path = folder / "data"
    (path / "team-knowledge").mkdir(parents=True)
    return path


@pytest.fixture
def sources(folder: Path) -> Path:
    """Two documents where the defaults look for them."""
    path = folder / "data" / "knowledge-base" / "sources"
    path.mkdir(parents=True)
    (path / "ports.md").write_text("# Ports\n\nThe relay listens on port 7480. Set `listen` to change the port.\n")
    (path / "logs.md").write_text("# Logs\n\nThe relay writes its logs to `/var/log/lumen`.\n")
    return path


@pytest.fixture
def intern(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Intern:
    """The command line in this process."""

    def run(*arguments: str, typed: str = "") -> Ended:
        monkeypatch.setattr(sys, "argv", ["intern", *arguments])
        monkeypatch.setattr(sys, "stdin", TextIOWrapper(BytesIO(typed.encode()), encoding="utf-8"))
        capsys.readouterr()
        with pytest.raises(SystemExit) as end:
            main()
        out, err = capsys.readouterr()
        assert isinstance(end.value.code, int)
        return Ended(end.value.code, out, err)

    return run


def environment(**more: str) -> dict[str, str]:
    """A small environment, as a service manager gives it, without the settings of the person who runs the tests.

    No embedding model either: loading it costs as much as all the rest of a command.
    """
    ours = {"PYTHONPATH": str(SOURCE_TREE), "INTERN__EMBEDDINGS__PROVIDER": "none"}
    return {"PATH": os.defpath, "LANG": "C.UTF-8", **ours, **more}


def process(*arguments: str, typed: bytes = b"", env: Mapping[str, str] | None = None) -> Ended:
    """The command line as a process."""
    done = subprocess.run(
        program(*arguments), input=typed, capture_output=True, env=environment(**(env or {})), timeout=60, check=False
    )
    return Ended(done.returncode, done.stdout.decode(), done.stderr.decode())
