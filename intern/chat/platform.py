"""The port to a chat platform; `intern.platforms` holds one adapter for each.

`tests/contracts/chat_platform.py` is the contract of a `ChatPlatform`, `tests/platforms` that of `Interactions`. All
calls raise the ChatError family. `Gateway`, `History`, `PagedHistory` and `Outlet` are views of `ChatPlatform` for
callers that need no more; an export of a chat, for one, is a `History`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Final, NamedTuple, Protocol

from msgspec import Struct

from intern.core.errors import ChatError
from intern.core.flow import ChannelSnapshot, GatewayEvent, InteractionTicket
from intern.core.ids import ChannelId, GuildId, MessageId, RoleId
from intern.core.messages import Button, Channel, ChatMessage, MemberRoles, Page, RoleLookupBudget

PAGE: Final = 100
"""Messages that one request for history returns at most, on every platform."""


Requested = Callable[[type[ChatError] | None], object]


class RequestReports(NamedTuple):
    """Whom a platform tells of its requests; neither may raise."""

    requested: Requested = lambda _: None
    """Called for each request that ended, with None or its error, after waits and retries."""
    reconnected: Callable[[], object] = lambda: None
    """Called for each connection after the first, new or resumed."""


"""Takes the error of a request; None if it succeeded."""


class Capabilities(Struct, frozen=True, kw_only=True):
    """The limits of a platform."""

    message_limit: int = 2000
    """The most characters of one message."""
    thread_name_limit: int = 100
    """The most UTF-16 units of a thread's name."""


Deliver = Callable[[GatewayEvent], None]
"""Takes an event, and must not wait."""


class Gateway(Protocol):
    """The connection that delivers events."""

    async def listen(self, deliver: Deliver, /) -> None:
        """Connect, and call `deliver` for each event, in order, until cancelled.

        Raises ConfigError if the platform refuses us for good, ChatError if the connection fails.
        """


class History(Protocol):
    """Reads messages. Calls wait while the gateway has no session, because it is unknown then who may read them."""

    async def channel(self, channel_id: ChannelId, /) -> Channel:
        """Return a channel or thread."""
        ...

    async def message(self, channel_id: ChannelId, message_id: MessageId, /) -> ChatMessage | None:
        """Read a message; None if it is deleted or may not be read."""

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

        `lookups` is the most further calls to identify the authors; None: no bound.
        """
        ...

    async def after(self, channel_id: ChannelId, message_id: MessageId, /, limit: int) -> Sequence[ChatMessage]:
        """Read the oldest messages newer than `message_id`, oldest first."""
        ...


class PagedHistory(Protocol):
    """A history in pages that tell how far they reach."""

    async def page(self, channel_id: ChannelId, after: MessageId, /, limit: int) -> Page:
        """Read the oldest messages newer than `after`. The page has all that the gateway reported before the call."""
        ...

    async def list_archived_threads(self, channel_id: ChannelId, after: MessageId, /) -> Sequence[ChannelSnapshot]:
        """List the channel's archived threads that may hold a message newer than `after`."""
        ...


class Outlet(Protocol):
    """Writes messages."""

    async def start_thread(self, channel_id: ChannelId, message_id: MessageId, name: str, /) -> ChannelId:
        """Start the thread on a message, if it has none; return it. It has the message's id."""
        ...

    async def remove_thread(self, thread_id: ChannelId, /) -> None:
        """Remove a thread that we started, unless there is a message in it; archive it if we may not remove it."""

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
        """Post a message that shows no previews and pings only `mention_role`, if the text mentions it.

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
        """The limits of the platform."""
        ...

    @property
    def guild_ids(self) -> Sequence[GuildId]:
        """The ids of the servers that events come from; others come from private messages."""
        ...

    @property
    def is_open(self) -> bool:
        """Whether a session is open right now, so that events are delivered."""
        ...

    @property
    def advice(self) -> str:
        """Changes that the operator should make to the connection; empty if none."""
        ...

    async def look_up(self, channel_id: ChannelId, message_id: MessageId, /) -> ChatMessage | None:
        """Read a message; None only if the platform says that the channel has none with this id."""

    def admits(self, channel: Channel, /) -> bool:
        """Whether everybody on the server may read the channel, or the operator listed it."""
        ...

    async def wait_for_permissions(self, guild_id: GuildId | None, /) -> None:
        """Wait until an open session has reported a server's permissions; before that, `admits` means nothing.

        Raises ChatUnavailableError once `listen` has ended, unless a session is open.
        """

    def take_new_roles(self) -> Collection[MemberRoles]:
        """Return the members' roles that were learned since the last call."""
        ...

    def restore_roles(self, known: Collection[MemberRoles], /) -> None:
        """Reuse the member roles cached by the previous run, until the platform reports others."""


class Interactions(Protocol):
    """Commands and buttons. Only the member who used one sees the reply."""

    async def defer(self, ticket: InteractionTicket, /, *, update: bool = False) -> None:
        """Announce that an answer will follow. With `update` (buttons), only `follow_up` gives one."""

    async def reply(self, ticket: InteractionTicket, text: str, /, *, buttons: Sequence[Button] = ()) -> None:
        """Answer in place of the announcement. A repeated call replaces the answer."""

    async def follow_up(self, ticket: InteractionTicket, text: str, /, *, buttons: Sequence[Button] = ()) -> None:
        """Post another message."""

    async def register(self) -> None:
        """Register our commands with the platform."""
