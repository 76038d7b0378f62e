"""Dispatching: where intern may listen, what a channel's mode allows, and how much one member may ask."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import pytest
from msgspec import structs

from intern.conversations.dispatching import (
    PRIVATE_NOTE,
    Allowance,
    Audience,
    Dispatcher,
    PrivateNotes,
    Speaker,
    Traces,
)
from intern.conversations.options import ConversationOptions
from intern.discord.audience import Audience as RealAudience
from intern.discord.options import ChannelMode
from intern.discord.rest import HikariRest
from intern.discord.sandbox import Sandbox
from intern.domain import AnswerRequest, Batch, CaptureRequest, ChannelId, ChatMessage, GuildId, MessageId, UserId
from intern.errors import DiscordRefusedError, DiscordUnavailableError, KnowledgeError
from intern.knowledge.traces import TraceStore
from tests.fakes import HandClock

pytestmark = pytest.mark.anyio

ALICE = UserId("1")


class Ledger:
    """Where the bot has answered."""

    def __init__(self) -> None:
        self.threads: set[ChannelId] = set()

    async def answered_in(self, thread_id: ChannelId) -> bool:
        return thread_id in self.threads


class Accounts:
    """What was kept of questions."""

    def __init__(self) -> None:
        self.kept: list[tuple[tuple[MessageId, ...], str]] = []
        self.broken = False

    async def keep(
        self, message_ids: Sequence[MessageId], channel_id: ChannelId, *, outcome: str, reason: str = ""
    ) -> None:
        if self.broken:
            raise KnowledgeError("the disk is full, as the test asked")
        self.kept.append((tuple(message_ids), reason))


class Stage:
    """A server with a clock of its own, and the dispatcher that looks at it."""

    def __init__(
        self,
        *,
        modes: Mapping[ChannelId, ChannelMode] | None = None,
        default_mode: ChannelMode = "answer",
        per_hour: int = 0,
        guild_ids: Collection[GuildId] | None = None,
        sandbox: Sandbox | None = None,
        clock: HandClock | None = None,
    ) -> None:
        self.clock = clock or HandClock()
        self.sandbox = sandbox or Sandbox(self.clock, team={"mira"})
        self.ledger = Ledger()
        self.accounts = Accounts()
        self.dispatcher = Dispatcher(
            self.sandbox,
            self.ledger,
            ConversationOptions(modes=modes or {}, default_mode=default_mode),
            guild_ids=[self.sandbox.guild_id] if guild_ids is None else guild_ids,
            audience=self.sandbox,
            clock=self.clock,
            allows=Allowance(per_hour, clock=self.clock),
            speaker=self.sandbox,
            traces=self.accounts,
        )

    async def goes(self, *messages: ChatMessage) -> list[str]:
        """Whom a batch of these messages concerns."""
        batch = Batch(channel_id=messages[0].channel_id, author=messages[0].author, messages=messages)
        return [
            {AnswerRequest: "answer", CaptureRequest: "capture"}[type(request)]
            for request in await self.dispatcher.dispatch(batch)
        ]


def staged(mode: ChannelMode) -> Stage:
    return Stage(default_mode=mode)


# Modes.


@pytest.mark.parametrize(
    ("mode", "plain", "mention", "team"),
    [
        ("answer", ["answer"], ["answer"], ["capture"]),
        ("mention_only", [], ["answer"], ["capture"]),
        ("capture_only", [], [], ["capture"]),
        ("off", [], [], []),
    ],
)
async def test_a_mode_says_who_is_heard(
    mode: ChannelMode, plain: list[str], mention: list[str], team: list[str]
) -> None:
    stage = staged(mode)
    question = stage.sandbox.say("alice", "How do I start?")
    assert await stage.goes(question) == plain
    assert await stage.goes(stage.sandbox.say("bob", "@intern how do I stop?")) == mention
    assert await stage.goes(stage.sandbox.say("mira", "Like this.", reply_to=question.id)) == team


async def test_a_reply_to_the_bot_is_a_call_and_a_reply_to_oneself_is_none() -> None:
    stage = staged("mention_only")
    answer = await stage.sandbox.send(stage.sandbox.general, "Like this.", "nonce")
    assert await stage.goes(stage.sandbox.say("alice", "And then?", reply_to=answer)) == ["answer"]
    question = stage.sandbox.say("alice", "How?")
    assert await stage.goes(stage.sandbox.say("alice", "Anybody?", reply_to=question.id)) == []


async def test_a_thread_follows_its_channel_unless_it_is_listed_itself() -> None:
    clock = HandClock()
    sandbox = Sandbox(clock, team={"mira"})
    question = sandbox.say("alice", "How?")
    thread = sandbox.open_thread(sandbox.general, question.id, "How?")
    inside = sandbox.say("alice", "@intern and then?", channel_id=thread)
    assert await Stage(sandbox=sandbox, clock=clock, modes={sandbox.general: "off"}).goes(inside) == []
    listed: dict[ChannelId, ChannelMode] = {sandbox.general: "off", thread: "answer"}
    assert await Stage(sandbox=sandbox, clock=clock, modes=listed).goes(inside) == ["answer"]
    assert await Stage(sandbox=sandbox, clock=clock, modes=listed).goes(question) == []


# Audience.


async def test_a_channel_that_not_everyone_can_read_is_left_alone_until_it_is_listed() -> None:
    stage = Stage()
    question = stage.sandbox.say("alice", "How?")
    lesson = stage.sandbox.say("mira", "Like this.", reply_to=question.id)
    stage.sandbox.set_private(stage.sandbox.general)
    stage.sandbox.fail("before", DiscordUnavailableError("nobody needs to read there"))
    assert await stage.goes(question) == []
    assert await stage.goes(lesson) == []
    with pytest.raises(DiscordUnavailableError):
        await stage.sandbox.before(stage.sandbox.general, None, 1)
    stage.sandbox.listed = {stage.sandbox.general}
    assert await stage.goes(question) == ["answer"]
    assert await stage.goes(lesson) == ["capture"]


class _ClosingAudience:
    """Turns private after the first look."""

    def __init__(self) -> None:
        self.looks = 0

    def admits(self, channel: object) -> bool:
        self.looks += 1
        return self.looks == 1


async def test_a_channel_that_turns_private_while_we_read_is_left_alone() -> None:
    stage = Stage()
    stage.dispatcher._audience = _ClosingAudience()
    assert await stage.goes(stage.sandbox.say("alice", "How?")) == []


async def test_other_servers_are_nobody_s_business() -> None:
    stage = Stage(guild_ids=[GuildId("1")])
    assert await stage.goes(stage.sandbox.say("alice", "How?")) == []
    assert stage.sandbox.posts() == ()


# Age.


async def test_an_old_question_is_passed_over_and_an_old_lesson_is_not() -> None:
    stage = Stage()
    question = stage.sandbox.say("alice", "How?")
    lesson = stage.sandbox.say("mira", "Like this.", reply_to=question.id)
    stage.clock.turn(seconds=3600)
    assert await stage.goes(question) == ["answer"]
    stage.clock.turn(seconds=1)
    assert await stage.goes(question) == []
    assert await stage.goes(lesson) == ["capture"]
    assert stage.accounts.kept == [((question.id,), "too old")]


# Limits.


async def test_over_the_limit_there_is_silence_with_a_reason() -> None:
    stage = Stage(per_hour=2)
    for _ in range(2):
        assert await stage.goes(stage.sandbox.say("alice", "How?")) == ["answer"]
    third = stage.sandbox.say("alice", "@intern how?")
    assert await stage.goes(third) == []
    assert stage.accounts.kept == [((third.id,), "asked too much")]
    assert await stage.goes(stage.sandbox.say("bob", "How?")) == ["answer"]
    stage.clock.turn(hours=1)
    assert await stage.goes(stage.sandbox.say("alice", "How?")) == ["answer"]


async def test_the_team_is_exempt_and_what_is_nobody_s_does_not_count() -> None:
    stage = Stage(per_hour=1)
    first = stage.sandbox.say("bob", "How?")
    for _ in range(3):
        assert await stage.goes(stage.sandbox.say("mira", "Like this.", reply_to=first.id)) == ["capture"]
        assert await stage.goes(stage.sandbox.say("alice", "Same here.", reply_to=first.id)) == []
    assert await stage.goes(stage.sandbox.say("alice", "How?")) == ["answer"]


async def test_what_discord_could_not_show_does_not_count() -> None:
    stage = Stage(per_hour=1)
    earlier = stage.sandbox.say("alice", "How?")
    question = stage.sandbox.say("alice", "Anybody?", reply_to=earlier.id)
    stage.sandbox.fail("before", DiscordUnavailableError("as the test asked"))
    with pytest.raises(DiscordUnavailableError):
        await stage.goes(question)
    assert await stage.goes(question) == ["answer"]


async def test_an_account_that_cannot_be_kept_changes_nothing() -> None:
    stage = Stage(per_hour=1)
    stage.accounts.broken = True
    assert await stage.goes(stage.sandbox.say("alice", "How?")) == ["answer"]
    assert await stage.goes(stage.sandbox.say("alice", "How?")) == []


def test_an_hour_slides() -> None:
    clock = HandClock()
    allows = Allowance(2, clock=clock)
    assert allows(ALICE)
    clock.turn(minutes=30)
    assert allows(ALICE)
    assert not allows(ALICE)
    clock.turn(minutes=30)
    assert allows(ALICE)
    assert not allows(ALICE)
    clock.turn(minutes=30)
    assert allows(ALICE)


def test_no_limit_holds_nobody_back() -> None:
    allows = Allowance(0, clock=HandClock())
    assert all(allows(ALICE) for _ in range(1000))


def test_members_who_asked_long_ago_are_forgotten() -> None:
    clock = HandClock()
    allows = Allowance(3, clock=clock)
    for number in range(1000):
        assert allows(UserId(str(number)))
        clock.turn(minutes=1)
    assert len(allows._asked) <= 60


def test_a_clock_that_is_put_back_locks_nobody_out() -> None:
    clock = HandClock()
    allows = Allowance(1, clock=clock)
    assert allows(ALICE)
    clock.turn(days=-365)
    assert allows(ALICE)


# Private messages.


async def test_a_private_message_gets_one_friendly_note() -> None:
    stage = Stage()
    direct = stage.sandbox.add_direct()
    for _ in range(3):
        assert await stage.goes(stage.sandbox.say("alice", "How?", channel_id=direct)) == []
    assert [(post.channel_id, post.text) for post in stage.sandbox.posts()] == [(direct, PRIVATE_NOTE)]


async def test_a_note_that_discord_could_not_take_is_tried_again() -> None:
    stage = Stage()
    message = stage.sandbox.say("alice", "How?", channel_id=stage.sandbox.add_direct())
    stage.sandbox.fail("send", DiscordUnavailableError("as the test asked"))
    with pytest.raises(DiscordUnavailableError):
        await stage.goes(message)
    assert await stage.goes(message) == []
    assert [post.text for post in stage.sandbox.posts()] == [PRIVATE_NOTE]


async def test_a_note_that_discord_refuses_is_not() -> None:
    stage = Stage()
    message = stage.sandbox.say("alice", "How?", channel_id=stage.sandbox.add_direct())
    stage.sandbox.fail("send", DiscordRefusedError("as the test asked"))
    assert await stage.goes(message) == []
    assert await stage.goes(message) == []
    assert stage.sandbox.posts() == ()


def test_members_beyond_the_bound_are_forgotten_first_in_first_out() -> None:
    notes, clock = PrivateNotes(), HandClock()
    sandbox = Sandbox(clock)
    message = sandbox.say("alice", "How?", channel_id=sandbox.add_direct())
    batch = Batch(channel_id=message.channel_id, author=message.author, messages=(message,))
    notes.noted(message.author.id)
    assert notes.note_for(batch) is None
    for number in range(10_000):
        notes.noted(UserId(f"x{number}"))
    assert notes.note_for(batch) == PRIVATE_NOTE
    bot = structs.replace(batch, author=structs.replace(batch.author, type="bot"))
    assert notes.note_for(bot) is None


def test_the_ledger_of_traces_and_discord_itself_fit_what_is_asked_for() -> None:
    def wired(traces: Traces, speaker: Speaker, audience: Audience) -> None:
        del traces, speaker, audience

    def typed(traces: TraceStore, rest: HikariRest, audience: RealAudience) -> None:
        wired(traces, rest, audience)

    assert callable(typed)  # pyright reads it
