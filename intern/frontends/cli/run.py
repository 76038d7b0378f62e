"""`intern run`."""

from __future__ import annotations

import click

from intern.frontends.cli.options import settings_of


@click.command("run")
@click.pass_context
def command(ctx: click.Context) -> None:
    """Run the bot on Discord.

    Needs discord.token, discord.guild_ids and a model endpoint (or llm.provider = "offline"). Ends calmly on SIGINT
    or SIGTERM.
    """
    settings = settings_of(ctx)
    settings.require_for_run()
    from intern.core.log import LogProgress
    from intern.core.progress import heard_by
    from intern.runtime.bot import run

    beside = None
    if settings.page.enabled:
        from intern.frontends.http.beside import page_beside  # aiohttp.web and Prometheus cost half a second

        beside = page_beside(settings)
    with heard_by(LogProgress()):  # its output is a log, on a terminal, too
        run(settings, beside)
