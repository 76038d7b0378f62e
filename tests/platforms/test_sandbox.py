"""The Discord in memory keeps Discord's own rules, as far as they are pretended."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager

import pytest
from anyio import Event, create_task_group, fail_after, wait_all_tasks_blocked
from anyio.lowlevel import checkpoint

from intern.core.errors import ChatRefusedError, ChatUnavailableError, ChatUnknownOutcomeError
from intern.core.flow import (
    ApprovalReaction,
    ButtonPressed,
    GatewayEvent,
    InteractionTicket,
    MessageCreated,
    MessageEdited,
    MessagesDeleted,
    SessionStarted,
)
from intern.core.ids import ChannelId, MessageId, RoleId, parse_position
from intern.core.messages import Button, ChatMessage, Page
from intern.core.text.secret_values import Secret
from intern.platforms.sandbox import NONCE_LIFETIME
from tests.worlds.actors import finishing, running
from tests.worlds.chat import Sandbox
from tests.worlds.clock import HandClock


def test_ids_carry_the_time_and_increase_even_if_the_clock_does_not() -> None:
    clock = HandClock()
    sandbox = Sandbox(clock)
    ids = [int(sandbox.say("alice", "hi").id) for _ in range(3)]
    clock.turn(hours=1)
    late = sandbox.say("alice", "hi")
    assert late.at == clock.now() == parse_position(late.id).time
    clock.turn(hours=-2)
    ids += [int(late.id), int(sandbox.say("alice", "hi").id)]
    assert ids == sorted(set(ids))


def test_the_same_story_makes_the_same_world() -> None:
    def story() -> object:
        sandbox = Sandbox(HandClock(), team=["maya"])
        question = sandbox.say("alice", "how?")
        sandbox.say("maya", "so", channel_id=sandbox.open_thread(sandbox.general, question.id, "how"))
        return sandbox.messages(), sandbox.threads()

    assert story() == story()


def test_people_are_who_they_are() -> None:
    sandbox = Sandbox(HandClock(), team=["maya"])
    assert sandbox.say("maya", "hi").author == sandbox.author("maya")
    assert sandbox.author("maya").type == "team_member"
    assert sandbox.author("alice").type == "community_user"
    assert sandbox.bot.is_self
    assert len({sandbox.author("maya").id, sandbox.author("alice").id, sandbox.bot.id}) == 3


@pytest.mark.parametrize(
    ("text", "mentions"),
    [("@intern how?", True), ("hey @intern", True), ("@internal docs", False), ("intern", False)],
)
def test_the_bot_is_mentioned_by_its_name(text: str, *, mentions: bool) -> None:
    sandbox = Sandbox(HandClock())
    assert sandbox.say("alice", text).mentions_bot is mentions
    assert sandbox.say("alice", f"<@{sandbox.bot.id}>").mentions_bot


async def test_whoever_listens_hears_all_that_happens_from_then_on() -> None:
    sandbox = Sandbox(HandClock())
    early = sandbox.say("alice", "before")
    heard: list[GatewayEvent] = []
    async with running(sandbox.listen, heard.append):
        await sandbox.wait_ready()
        said = sandbox.say("alice", "hello")
        edited = sandbox.edit(sandbox.general, said.id, "hello there")
        sandbox.delete(sandbox.general, said.id, early.id)
        assert edited.edited_at is not None
        assert heard[1:] == [
            MessageCreated(message=said),
            MessageEdited(message=edited),
            MessagesDeleted(guild_id=sandbox.guild_id, channel_id=sandbox.general, message_ids=(said.id, early.id)),
        ]
    sandbox.say("alice", "after")
    assert len(heard) == 4
    assert [message.text for message in sandbox.messages(sandbox.general)] == ["after"]


async def test_a_team_member_s_check_mark_is_told_as_an_approval_and_no_other_reaction_is() -> None:
    sandbox = Sandbox(HandClock(), team=["maya"])
    said = sandbox.say("alice", "how?")
    private = sandbox.say("alice", "how?", channel_id=sandbox.add_direct())
    async with listening(sandbox) as ears:
        for who, message, emoji in (
            ("alice", said, "✅"),
            (sandbox.bot, said, "✅"),
            ("maya", said, "👍"),
            ("maya", private, "✅"),
        ):
            sandbox.react(who, message, emoji)
        sandbox.react("maya", said)
        assert ears.happened == [
            ApprovalReaction(
                guild_id=sandbox.guild_id,
                channel_id=sandbox.general,
                message_id=said.id,
                by=sandbox.author("maya").id,
            )
        ]


async def test_history_is_read_in_pages_oldest_first() -> None:
    sandbox = Sandbox(HandClock())
    said = [sandbox.say("alice", str(n)) for n in range(5)]
    place = sandbox.general
    assert await sandbox.before(place, None, 2) == said[3:]
    assert await sandbox.before(place, said[3].id, 2) == said[1:3]
    assert await sandbox.before(place, MessageId(str(int(said[3].id) + 1)), 100) == said[:4]
    assert await sandbox.after(place, said[1].id, 2) == said[2:4]
    assert await sandbox.after(place, MessageId("0"), 100) == said
    assert await sandbox.message(place, said[1].id) == said[1]
    assert await sandbox.message(place, MessageId("1")) is None
    assert (await sandbox.channel(place)).name == "general"
    assert sandbox.calls == {"before": 3, "after": 2, "message": 2, "channel": 1}


async def test_what_does_not_exist_is_refused() -> None:
    sandbox = Sandbox(HandClock())
    nowhere = ChannelId("1")
    calls: list[Callable[[], object]] = [
        lambda: sandbox.channel(nowhere),
        lambda: sandbox.look_up(nowhere, MessageId("1")),
        lambda: sandbox.before(sandbox.general, None, 101),
        lambda: sandbox.send(nowhere, "hi", "n"),
        lambda: sandbox.send(sandbox.general, " ", "n"),
        lambda: sandbox.send(sandbox.general, "x" * 2001, "n"),
        lambda: sandbox.send(sandbox.general, "hi", "n" * 26),
        lambda: sandbox.start_thread(sandbox.general, MessageId("1"), "name"),
        lambda: sandbox.start_thread(sandbox.general, sandbox.say("alice", "hi").id, " "),
        lambda: sandbox.start_thread(sandbox.general, sandbox.say("alice", "hi").id, "x" * 101),
    ]
    for call in calls:
        with pytest.raises(ChatRefusedError):
            await call()  # type: ignore[misc]
    assert sandbox.posts() == ()


async def test_a_message_has_one_thread_with_its_own_id() -> None:
    sandbox = Sandbox(HandClock())
    question = sandbox.say("alice", "how?")
    thread = await sandbox.start_thread(sandbox.general, question.id, "how")
    assert await sandbox.start_thread(sandbox.general, question.id, "again") == thread
    assert str(thread) == question.id
    assert [(place.name, place.parent_id) for place in sandbox.threads()] == [("how", sandbox.general)]
    marked = await sandbox.message(sandbox.general, question.id)
    assert marked is not None
    assert marked.thread_id == thread
    sandbox.delete(sandbox.general, question.id)
    await sandbox.send(thread, "still here", "n")
    with pytest.raises(ChatRefusedError):
        await sandbox.start_thread(thread, sandbox.posts()[0].id, "a thread in a thread")


def test_a_forum_posts_first_message_has_the_posts_id() -> None:
    sandbox = Sandbox(HandClock())
    first, second = sandbox.open_post("alice", "Help", "how?"), sandbox.open_post("bob", "Me too", "how?")
    assert str(first.channel_id) == first.id
    assert [(place.kind, place.name) for place in sandbox.threads()] == [("post", "Help"), ("post", "Me too")]
    assert len({place.parent_id for place in sandbox.threads()}) == 1
    assert sandbox.messages(second.channel_id) == (second,)


async def test_a_nonce_posts_once_for_a_few_minutes() -> None:
    clock = HandClock()
    sandbox = Sandbox(clock)
    first = await sandbox.send(sandbox.general, " hello\n", "n")
    assert await sandbox.send(sandbox.general, "hello", "n") == first
    assert await sandbox.send(sandbox.general, "hello", "m") != first
    clock.turn(seconds=NONCE_LIFETIME.total_seconds() + 1)
    assert await sandbox.send(sandbox.general, "hello", "n") != first
    assert [message.text for message in sandbox.posts()] == ["hello"] * 3


async def test_a_call_fails_before_or_after_its_work_as_planned() -> None:
    sandbox = Sandbox(HandClock())
    sandbox.fail("send", ChatUnavailableError("down"))
    sandbox.fail("send", ChatUnknownOutcomeError("lost"), done=True)
    with pytest.raises(ChatUnavailableError):
        await sandbox.send(sandbox.general, "one", "1")
    assert sandbox.posts() == ()
    with pytest.raises(ChatUnknownOutcomeError):
        await sandbox.send(sandbox.general, "two", "2")
    await sandbox.send(sandbox.general, "three", "3")
    assert [message.text for message in sandbox.posts()] == ["two", "three"]


async def test_one_can_wait_for_a_post() -> None:
    sandbox = Sandbox(HandClock())
    asked = Event()

    async def bot() -> None:
        await asked.wait()
        await sandbox.send(sandbox.general, "noise", "1")
        await checkpoint()
        await sandbox.send(sandbox.general, "the answer", "2")

    with fail_after(5):
        async with finishing(bot):
            asked.set()
            assert (await sandbox.posted(lambda message: "answer" in message.text)).text == "the answer"
    assert (await sandbox.posted()).text == "noise"
    with pytest.raises(TimeoutError):
        await sandbox.posted(lambda message: message.text == "never", within=0.01)


# Sessions


class Ears:
    """Tells sessions, as what they know of each channel, from what happens in them."""

    def __init__(self) -> None:
        self.sessions: list[dict[str, str | None]] = []
        self.happened: list[GatewayEvent] = []

    def __call__(self, event: GatewayEvent) -> None:
        if isinstance(event, SessionStarted):
            self.sessions.append({seen.channel.name: seen.last_message_id for seen in event.channels})
        else:
            self.happened.append(event)


@asynccontextmanager
async def listening(sandbox: Sandbox) -> AsyncGenerator[Ears]:
    ears = Ears()
    with fail_after(5):
        async with running(sandbox.listen, ears):
            await sandbox.wait_ready()
            yield ears


async def test_a_session_begins_with_what_there_is_to_read() -> None:
    sandbox = Sandbox(HandClock())
    question = sandbox.say("alice", "how?")
    thread = sandbox.open_thread(sandbox.general, question.id, "how")
    sandbox.archive(sandbox.open_thread(sandbox.general, sandbox.say("bob", "why?").id, "why"))
    post = sandbox.open_post("alice", "Help", "how?")
    gone = sandbox.say("bob", "oops")
    sandbox.delete(sandbox.general, gone.id)
    sandbox.say("alice", "psst", channel_id=sandbox.add_direct())

    async with listening(sandbox) as ears:
        assert ears.sessions == [{"general": gone.id, "how": None, "forum": None, "Help": post.id}]
        said = sandbox.say("alice", "here", channel_id=thread)
        sandbox.lose_session()
        assert ears.sessions[1]["how"] == said.id
        assert ears.happened == [MessageCreated(message=said)]


async def test_what_happens_while_the_gateway_is_away_is_history() -> None:
    sandbox = Sandbox(HandClock())
    async with listening(sandbox) as ears:
        async with sandbox.offline():
            missed = sandbox.say("alice", "missed")
            assert len(ears.sessions) == 1
        assert await sandbox.message(sandbox.general, missed.id) == missed
        assert ears.happened == []
        assert ears.sessions[1:] == [{"general": missed.id}]
        heard = sandbox.say("alice", "heard")
        assert ears.happened == [MessageCreated(message=heard)]


async def test_a_session_that_is_resumed_tells_what_was_missed() -> None:
    sandbox = Sandbox(HandClock())
    async with listening(sandbox) as ears:
        async with sandbox.offline(resumes=True):
            missed = sandbox.say("alice", "missed")
            assert ears.happened == []
        assert ears.happened == [MessageCreated(message=missed)]
        assert len(ears.sessions) == 1


# Finding A1.
@pytest.mark.parametrize("resumes", [True, False])
async def test_what_is_read_while_the_gateway_is_away_waits_until_it_is_told_who_may_read(*, resumes: bool) -> None:
    sandbox, read = Sandbox(HandClock()), list[str]()

    async def look(message: ChatMessage) -> None:
        found = await sandbox.message(sandbox.general, message.id)
        assert found
        read.append(found.text)
        assert not sandbox.admits(await sandbox.channel(sandbox.general))

    async with create_task_group() as reading, listening(sandbox):
        async with sandbox.offline(resumes=resumes):
            sandbox.set_private(sandbox.general)
            reading.start_soon(look, sandbox.say("tess", "in private"))
            await wait_all_tasks_blocked()
            assert read == []
            assert sandbox.admits(await sandbox.channel(sandbox.general)), "nobody has told of it"
        await wait_all_tasks_blocked()
    assert read == ["in private"]


async def test_whoever_comes_while_the_gateway_is_away_gets_a_session_of_their_own() -> None:
    sandbox, ears = Sandbox(HandClock()), Ears()
    async with create_task_group() as tg:
        async with sandbox.offline(resumes=True):
            missed = sandbox.say("alice", "missed")
            tg.start_soon(sandbox.listen, ears)
            await sandbox.wait_ready()
            assert ears.sessions == []
        assert (ears.sessions, ears.happened) == ([{"general": missed.id}], [])
        tg.cancel_scope.cancel()


async def test_somebody_presses_a_button() -> None:
    sandbox = Sandbox(HandClock())
    ticket = InteractionTicket(
        id="1", token=Secret("t"), application_id="2", guild_id=sandbox.guild_id, channel_id=sandbox.general
    )
    pressed = ButtonPressed(interaction=ticket, user=sandbox.author("alice"), button="up", message_id=MessageId("3"))
    async with listening(sandbox) as ears:
        sandbox.interact(pressed)
        assert ears.happened == [pressed]


# Channels that everyone can read


async def test_a_private_channel_is_closed_with_its_threads_unless_listed() -> None:
    sandbox = Sandbox(HandClock())
    thread = sandbox.open_thread(sandbox.general, sandbox.say("alice", "how?").id, "how")
    secret = sandbox.open_private_thread(sandbox.general, "secret")

    async def admitted() -> list[bool]:
        return [sandbox.admits(await sandbox.channel(place)) for place in (sandbox.general, thread, secret)]

    assert await admitted() == [True, True, False]
    sandbox.set_private(sandbox.general)
    assert await admitted() == [False, False, False]
    sandbox.listed.add(sandbox.general)
    assert await admitted() == [True, True, False]
    sandbox.listed.add(secret)
    assert await admitted() == [True, True, True]
    sandbox.listed.clear()
    sandbox.set_private(sandbox.general, private=False)
    assert await admitted() == [True, True, False]
    assert not sandbox.admits(await sandbox.channel(sandbox.add_direct()))


# Catching up


async def test_a_page_tells_how_far_it_reaches() -> None:
    sandbox = Sandbox(HandClock())
    one, two, three = (sandbox.say("alice", str(n)) for n in range(3))
    place = sandbox.general
    assert await sandbox.page(place, one.id, 1) == Page(messages=(two,), read_to=two.id, more=True)
    assert await sandbox.page(place, two.id, 2) == Page(messages=(three,), read_to=three.id, more=False)
    assert await sandbox.page(place, three.id, 2) == Page(messages=(), read_to=three.id, more=False)


async def test_archived_threads_with_something_new_are_found_and_writing_wakes_them_up() -> None:
    sandbox = Sandbox(HandClock())
    thread = sandbox.open_thread(sandbox.general, sandbox.say("alice", "how?").id, "how")
    said = sandbox.say("alice", "here", channel_id=thread)
    assert list(await sandbox.list_archived_threads(sandbox.general, MessageId("0"))) == []
    sandbox.archive(thread)
    (found,) = await sandbox.list_archived_threads(sandbox.general, MessageId("0"))
    assert (found.channel.id, found.last_message_id) == (thread, said.id)
    assert list(await sandbox.list_archived_threads(sandbox.general, said.id)) == []
    await sandbox.send(thread, "awake", "n")
    assert list(await sandbox.list_archived_threads(sandbox.general, MessageId("0"))) == []


# The bot's messages besides their text


async def test_buttons_and_pings_are_kept() -> None:
    sandbox = Sandbox(HandClock())
    role, button = RoleId("7"), Button(custom_id="up", emoji="👍")
    calls = [
        await sandbox.send(sandbox.general, "<@&7> please", "1", buttons=[button], mention_role=role),
        await sandbox.send(sandbox.general, "<@&7> @everyone", "2"),
        await sandbox.send(sandbox.general, "please", "3", mention_role=role),
    ]
    assert [sandbox.sent[message_id].pings for message_id in calls] == [(role,), (), ()]
    assert sandbox.sent[calls[0]].buttons == (button,)


@pytest.mark.parametrize(
    "button", [Button(custom_id="", label="x"), Button(custom_id="x"), Button(custom_id="y" * 101)]
)
async def test_a_button_that_discord_would_refuse_is_refused(button: Button) -> None:
    sandbox = Sandbox(HandClock())
    with pytest.raises(ChatRefusedError):
        await sandbox.send(sandbox.general, "hi", "n", buttons=[button])


async def test_typing_is_seen() -> None:
    sandbox = Sandbox(HandClock())
    await sandbox.typing(sandbox.general)
    assert sandbox.typed_in == [sandbox.general]
    with pytest.raises(ChatRefusedError):
        await sandbox.typing(ChannelId("1"))
