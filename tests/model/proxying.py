"""LiteLLM's proxy in front of a server, in a process of its own.

Its program is that of `make litellm`, or INTERN_TEST_LITELLM names it. INTERN_TEST_LITELLM_URL names a proxy that runs
elsewhere, instead, with a model `small`; its key is then INTERN_TEST_LITELLM_KEY.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

KEY = os.environ.get("INTERN_TEST_LITELLM_KEY", "sk-of-this-test-alone")
PROGRAM = Path(__file__).parents[2] / ".litellm" / "bin" / "litellm"


@contextmanager
def proxying(base_url: str, *, folder: Path) -> Generator[str]:
    """The proxy's base URL. Skips where there is none to be had."""
    if elsewhere := os.environ.get("INTERN_TEST_LITELLM_URL"):
        yield elsewhere
        return
    program = Path(os.environ.get("INTERN_TEST_LITELLM", PROGRAM)).expanduser()
    if not program.is_file():
        pytest.skip(f"no LiteLLM at {program}: run `make litellm`, or set INTERN_TEST_LITELLM")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    parameters = {"model": "openai/small", "api_base": base_url, "api_key": "none"}
    config = folder / "config.yaml"  # JSON is YAML
    config.write_text(json.dumps({"model_list": [{"model_name": "small", "litellm_params": parameters}]}))
    command = (str(program), "--config", str(config), "--host", "127.0.0.1", "--port", str(port))
    # Else it fetches a list of prices at its start.
    environment = {**os.environ, "LITELLM_MASTER_KEY": KEY, "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
    with (
        (folder / "log.txt").open("wb") as log,
        subprocess.Popen((*command, "--telemetry", "False"), env=environment, stdout=log, stderr=log) as proxy,
    ):
        try:
            _wait_until_it_listens(f"http://127.0.0.1:{port}/health/liveliness", folder / "log.txt")
            yield f"http://127.0.0.1:{port}/v1"
        finally:
            proxy.terminate()


def _wait_until_it_listens(page: str, log: Path) -> None:
    # The pauses double from half a second, so that these are two minutes.
    with httpx.Client(transport=httpx.HTTPTransport(retries=9), timeout=60) as client:
        try:
            client.get(page).raise_for_status()
        except httpx.HTTPError as error:
            raise AssertionError(f"LiteLLM did not come up:\n{log.read_text('utf-8', 'replace')[-2000:]}") from error
