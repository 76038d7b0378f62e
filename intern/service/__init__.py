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

from typing import TYPE_CHECKING

from intern.platforms.discord.options import DiscordOptions
from intern.settings.loading import DataSection, KbSection, PageOptions, Settings, is_loopback, load_settings
from intern.settings.reading import CONFIG_FILE

if TYPE_CHECKING:
    from intern.service.intern import Intern, open_intern

_LAZY = ("Intern", "open_intern")

__all__ = ["CONFIG_FILE", "DataSection", "DiscordOptions", "Intern", "KbSection", "PageOptions", "Settings"]
__all__ += ["is_loopback", "load_settings", "open_intern"]


def __getattr__(name: str) -> object:
    """Import the application on first use: settings need less."""
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from intern.service import intern  # noqa: PLC0415 see above

    return getattr(intern, name)
