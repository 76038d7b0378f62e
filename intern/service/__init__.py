"""The application: everything that a front end can ask for.

Example:
    from intern.core.messages import Conversation, Message
    from intern.service import load_settings, open_intern

    async with open_intern(load_settings()) as intern:
        await intern.index()
        result = await intern.answer(Conversation((Message(role="user", text="How do I install it?"),)))
        print(result.reply_text if result.should_reply else result.reason)
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from intern.platforms.discord.options import DiscordOptions
from intern.settings.loading import load_settings
from intern.settings.raw_settings import CONFIG_FILE
from intern.settings.settings import DataSection, KbSection, PageOptions, Settings, is_loopback

if TYPE_CHECKING:
    from intern.service.intern import Intern
    from intern.service.opening import open_intern

_LAZY = {"Intern": "intern", "open_intern": "opening"}

__all__ = ["CONFIG_FILE", "DataSection", "DiscordOptions", "Intern", "KbSection", "PageOptions", "Settings"]
__all__ += ["is_loopback", "load_settings", "open_intern"]


def __getattr__(name: str) -> object:
    """Import the application on first use: settings need less."""
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"intern.service.{_LAZY[name]}"), name)
