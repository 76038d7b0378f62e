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


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    _succeed(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", folder, SOURCE_TREE)
    (built,) = folder.glob("*.whl")
    return built


@pytest.mark.parametrize("documented", [False, True], ids=["alone", "with the extras that the docs name"])
def test_it_brings_all_that_it_needs_and_plays_its_community_to_the_end(
    wheel: Path, tmp_path: Path, *, documented: bool
) -> None:
    assert _EXTRAS
    venv.create(tmp_path / "env", with_pip=True)
    programs = tmp_path / "env" / "bin"
    extras = _EXTRAS[1] if documented else ""
    _succeed(programs / "python", "-m", "pip", "install", "--quiet", f"{wheel}{extras}")
    _succeed(programs / "python", "-m", "pip", "check")
    (folder := tmp_path / "folder").mkdir()
    assert __version__ in _succeed(programs / "intern", "--version", cwd=folder)
    assert "That was all of it." in _succeed(programs / "intern", "try", "--play", cwd=folder)
    installed = _succeed(programs / "python", "-m", "pip", "list")
    assert ("onnxruntime" in installed) == documented


def _succeed(*command: str | Path, cwd: Path | None = None) -> str:
    """What it wrote."""
    done = subprocess.run(command, check=False, capture_output=True, text=True, cwd=cwd)
    assert done.returncode == 0, f"{command}: {done.stdout}\n{done.stderr}"
    return done.stdout + done.stderr
