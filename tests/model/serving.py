"""llama.cpp's own server with a model of our choice: `python -m tests.model.serving WEIGHTS TEMPLATE THREADS CONTEXT`.

It listens on a free port of 127.0.0.1, says its address on a line of its own, and ends when its input does.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

CONTEXT = 4096
"""Tokens: prompt and reply."""
OWN_TEMPLATE = "-"


@contextmanager
def serving(
    weights: Path, *, template: Path | None, log: Path, threads: int = 1, context: int = CONTEXT
) -> Generator[str]:
    """The server's base URL. `template` replaces the model's own; what the server logs goes to `log`."""
    used = OWN_TEMPLATE if template is None else str(template)
    arguments = (str(weights), used, str(threads), str(context))
    with (
        log.open("wb") as errors,
        subprocess.Popen(
            (sys.executable, "-m", "tests.model.serving", *arguments),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
        ) as server,
    ):
        assert server.stdin is not None
        assert server.stdout is not None
        try:
            # The end of its output, if it dies: this never waits for nobody.
            address = next((line for line in server.stdout if line.startswith(b"http://")), b"").decode().strip()
            assert address, f"the server did not come up:\n{log.read_text('utf-8', 'replace')[-2000:]}"
            yield f"{address}/v1"
        finally:
            server.stdin.close()
            try:
                server.wait(10)
            except subprocess.TimeoutExpired:
                server.kill()


def serve(weights: str, template: str, threads: str, context: str) -> None:
    """Serve until the input ends."""
    llama: Any = import_module("xllamacpp")
    params = llama.CommonParams()
    params.model.path = weights
    if template != OWN_TEMPLATE:
        params.chat_template = Path(template).read_text(encoding="utf-8")
    params.port = 0
    params.n_ctx = int(context)
    params.n_parallel = 1
    params.cpuparams.n_threads = int(threads)
    params.cpuparams_batch.n_threads = int(threads)
    params.warmup = False
    params.sampling.temp = 0.0  # the same reply every time
    server = llama.Server(params)
    sys.stdout.write(f"{server.listening_address}\n")
    sys.stdout.flush()
    sys.stdin.read()


if __name__ == "__main__":
    serve(*sys.argv[1:])
