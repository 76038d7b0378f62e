"""Debian's headless Chromium, as Playwright drives it."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

from playwright.async_api import Browser, async_playwright

CHROMIUM = next(
    (path for path in map(Path, ("/usr/bin/chromium-headless-shell", "/usr/bin/chromium")) if path.exists()), None
)
WANTED = "no Chromium: apt-get install chromium-headless-shell"


@asynccontextmanager
async def chromium() -> AsyncGenerator[Browser]:
    """A browser, until the block ends."""
    async with async_playwright() as playwright:
        # Root has no sandbox in Chromium; the only page that it sees is ours.
        arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
        launched = await playwright.chromium.launch(executable_path=CHROMIUM, args=arguments)
        yield launched
        await launched.close()
