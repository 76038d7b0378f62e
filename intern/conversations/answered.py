"""A thread that intern answered in, as it stands on Discord now: the question, the answer, and what came of it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from msgspec import Struct

from intern.conversations.capturing import text_of
from intern.conversations.context import History, in_order
from intern.domain import Channel, ChannelId, ChatMessage, Lookups, MessageId
from intern.errors import DiscordRefusedError

_PAGE = 100  # what Discord gives at most
_MOST_MESSAGES = 200  # of a thread, its newest; as many as a capture takes
_MOST_ASKED = 10  # messages of the channel that the thread answers: a question, and what was written with it
_MOST_LOOKUPS = 10  # further calls for who somebody is


class AnsweredThread(Struct, frozen=True, kw_only=True):
    """What was read."""

    channel: Channel
    messages: tuple[ChatMessage, ...]
    """Oldest first, with those of the channel that it answers; without other bots' and empty ones."""


class ThreadReader:
    """Reads threads that everybody may read. All methods raise the DiscordError family."""

    def __init__(self, history: History, admits: Callable[[ChannelId], Awaitable[bool]]) -> None:
        """`admits` says whether we may work in a channel; it may ask Discord, and raise its errors."""
        self._history = history
        self._admits = admits

    async def read(self, thread_id: ChannelId, asked: Sequence[tuple[ChannelId, MessageId]]) -> AnsweredThread | None:
        """A thread with the messages that were `asked` (place and id); None for what is no thread.

        Raises DiscordRefusedError also where the thread is closed to us, or shows no history.
        """
        channel = await self._history.channel(thread_id)
        if not channel.is_thread:
            return None
        if not await self._admits(thread_id):
            raise DiscordRefusedError(f"thread {thread_id} is closed to us by now")
        said = await self._said(thread_id)
        if not said:
            # Without the right to read history, Discord gives empty pages; and an answer of ours stood here.
            raise DiscordRefusedError(f"thread {thread_id} shows no history")
        question = [
            message
            for place, message_id in dict.fromkeys(asked[:_MOST_ASKED])
            if place == channel.parent_id and (message := await self._history.message(place, message_id)) is not None
        ]
        messages = (each for each in in_order(question, said) if each.author.type != "bot" or each.author.is_self)
        return AnsweredThread(channel=channel, messages=tuple(each for each in messages if text_of(each).strip()))

    async def _said(self, thread_id: ChannelId) -> list[ChatMessage]:
        said: list[ChatMessage] = []
        lookups = Lookups(_MOST_LOOKUPS)
        while len(said) < _MOST_MESSAGES:
            before = said[0].id if said else None
            page = await self._history.before(thread_id, before, limit=_PAGE, lookups=lookups)
            said = [*page, *said]
            # System messages are left out of a page, so one that is nearly full need not be the last.
            if len(page) < _PAGE // 2:
                break
        return said[-_MOST_MESSAGES:]
