"""The model endpoint as a process of its own, so that only intern's CPU is counted."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from intern.settings.loading import load_settings
from intern.settings.settings import Settings
from tests.worlds.endpoint import Answer, endpoint_double

LATENCY = 0.05
"""Seconds for each reply."""


@contextmanager
def endpoint_elsewhere(module: str) -> Generator[str]:
    """Serve an endpoint that answers with the function `reply` of the benchmark `module`; yield its address."""
    code = f"from {module} import reply; from benchmarks.elsewhere import serve; serve(reply)"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdin is not None
        assert other.stdout is not None
        try:
            yield other.stdout.readline().strip()
        finally:
            other.stdin.close()


def serve(reply: Answer) -> None:
    """Run the endpoint until the standard input ends."""
    with endpoint_double(reply) as endpoint:
        print(endpoint.base_url, flush=True)
        sys.stdin.read()


def settings_for(
    folder: Path, base_url: str, *, embeddings: str = "none", steps: Literal["separate", "fused"] = "separate"
) -> Settings:
    """Return the settings of a data folder with that endpoint; the embedding model has a benchmark of its own."""
    overrides = {
        "data": {"dir": str(folder)},
        "llm": {"base_url": base_url, "model": "mock"},
        "embeddings": {"provider": embeddings},
        "ai": {"steps": steps},
        "log": {"level": "error"},
    }
    return load_settings(environ={}, overrides=overrides)
