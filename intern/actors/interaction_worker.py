"""The actor that answers interactions. It defers each within 3 s, as Discord demands, or says why not."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream as Receiver, MemoryObjectSendStream as Sender

from intern.actors.loops import Backoff, exponential_backoff, make_delay_logger, retry, surviving
from intern.answering.interaction_handler import InteractionReply, language_of_interaction, make_text_reply
from intern.chat.phrases import Phrases, get_phrases
from intern.chat.platform import Interactions
from intern.core.errors import ChatRefusedError, ChatUnavailableError, ChatUnknownOutcomeError, InternError
from intern.core.flow import AskCommand, ButtonPressed, CaptureRequest, Interaction
from intern.core.log import bind_trace_id, get_logger
from intern.core.messages import Button
from intern.core.tasks import open_task_group

AT_ONCE = 64  # in work, mostly waiting for Discord's REST; more wait in the stream
ANSWERS_AT_ONCE = 16  # questions that wait on the model; further ones get the word "busy" at once
TRIES = 4  # with growing pauses, some seconds in all; a member does not wait longer
LAST_WORDS_SECONDS = 2.0  # at a shutdown, to answer members who still wait

_log = get_logger(__name__)

Handle = Callable[[Interaction], Awaitable[InteractionReply]]
"""Handles an interaction, and returns the reply to the member. Raises the InternError family."""


@dataclass(kw_only=True)
class InteractionWorker:
    """Answers interactions, several at once."""

    handle: Handle
    teaches: Callable[[CaptureRequest], object]
    """Called with each capture before it is handed on: from then on, its messages can be withdrawn."""
    responses: Interactions
    backoff: Backoff = exponential_backoff

    async def run(self, inbox: Receiver[Interaction], captures: Sender[CaptureRequest]) -> None:
        """Register our commands, and handle each interaction until the inbox ends and the last one is done."""
        self._captures = captures
        self._places = anyio.Semaphore(AT_ONCE)
        self._answering = anyio.Semaphore(ANSWERS_AT_ONCE)
        async with inbox, captures, open_task_group() as background:
            background.start_soon(register_commands, self.responses.register, self.backoff)
            async with open_task_group() as tg:
                async for interaction in inbox:
                    await self._places.acquire()
                    tg.start_soon(self._process_interaction, interaction)
            background.cancel_scope.cancel()

    async def _process_interaction(self, interaction: Interaction) -> None:
        ticket_id = interaction.interaction.id
        try:
            with bind_trace_id(ticket_id), surviving("interactions", interaction_id=ticket_id):
                await self._serve_interaction(interaction)
        finally:
            self._places.release()

    async def _serve_interaction(self, interaction: Interaction) -> None:
        heard = await self._defer(interaction)
        if not heard and not isinstance(interaction, ButtonPressed):
            return  # the member could not see an answer; a vote still counts
        try:
            answer = await self._run_handler(interaction)
        except anyio.get_cancelled_exc_class():
            with anyio.CancelScope(deadline=anyio.current_time() + LAST_WORDS_SECONDS, shield=True):
                with surviving("interactions", interaction_id=interaction.interaction.id):
                    await self._send_part(interaction, _choose_phrases(interaction).restarting, first=True)
            raise
        if heard:
            await self._send_answer(interaction, answer)
        kind = type(interaction).__name__
        _log.info("interaction_done", interaction_id=interaction.interaction.id, interaction_kind=kind)

    async def _defer(self, interaction: Interaction) -> bool:
        """Tell Discord that an answer follows; False if Discord does not accept one any more."""
        ticket = interaction.interaction
        try:
            await self.responses.defer(ticket, update=isinstance(interaction, ButtonPressed))
        except ChatRefusedError as refusal:
            _log.warning("interaction_missed", interaction_id=ticket.id, reason=str(refusal))
            return False
        except (ChatUnavailableError, ChatUnknownOutcomeError) as error:
            # The deferral may have arrived; then the member waits.
            _log.warning("interaction_unsure", interaction_id=ticket.id, reason=str(error))
        return True

    async def _run_handler(self, interaction: Interaction) -> InteractionReply:
        try:
            if not isinstance(interaction, AskCommand):
                return await self._handle_and_capture(interaction)
            try:
                self._answering.acquire_nowait()
            except anyio.WouldBlock:
                return make_text_reply(_choose_phrases(interaction).busy)
            try:
                return await self._handle_and_capture(interaction)
            finally:
                self._answering.release()
        except InternError as error:
            ids = {"interaction_id": interaction.interaction.id}
            _log.error("interaction_failed", error=type(error).__name__, reason=str(error), **ids)
            return make_text_reply(_choose_phrases(interaction).failed)

    async def _handle_and_capture(self, interaction: Interaction) -> InteractionReply:
        answer = await self.handle(interaction)
        for request in answer.captures:
            self.teaches(request)
        for request in answer.captures:
            try:
                await self._captures.send(request)
            except anyio.BrokenResourceError:
                return make_text_reply(_choose_phrases(interaction).restarting)
        return answer

    async def _send_answer(self, interaction: Interaction, answer: InteractionReply) -> None:
        *_, last = range(len(answer.parts))
        for n, part in enumerate(answer.parts):
            buttons = answer.buttons if n == last else ()
            act = partial(self._send_part, interaction, part, first=n == 0, buttons=buttons)
            await _retry(act, islice(self.backoff(), TRIES - 1), "interaction_delayed")

    async def _send_part(
        self, interaction: Interaction, text: str, *, first: bool, buttons: Sequence[Button] = ()
    ) -> None:
        # The original response to a button is the message that holds it: never write over that.
        instead = first and not isinstance(interaction, ButtonPressed)
        speak = self.responses.reply if instead else self.responses.follow_up
        await speak(interaction.interaction, text, buttons=buttons)


async def register_commands(register: Callable[[], Awaitable[None]], backoff: Backoff = exponential_backoff) -> None:
    """Register our commands, unless the platform refuses them."""
    try:
        await _retry(register, backoff(), "commands_not_registered")
    except ChatRefusedError as refusal:
        _log.error("commands_refused", reason=str(refusal))


async def _retry(act: Callable[[], Awaitable[None]], pauses: Iterator[float], event: str) -> None:
    """Try until it works; the last failure passes through. A call that arrives twice is harmless."""
    delayed = make_delay_logger(_log, event)
    await retry(act, ChatUnavailableError, ChatUnknownOutcomeError, backoff=pauses, delayed=delayed)


def _choose_phrases(interaction: Interaction) -> Phrases:
    return get_phrases(language_of_interaction(interaction))
