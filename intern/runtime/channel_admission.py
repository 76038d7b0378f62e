"""The channels that the bot may read: open to everyone on the server, or listed by the operator."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from intern.actors.captioner import LookUp
from intern.chat.options import ConversationOptions
from intern.chat.platform import ChatPlatform
from intern.core.errors import ChatRefusedError
from intern.core.ids import ChannelId, MessageId
from intern.core.messages import Channel, ChatMessage


class ChannelAdmission:
    """Decides where we may listen and speak: where everyone may read, and the operator allows it."""

    def __init__(self, chat: ChatPlatform, options: ConversationOptions) -> None:
        self._chat, self._options = chat, options

    def admits(self, channel: Channel) -> bool:
        """Whether the bot may read and write in a channel."""
        return self._chat.admits(channel) and self._options.channel_mode(channel) != "off"

    async def admits_id(self, channel_id: ChannelId) -> bool:
        """Whether it may in the channel of an id, once the permissions are known. Raises the ChatError family."""
        channel = await self._chat.channel(channel_id)
        await self._chat.wait_for_permissions(channel.guild_id)
        return self.admits(channel)


async def fetch_admitted_message(
    look_up: LookUp, admits: Callable[[ChannelId], Awaitable[bool]], channel_id: ChannelId, message_id: MessageId
) -> ChatMessage | None:
    """Return a message; None if it is gone. Raises the ChatError family, also if it may not be read any more."""
    if not await admits(channel_id):
        raise ChatRefusedError(f"channel {channel_id} is closed to us by now")
    return await look_up(channel_id, message_id)
