"""The real parts, put together: the bot itself, and the door for scripts, commands and evaluations.

Example:
    from intern.app import open_intern
    from intern.domain import Conversation, Message
    from intern.settings import load_settings

    async with open_intern(load_settings()) as intern:
        await intern.index()
        result = await intern.answer(Conversation((Message(role="user", text="How do I install it?"),)))
        print(result.reply_text if result.should_reply else result.reason)
"""

from intern.app.door import Intern, open_intern

__all__ = ["Intern", "open_intern"]
