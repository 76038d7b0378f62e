"""The application: everything that a front end can ask for.

Example:
    from intern.service import open_intern
    from intern.core.messages import Conversation, Message
    from intern.settings import load_settings

    async with open_intern(load_settings()) as intern:
        await intern.index()
        result = await intern.answer(Conversation((Message(role="user", text="How do I install it?"),)))
        print(result.reply_text if result.should_reply else result.reason)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from intern.service.intern import Intern, open_intern

__all__ = ["Intern", "open_intern"]


def __getattr__(name: str) -> object:
    """Import the application on first use: settings and reading need less."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from intern.service import intern  # noqa: PLC0415 see above

    return getattr(intern, name)
