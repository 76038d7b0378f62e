"""What several commands share: reading the settings, and where talk goes."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from intern.settings import Settings, load_settings


def settings_of(ctx: click.Context, overrides: Mapping[str, Any] | None = None) -> Settings:
    """The settings that `--config` and the environment give. Raises ConfigError."""
    chosen: str | None = ctx.find_root().obj
    settings = load_settings(Path(chosen) if chosen else None, overrides=overrides)
    from intern.observe.log import configure

    configure(log_format=settings.log.format, level=settings.log.level, secrets=settings.secrets)
    return settings


def say(text: str) -> None:
    """Talk: to stderr, so that stdout holds data only."""
    print(text, file=sys.stderr, flush=True)
