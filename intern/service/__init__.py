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

from intern.service.intern import Intern, open_intern

__all__ = ["Intern", "open_intern"]
