"""The page without Discord: beside `intern try`, and `intern page` on a data folder."""

from __future__ import annotations

import re
import signal
import subprocess
from collections.abc import Generator
from contextlib import contextmanager
from time import monotonic
from typing import IO

import httpx
import pytest

from tests.frontends.cli.conftest import environment
from tests.worlds.program import program

pytestmark = pytest.mark.rest


@contextmanager
def started(*arguments: str) -> Generator[subprocess.Popen[str]]:
    place = environment(INTERN__LLM__PROVIDER="offline", INTERN__PAGE__PORT="0")
    pipe = subprocess.PIPE
    with subprocess.Popen(program(*arguments), text=True, env=place, stdin=pipe, stdout=pipe, stderr=pipe) as process:
        try:
            yield process
        finally:
            process.kill()


def address(lines: IO[str] | None) -> str:
    assert lines is not None
    return next(found[0] for line in lines if (found := re.search(r"http://127\.0\.0\.1:\d+/", line)))


def test_the_page_stands_beside_the_sandbox_and_alone_on_its_folder() -> None:
    with started("try", "--page", "--data", "data") as sandbox:
        where = address(sandbox.stderr)
        assert "Knowledge" in httpx.get(where).text
        assert sandbox.stdin is not None
        assert sandbox.stdout is not None
        sandbox.stdin.write("alice: What is a flux capacitor?\n")
        sandbox.stdin.flush()
        assert "stays silent" in sandbox.stdout.readline()
        # A gap is answered in mira's name, so the form begins with her id. Questions are stored once a second.
        until = monotonic() + 30
        while not re.search(r'name="by"[^>]* value="\d+"', httpx.get(f"{where}gaps").text):
            assert monotonic() < until
        sandbox.communicate("/quit\n", timeout=60)
        assert sandbox.returncode == 0
    with started("page") as page:
        where = address(page.stdout)
        assert "kb:reference/configuration.md" in httpx.get(f"{where}sources").text
        page.send_signal(signal.SIGINT)
        assert page.wait(60) == 0
