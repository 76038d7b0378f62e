"""The single binary does what intern does, brings all that it needs, and leaves nothing behind.

INTERN_BINARY names it; `make test-binary` builds it and sets that. tests/process run with it, too.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Generator
from pathlib import Path

import msgspec
import pytest

from intern import __version__
from intern.documents.html import HtmlPage
from intern.documents.sandboxed import SANDBOXED
from tests.documents.test_pdfs import written_pdf
from tests.process.running import family

BINARY = os.environ.get("INTERN_BINARY", "")
pytestmark = [
    pytest.mark.rest,
    pytest.mark.skipif(not BINARY, reason="INTERN_BINARY names no binary to test; see make test-binary"),
]

PATIENCE = 60.0


@pytest.fixture
def temporary(tmp_path: Path) -> Path:
    """Where the binary unpacks itself."""
    made = tmp_path / "temporary"
    made.mkdir()
    return made


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where it works; the settings need no model."""
    made = tmp_path / "folder"
    (made / "data" / "knowledge-base" / "sources").mkdir(parents=True)
    (made / "intern.toml").write_text('[llm]\nprovider = "offline"\n', encoding="utf-8")
    return made


Intern = Callable[..., subprocess.CompletedProcess[bytes]]


@pytest.fixture
def intern(folder: Path, temporary: Path) -> Generator[Intern]:
    """Runs a command to its end, as a shell does that knows no Python; afterwards nothing is left unpacked."""

    def run(*arguments: str, given: bytes = b"") -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(
            [_binary(), *arguments],
            input=given,
            capture_output=True,
            check=False,
            cwd=folder,
            env=_environment(temporary),
            timeout=PATIENCE,
        )

    yield run
    assert list(temporary.iterdir()) == []


def _binary() -> Path:
    return Path(BINARY).resolve(strict=True)


def _environment(temporary: Path) -> dict[str, str]:
    return {"PATH": "/nowhere", "HOME": os.devnull, "LANG": "C.UTF-8", "TMPDIR": str(temporary)}


def test_it_says_its_version(intern: Intern) -> None:
    assert intern("--version").stdout.decode() == f"intern, version {__version__}\n"


def test_exit_codes_come_through(intern: Intern) -> None:
    assert intern("no-such-command").returncode == 2
    assert intern("ask", "What is the meaning of raspberries?").returncode == 1


def test_the_simulated_community_plays_to_its_end(intern: Intern) -> None:
    played = intern("try", "--play")
    assert played.returncode == 0, played.stderr.decode()
    assert "That was all of it." in played.stdout.decode() + played.stderr.decode()
    assert "onnxruntime" not in played.stderr.decode()


def test_its_prompts_are_inside_and_sound(intern: Intern) -> None:
    checked = intern("prompts", "check")
    assert checked.returncode == 0, checked.stderr.decode()


def test_its_example_configuration_is_inside(intern: Intern, folder: Path) -> None:
    (folder / "intern.toml").unlink()
    assert intern("init").returncode == 0
    example = Path(__file__).parents[2] / "intern.toml.example"
    assert (folder / "intern.toml").read_bytes() == example.read_bytes()


def test_each_command_can_be_loaded(intern: Intern) -> None:
    from intern.frontends.cli import COMMANDS  # noqa: PLC0415 only here

    wrong = {name: done.stderr.decode() for name in COMMANDS if (done := intern(name, "--help")).returncode}
    assert wrong == {}


def test_pdfs_and_pages_are_read_and_found_by_words_and_by_meaning(intern: Intern, folder: Path) -> None:
    sources = folder / "data" / "knowledge-base" / "sources"
    (sources / "relay.pdf").write_bytes(written_pdf("The relay listens on port 7480.", "Relay"))
    page = "<html><head><title>Spool</title></head><body>{}<p>The spool keeps metrics on disk.</p></body></html>"
    (sources / "spool.html").write_text(page.format("<p>Filling text of a page.</p>" * 1000), encoding="utf-8")
    indexed = intern("index")
    assert indexed.returncode == 0, indexed.stderr.decode()
    by_words = intern("search", "--json", "port 7480")
    assert "relay.pdf" in by_words.stdout.decode(), by_words.stderr.decode()
    assert "spool.html" in intern("search", "--json", "spool metrics").stdout.decode()
    assert "all-MiniLM-L6-v2-int8" in intern("status").stdout.decode()
    by_meaning = intern("search", "--json", "socket number of the forwarding service")
    assert "relay.pdf" in by_meaning.stdout.decode(), by_meaning.stderr.decode()


def test_hostile_input_is_read_in_a_process_that_is_one_of_its_own_modules(intern: Intern) -> None:
    markup = "<html><title>Spool</title><body><p>The spool keeps metrics on disk.</p></body></html>"
    done = intern(SANDBOXED, "intern.documents.html", given=msgspec.json.encode((markup, "")))
    assert done.returncode == 0, done.stderr.decode()
    assert msgspec.json.decode(done.stdout, type=HtmlPage).document.title == "Spool"
    assert intern(SANDBOXED, "os").returncode != 0


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere its second process may outlive the first")
def test_killed_it_takes_its_second_process_along_and_the_next_start_removes_what_it_left(
    intern: Intern, folder: Path, temporary: Path
) -> None:
    with subprocess.Popen(
        [_binary(), "try"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        cwd=folder,
        env=_environment(temporary),
    ) as running:
        assert running.stdin is not None
        assert running.stdout is not None
        running.stdout.read(1)  # so it is at work
        (left,) = temporary.glob("_MEI*")
        # One that is at work is left alone.
        assert intern("--version").returncode == 0
        assert left.is_dir()
        launcher, bot, *_ = family(running.pid)
        running.kill()
        assert running.wait(PATIENCE) == -signal.SIGKILL
        running.stdout.read()  # until nobody holds it any more
    assert launcher == running.pid
    _until_gone(bot)
    assert left.is_dir()
    for each in temporary.iterdir():
        if not each.name.startswith("_MEI"):
            each.rename(folder / each.name)  # the folder that `try` works in
    assert intern("--version").returncode == 0
    assert not left.exists()


def _until_gone(pid: int) -> None:
    deadline = time.monotonic() + PATIENCE
    while Path(f"/proc/{pid}").exists():
        assert time.monotonic() < deadline, f"process {pid} lives on"
        time.sleep(0.01)


def test_it_carries_the_licences_of_what_it_brings() -> None:
    told = _binary().with_name("intern-licenses.txt").read_text(encoding="utf-8")
    for library in ("Python", "hikari", "onnxruntime", "numpy", "aiohttp", "apsw"):
        assert library in told
