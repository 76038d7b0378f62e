"""The program as people have it: a wheel, built and installed once for all tests of this folder; or the single binary.

The environment variable INTERN_BINARY names that binary; `make test-binary` sets it.
"""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import sysconfig
from collections.abc import AsyncGenerator, Generator
from pathlib import Path

import pytest

from tests.double.discord import DiscordDouble
from tests.process.running import API_KEY, Installed, InstalledWheel
from tests.worlds.endpoint import EndpointDouble, endpoint_double
from tests.worlds.program import PLAIN

SOURCE_TREE = Path(__file__).parents[2]
PACKAGES = "lib/python*/site-packages"
SHARED = "shared.pth"
BINARY = os.environ.get("INTERN_BINARY", "")


@pytest.fixture
def anyio_backend() -> str:
    """Only asyncio: the Discord double knows nothing else, and `intern run` neither."""
    return "asyncio"


@pytest.fixture(scope="session")
def installed(request: pytest.FixtureRequest) -> Installed:
    """The program to test."""
    if BINARY:
        return Installed(program=Path(BINARY).resolve(strict=True))
    wheel: Installed = request.getfixturevalue("wheel")
    return wheel


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> InstalledWheel:
    """A virtual environment with intern's wheel in it, the same for all workers of a run.

    What intern depends on is shared with the one we run in.
    """
    base = tmp_path_factory.getbasetemp()
    folder = (base if worker_id == "master" else base.parent) / "installed"
    folder.mkdir(exist_ok=True)
    home = folder / "venv"
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        (shared,) = [*home.glob(f"{PACKAGES}/{SHARED}")] or [_installed(folder, home)]
    return InstalledWheel(python=home / "bin" / "python", program=home / "bin" / "intern", packages=shared.parent)


def _installed(folder: Path, home: Path) -> Path:
    """Install the wheel; return the .pth file, which shows that it is whole."""
    _succeed("-m", "build", "--wheel", "--no-isolation", "--outdir", folder, SOURCE_TREE)
    (wheel,) = folder.glob("*.whl")
    _succeed("-m", "venv", "--without-pip", home)
    python = home / "bin" / "python"
    _succeed("-m", "pip", "--isolated", "--python", python, "install", "-q", "--no-deps", "--no-index", wheel)
    (packages,) = home.glob(PACKAGES)
    # A .pth line only lengthens the path: behind our wheel, and without the .pth files that lie over there.
    (shared := packages / SHARED).write_text(f"{sysconfig.get_path('purelib')}\n{PLAIN}\n", encoding="utf-8")
    return shared


def _succeed(*arguments: str | Path) -> None:
    done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, check=False, timeout=110)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture
async def discord() -> AsyncGenerator[DiscordDouble]:
    """Discord; leaving it checks that every request and reply fitted its OpenAPI file."""
    async with DiscordDouble() as double:
        yield double


@pytest.fixture
def endpoint() -> Generator[EndpointDouble]:
    """A model endpoint that answers intern's prompts sensibly, and refuses calls without a key."""
    with endpoint_double(api_key=API_KEY) as double:
        yield double
