"""The part of a chat platform that one community may see."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from functools import wraps
from types import CoroutineType
from typing import Any, Concatenate, ParamSpec, TypeVar, cast

from anyio import sleep_forever

from intern.chat.platform import ChatPlatform, Deliver
from intern.core.errors import ChatRefusedError
from intern.core.ids import ChannelId
from intern.core.messages import Channel, MemberRoles
from intern.runtime.community_state import CommunityState

P = ParamSpec("P")
R = TypeVar("R")


def _restrict_to_own(
    method: Callable[Concatenate[ChatPlatform, ChannelId, P], Awaitable[R]],
) -> Callable[Concatenate[CommunityChat, ChannelId, P], CoroutineType[Any, Any, R]]:
    """Call the platform. Raises ChatRefusedError for the channel of another community."""

    @wraps(method)
    async def call_if_own(self: CommunityChat, channel_id: ChannelId, /, *args: P.args, **kwargs: P.kwargs) -> R:
        await self.channel(channel_id)
        result: R = await getattr(self._chat, method.__name__)(channel_id, *args, **kwargs)
        return result

    return cast("Callable[Concatenate[CommunityChat, ChannelId, P], CoroutineType[Any, Any, R]]", call_if_own)


class CommunityChat:
    """The part of a platform that one community may see: its own servers. It refuses the channels of all others."""

    def __init__(
        self, chat: ChatPlatform, known: CommunityState, ready: Callable[[], None], note_roles: Callable[[], None]
    ) -> None:
        self._chat, self._known, self._ready, self._note_roles = chat, known, ready, note_roles
        self.capabilities, self.guild_ids = chat.capabilities, known.community.guild_ids
        self.wait_for_permissions, self.restore_roles = chat.wait_for_permissions, chat.restore_roles

    @property
    def is_open(self) -> bool:
        """Whether the platform is open."""
        return self._chat.is_open

    @property
    def advice(self) -> str:
        """The platform's advice."""
        return self._chat.advice

    async def listen(self, deliver: Deliver) -> None:
        """Deliver the sessions of its servers, the events that opened it, and all further ones, until cancelled."""
        self._known.begin_delivery(deliver)
        self._ready()
        try:
            await sleep_forever()
        finally:
            self._known.deliver = None

    def admits(self, channel: Channel) -> bool:
        """Whether everyone on its server may read the channel, or the community listed it."""
        return self._known.admits(channel, self._chat)

    def take_new_roles(self) -> Collection[MemberRoles]:
        """Take the roles that were learned on its servers since the last call."""
        self._note_roles()
        noted, self._known.noted = self._known.noted, {}
        return noted.values()

    async def channel(self, channel_id: ChannelId) -> Channel:
        """Return a channel of its servers. Raises ChatRefusedError for any other."""
        channel = await self._chat.channel(channel_id)
        if channel.guild_id not in self.guild_ids:
            raise ChatRefusedError(f"channel {channel_id} belongs to no server of this community")
        return channel

    message = _restrict_to_own(ChatPlatform.message)
    look_up = _restrict_to_own(ChatPlatform.look_up)
    before = _restrict_to_own(ChatPlatform.before)
    after = _restrict_to_own(ChatPlatform.after)
    page = _restrict_to_own(ChatPlatform.page)
    list_archived_threads = _restrict_to_own(ChatPlatform.list_archived_threads)
    start_thread = _restrict_to_own(ChatPlatform.start_thread)
    remove_thread = _restrict_to_own(ChatPlatform.remove_thread)
    send = _restrict_to_own(ChatPlatform.send)
    rewrite = _restrict_to_own(ChatPlatform.rewrite)
    typing = _restrict_to_own(ChatPlatform.typing)
