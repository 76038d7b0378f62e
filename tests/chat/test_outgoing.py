"""Whoever leaves or takes back first wins, and whoever waits is told."""

from __future__ import annotations

import pytest
from anyio import create_task_group, fail_after, wait_all_tasks_blocked

from intern.chat.outbox import Outgoing
from intern.core.ids import MessageId
from tests.samples import answer_request, message

FIRST, SECOND = answer_request(message("How?", n=1)), answer_request(message("Why?", n=2))
ONE, TWO = FIRST.batch.last.id, SECOND.batch.last.id


def test_what_is_taken_back_does_not_leave() -> None:
    outgoing = Outgoing()
    outgoing.hand_over(FIRST)
    outgoing.hand_over(SECOND)
    assert outgoing.take_back("superseded", lambda request: request is FIRST) == (FIRST,)
    assert outgoing.take_back("withdrawn", lambda request: request is FIRST) == ()
    assert outgoing.taken_back(ONE) == "superseded"
    assert not outgoing.leave(ONE)
    assert outgoing.taken_back(TWO) is None
    assert outgoing.leave(TWO)


def test_what_has_left_is_not_taken_back_and_may_leave_again() -> None:
    outgoing = Outgoing()
    outgoing.hand_over(FIRST)
    assert outgoing.leave(ONE)
    assert outgoing.take_back("withdrawn", lambda _: True) == ()
    assert outgoing.leave(ONE)


def test_what_was_never_handed_over_or_is_done_may_leave() -> None:
    outgoing = Outgoing()
    assert outgoing.leave(MessageId("7"))
    outgoing.hand_over(FIRST)
    outgoing.take_back("withdrawn", lambda _: True)
    outgoing.done(ONE)
    assert outgoing.taken_back(ONE) is None
    assert outgoing.leave(ONE)


@pytest.mark.anyio
async def test_who_holds_a_reply_is_told_when_it_is_taken_back_or_when_nobody_will_any_more() -> None:
    outgoing, told = Outgoing(), list[MessageId]()
    outgoing.hand_over(FIRST)
    outgoing.hand_over(SECOND)

    async def hold(question_id: MessageId) -> None:
        await outgoing.hold(question_id)
        told.append(question_id)

    with fail_after(5):
        async with create_task_group() as tg:
            tg.start_soon(hold, ONE)
            tg.start_soon(hold, TWO)
            await wait_all_tasks_blocked()
            assert told == []
            outgoing.take_back("superseded", lambda request: request is SECOND)
            await wait_all_tasks_blocked()
            assert told == [TWO]
            outgoing.close()
        assert told == [TWO, ONE]
        await outgoing.hold(ONE)


@pytest.mark.anyio
async def test_a_reply_waits_until_the_one_that_it_takes_the_place_of_is_done() -> None:
    outgoing, over = Outgoing(), list[str]()
    outgoing.hand_over(FIRST)
    outgoing.hand_over(SECOND)
    outgoing.take_back("superseded", lambda request: request is FIRST)

    async def make_way(text: str, *n: int) -> None:
        await outgoing.make_way(answer_request(*(message(text, n=each) for each in n)))
        over.append(text)

    with fail_after(5):
        async with create_task_group() as tg:
            tg.start_soon(make_way, "both", 1, 2)
            tg.start_soon(make_way, "edited", 1)
            tg.start_soon(make_way, "another", 2)
            await wait_all_tasks_blocked()
            assert over == ["another"], "the reply to it was not taken back"
            outgoing.done(ONE)
    assert sorted(over) == ["another", "both", "edited"]
