"""The settings of a bot in a folder, as its file would give them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from intern.settings.loading import load_settings
from intern.settings.settings import Settings

OFFLINE = {"provider": "offline"}
"""The table `[llm]` of a bot without a model: rules answer."""
WORDS_ALONE = {"provider": "none"}
"""The table `[embeddings]` of a bot that searches without vectors."""


def make_settings(folder: Path | str | None = None, /, **sections: Any) -> Settings:
    """Return the settings of a bot in this folder; each section is a table of `intern.toml`."""
    where = {} if folder is None else {"data": {"dir": str(folder)}}
    return load_settings(environ={}, overrides={**where, **sections})
