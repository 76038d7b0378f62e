"""Pages as they stand once their scripts have run: printed by a command of the operator's, such as a headless browser.

The command gets the address as its last argument, no shell, no input and none of our settings. Too long or too much,
and it is ended with all that it started.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Sequence
from contextlib import suppress

import anyio
from anyio.abc import Process

from intern.errors import PageRefusedError, PageUnavailableError

# A browser needs to know where it lives; nothing else of ours concerns it, least of all tokens.
_HANDED_ON = ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "USER", "DISPLAY", "XDG_RUNTIME_DIR", "XDG_CACHE_HOME")


async def rendered(command: Sequence[str], url: str, *, seconds: float, max_bytes: int) -> bytes:
    """What the command prints for the page. Raises PageUnavailableError and PageRefusedError."""
    environment = {name: os.environ[name] for name in _HANDED_ON if name in os.environ}
    try:
        with anyio.fail_after(seconds):
            process = await anyio.open_process(
                [*command, url],
                stdin=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=environment,
                start_new_session=True,
            )
            try:
                printed = await _printed(process, max_bytes)
                code = await process.wait()
            finally:
                await _ended(process)
    except TimeoutError:
        raise PageUnavailableError(f"rendering took longer than {seconds:g} s") from None
    except OSError as error:
        raise PageUnavailableError(f"kb.render_command cannot be started ({error.strerror})") from None
    if code != 0:
        raise PageUnavailableError(f"kb.render_command ended with code {code}")
    return printed


async def _printed(process: Process, max_bytes: int) -> bytes:
    assert process.stdout is not None, "it is piped"
    printed = bytearray()
    async for chunk in process.stdout:
        printed += chunk
        if len(printed) > max_bytes:
            raise PageRefusedError(f"rendered, it is larger than {max_bytes} bytes")
    return bytes(printed)


async def _ended(process: Process) -> None:
    """End it and whatever it started, also when cancelled."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    with anyio.CancelScope(shield=True):
        await process.aclose()
