"""The history of a chat in memory: of the sandbox, or of an export. It works on asyncio and on trio."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, TypeVar

from anyio.lowlevel import checkpoint

from intern.chat.platform import PAGE
from intern.core.errors import ChatNotFoundError, ChatRefusedError
from intern.core.ids import ChannelId, MessageId
from intern.core.messages import Channel, ChatMessage, Lookups, index_of

_T = TypeVar("_T")

_Reads = Literal["channel", "message", "look_up", "before", "after", "page", "archived_since"]
Call = _Reads | Literal["start_thread", "send", "rewrite", "typing"]


class MemoryHistory:
    """Channels and their messages, oldest first."""

    def __init__(self) -> None:
        self._channels: dict[ChannelId, Channel] = {}
        self._messages: dict[ChannelId, list[ChatMessage]] = {}

    async def channel(self, channel_id: ChannelId) -> Channel:
        """Return a channel or thread. Raises ChatRefusedError for one that does not exist."""
        return await self._call("channel", lambda: self._place(channel_id))

    async def message(self, channel_id: ChannelId, message_id: MessageId) -> ChatMessage | None:
        """Return a message; None if there is none of that id, or no such channel."""
        return await self._call("message", lambda: found_in(self._messages.get(channel_id, ()), message_id))

    async def before(
        self, channel_id: ChannelId, message_id: MessageId | None, limit: int, *, lookups: Lookups | None = None
    ) -> Sequence[ChatMessage]:
        """Return the newest messages older than `message_id` (None: of all), oldest first."""
        del lookups

        def page() -> Sequence[ChatMessage]:
            here = self._here(channel_id)
            end = len(here) if message_id is None else index_of(here, message_id)
            return here[max(0, end - _page_size(limit)) : end]

        return await self._call("before", page)

    async def after(self, channel_id: ChannelId, message_id: MessageId, limit: int) -> Sequence[ChatMessage]:
        """Return the oldest messages newer than `message_id`, oldest first."""
        return await self._call("after", lambda: self._after(channel_id, message_id, limit))

    def _after(self, channel_id: ChannelId, message_id: MessageId, limit: int) -> Sequence[ChatMessage]:
        here = self._here(channel_id)
        start = index_of(here, message_id) + (found_in(here, message_id) is not None)
        return here[start : start + _page_size(limit)]

    async def _call(self, call: Call, work: Callable[[], _T]) -> _T:
        del call
        await checkpoint()
        return work()

    def _place(self, channel_id: ChannelId) -> Channel:
        if channel_id not in self._channels:
            raise ChatNotFoundError("Discord refused: unknown channel")
        return self._channels[channel_id]

    def _here(self, channel_id: ChannelId) -> list[ChatMessage]:
        return self._messages[self._place(channel_id).id]


def found_in(messages: Sequence[ChatMessage], message_id: MessageId) -> ChatMessage | None:
    """Return the message of that id, among messages in order."""
    at = index_of(messages, message_id)
    found = messages[at : at + 1]
    return found[0] if found and found[0].id == message_id else None


def demand(met: bool, what: str) -> None:  # noqa: FBT001 - reads like an assertion
    """Refuse a call as Discord does, unless a rule is met."""
    if not met:
        raise ChatRefusedError(f"Discord refused: {what}")


def _page_size(limit: int) -> int:
    demand(1 <= limit <= PAGE, "a page has 1 to 100 messages")
    return limit
