"""A bug ends a command with 70 and a traceback, a user's error with one line; neither reveals a secret."""

from __future__ import annotations

import io
import json
import logging
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from time import monotonic

import click
import pytest
from anyio import sleep

from intern.core.errors import ConfigError
from intern.core.log import configure_logging
from intern.frontends.cli import cli
from intern.frontends.cli.options import read_settings, run_work
from intern.frontends.cli.output import exit_after
from tests.frontends.cli.conftest import Ended, environment

TOKEN = "MTIz.planted.token-of-the-bot"

End = Callable[[Callable[[], object]], Ended]


@pytest.fixture
def end(capsys: pytest.CaptureFixture[str]) -> End:
    """Some work in place of a command's, to its end."""

    def run(work: Callable[[], object]) -> Ended:
        with pytest.raises(SystemExit) as end:
            exit_after(work)
        assert isinstance(end.value.code, int)
        out, err = capsys.readouterr()
        return Ended(end.value.code, out, err)

    return run


@pytest.fixture
def set_up(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Settings with a token are read and logging is set up, as commands do it that log the least."""

    def run(log_format: str) -> None:
        monkeypatch.setenv("INTERN__DISCORD__TOKEN", TOKEN)
        monkeypatch.setenv("INTERN__LOG__FORMAT", log_format)
        with click.Context(cli):
            read_settings()

    return run


def buggy() -> None:
    refused = ValueError(f"'Bot {TOKEN}' is no header")
    raise ExceptionGroup("unhandled errors in a TaskGroup", [refused])


def test_a_bug_is_one_json_object_on_one_line_where_the_log_is_json(end: End, set_up: Callable[[str], None]) -> None:
    set_up("json")
    code, out, err = end(buggy)
    assert (code, out) == (70, "")
    [line] = err.splitlines()
    bug = json.loads(line)
    assert (bug["event"], bug["level"]) == ("bug", "critical")
    assert bug["timestamp"].endswith("Z")
    assert "Traceback" in bug["exception"]
    assert "ValueError: 'Bot [secret]' is no header" in bug["exception"]
    assert TOKEN not in err


def test_a_bug_is_a_traceback_for_people_where_the_log_is_for_them(end: End, set_up: Callable[[str], None]) -> None:
    set_up("pretty")
    code, out, err = end(buggy)
    assert (code, out) == (70, "")
    assert err.count("Traceback") == 1
    assert "bug" in err.splitlines()[0]
    assert "ValueError: 'Bot [secret]' is no header\n" in err
    assert TOKEN not in err


def test_a_bug_before_logging_is_set_up_is_a_plain_traceback(end: End) -> None:
    code, out, err = end(lambda: int("many"))
    assert (code, out) == (70, "")
    assert err.startswith("Traceback")
    assert err.endswith("ValueError: invalid literal for int() with base 10: 'many'\n")


def test_no_log_level_swallows_a_bug(end: End) -> None:
    configure_logging(log_format="json", level="error")
    logging.getLogger().setLevel(logging.CRITICAL + 1)
    code, _, err = end(buggy)
    assert code == 70
    assert json.loads(err)["event"] == "bug"


def test_a_bug_is_told_in_plain_text_without_secrets_where_the_log_cannot_be_written(end: End) -> None:
    gone = io.StringIO()
    configure_logging(log_format="json", secrets=[TOKEN], stream=gone)
    gone.close()
    code, _, err = end(buggy)
    assert code == 70
    assert err.lstrip(" +").startswith("Exception Group Traceback")
    assert "ValueError: 'Bot [secret]' is no header\n" in err
    assert TOKEN not in err


_FULL = """
from intern.frontends.cli.output import exit_after
from intern.core.log import configure_logging
{set_up}
exit_after(lambda: int("many"))
"""


@pytest.mark.rest
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no disk that is always full")
@pytest.mark.parametrize("set_up", ["", pytest.param("configure_logging(log_format='json')", marks=pytest.mark.rest)])
def test_a_bug_ends_with_70_even_where_nobody_can_be_told(set_up: str) -> None:
    with Path("/dev/full").open("wb") as full:
        code = _FULL.format(set_up=set_up)
        done = subprocess.run([sys.executable, "-c", code], stderr=full, env=environment(), timeout=60, check=False)
    assert done.returncode == 70


@pytest.mark.rest
def test_an_installation_that_lacks_what_logs_are_written_with_is_a_bug_that_is_told() -> None:
    code = "import sys; sys.modules['structlog'] = None\nfrom intern.frontends.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code, "status"],
        capture_output=True,
        text=True,
        env=environment(),
        timeout=60,
        check=False,
    )
    assert done.returncode == 70
    assert done.stderr.startswith("Traceback")
    assert "During handling" not in done.stderr
    assert "structlog" in done.stderr.splitlines()[-1]


@pytest.mark.parametrize("log_format", ["json", "pretty"])
def test_the_one_line_of_an_error_that_can_be_mended_tells_no_secret(
    end: End, set_up: Callable[[str], None], log_format: str
) -> None:
    set_up(log_format)

    def refused() -> None:
        raise ConfigError(f"discord.token is not taken: {TOKEN}")

    assert end(refused) == (2, "", "intern: discord.token is not taken: [secret]\n")


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="nothing here says whether a thread sleeps")
def test_ctrl_c_ends_work_at_once_though_another_thread_gets_the_signal() -> None:
    until_the_next_event = 20.0
    main = Path(f"/proc/self/task/{threading.get_native_id()}/stat")

    def interrupt() -> None:
        while main.read_text().rpartition(")")[2].split()[0] != "S":
            pass
        signal.pthread_kill(threading.get_ident(), signal.SIGINT)

    async def work() -> None:
        threading.Thread(target=interrupt, daemon=True).start()
        await sleep(until_the_next_event)

    began = monotonic()
    with pytest.raises(KeyboardInterrupt):
        run_work(work)
    assert monotonic() - began < until_the_next_event / 2
