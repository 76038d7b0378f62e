from __future__ import annotations

from functools import partial

import pytest
from anyio import Event, create_memory_object_stream, create_task_group, fail_after, wait_all_tasks_blocked

from intern.actors.responder import AT_ONCE, responder
from intern.actors.witness import Witness
from intern.domain import AIResult, AnswerRequest, Conversation, Reply, RequestContext
from intern.errors import KnowledgeError
from tests.samples import answer_request, message

pytestmark = pytest.mark.anyio


class Answers:
    """Echoes each question; those that start with `hm` get silence, with `oh` an error; may wait for a gate."""

    def __init__(self, gate: Event | None = None) -> None:
        self.begun = 0
        self._gate = gate

    async def answer(self, conversation: Conversation, context: RequestContext, *, addressed: bool = False) -> AIResult:
        self.begun += 1
        question = conversation.messages[-1].text
        if self._gate and not question.startswith("quick"):
            await self._gate.wait()
        if question.startswith("oh"):
            raise KnowledgeError("the disk is gone")
        if question.startswith("hm"):
            return AIResult(should_reply=False, reason="no_sources")
        return AIResult(should_reply=True, reply_text=f"echo: {question}")


def request(text: str, n: int = 0) -> AnswerRequest:
    return answer_request(message(text, n=n))


async def test_answers_become_replies_to_the_last_message_and_silence_stays_silent() -> None:
    requests, inbox = create_memory_object_stream[AnswerRequest](10)
    replies, posted = create_memory_object_stream[Reply](10)
    with fail_after(5), posted:
        with requests:
            for n, text in enumerate(["why", "hm", "oh", "how"]):
                requests.send_nowait(request(text, n))
        await responder(inbox, replies, answers=Answers(), witness=Witness())
        texts = {reply.text: reply async for reply in posted}

    assert set(texts) == {"echo: why", "echo: how"}
    assert texts["echo: how"].question == message("how", n=3)
    assert texts["echo: how"].target == "new_thread"


async def test_a_quick_question_overtakes_a_slow_one() -> None:
    requests, inbox = create_memory_object_stream[AnswerRequest](10)
    replies, posted = create_memory_object_stream[Reply](10)
    gate = Event()
    with fail_after(5), posted:
        async with create_task_group() as tg:
            with requests:
                tg.start_soon(partial(responder, inbox, replies, answers=Answers(gate), witness=Witness()))
                await requests.send(request("slow", 1))
                await requests.send(request("quick", 2))
            assert (await posted.receive()).text == "echo: quick"
            gate.set()
            assert (await posted.receive()).text == "echo: slow"


async def test_a_stalled_model_leaves_further_questions_in_the_stream() -> None:
    requests, inbox = create_memory_object_stream[AnswerRequest](AT_ONCE + 5)
    replies, posted = create_memory_object_stream[Reply](10)
    answers = Answers(Event())
    with fail_after(5), posted, requests:
        async with create_task_group() as tg:
            tg.start_soon(partial(responder, inbox, replies, answers=answers, witness=Witness()))
            for n in range(AT_ONCE + 5):
                requests.send_nowait(request("slow", n))
            await wait_all_tasks_blocked()
            assert answers.begun == AT_ONCE
            tg.cancel_scope.cancel()
