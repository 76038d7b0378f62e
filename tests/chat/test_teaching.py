"""The conversation around a message that the team wants to be learned from."""

from __future__ import annotations

import pytest
from anyio import fail_after

from intern.chat.conversations import read_conversation_around
from intern.chat.options import ContextBounds
from intern.core.errors import ChatUnavailableError
from intern.core.flow import CaptureRequest
from intern.core.messages import ChatMessage
from tests.worlds.chat import Talk


class World(Talk):
    async def around(self, on: ChatMessage) -> CaptureRequest | None:
        with fail_after(5):
            found = await self.discord.message(on.channel_id, on.id)
            assert found is not None
            return await read_conversation_around(found, self.discord.author("maya"), self.discord, ContextBounds())


def texts(request: CaptureRequest | None) -> list[str]:
    return [message.text for message in request.messages] if request else []


async def test_from_an_answer_up_to_the_question_and_down_to_what_followed() -> None:
    world = World()
    world.say("alice", "hi")
    question = world.say("alice", "how?")
    world.say("bob", "lovely weather")
    answer = world.say("maya", "like this", to=question)
    world.say("maya", "and then that")
    more = world.say("alice", "and on a Mac?", to=answer, after=200)
    last = world.say("tom", "the same", to=more)
    whole = ["hi", "how?", "like this", "and then that", "and on a Mac?", "the same"]

    for on in (answer, question, last):
        request = await world.around(on)
        assert texts(request) == whole
        assert request is not None
        assert (request.conversation_id, request.channel_id) == (f"reply_{request.messages[0].id}", on.channel_id)


async def test_an_answer_that_replies_to_nothing_goes_with_what_a_member_said_last() -> None:
    world = World()
    world.say("bob", "old news")
    world.say("alice", "how?", after=300)
    world.say("alice", "on Linux")
    world.say("tom", "hm")
    answer = world.say("maya", "like this", after=100)
    assert texts(await world.around(answer)) == ["how?", "on Linux", "like this"]


async def test_what_was_said_long_before_is_not_what_was_answered() -> None:
    world = World()
    world.say("alice", "how?")
    answer = world.say("maya", "good morning", after=3700)
    assert await world.around(answer) is None


async def test_a_question_that_nobody_of_the_team_answered_teaches_nothing() -> None:
    world = World()
    question = world.say("alice", "how?")
    world.say("bob", "no idea", to=question)
    world.say("maya", "good morning")
    assert await world.around(question) is None


async def test_a_thread_is_one_conversation_from_wherever_it_is_pointed_at() -> None:
    world = World()
    question = world.say("alice", "how?")
    thread = world.discord.open_thread(question.channel_id, question.id, "how?")
    world.discord.say(world.discord.bot, "I guess so", channel_id=thread)
    again = world.say("alice", "really?", place=thread)
    world.say("maya", "no, like this", place=thread)
    late = world.say("bob", "thanks", place=thread)

    for on in (question, again, late):
        request = await world.around(on)
        assert texts(request) == ["how?", "really?", "no, like this", "thanks"]
        assert request is not None
        assert (request.conversation_id, request.channel_id) == (f"thread_{thread}", thread)


async def test_a_question_whose_thread_holds_no_team_answer_is_looked_at_in_its_channel() -> None:
    world = World()
    question = world.say("alice", "how?")
    thread = world.discord.open_thread(question.channel_id, question.id, "how?")
    world.discord.say(world.discord.bot, "I guess so", channel_id=thread)
    answer = world.say("maya", "like this", to=question)
    for on in (question, answer):
        request = await world.around(on)
        assert texts(request) == ["how?", "like this"]
        assert request is not None
        assert request.conversation_id == f"reply_{question.id}"


async def test_a_long_chain_costs_few_calls() -> None:
    world = World()
    last = world.say("alice", "how?")
    for n in range(30):
        for m in range(5):
            world.say("bob", f"chatter {n} {m}")
        last = world.say("maya" if n % 2 else "alice", f"line {n}", to=last)
    world.discord.calls.clear()
    request = await world.around(last)
    assert request is not None
    assert len(request.messages) == 21  # twenty hops up
    assert world.discord.calls.total() <= 15


async def test_not_being_able_to_look_is_not_finding_nothing() -> None:
    world = World()
    answer = world.say("maya", "like this", to=world.say("alice", "how?"))
    world.discord.fail("after", ChatUnavailableError("down"))
    with pytest.raises(ChatUnavailableError):
        await world.around(answer)
