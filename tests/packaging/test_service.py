"""The systemd unit: systemd finds no fault with it, and it fits the program."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from configparser import ConfigParser
from pathlib import Path

import pytest

from intern.core.errors import ConfigError

pytestmark = pytest.mark.rest

UNIT = Path(__file__).parents[2] / "packaging" / "intern.service"
ANALYZE = shutil.which("systemd-analyze") or ""
EXPOSED = 2.5
"""From 0 to 10, as `systemd-analyze security` counts; an ordinary service has 9.6."""


def service() -> dict[str, str]:
    """The unit's section; keys that may come twice come once here."""
    unit = ConfigParser(interpolation=None, strict=True)
    unit.optionxform = str  # type: ignore[method-assign,assignment]
    unit.read_string(UNIT.read_text(encoding="utf-8"))
    return dict(unit["Service"])


@pytest.mark.skipif(not ANALYZE, reason="systemd is not installed")
def test_systemd_finds_no_fault_with_it_and_it_is_well_locked_up(tmp_path: Path) -> None:
    here = tmp_path / "intern.service"
    text = UNIT.read_text(encoding="utf-8")
    here.write_text(text.replace("/usr/local/bin/intern", sys.executable), encoding="utf-8")
    verified = subprocess.run(
        [ANALYZE, "verify", "--man=no", str(here)], capture_output=True, text=True, check=False, timeout=60
    )
    assert (verified.returncode, verified.stderr) == (0, "")
    secure = subprocess.run(
        [ANALYZE, "security", "--offline=true", f"--threshold={EXPOSED * 10:.0f}", "--no-pager", str(here)],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert secure.returncode == 0, secure.stdout[-500:]


def test_it_starts_again_after_a_bug_but_not_with_a_wrong_configuration() -> None:
    found = service()
    assert found["ExecStart"].split() == ["/usr/local/bin/intern", "run"]
    assert found["Restart"] == "on-failure"
    assert found["RestartPreventExitStatus"] == str(ConfigError("any").exit_code)


def test_it_leaves_time_to_end_and_asks_the_first_process_alone() -> None:
    found = service()
    assert found.get("KillSignal", "SIGTERM") == signal.SIGTERM.name
    assert found["KillMode"] == "mixed"
    assert int(found["TimeoutStopSec"]) > 20
