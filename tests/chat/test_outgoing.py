"""Of posting and recalling, the first wins, and waiting tasks are woken."""

from __future__ import annotations

from anyio import create_task_group, wait_all_tasks_blocked

from intern.chat.delivery import RecallableReplies
from intern.core.ids import MessageId
from tests.worlds.samples import answer_request, message

FIRST, SECOND = answer_request(message("How?", n=1)), answer_request(message("Why?", n=2))
ONE, TWO = FIRST.batch.last.id, SECOND.batch.last.id


def test_what_is_taken_back_does_not_leave() -> None:
    outgoing = RecallableReplies()
    outgoing.add_reply(FIRST)
    outgoing.add_reply(SECOND)
    assert outgoing.recall("superseded", lambda request: request is FIRST) == (FIRST,)
    assert outgoing.recall("withdrawn", lambda request: request is FIRST) == ()
    assert outgoing.find_recall_reason(ONE) == "superseded"
    assert not outgoing.begin_posting(ONE)
    assert outgoing.find_recall_reason(TWO) is None
    assert outgoing.begin_posting(TWO)


def test_what_has_left_is_not_taken_back_and_may_leave_again() -> None:
    outgoing = RecallableReplies()
    outgoing.add_reply(FIRST)
    assert outgoing.begin_posting(ONE)
    assert outgoing.recall("withdrawn", lambda _: True) == ()
    assert outgoing.begin_posting(ONE)


def test_what_was_never_handed_over_or_is_done_may_leave() -> None:
    outgoing = RecallableReplies()
    assert outgoing.begin_posting(MessageId("7"))
    outgoing.add_reply(FIRST)
    outgoing.recall("withdrawn", lambda _: True)
    outgoing.remove_reply(ONE)
    assert outgoing.find_recall_reason(ONE) is None
    assert outgoing.begin_posting(ONE)


async def test_who_holds_a_reply_is_told_when_it_is_taken_back_or_when_nobody_will_any_more() -> None:
    outgoing, told = RecallableReplies(), list[MessageId]()
    outgoing.add_reply(FIRST)
    outgoing.add_reply(SECOND)

    async def hold(question_id: MessageId) -> None:
        await outgoing.wait_for_recall(question_id)
        told.append(question_id)

    async with create_task_group() as tg:
        tg.start_soon(hold, ONE)
        tg.start_soon(hold, TWO)
        await wait_all_tasks_blocked()
        assert told == []
        outgoing.recall("superseded", lambda request: request is SECOND)
        await wait_all_tasks_blocked()
        assert told == [TWO]
        outgoing.close()
    assert told == [TWO, ONE]
    await outgoing.wait_for_recall(ONE)


async def test_a_reply_waits_until_the_one_that_it_takes_the_place_of_is_done() -> None:
    outgoing, over = RecallableReplies(), list[str]()
    outgoing.add_reply(FIRST)
    outgoing.add_reply(SECOND)
    outgoing.recall("superseded", lambda request: request is FIRST)

    async def make_way(text: str, *n: int) -> None:
        await outgoing.wait_for_recalled_parts(answer_request(*(message(text, n=each) for each in n)))
        over.append(text)

    async with create_task_group() as tg:
        tg.start_soon(make_way, "both", 1, 2)
        tg.start_soon(make_way, "edited", 1)
        tg.start_soon(make_way, "another", 2)
        await wait_all_tasks_blocked()
        assert over == ["another"], "the reply to it was not taken back"
        outgoing.remove_reply(ONE)
    assert sorted(over) == ["another", "both", "edited"]
