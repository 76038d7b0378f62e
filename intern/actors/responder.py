"""The responder waits on the model, for many questions at once."""

from __future__ import annotations

from functools import partial
from typing import Protocol

from anyio import Semaphore, create_task_group
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream

from intern.actors.guard import surviving
from intern.actors.witness import Witness
from intern.domain import AIResult, AnswerRequest, Conversation, Reply, RequestContext

AT_ONCE = 16  # questions in work; the model's own limit decides how many of their calls are in flight


class Answers(Protocol):
    """Answers questions."""

    async def answer(self, conversation: Conversation, context: RequestContext, *, addressed: bool = False) -> AIResult:
        """An answer or silence with its reason; never an `InternError`."""
        ...


async def responder(
    inbox: MemoryObjectReceiveStream[AnswerRequest],
    replies: MemoryObjectSendStream[Reply],
    *,
    answers: Answers,
    witness: Witness,
) -> None:
    """Answer each question until the inbox ends and the last one in work is done."""
    places = Semaphore(AT_ONCE)

    async def work(request: AnswerRequest) -> None:
        try:
            with surviving("responder", message_id=request.batch.last.id):
                result = await answers.answer(request.conversation, request.context, addressed=request.addressed)
                witness.answered(request, result)
                if result.should_reply and result.reply_text:
                    await replies.send(_reply(request, result.reply_text, result))
        finally:
            places.release()

    async with inbox, replies, create_task_group() as tg:
        async for request in inbox:
            await places.acquire()
            tg.start_soon(partial(work, request))


def _reply(request: AnswerRequest, text: str, result: AIResult) -> Reply:
    return Reply(
        question=request.batch.last,
        target="in_place" if request.channel.is_thread else "new_thread",
        text=text,
        citations=result.citations,
    )
