"""What several commands share: reading the settings, and where talk goes."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from intern.settings import Settings, load_settings


def settings_of(
    ctx: click.Context, overrides: Mapping[str, Any] | None = None, *, tells_itself: bool = False
) -> Settings:
    """The settings that `--config` and the environment give. Raises ConfigError.

    A command that `tells_itself` what went wrong logs errors only, or the same would be said twice; log.level "debug"
    shows it all.
    """
    chosen: str | None = ctx.find_root().obj
    settings = load_settings(Path(chosen) if chosen else None, overrides=overrides)
    from intern.observe.log import configure

    level = "error" if tells_itself and settings.log.level != "debug" else settings.log.level
    configure(log_format=settings.log.format, level=level, secrets=settings.secrets)
    return settings


def say(text: str) -> None:
    """Talk: to stderr, so that stdout holds data only."""
    print(text, file=sys.stderr, flush=True)
