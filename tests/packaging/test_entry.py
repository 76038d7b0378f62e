"""Where the single binary begins, without building one: what travels packed, what is swept away, what is started."""

from __future__ import annotations

import fcntl
import importlib.util
import os
import subprocess
import sys
import zipfile
from pathlib import Path
from types import ModuleType

import pytest

from intern.documents.sandboxed import SANDBOXED, SandboxFailedError, run_sandboxed

pytestmark = pytest.mark.rest

ENTRY = Path(__file__).parents[2] / "packaging" / "entry.py"


@pytest.fixture(scope="session")
def entry() -> ModuleType:
    spec = importlib.util.spec_from_file_location("entry", ENTRY)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


IMPORTING = """
import importlib.util, sys
sys.path[:] = [path for path in sys.path if "site-packages" not in path]
from pathlib import Path
spec = importlib.util.spec_from_file_location("entry", sys.argv[1])
entry = importlib.util.module_from_spec(spec)
spec.loader.exec_module(entry)
folder = Path(sys.argv[2])
sys.meta_path.append(entry.Later(folder / "embeddings.zip", folder / "embeddings"))
assert importlib.util.find_spec("numpy") is not None
assert importlib.util.find_spec("pandas") is None
print(sorted(path.name for path in folder.iterdir()))
import numpy.inner
import onnxruntime
print(numpy.inner.FOUND, numpy.__file__ == str(folder / "embeddings" / "numpy" / "__init__.pyc"), onnxruntime.HERE)
print(sorted(path.name for path in folder.iterdir()))
"""


def test_packages_of_the_archive_are_known_at_once_and_unpacked_at_their_first_import(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "embeddings.zip", "w") as archive:
        for name, source in {
            "numpy/__init__": "from numpy import inner",
            "numpy/inner": "FOUND = 'found'",
            "onnxruntime/__init__": "HERE = 'here'",
        }.items():
            archive.writestr(f"{name}.pyc", _byte_code(tmp_path, source))
    before = [path.name for path in tmp_path.iterdir()]
    assert before == ["embeddings.zip"]
    root = ENTRY.parents[1]
    done = subprocess.run(
        [sys.executable, "-c", IMPORTING, str(ENTRY), str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
        cwd=root,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "['embeddings.zip']",
        "found True here",
        "['embeddings']",
    ]


def _byte_code(folder: Path, source: str) -> bytes:
    import py_compile  # noqa: PLC0415 only here

    module = folder / "module.py"
    module.write_text(source, encoding="utf-8")
    made = py_compile.compile(str(module), str(folder / "module.pyc"), doraise=True)
    assert made is not None
    code = Path(made).read_bytes()
    module.unlink()
    Path(made).unlink()
    return code


def test_only_folders_that_a_dead_process_of_ours_left_are_swept(entry: ModuleType, tmp_path: Path) -> None:
    dead, alive, foreign, linked = (tmp_path / name for name in ("_MEIdead", "_MEIalive", "_MEIforeign", "_MEIlinked"))
    for folder in (dead, alive, foreign):
        folder.mkdir()
        (folder / "libpython.so").touch()
    kept = tmp_path / "kept"
    kept.mkdir()
    (kept / "intern.alive").touch()
    linked.symlink_to(kept)
    os.close(entry._hold(dead))
    held = entry._hold(alive)
    try:
        entry._sweep(tmp_path)
    finally:
        os.close(held)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["_MEIalive", "_MEIforeign", "_MEIlinked", "kept"]
    assert (kept / "intern.alive").exists()


def test_a_folder_is_marked_only_while_its_mark_is_locked(entry: ModuleType, tmp_path: Path) -> None:
    held = entry._hold(tmp_path)
    with (tmp_path / "intern.alive").open("rb") as mark, pytest.raises(BlockingIOError):
        fcntl.flock(mark, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(held)
    assert [path.name for path in tmp_path.iterdir()] == ["intern.alive"]


def test_the_binary_calls_itself_for_hostile_input_and_hands_on_nothing_but_where_it_lies(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    program = tmp_path / "intern"
    program.write_text(f'#!/bin/sh\n(echo "$@"; /usr/bin/env) > {tmp_path}/said\n', encoding="utf-8")
    program.chmod(0o755)
    monkeypatch.setattr(sys, "frozen", True, raising=False)
    monkeypatch.setattr(sys, "executable", str(program))
    monkeypatch.setenv("_PYI_APPLICATION_HOME_DIR", "/tmp/_MEI1")
    monkeypatch.setenv("INTERN__DISCORD__TOKEN", "planted-secret")
    with pytest.raises(SandboxFailedError):
        run_sandboxed("intern.documents.pdfs", b"", "100")
    said = (tmp_path / "said").read_text(encoding="utf-8").splitlines()
    assert said[0] == f"{SANDBOXED} intern.documents.pdfs 100"
    assert "_PYI_APPLICATION_HOME_DIR=/tmp/_MEI1" in said
    assert "planted-secret" not in "".join(said)


@pytest.mark.parametrize("module", ["os", "intern.frontends.cli", ""])
def test_it_starts_as_nothing_but_its_own_modules(entry: ModuleType, module: str) -> None:
    with pytest.raises(SystemExit, match="there is no module"):
        entry._serve_sandboxed([module])


def test_started_as_one_of_its_modules_it_is_that_module(entry: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[tuple[str, list[str]]] = []

    def run(module: str, *, run_name: str) -> None:
        assert run_name == "__main__"
        started.append((module, sys.argv[:]))

    monkeypatch.setattr(sys, "argv", ["intern", SANDBOXED, "intern.documents.pdfs", "100"])
    monkeypatch.setattr(entry.runpy, "run_module", run)
    entry._serve_sandboxed(["intern.documents.pdfs", "100"])
    assert started == [("intern.documents.pdfs", ["intern.documents.pdfs", "100"])]
