from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import pytest
from anyio import Event, create_memory_object_stream, create_task_group, fail_after, wait_all_tasks_blocked

from intern.actors.router import AT_ONCE, router
from intern.actors.witness import Witness
from intern.domain import AnswerRequest, Batch, CaptureRequest
from intern.errors import DiscordUnavailableError
from tests.samples import answer_request, batch, capture_request, message

pytestmark = pytest.mark.anyio


class Noting(Witness):
    """Remembers what was shed and ignored."""

    def __init__(self) -> None:
        self.dropped: list[str] = []

    def shed(self, request: AnswerRequest) -> None:
        self.dropped.append(request.batch.last.text)

    def ignored(self, batch: Batch) -> None:
        self.dropped.append(batch.last.text)


class Dispatch:
    """Sends batches that start with `capture` or `ask` where they say; holds back those named in `gates`."""

    def __init__(self) -> None:
        self.gates: dict[str, Event] = {}
        self.begun: list[str] = []

    async def dispatch(self, batch: Batch, /) -> Sequence[AnswerRequest | CaptureRequest]:
        text = batch.last.text
        self.begun.append(text)
        if text in self.gates:
            await self.gates[text].wait()
        if text.startswith("broken"):
            raise DiscordUnavailableError("Discord is away")
        if text.startswith("capture"):
            return [capture_request(batch.last)]
        return [answer_request(batch.last)] if text.startswith("ask") else []


class Desk:
    """A router with streams to look into."""

    def __init__(self, *, answers: int = 10, captures: int = 10) -> None:
        self.to_route, self.inbox = create_memory_object_stream[Batch](100)
        self.answers, self.asked = create_memory_object_stream[AnswerRequest](answers)
        self.captures, self.taught = create_memory_object_stream[CaptureRequest](captures)
        self.dispatch, self.witness = Dispatch(), Noting()

    def put(self, *texts: str, channel: str = "200") -> None:
        for n, text in enumerate(texts):
            self.to_route.send_nowait(batch(message(text, n=n, channel=channel)))

    async def run(self) -> None:
        await router(self.inbox, self.answers, self.captures, dispatch=self.dispatch, witness=self.witness)

    async def taken(self) -> tuple[list[str], list[str]]:
        """Texts of the questions and captures that came out."""
        with self.asked, self.taught:
            captures = [request.messages[-1].text async for request in self.taught]
            return [request.batch.last.text async for request in self.asked], captures


async def test_each_batch_goes_where_it_belongs_and_both_streams_close_at_the_end() -> None:
    desk = Desk()
    desk.put("ask 1", "capture 1", "chatter", "ask 2")
    desk.to_route.close()
    with fail_after(5):
        await desk.run()
        assert await desk.taken() == (["ask 1", "ask 2"], ["capture 1"])
    assert desk.witness.dropped == ["chatter"]


async def test_a_slow_batch_holds_up_its_own_channel_only() -> None:
    desk = Desk()
    slow = desk.dispatch.gates["ask slow"] = Event()
    desk.put("ask slow", "ask behind", channel="1")
    desk.put("ask elsewhere", channel="2")
    desk.to_route.close()
    with fail_after(5):
        async with create_task_group() as tg:
            tg.start_soon(desk.run)
            await wait_all_tasks_blocked()
            assert desk.asked.receive_nowait().batch.last.text == "ask elsewhere"
            slow.set()
            assert await desk.taken() == (["ask slow", "ask behind"], [])


async def test_no_more_than_a_few_batches_are_in_work_at_once() -> None:
    desk = Desk()
    gate = Event()
    texts = [f"ask {n}" for n in range(AT_ONCE + 3)]
    for n, text in enumerate(texts):
        desk.dispatch.gates[text] = gate
        desk.put(text, channel=str(n))
    desk.to_route.close()
    with fail_after(5):
        async with create_task_group() as tg:
            tg.start_soon(desk.run)
            await wait_all_tasks_blocked()
            assert len(desk.dispatch.begun) == AT_ONCE
            gate.set()
            asked, _ = await desk.taken()
            assert sorted(asked + desk.witness.dropped) == sorted(texts)


async def test_questions_that_find_no_room_are_shed_and_named_but_captures_wait() -> None:
    desk = Desk(answers=1, captures=0)
    desk.put("ask 1", "ask 2", "capture 1")
    desk.to_route.close()
    with fail_after(5):
        async with create_task_group() as tg:
            tg.start_soon(desk.run)
            await wait_all_tasks_blocked()
            assert desk.witness.dropped == ["ask 2"]
            assert await desk.taken() == (["ask 1"], ["capture 1"])


async def test_a_batch_that_cannot_be_read_does_not_hold_up_the_next() -> None:
    desk = Desk()
    desk.put("broken", "ask 1")
    desk.to_route.close()
    with fail_after(5):
        await desk.run()
        assert await desk.taken() == (["ask 1"], [])


async def test_a_bug_is_not_survived() -> None:
    class Buggy(Dispatch):
        async def dispatch(self, batch: Batch, /) -> Sequence[AnswerRequest | CaptureRequest]:
            raise ZeroDivisionError

    desk = Desk()
    desk.dispatch = Buggy()
    desk.put("ask 1")
    with fail_after(5), desk.to_route, desk.asked, desk.taught, pytest.raises(ExceptionGroup) as raised:
        await partial(desk.run)()
    assert raised.group_contains(ZeroDivisionError)
