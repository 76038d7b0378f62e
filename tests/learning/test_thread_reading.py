"""Reading an answered thread: the question and what people and intern said, bounded, and only where all may read."""

from __future__ import annotations

import pytest

from intern.core.errors import ChatRefusedError
from intern.core.ids import ChannelId, UserId
from intern.core.messages import Author
from intern.learning.answered_threads import ThreadReader
from tests.worlds.chat import Sandbox
from tests.worlds.clock import HandClock


@pytest.fixture
def sandbox() -> Sandbox:
    return Sandbox(HandClock(), team={"mira"})


def reader(sandbox: Sandbox) -> ThreadReader:
    async def admits(channel_id: ChannelId) -> bool:
        return sandbox.admits(await sandbox.channel(channel_id))

    return ThreadReader(sandbox, admits)


async def test_it_holds_the_question_the_answer_and_what_people_said_after_it(sandbox: Sandbox) -> None:
    begun = sandbox.say("bob", "I have a question.")
    question = sandbox.say("bob", "How do I purge the spool?")
    thread = sandbox.open_thread(sandbox.general, question.id, "spool")
    answer = sandbox.say(sandbox.bot, "Use `purge`.", channel_id=thread)
    other = Author(id=UserId("9"), name="helper", type="bot")
    sandbox.say(other, "I am another bot.", channel_id=thread)
    sandbox.say("bob", "  ", channel_id=thread)
    solved = sandbox.say("bob", "It helped.", channel_id=thread)
    asked = [(sandbox.general, question.id), (sandbox.general, begun.id), (thread, solved.id)]
    found = await reader(sandbox).read(thread, asked)
    assert found is not None
    assert [each.id for each in found.messages] == [begun.id, question.id, answer.id, solved.id]
    assert found.channel.id == thread


async def test_of_a_long_thread_the_newest_messages_are_read_in_few_calls(sandbox: Sandbox) -> None:
    question = sandbox.say("bob", "How do I purge the spool?")
    thread = sandbox.open_thread(sandbox.general, question.id, "spool")
    said = [sandbox.say("bob", f"Try {n}.", channel_id=thread).id for n in range(450)]
    found = await reader(sandbox).read(thread, [(sandbox.general, question.id)] * 50)
    assert found is not None
    assert [each.id for each in found.messages] == [question.id, *said[-200:]]
    assert (sandbox.calls["before"], sandbox.calls["message"]) == (2, 1)


async def test_a_channel_is_no_thread_and_a_closed_or_empty_one_is_refused(sandbox: Sandbox) -> None:
    question = sandbox.say("bob", "How do I purge the spool?")
    assert await reader(sandbox).read(sandbox.general, []) is None
    thread = sandbox.open_thread(sandbox.general, question.id, "spool")
    with pytest.raises(ChatRefusedError, match="shows no history"):
        await reader(sandbox).read(thread, [])
    sandbox.say("bob", "Anyone?", channel_id=thread)
    sandbox.set_private(sandbox.general)
    with pytest.raises(ChatRefusedError, match="closed to us"):
        await reader(sandbox).read(thread, [])
    assert sandbox.calls["before"] == 1
