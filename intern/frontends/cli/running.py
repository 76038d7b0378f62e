"""`intern run` and `intern page`."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import click

from intern.frontends.cli.options import check_folder, read_settings
from intern.frontends.cli.output import say, show

if TYPE_CHECKING:
    from intern.service.hosting_state import HostingState
    from intern.service.status_page import StatusPage


@click.command("run")
def run() -> None:
    """Run the bot on Discord.

    Needs discord.token, discord.guild_ids (or hosting.enabled) and a model endpoint (or llm.provider = "offline").
    Ends calmly on SIGINT or SIGTERM. Exit code 0: stopped. 2: a setting is missing or wrong. 3: Discord, the endpoint
    or the disk failed.
    """
    settings = read_settings(logs=True)
    settings.require_for_run()
    from intern.core.log import ProgressLogger
    from intern.core.progress import send_progress_to
    from intern.runtime.bot import run

    beside = None
    if settings.page.enabled:
        from intern.frontends.http.server import create_page_service  # aiohttp.web and Prometheus cost half a second

        beside = create_page_service(settings)
    with send_progress_to(ProgressLogger()):  # its output is a log, on a terminal, too
        run(settings, beside)


@click.command("page")
@click.option("--port", type=click.IntRange(0, 65_535), help="Else page.port; 0: any free port.")
def page(*, port: int | None) -> None:
    """Serve the status page without the bot.

    For a look at a data folder without Discord, or beside a running bot. Approving, filing and the like are done here,
    or by the bot if it runs; the folder is locked only meanwhile. The address is printed. Ends on SIGINT or SIGTERM.
    Exit code 0: stopped. 2: a setting is missing or wrong, or there is no data folder. 3: the disk failed.
    """
    settings = read_settings({"page": {"enabled": True, **({} if port is None else {"port": port})}})
    check_folder(settings)
    settings.require_model()
    from intern.frontends.http.server import serve_pages
    from intern.runtime.bot import show_page

    @asynccontextmanager
    async def serve_and_announce(running: StatusPage | HostingState) -> AsyncGenerator[None]:
        async with serve_pages(settings.page, running) as address:
            show(address)
            say("Ctrl-C ends this")
            yield

    show_page(settings, serve_and_announce)
