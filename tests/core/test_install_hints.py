"""The command that adds an extra, by how the program was installed."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from intern.core.install_hints import DISTRIBUTION, format_install_hint

ROOT = Path(__file__).parents[2]


@pytest.fixture
def prefix(tmp_path: Path) -> Path:
    """The environment of a wheel's installation, made by a tool that calls it as it likes."""
    path = tmp_path / "discord-intern-next"
    path.mkdir()
    return path


def test_in_an_environment_of_its_own_pip_adds_it(prefix: Path) -> None:
    said = format_install_hint("pdf", prefix=prefix, tree=prefix)
    assert said == f'run: {sys.executable} -m pip install "discord-intern[pdf]"'


def test_pipx_adds_it_to_the_environment_that_it_made(prefix: Path) -> None:
    (prefix / "pipx_metadata.json").touch()
    said = format_install_hint("pdf", prefix=prefix, tree=prefix)
    assert said == 'run: pipx runpip discord-intern-next install "discord-intern[pdf]"'


@pytest.mark.parametrize(
    ("held", "named"),
    [
        ('name = "discord-intern", extras = ["watch", "embeddings"], path = "/x.whl"', "embeddings,pdf,watch"),
        ('name = "discord-intern"', "pdf"),
        ('name = "discord-intern", extras = ["pdf"]', "pdf"),
    ],
)
def test_uv_tool_keeps_the_extras_that_are_there(prefix: Path, held: str, named: str) -> None:
    (prefix / "uv-receipt.toml").write_text(f"[tool]\nrequirements = [{{ {held} }}]\n")
    assert format_install_hint("pdf", prefix=prefix, tree=prefix) == f'run: uv tool install "discord-intern[{named}]"'


def test_in_a_clone_it_is_added_from_there() -> None:
    assert format_install_hint("pdf") == f'run: {sys.executable} -m pip install -e "{ROOT}[pdf]"'


def test_a_binary_can_have_no_more_so_another_installation_is_named(prefix: Path) -> None:
    (prefix / "pyproject.toml").touch()
    said = format_install_hint("multilingual", is_binary=True, prefix=prefix, tree=prefix)
    assert said == 'replace this binary, which takes no extras: pipx install "discord-intern[multilingual]"'


# Findings B13 and F1: `intern` on PyPI is a stranger's.
@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="git lists the files")
def test_no_text_names_the_distribution_of_a_stranger() -> None:
    listed = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, check=True)
    stranger = re.compile(r"(?<!discord-)\bintern\[[a-z]|(?:pip|pipx|uv tool) install [\"']?intern\b")
    texts = [path for name in listed.stdout.decode().splitlines() if (path := ROOT / name).is_file()]
    named = [path for path in texts if stranger.search(path.read_text(encoding="utf-8", errors="replace"))]
    assert named in ([], [Path(__file__)])
    assert f'name = "{DISTRIBUTION}"' in (ROOT / "pyproject.toml").read_text(encoding="utf-8")
