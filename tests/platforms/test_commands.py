from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from copy import deepcopy
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest
from anyio import Event, create_memory_object_stream, create_task_group, fail_after
from anyio.streams.memory import MemoryObjectReceiveStream
from hypothesis import given, strategies as st

from intern.actors.interaction_worker import InteractionWorker
from intern.answering.interaction_handler import InteractionHandler
from intern.answering.wordings import load_wordings
from intern.chat.options import ConversationOptions
from intern.chat.phrases import get_phrases
from intern.core.errors import ChatError, ChatRefusedError, ChatUnavailableError
from intern.core.flow import (
    AskCommand,
    ButtonPressed,
    CaptureRequest,
    GatewayEvent,
    Interaction,
    InteractionTicket,
    LearnCommand,
    SetupChanges,
    SetupCommand,
    UnknownInteraction,
    WhyCommand,
)
from intern.core.ids import ChannelId, GuildId, MessageId, RoleId, UserId
from intern.core.messages import AnswerResult, Button, Conversation, RequestContext
from intern.platforms.discord.commands import COMMANDS, HikariCommands, read_interaction, same_commands
from intern.platforms.discord.gateway import HikariDiscord
from intern.platforms.discord.gateway_cache import GatewayCache
from intern.platforms.discord.messages import Team
from intern.platforms.discord.rest import HikariRest
from intern.stores.tables.answers import AnswerStore, QuestionWords
from intern.stores.tables.feedback import FeedbackStore, Votes
from tests.double import interactions as double
from tests.double.discord import DiscordDouble
from tests.double.world import Interaction as Used
from tests.worlds.actors import running
from tests.worlds.discord import make_options

CALLBACK = "/interactions/{id}/{token}/callback"
ORIGINAL = "/webhooks/{id}/{token}/messages/@original"
FOLLOW_UP = "/webhooks/{id}/{token}"
GUILD_COMMANDS = "/applications/{id}/guilds/{guild}/commands"


pytestmark = pytest.mark.on_asyncio


def hikari_on(discord: DiscordDouble) -> HikariDiscord:
    return HikariDiscord(make_options(discord))


class Hand:
    """A clock for the double."""

    def __init__(self) -> None:
        self.at = datetime(2026, 2, 1, tzinfo=UTC)

    def __call__(self) -> datetime:
        self.at += timedelta(milliseconds=1)
        return self.at


@asynccontextmanager
async def connected(
    *, check: bool = True, max_retries: int = 0, now: Hand | None = None
) -> AsyncGenerator[tuple[DiscordDouble, HikariCommands]]:
    with fail_after(10):
        async with (
            DiscordDouble(check=check, now=now or Hand()) as discord,
            HikariRest(make_options(discord), max_retries=max_retries) as rest,
        ):
            yield discord, HikariCommands(rest, (GuildId(discord.guild.id),))


def team_of(discord: DiscordDouble) -> Team:
    return Team(UserId(discord.bot_id), role_ids=frozenset({RoleId(discord.team_role.id)}))


def understood(discord: DiscordDouble, used: Used, cache: GatewayCache | None = None) -> Interaction:
    interaction = read_interaction(used.payload, team_of(discord), cache)
    assert interaction is not None
    return interaction


def ticket(discord: DiscordDouble, used: Used) -> InteractionTicket:
    return understood(discord, used).interaction


# Discord's payloads


async def test_the_setup_says_what_is_wanted_and_whether_its_member_manages_the_server() -> None:
    async with connected() as (discord, _):
        role, document = discord.team_role.id, "https://docs.example.org"
        wanted: dict[str, Any] = {
            "team_role": role,
            "channel": discord.help.id,
            "mode": "off",
            "document": document,
            "review": True,
        }
        for permissions, manages in ((0, False), (1 << 4, False), (1 << 3, True), (1 << 5, True)):
            setup = understood(discord, await double.set_up(discord, discord.alice, permissions=permissions, **wanted))
            assert isinstance(setup, SetupCommand)
            assert setup.manages is manages
            assert setup.wanted == SetupChanges(
                team_role=RoleId(role), channel=ChannelId(discord.help.id), mode="off", document=document, review=True
            )
        shown = understood(discord, await double.set_up(discord, discord.alice, permissions=0))
        assert isinstance(shown, SetupCommand)
        assert shown.wanted == SetupChanges()


async def test_each_command_and_button_comes_through_the_gateway_as_what_it_is() -> None:
    heard, events = create_memory_object_stream[GatewayEvent](50)
    with heard, events:
        async with DiscordDouble() as discord, hikari_on(discord) as connection, create_task_group() as tg:
            tg.start_soon(connection.listen, heard.send_nowait)
            await discord.wait_ready()
            question = await discord.say(discord.alice, "how?")
            answer = discord.acts.post(discord.help.id, discord.bot, "so", components=[row("intern:down:1")])
            await double.ask(discord, discord.alice, "  how do I? ")
            await double.use_on(discord, discord.bob, "Answer this", question)
            await double.use_on(discord, discord.tess, "Learn from this", question)
            await double.why(discord, discord.tess, "123")
            await double.press(discord, discord.bob, answer, "intern:down:1")
            ask, on, learn, why, press = [await next_interaction(events) for _ in range(5)]
            tg.cancel_scope.cancel()

            assert isinstance(ask, AskCommand)
            assert (ask.question, ask.on, ask.user.name, ask.user.type) == (
                "how do I?",
                None,
                "alice",
                "community_user",
            )
            assert (ask.interaction.guild_id, ask.interaction.channel_id) == (discord.guild.id, discord.help.id)
            assert isinstance(on, AskCommand)
            assert on.on is not None
            assert (on.question, on.on.id, on.on.author.name, on.on.guild_id) == (
                "how?",
                question.id,
                "alice",
                discord.guild.id,
            )
            assert isinstance(learn, LearnCommand)
            assert (learn.on.id, learn.user.type) == (question.id, "team_member")
            assert isinstance(why, WhyCommand)
            assert why.about == "123"
            assert isinstance(press, ButtonPressed)
            assert (press.button, press.message_id, press.user.name) == ("intern:down:1", answer.id, "bob")


async def next_interaction(events: MemoryObjectReceiveStream[GatewayEvent]) -> Interaction:
    while not isinstance(event := await events.receive(), Interaction):
        pass
    return event


def row(*custom_ids: str) -> dict[str, Any]:
    return {"type": 1, "components": [{"type": 2, "style": 2, "custom_id": name, "label": name} for name in custom_ids]}


async def test_private_use_has_no_server_and_still_a_user() -> None:
    async with connected() as (discord, _):
        data = {"id": "1", "name": "ask", "type": 1, "options": [{"type": 3, "name": "question", "value": "how?"}]}
        ask = understood(discord, await double.use(discord, discord.alice, data, private=True))
        assert isinstance(ask, AskCommand)
        assert (ask.interaction.guild_id, ask.user.name) == (None, "alice")


async def test_the_team_is_known_by_role_and_remembered_for_messages_that_name_no_roles() -> None:
    async with connected() as (discord, _):
        cache = GatewayCache()
        answer = await discord.say(discord.tess, "like this")
        understood(discord, await double.why(discord, discord.tess), cache)
        learn = understood(discord, await double.use_on(discord, discord.alice, "Learn from this", answer), cache)
        assert isinstance(learn, LearnCommand)
        assert (learn.user.type, learn.on.author.type) == ("community_user", "team_member")


# Finding B2.
async def test_a_file_comes_with_its_question_and_one_that_is_not_there_does_not_harm() -> None:
    file = {"id": "77", "filename": "latest.log", "size": 9, "url": "https://cdn.discordapp.com/a", "proxy_url": ""}
    options = [{"type": 3, "name": "question", "value": "how?"}, {"type": 11, "name": "file", "value": "77"}]
    data = {"id": "1", "name": "ask", "type": 1, "options": options}
    async with connected() as (discord, _):
        for resolved, names in (({"attachments": {"77": file}}, ["latest.log"]), ({}, [])):
            used = await double.use(discord, discord.alice, {**data, "resolved": resolved})
            ask = understood(discord, used)
            assert isinstance(ask, AskCommand)
            assert (ask.question, [each.filename for each in ask.attachments]) == ("how?", names)


@pytest.mark.parametrize(
    "data",
    [
        {"id": "1", "name": "dance", "type": 1},
        {"id": "1", "name": "intern", "type": 1, "options": []},
        {"id": "1", "name": "Answer this", "type": 3, "target_id": "5", "resolved": {"messages": {}}},
        {"id": "1", "name": "ask", "type": 2},
        {"name": 5},
        None,
        [],
    ],
)
async def test_what_is_not_understood_can_still_be_answered(data: Any) -> None:
    async with connected() as (discord, commands):
        used = await double.use(discord, discord.alice, data)
        unknown = understood(discord, used)
        assert isinstance(unknown, UnknownInteraction)
        await commands.defer(unknown.interaction)
        await commands.reply(unknown.interaction, "what?")
        assert double.shown(used) == ["what?"]


async def test_a_notice_of_discords_own_is_no_message_to_answer() -> None:
    async with connected() as (discord, _):
        await discord.create_thread("t", author=discord.bob, channel=discord.help)
        notice = discord.world.messages(discord.help.id)[0]
        used = await double.use_on(discord, discord.alice, "Answer this", notice)
        assert isinstance(understood(discord, used), UnknownInteraction)


PAYLOAD: dict[str, Any] = {
    "id": "11",
    "application_id": "12",
    "type": 2,
    "token": "t",
    "guild_id": "1",
    "channel_id": "2",
    "member": {"user": {"id": "3", "username": "alice"}, "roles": ["7"]},
    "data": {
        "id": "1",
        "name": "Answer this",
        "type": 3,
        "target_id": "5",
        "resolved": {"messages": {"5": {"id": "5", "channel_id": "2", "author": {"id": "3"}, "content": "how?"}}},
    },
}
TEAM = Team(UserId("12"))


@pytest.mark.parametrize("kind", [1, 4])
def test_pings_and_completions_want_no_answer(kind: int) -> None:
    assert read_interaction(PAYLOAD | {"type": kind}, TEAM) is None


def test_a_form_is_not_ours() -> None:
    assert isinstance(read_interaction(PAYLOAD | {"type": 5}, TEAM), UnknownInteraction)


@pytest.mark.parametrize("field", ["id", "application_id", "type", "token", "channel_id"])
@pytest.mark.parametrize("value", [None, "", [], "../1", -1.5])
def test_what_cannot_be_answered_is_unreadable(field: str, value: Any) -> None:
    if field == "token" and value == "../1":
        return
    with pytest.raises(msgspec.ValidationError):
        read_interaction(PAYLOAD | {field: value}, TEAM)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=5,
)


def paths(value: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    inside: Any = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
    return [path for key, inner in inside for path in ((*at, key), *paths(inner, (*at, key)))]


@given(path=st.sampled_from(paths(PAYLOAD)), value=json_values)
def test_no_strange_payload_breaks_the_reader(path: tuple[Any, ...], value: Any) -> None:
    payload = deepcopy(PAYLOAD)
    holder: Any = payload
    for key in path[:-1]:
        holder = holder[key]
    holder[path[-1]] = value
    with suppress(msgspec.ValidationError):
        read_interaction(payload, TEAM)


# Our answers


async def test_a_deferred_answer_is_for_one_member_and_edits_what_they_see_waiting() -> None:
    async with connected() as (discord, commands):
        used = await double.ask(discord, discord.alice, "how?")
        to = ticket(discord, used)
        text = f"@everyone <@{discord.bob.id}> <@&{discord.team_role.id}> https://example.org"

        await commands.defer(to)
        assert (used.callback, double.shown(used)) == ({"type": 5, "data": {"flags": 1 << 6}}, [])
        await commands.reply(to, "first")
        await commands.reply(to, text, buttons=(Button(custom_id="intern:share:1", label="Share"),))
        await commands.follow_up(to, "more", buttons=(Button(custom_id="intern:up:1", emoji="👍"),))

        assert double.shown(used) == [text, "more"]
        assert used.original is not None
        assert double.buttons_of(used.original) == ["Share"]
        assert double.buttons_of(used.follow_ups[0]) == ["👍"]
        assert used.follow_ups[0].flags == 1 << 6 | 1 << 2
        assert discord.said_by_bot() == []
        bodies = [request.body for request in discord.requests if "webhooks" in request.path]
        assert [body["allowed_mentions"] for body in bodies] == [{"parse": []}] * 3
        assert all(body["flags"] & 1 << 2 for body in bodies)


async def test_an_acknowledged_button_leaves_its_message_alone() -> None:
    async with connected() as (discord, commands):
        answer = discord.acts.post(discord.help.id, discord.bot, "so", components=[row("intern:up:1")])
        used = await double.press(discord, discord.bob, answer, "intern:up:1")
        to = ticket(discord, used)

        await commands.defer(to, update=True)
        await commands.follow_up(to, "thanks")

        assert used.callback == {"type": 6}
        assert (double.shown(used), answer.content) == (["thanks"], "so")
        assert [message.content for message in discord.said_by_bot()] == ["so"]


async def test_a_confirmation_that_got_lost_is_asked_for_again_and_found_done() -> None:
    async with connected(max_retries=1) as (discord, commands):
        used = await double.ask(discord, discord.alice, "how?")
        discord.fail_next("POST", CALLBACK, when="after", status=502)
        await commands.defer(ticket(discord, used))
        assert [request.status for request in discord.requests_to("POST", CALLBACK)] == [502, 400]


async def test_too_late_is_a_refusal() -> None:
    now = Hand()
    async with connected(now=now) as (discord, commands):
        used = await double.ask(discord, discord.alice, "how?")
        to = ticket(discord, used)
        now.at += timedelta(seconds=4)
        with pytest.raises(ChatRefusedError, match="10062"):
            await commands.defer(to)

        used = await double.ask(discord, discord.alice, "how?")
        to = ticket(discord, used)
        await commands.defer(to)
        now.at += timedelta(minutes=16)
        with pytest.raises(ChatRefusedError, match="15 minutes") as refused:
            await commands.reply(to, "so")
        assert "discord.token" not in str(refused.value)


# Finding I7.
async def test_an_answer_to_an_unacknowledged_press_says_what_was_answered_and_no_wrong_reason() -> None:
    async with connected() as (discord, commands):
        used = await double.ask(discord, discord.alice, "how?")
        discord.fail_next(
            "PATCH", "/webhooks/*/*/messages/@original", status=404, code=10015, message="Unknown Webhook"
        )
        with pytest.raises(ChatRefusedError, match=r"3 s without a sign \(code 10015\)"):
            await commands.reply(ticket(discord, used), "so")


FAULTS: tuple[dict[str, Any], ...] = ({"status": 403}, {"status": 500}, {"drop": True}, {"status": 200})


async def test_no_failure_tells_the_token() -> None:
    async with connected(check=False) as (discord, commands):
        used = await double.ask(discord, discord.alice, "how?")
        to = ticket(discord, used)
        calls: list[Callable[[], Awaitable[None]]] = [
            lambda: commands.defer(to),
            lambda: commands.reply(to, "so"),
            lambda: commands.follow_up(to, "so"),
        ]
        for method, route, call in zip(("POST", "PATCH", "POST"), (CALLBACK, ORIGINAL, FOLLOW_UP), calls, strict=True):
            for fault in FAULTS:
                discord.fail_next(method, route, **fault)
                if fault == {"status": 200}:
                    discord._faults.failures[-1].body = None  # type: ignore[assignment]  # pyright: ignore[reportAttributeAccessIssue]
                with pytest.raises(ChatError) as failed:
                    await call()
                assert used.token not in str(failed.value)
                assert used.token not in repr(failed.value.__cause__ or "")
                assert used.token not in repr(to)


async def test_a_waiter_that_gives_up_breaks_nothing() -> None:
    async with connected() as (discord, commands):
        used = await double.ask(discord, discord.alice, "how?")
        to = ticket(discord, used)
        await commands.defer(to)
        held = discord.hold_next("PATCH", ORIGINAL)
        async with running(lambda: commands.reply(to, "first")):
            await held.arrived.wait()
        held.release()
        await discord.wait_for_request("PATCH", ORIGINAL)
        await commands.follow_up(to, "second")
        assert double.shown(used) == ["first", "second"]


# Registration


async def test_commands_are_registered_once_and_again_only_when_they_differ() -> None:
    async with connected() as (discord, commands):
        await commands.register()
        await commands.register()
        (put,) = discord.requests_to("PUT", GUILD_COMMANDS)
        assert put.body == list(COMMANDS)
        ask, answer_this, *_ = put.body
        assert ask["description_localizations"]["es-419"] == get_phrases("es").ask_command
        assert answer_this["name_localizations"]["pt-BR"] == get_phrases("pt").answer_this
        assert {command["name"] for command in discord.world.application.commands} == {
            "ask",
            "Answer this",
            "Learn from this",
            "intern",
        }

        discord.world.application.commands[0]["description"] = "of an older version"
        await commands.register()
        discord.world.application.commands.append({**discord.world.application.commands[1], "name": "Gone by now"})
        await commands.register()
        await commands.register()
        assert len(discord.requests_to("PUT", GUILD_COMMANDS)) == 3
        assert len(discord.world.application.commands) == 4


async def test_a_registration_that_is_refused_or_fails_says_so() -> None:
    async with connected() as (discord, commands):
        discord.fail_next("GET", GUILD_COMMANDS, status=403, code=50001, message="Missing Access")
        with pytest.raises(ChatRefusedError, match=r"read the commands of server .*scope applications\.commands"):
            await commands.register()
        discord.fail_next("PUT", GUILD_COMMANDS, status=503)
        with pytest.raises(ChatUnavailableError, match="register the commands on server"):
            await commands.register()


# Finding I7.
async def test_a_registration_that_is_refused_says_what_discord_answered() -> None:
    async with connected() as (discord, commands):
        discord.fail_next("PUT", GUILD_COMMANDS, status=400, code=50035, message="Invalid Form Body", errors=WRONG_NAME)
        with pytest.raises(ChatRefusedError, match=r"400 Invalid Form Body .*Must be 1-32 in length") as refused:
            await commands.register()
        assert "scope" not in str(refused.value)
        discord.fail_next("PUT", GUILD_COMMANDS, status=401, message="401: Unauthorized")
        with pytest.raises(ChatUnavailableError, match=r"401.*If it says so to all calls"):
            await commands.register()


WRONG_NAME = {"0": {"name": {"_errors": [{"code": 0, "message": "Must be 1-32 in length."}]}}}


def held(commands: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return commands as Discord does: with ids, and with defaults that we did not set."""
    return [
        {
            "id": str(n),
            "application_id": "1",
            "version": "2",
            "guild_id": "3",
            "default_member_permissions": None,
            "name_localizations": None,
            "nsfw": False,
            "description": "",
            **deepcopy(dict(command)),
        }
        for n, command in enumerate(commands)
    ]


def test_what_discord_adds_is_no_difference_and_every_change_of_ours_is_one() -> None:
    assert same_commands(held(COMMANDS)[::-1], COMMANDS)
    assert not same_commands([], COMMANDS)
    assert not same_commands(held(COMMANDS)[1:], COMMANDS)
    for path in paths(list(held(COMMANDS))):
        changed: Any = held(COMMANDS)
        holder = changed
        for key in path[:-1]:
            holder = holder[key]
        if path[-1] in {"name", "description", "required", "max_length", "type"}:
            holder[path[-1]] = 7
            assert not same_commands(changed, COMMANDS), path


# The whole way


class Slow(AnswerStore):
    """A model that takes its time, and an account that keeps nothing."""

    def __init__(self) -> None:
        self.gate = Event()

    async def answer(
        self, conversation: Conversation, context: RequestContext, *, addressed: bool = False
    ) -> AnswerResult:
        await self.gate.wait()
        return AnswerResult(
            should_reply=True, reply_text=f"@everyone: {conversation.messages[-1].text} https://evil.example"
        )

    async def find(self, message_id: MessageId) -> None:
        return None

    async def find_newest_in(self, channel_id: ChannelId) -> None:
        return None

    async def save(
        self,
        message_ids: Sequence[MessageId],
        channel_id: ChannelId,
        *,
        outcome: str,
        reason: str = "",
        debug: Mapping[str, Any] | None = None,
        words: QuestionWords | None = None,
        beside: bool = False,
    ) -> None:
        pass


class Ballot(FeedbackStore):
    """Keeps votes."""

    def __init__(self) -> None:
        self.votes: list[bool] = []

    async def vote(self, question_id: MessageId, user_id: UserId, *, up: bool) -> None:
        self.votes.append(up)

    async def read_votes(self, question_id: MessageId | None = None) -> Votes:
        return Votes(up=self.votes.count(True), down=self.votes.count(False))


async def test_a_member_asks_waits_shares_and_votes_and_the_team_teaches() -> None:
    slow, ballot = Slow(), Ballot()
    heard, events = create_memory_object_stream[GatewayEvent](100)
    used, inbox = create_memory_object_stream[Interaction](10)
    captures, captured = create_memory_object_stream[CaptureRequest](10)

    async def sort() -> None:
        async for event in events:
            if isinstance(event, Interaction):
                await used.send(event)

    with heard, events, used, captured:
        async with DiscordDouble() as discord, hikari_on(discord) as connection, create_task_group() as tg:
            guilds = (GuildId(discord.guild.id),)
            responses = HikariCommands(connection, guilds)
            desk = InteractionHandler(
                answers=slow,
                history=connection,
                admits=connection.admits,
                outlet=connection,
                feedback=ballot,
                records=slow,
                options=ConversationOptions(),
                guild_ids=guilds,
                wordings=load_wordings(),
            )
            tg.start_soon(connection.listen, heard.send_nowait)
            tg.start_soon(sort)
            tg.start_soon(
                InteractionWorker(handle=desk.handle, teaches=lambda _: None, responses=responses).run, inbox, captures
            )
            await discord.wait_ready()
            await discord.wait_for_request("PUT", GUILD_COMMANDS)

            asked = await double.ask(discord, discord.alice, "how?")
            await discord.until(lambda: asked.callback)
            assert double.shown(asked) == []
            slow.gate.set()
            await discord.until(lambda: double.shown(asked))
            assert double.shown(asked) == ["@everyone: how? `evil.example`"]
            assert asked.original is not None
            assert double.buttons_of(asked.original) == ["Share", "👍", "👎", "Why?"]
            assert discord.said_by_bot() == []

            shared = await double.press(discord, discord.alice, asked.original, f"intern:share:{asked.id}")
            await discord.until(lambda: double.shown(shared))
            (post,) = discord.said_by_bot()
            assert post.content == "**how?**\n\n@everyone: how? `evil.example`"
            assert (post.channel_id, post.mention_everyone) == (discord.help.id, False)
            voted = await double.press(discord, discord.bob, post, f"intern:down:{asked.id}")
            await discord.until(lambda: double.shown(voted))
            assert ballot.votes == [False]

            question = await discord.say(discord.alice, "how else?")
            answer = await discord.say(discord.tess, "like this", reply_to=question)
            taught = await double.use_on(discord, discord.tess, "Learn from this", answer)
            await discord.until(lambda: double.shown(taught))
            request = await captured.receive()
            assert [message.text for message in request.messages] == ["how else?", "like this"]

            await discord.make_private(discord.help)
            refused = await double.ask(discord, discord.alice, "how?")
            await discord.until(lambda: double.shown(refused))
            assert double.shown(refused) == [get_phrases().not_public]
            tg.cancel_scope.cancel()
