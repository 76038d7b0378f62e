"""Commands and buttons of the platform in memory: the answers are recorded."""

from __future__ import annotations

from collections.abc import Sequence

from anyio.lowlevel import checkpoint
from msgspec import Struct

from intern.core.errors import ChatRefusedError
from intern.core.flow import InteractionTicket
from intern.core.messages import Button


class Told(Struct, kw_only=True):
    """One interaction as the member sees it."""

    update: bool
    """Acknowledged without a sign of waiting: the message that holds the button stays as it is."""
    reply: str | None = None
    """The reply in the place where the member saw us waiting; None while they still wait."""
    buttons: tuple[Button, ...] = ()
    """The text under the last reply."""
    follow_ups: list[str] = []

    @property
    def texts(self) -> list[str]:
        """Return all replies, in order."""
        return [*([] if self.reply is None else [self.reply]), *self.follow_ups]


class SandboxCommands:
    """Answers interactions in memory, on asyncio and on trio, with Discord's rules for the order of replies."""

    def __init__(self) -> None:
        self.told: dict[str, Told] = {}
        """The interactions by the ticket's id."""

    async def defer(self, ticket: InteractionTicket, *, update: bool = False) -> None:
        """Acknowledge; doing it again is harmless."""
        await checkpoint()
        self.told.setdefault(ticket.id, Told(update=update))

    async def reply(self, ticket: InteractionTicket, text: str, *, buttons: Sequence[Button] = ()) -> None:
        """Answer where the member sees us waiting."""
        await checkpoint()
        told = self._told(ticket)
        if told.update:
            raise ChatRefusedError("Discord refused: that would overwrite the message that holds the button")
        told.reply, told.buttons = text, tuple(buttons)

    async def follow_up(self, ticket: InteractionTicket, text: str, *, buttons: Sequence[Button] = ()) -> None:
        """Send a further reply."""
        await checkpoint()
        told = self._told(ticket)
        told.follow_ups.append(text)
        told.buttons = tuple(buttons)

    async def register(self) -> None:
        """Register nothing."""
        await checkpoint()

    def _told(self, ticket: InteractionTicket) -> Told:
        if ticket.id not in self.told:
            raise ChatRefusedError("Discord refused: unknown webhook, for nothing was acknowledged")
        return self.told[ticket.id]
