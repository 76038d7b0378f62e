"""The port to a chat platform; `intern.platforms` holds one adapter for each.

`tests/contracts/chat_platform.py` says what a `ChatPlatform` promises, `tests/platforms` what `Interactions` do. All
calls raise the ChatError family. `Gateway`, `History`, `Pages` and `Outlet` are views of `ChatPlatform` for callers
that need no more; an export of a chat, for one, is a `History`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Final, Protocol

from msgspec import Struct

from intern.core.errors import ChatError
from intern.core.flow import ChannelSnapshot, GatewayEvent, InteractionTicket
from intern.core.ids import ChannelId, GuildId, MessageId, RoleId
from intern.core.messages import Button, Channel, ChatMessage, MemberRoles, Page, RoleLookupBudget

PAGE: Final = 100
"""Messages that one request for history returns at most, on every platform."""


Requested = Callable[[type[ChatError] | None], object]
"""Takes what a request raised; None where it went well."""


class Capabilities(Struct, frozen=True, kw_only=True):
    """How much a platform takes."""

    message_limit: int = 2000
    """Characters of one message."""
    thread_name_limit: int = 100
    """UTF-16 units."""


Deliver = Callable[[GatewayEvent], None]
"""Takes an event, and must not wait."""


class Gateway(Protocol):
    """The connection that delivers events."""

    async def listen(self, deliver: Deliver, /) -> None:
        """Connect, and call `deliver` for each event, in order, until cancelled.

        Raises ConfigError where the platform refuses us for good, ChatError where the connection fails.
        """


class History(Protocol):
    """Reading messages. While the gateway has lost its session, they wait, for it is unknown who may read them."""

    async def channel(self, channel_id: ChannelId, /) -> Channel:
        """Return a channel or thread."""
        ...

    async def message(self, channel_id: ChannelId, message_id: MessageId, /) -> ChatMessage | None:
        """Read a message; None where it is deleted or may not be read."""

    async def before(
        self,
        channel_id: ChannelId,
        message_id: MessageId | None,
        /,
        limit: int,
        *,
        lookups: RoleLookupBudget | None = None,
    ) -> Sequence[ChatMessage]:
        """Read the newest messages older than `message_id` (which need not exist; None: of all), oldest first.

        `lookups` bounds the further calls that finding out about the authors may cost; None: as many as it takes.
        """
        ...

    async def after(self, channel_id: ChannelId, message_id: MessageId, /, limit: int) -> Sequence[ChatMessage]:
        """Read the oldest messages newer than `message_id`, oldest first."""
        ...


class PagedHistory(Protocol):
    """History in pages that say how far they reach."""

    async def page(self, channel_id: ChannelId, after: MessageId, /, limit: int) -> Page:
        """Read the oldest messages newer than `after`. The page holds all that the gateway told of before the call."""
        ...

    async def list_archived_threads(self, channel_id: ChannelId, after: MessageId, /) -> Sequence[ChannelSnapshot]:
        """List the channel's archived threads that may hold a message newer than `after`."""
        ...


class Outlet(Protocol):
    """Writing messages."""

    async def start_thread(self, channel_id: ChannelId, message_id: MessageId, name: str, /) -> ChannelId:
        """Start the thread on a message, unless there is one; return it. It has the message's id."""
        ...

    async def remove_thread(self, thread_id: ChannelId, /) -> None:
        """Remove a thread that we started, unless there is a message in it; where we may not, archive it."""

    async def send(
        self,
        channel_id: ChannelId,
        text: str,
        nonce: str,
        /,
        *,
        buttons: Sequence[Button] = (),
        mention_role: RoleId | None = None,
    ) -> MessageId:
        """Post a message that shows no previews and pings only `mention_role`, where the text mentions it.

        For some minutes, a nonce posts only once.
        """
        ...

    async def rewrite(self, channel_id: ChannelId, message_id: MessageId, text: str, /) -> None:
        """Replace a message of ours by a text, without buttons."""

    async def typing(self, channel_id: ChannelId, /) -> None:
        """Show that we are typing, for some seconds or until we post."""


class ChatPlatform(Gateway, History, PagedHistory, Outlet, Protocol):
    """One account on one platform."""

    @property
    def capabilities(self) -> Capabilities:
        """How much the platform takes."""
        ...

    @property
    def guild_ids(self) -> Sequence[GuildId]:
        """The servers that are served. Events come from these, and from private messages."""
        ...

    @property
    def is_open(self) -> bool:
        """Whether a session is open right now, so that events are delivered."""
        ...

    @property
    def advice(self) -> str:
        """What the operator should change about the connection; empty where nothing."""
        ...

    async def look_up(self, channel_id: ChannelId, message_id: MessageId, /) -> ChatMessage | None:
        """Read a message; None only where the platform says that the channel has none of that id."""

    def admits(self, channel: Channel, /) -> bool:
        """Whether everybody on the server may read the channel, or the operator listed it."""
        ...

    async def wait_for_permissions(self, guild_id: GuildId | None, /) -> None:
        """Wait until an open session has told who may read on a server; before that, `admits` means nothing.

        Raises ChatUnavailableError once `listen` has ended, unless a session is open.
        """

    def take_new_roles(self) -> Collection[MemberRoles]:
        """Take the members' roles that were learned since the last call."""
        ...

    def restore_roles(self, known: Collection[MemberRoles], /) -> None:
        """Take what an earlier start had learned of members' roles for true, until the platform tells otherwise."""

    def report_requests(self, requested: Requested, reconnected: Callable[[], object], /) -> None:
        """Tell each request that ended, with what it raises, and each connection after the first."""


class Interactions(Protocol):
    """Commands and buttons. Only who used one sees what is said."""

    async def defer(self, ticket: InteractionTicket, /, *, update: bool = False) -> None:
        """Say that an answer will come. With `update` (buttons) only `follow_up` gives one."""

    async def reply(self, ticket: InteractionTicket, text: str, /, *, buttons: Sequence[Button] = ()) -> None:
        """Answer where the member sees us waiting. Doing it again replaces the answer."""

    async def follow_up(self, ticket: InteractionTicket, text: str, /, *, buttons: Sequence[Button] = ()) -> None:
        """Say more."""

    async def register(self) -> None:
        """See to it that the platform knows our commands."""
