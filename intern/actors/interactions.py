"""The interactions actor: Discord hears of each within 3 s, and the member gets an answer or the reason for none."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from itertools import islice

from anyio import (
    BrokenResourceError,
    CancelScope,
    Semaphore,
    WouldBlock,
    create_task_group,
    current_time,
    get_cancelled_exc_class,
)
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream

from intern.actors.guard import Backoff, exponential_backoff, persistently, surviving
from intern.answering.slash_commands import Said, said
from intern.chat.platform import Interactions
from intern.core.errors import ChatRefusedError, ChatUnavailableError, ChatUnknownOutcomeError, InternError
from intern.core.flow import AskCommand, ButtonPressed, CaptureRequest, Interaction
from intern.core.log import get_logger, traced
from intern.core.messages import Button

AT_ONCE = 64  # in work, waiting for Discord's REST mostly; more wait in the stream
ANSWERS_AT_ONCE = 16  # questions that wait on the model; who comes on top is told so at once
TRIES = 4  # with growing pauses, some seconds; a member does not wait longer
LAST_WORDS_SECONDS = 2.0  # at a shutdown, for telling who still waits

BUSY = "Too many questions at once just now. Please try again in a minute."
FAILED = "Something went wrong here, and I could not do that. Please try again later."
RESTARTING = "I am being restarted and could not finish this. Please try again in a minute."

_log = get_logger(__name__)

Handle = Callable[[Interaction], Awaitable[Said]]
"""Does what an interaction asks for, and returns what the member is told. Raises the InternError family."""


async def interactions(
    inbox: MemoryObjectReceiveStream[Interaction],
    captures: MemoryObjectSendStream[CaptureRequest],
    *,
    handle: Handle,
    responses: Interactions,
    backoff: Backoff = exponential_backoff,
) -> None:
    """Register our commands, and see to each interaction until the inbox ends and the last one is done."""
    places = Semaphore(AT_ONCE)
    service = _Service(captures, handle, responses, backoff)

    async def work(interaction: Interaction) -> None:
        try:
            ticket_id = interaction.interaction.id
            with traced(ticket_id), surviving("interactions", interaction_id=ticket_id):
                await service.serve(interaction)
        finally:
            places.release()

    async with inbox, captures, create_task_group() as background:
        background.start_soon(_register, responses, backoff)
        async with create_task_group() as tg:
            async for interaction in inbox:
                await places.acquire()
                tg.start_soon(work, interaction)
        background.cancel_scope.cancel()


async def _register(responses: Interactions, backoff: Backoff) -> None:
    try:
        await persistently(
            responses.register,
            ChatUnavailableError,
            ChatUnknownOutcomeError,
            backoff=backoff(),
            delayed=partial(_delayed, "commands_not_registered"),
        )
    except ChatRefusedError as refusal:
        _log.error(
            "commands_refused",
            reason=str(refusal),
            hint="invite the bot with the scope applications.commands; `intern doctor` prints the link",
        )


class _Service:
    """Sees to one interaction at a time; several may be under way."""

    def __init__(
        self,
        captures: MemoryObjectSendStream[CaptureRequest],
        handle: Handle,
        responses: Interactions,
        backoff: Backoff,
    ) -> None:
        self._captures = captures
        self._handle = handle
        self._responses = responses
        self._backoff = backoff
        self._answering = Semaphore(ANSWERS_AT_ONCE)

    async def serve(self, interaction: Interaction) -> None:
        heard = await self._defer(interaction)
        if not heard and not isinstance(interaction, ButtonPressed):
            return  # nobody would see an answer; a vote counts all the same
        try:
            answer = await self._handled(interaction)
        except get_cancelled_exc_class():
            with CancelScope(deadline=current_time() + LAST_WORDS_SECONDS, shield=True):
                with surviving("interactions", interaction_id=interaction.interaction.id):
                    await self._say(interaction, RESTARTING, first=True)
            raise
        if heard:
            await self._tell(interaction, answer)
        _log.info(
            "interaction_done", interaction_id=interaction.interaction.id, interaction_kind=type(interaction).__name__
        )

    async def _defer(self, interaction: Interaction) -> bool:
        """Before anything else; False where Discord does not take an answer any more."""
        ticket = interaction.interaction
        try:
            await self._responses.defer(ticket, ephemeral=True, update=isinstance(interaction, ButtonPressed))
        except ChatRefusedError as refusal:
            _log.warning("interaction_missed", interaction_id=ticket.id, reason=str(refusal))
            return False
        except (ChatUnavailableError, ChatUnknownOutcomeError) as error:
            # It may have been heard; then there is somebody who waits.
            _log.warning("interaction_unsure", interaction_id=ticket.id, reason=str(error))
        return True

    async def _handled(self, interaction: Interaction) -> Said:
        try:
            if not isinstance(interaction, AskCommand):
                return await self._done(interaction)
            try:
                self._answering.acquire_nowait()
            except WouldBlock:
                return said(BUSY)
            try:
                return await self._done(interaction)
            finally:
                self._answering.release()
        except InternError as error:
            ids = {"interaction_id": interaction.interaction.id}
            _log.error("interaction_failed", error=type(error).__name__, reason=str(error), **ids)
            return said(FAILED)

    async def _done(self, interaction: Interaction) -> Said:
        answer = await self._handle(interaction)
        for request in answer.captures:
            try:
                await self._captures.send(request)
            except BrokenResourceError:
                return said(RESTARTING)
        return answer

    async def _tell(self, interaction: Interaction, answer: Said) -> None:
        *_, last = range(len(answer.parts))
        for n, part in enumerate(answer.parts):
            buttons = answer.buttons if n == last else ()
            await self._persistently(partial(self._say, interaction, part, first=n == 0, buttons=buttons))

    async def _say(self, interaction: Interaction, text: str, *, first: bool, buttons: Sequence[Button] = ()) -> None:
        # The original response to a button is the message that holds it: never write over that.
        instead = first and not isinstance(interaction, ButtonPressed)
        speak = self._responses.reply if instead else self._responses.follow_up
        await speak(interaction.interaction, text, ephemeral=True, buttons=buttons)

    async def _persistently(self, act: Callable[[], Awaitable[None]]) -> None:
        """Try until it works; the last failure passes through. Saying a thing twice to one member harms nobody."""
        await persistently(
            act,
            ChatUnavailableError,
            ChatUnknownOutcomeError,
            backoff=islice(self._backoff(), TRIES - 1),
            delayed=partial(_delayed, "interaction_delayed"),
        )


def _delayed(event: str, error: InternError, pause: float) -> None:
    _log.warning(event, reason=str(error), again_in_seconds=pause)
