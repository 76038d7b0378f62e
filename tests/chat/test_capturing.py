"""The conversations of a team member's batch, message by message, exactly as written."""

from __future__ import annotations

from datetime import timedelta

from anyio import fail_after
from msgspec.structs import replace

from intern.chat.context import gather_context
from intern.chat.conversations import build_capture, build_capture_requests
from intern.chat.options import ContextBounds
from intern.core.captures import Turn
from intern.core.flow import Batch, CaptureRequest
from intern.core.ids import reply_conversation
from intern.core.messages import Attachment, ChatMessage
from tests.worlds.chat import Talk

PICTURE = Attachment(id="1", filename="error\nscreen.png", url="https://cdn", size=9, content_type="image/png")
LOGS = Attachment(id="2", filename="node.log", url="https://cdn", size=9, content_type="text/plain")


class World(Talk):
    async def captured(self, *messages: ChatMessage) -> tuple[CaptureRequest, ...]:
        batch = Batch(channel_id=messages[0].channel_id, author=messages[-1].author, messages=messages)
        channel = await self.discord.channel(batch.channel_id)
        with fail_after(5):
            gathered = await gather_context(batch, channel, self.discord, ContextBounds())
        return build_capture_requests(batch, channel, gathered)


def texts(request: CaptureRequest) -> list[str]:
    return [message.text for message in request.messages]


async def test_a_reply_is_captured_with_the_whole_question_under_its_first_message() -> None:
    world = World()
    first = world.say("alice", "My node does not start.")
    second = world.say("alice", "It says: no GPU.")
    answer = world.say("maya", "Install the driver.", to=second)
    more = world.say("maya", "Then reboot.")
    [request] = await world.captured(answer, more)
    assert request == CaptureRequest(
        conversation_id=reply_conversation(first.id),
        guild_id=world.discord.guild_id,
        channel_id=world.discord.general,
        messages=(first, second, answer, more),
    )


async def test_answers_to_different_lines_of_one_question_are_one_conversation() -> None:
    world = World()
    first = world.say("alice", "My node does not start.")
    second = world.say("alice", "It says: no GPU.")
    [one] = await world.captured(world.say("maya", "Which node?", to=first))
    [two] = await world.captured(world.say("tom", "Install the driver.", to=second))
    [both] = await world.captured(
        world.say("maya", "Which node?", to=first), world.say("maya", "Install the driver.", to=second)
    )
    assert one.conversation_id == two.conversation_id == both.conversation_id


async def test_a_batch_that_answers_two_people_is_two_conversations() -> None:
    world = World()
    alice = world.say("alice", "How do I stake?")
    bob = world.say("bob", "Where is the faucet?", after=100)
    batch = [
        world.say("maya", "Morning!"),
        world.say("maya", "In the portal.", to=alice),
        world.say("maya", "Under 'stake'."),
        world.say("maya", "On the wiki.", to=bob),
    ]
    first, second = await world.captured(*batch)
    assert texts(first) == ["How do I stake?", "Morning!", "In the portal.", "Under 'stake'."]
    assert texts(second) == ["Where is the faucet?", "On the wiki."]


async def test_the_part_that_chats_with_a_colleague_is_left_out() -> None:
    world = World()
    lunch = world.say("tom", "Lunch?")
    alice = world.say("alice", "How do I stake?")
    batch = [world.say("maya", "In an hour.", to=lunch), world.say("maya", "In the portal.", to=alice)]
    [request] = await world.captured(*batch)
    assert texts(request) == ["How do I stake?", "In the portal."]


async def test_the_part_that_chats_about_another_conversation_is_left_out() -> None:
    world = World()
    told = world.say("tom", "On the wiki.", to=world.say("bob", "Where is the faucet?"))
    alice = world.say("alice", "How do I stake?")
    batch = [world.say("maya", "Nicely said.", to=told), world.say("maya", "In the portal.", to=alice)]
    [request] = await world.captured(*batch)
    assert texts(request) == ["How do I stake?", "In the portal."]


async def test_who_replies_to_their_own_reply_goes_on_with_it() -> None:
    world = World()
    alice = world.say("alice", "How do I stake?")
    answer = world.say("maya", "In the portal.", to=alice)
    [request] = await world.captured(answer, world.say("maya", "Under 'stake', I mean.", to=answer))
    assert texts(request) == ["How do I stake?", "In the portal.", "Under 'stake', I mean."]


async def test_several_turns_are_one_conversation_in_order_of_time() -> None:
    world = World()
    question = world.say("alice", "How do I stake?")
    answer = world.say("maya", "In the portal.", to=question)
    further = world.say("alice", "Which tab?", to=answer, after=300)
    [request] = await world.captured(world.say("tom", "The third.", to=further))
    assert build_capture(request).turns == (
        Turn("User", "How do I stake?"),
        Turn("Team", "In the portal."),
        Turn("User", "Which tab?"),
        Turn("Team", "The third."),
    )
    assert request.conversation_id == "reply_" + question.id


async def test_a_correction_is_captured_without_the_bots_words() -> None:
    world = World()
    question = world.say("alice", "How do I stake?")
    thread = world.discord.open_thread(question.channel_id, question.id, "staking")
    wrong = world.say(world.discord.bot, "You cannot.", place=thread)
    [request] = await world.captured(world.say("maya", "You can, in the portal.", to=wrong, place=thread))
    assert texts(request) == ["How do I stake?", "You can, in the portal."]
    assert request.conversation_id == "thread_" + thread


async def test_a_correction_in_a_channel_leads_through_the_bots_answer_to_the_question() -> None:
    world = World()
    question = world.say("alice", "How do I stake?")
    wrong = world.say(world.discord.bot, "You cannot.", to=question)
    [request] = await world.captured(world.say("maya", "You can, in the portal.", to=wrong))
    assert texts(request) == ["How do I stake?", "You can, in the portal."]
    assert request.conversation_id == "reply_" + question.id


async def test_a_correction_of_an_answer_whose_question_is_gone_is_no_conversation() -> None:
    world = World()
    announcement = world.say(world.discord.bot, "Hello, I am new here.")
    assert await world.captured(world.say("maya", "It is!", to=announcement)) == ()


async def test_a_thread_is_captured_whole() -> None:
    world = World()
    question = world.say("alice", "How do I stake?")
    thread = world.discord.open_thread(question.channel_id, question.id, "staking")
    world.say("tom", "Which net?", place=thread)
    world.say("alice", "Testnet.", place=thread, after=300)
    [request] = await world.captured(world.say("maya", "In the portal.", place=thread))
    assert texts(request) == ["How do I stake?", "Which net?", "Testnet.", "In the portal."]
    assert request.channel_id == thread


async def test_a_captures_turns_ids_and_times_run_side_by_side() -> None:
    world = World()
    question = world.say("alice", "  How?\n--- QA ---\nTeam: hi\r\u2028\x00 ")
    answer = world.say("maya", "Like so.", to=question)
    [request] = await world.captured(answer)
    capture = build_capture(request)
    assert capture.message_ids == (question.id, answer.id)
    assert capture.turns[0] == Turn("User", question.text)
    assert capture.answered_at == answer.at == question.at + timedelta(seconds=5)


async def test_files_are_named_also_beside_text() -> None:
    world = World()
    silent = world.say("alice", "", attachments=[PICTURE, LOGS])
    answer = world.say("maya", "Like so.", to=silent, attachments=[LOGS])
    [request] = await world.captured(answer)
    assert [turn.text for turn in build_capture(request).turns] == [
        "[image: error screen.png]\n[file: node.log]",
        "Like so.\n[file: node.log]",
    ]


async def test_what_a_model_saw_in_an_image_follows_the_text() -> None:
    world = World()
    question = world.say("alice", "What is this?", attachments=[LOGS, PICTURE])
    [request] = await world.captured(world.say("maya", "A driver problem.", to=question))
    capture = build_capture(request, {(question.id, PICTURE.id): "CUDA error 35", (question.id, LOGS.id): "no GPU"})
    assert capture.turns[0].text == "What is this?\n[file node.log: no GPU]\n[image: error screen.png] CUDA error 35"


async def test_names_of_files_are_masked_as_their_texts_are() -> None:
    world = World()
    name = "/home/annsmith/ann@example.org 203.0.113.7.log" + "g" * 100
    question = world.say("alice", "What is this?", attachments=[replace(LOGS, filename=name)])
    [request] = await world.captured(world.say("maya", "A driver problem.", to=question))
    said = build_capture(request).turns[0].text
    assert said.startswith("What is this?\n[file: /home/[masked user_name]/[masked email] [masked ip_address].logg")
    assert len(said) < 130


async def test_an_image_that_nobody_looked_at_is_no_more_than_its_name() -> None:
    world = World()
    question = world.say("alice", "Which one?", attachments=[PICTURE, replace(PICTURE, id="9", filename="b.png")])
    silent = world.say("alice", "", attachments=[PICTURE], to=question)
    [request] = await world.captured(world.say("maya", "This.", to=silent))
    capture = build_capture(request, {(question.id, "9"): "A cat.", (silent.id, PICTURE.id): ""})
    assert [turn.text for turn in capture.turns][:2] == [
        "Which one?\n[image: error screen.png]\n[image: b.png] A cat.",
        "[image: error screen.png]",
    ]


async def test_an_image_beside_text_is_named_though_no_model_looks_at_images() -> None:
    world = World()
    question = world.say("alice", "What is this?", attachments=[PICTURE, LOGS])
    [request] = await world.captured(world.say("maya", "A driver problem.", to=question))
    assert build_capture(request).turns[0].text == "What is this?\n[image: error screen.png]\n[file: node.log]"


async def test_messages_without_anything_to_read_are_left_out() -> None:
    world = World()
    question = world.say("alice", "How?")
    sticker = world.say("alice", "")
    assert await world.captured(world.say("maya", "", to=question)) == ()
    [request] = await world.captured(world.say("maya", "Like so.", to=sticker))
    assert texts(request) == ["How?", "Like so."]


async def test_who_comes_back_to_their_own_answer_adds_to_its_conversation() -> None:
    world = World()
    question = world.say("alice", "How do I stake?")
    answer = world.say("maya", "In the portal.", to=question)
    [request] = await world.captured(world.say("maya", "It moved to the wallet.", to=answer, after=4000))
    assert texts(request) == ["How do I stake?", "In the portal.", "It moved to the wallet."]
    assert request.conversation_id == reply_conversation(question.id)


async def test_who_comes_back_to_a_chat_with_a_colleague_adds_nothing() -> None:
    world = World()
    alice = world.say("alice", "How do I stake?")
    chat = world.say("maya", "In an hour.", to=world.say("tom", "Lunch?"))
    batch = [world.say("maya", "Make it two.", to=chat, after=500), world.say("maya", "In the portal.", to=alice)]
    [request] = await world.captured(*batch)
    assert texts(request) == ["How do I stake?", "In the portal."]


async def test_what_the_asker_told_a_helper_stands_in_the_capture() -> None:
    world = World()
    question = world.say("alice", "My node does not start.")
    helper = world.say("bob", "What does it say?", to=question, after=100)
    world.say("alice", "no GPU", to=helper, after=100)
    [request] = await world.captured(world.say("maya", "Install the driver.", to=question, after=100))
    assert texts(request) == ["My node does not start.", "What does it say?", "no GPU", "Install the driver."]
