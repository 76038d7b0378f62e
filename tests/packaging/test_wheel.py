"""The wheel as a stranger installs it: where nothing else is, with the newest of all that it depends on."""

from __future__ import annotations

import re
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from intern import __version__

SOURCE_TREE = Path(__file__).parents[2]

pytestmark = [pytest.mark.rest, pytest.mark.timeout(900)]  # it downloads 100 MB

_DOCS = (SOURCE_TREE / "docs" / "packaging.md").read_text(encoding="utf-8")
_EXTRAS = re.search(r'pipx install "dist/.*\)(\[[a-z,]+\])"', _DOCS)


def test_it_brings_all_that_it_needs_and_plays_its_community_to_the_end(tmp_path: Path) -> None:
    """Alone, and then with the extras that the docs name."""
    assert _EXTRAS
    _succeed(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", tmp_path, SOURCE_TREE)
    (wheel,) = tmp_path.glob("*.whl")
    venv.create(tmp_path / "env", with_pip=True)
    programs = tmp_path / "env" / "bin"
    (folder := tmp_path / "folder").mkdir()
    for extras in ("", _EXTRAS[1]):
        # What is imported is compiled then; the rest need not be.
        _succeed(programs / "python", "-m", "pip", "install", "--quiet", "--no-compile", f"{wheel}{extras}")
        _succeed(programs / "python", "-m", "pip", "check")
        assert __version__ in _succeed(programs / "intern", "--version", cwd=folder)
        assert "That was all of it." in _succeed(programs / "intern", "try", "--play", cwd=folder)
        installed = _succeed(programs / "python", "-m", "pip", "list")
        assert ("onnxruntime" in installed) == bool(extras)


def _succeed(*command: str | Path, cwd: Path | None = None) -> str:
    """What it wrote."""
    done = subprocess.run(command, check=False, capture_output=True, text=True, cwd=cwd)
    assert done.returncode == 0, f"{command}: {done.stdout}\n{done.stderr}"
    return done.stdout + done.stderr
