"""Routing: the channels where intern may listen, the modes of channels, and the limits of one member."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import pytest
from msgspec import structs

from intern.chat.options import ChannelMode, ChannelRule, ConversationOptions
from intern.chat.phrases import get_phrases
from intern.chat.quota import QuestionQuota
from intern.chat.routing import BatchRouter, PrivateNotices
from intern.core.errors import ChatRefusedError, ChatUnavailableError
from intern.core.flow import AnswerRequest, Batch, CaptureRequest, QuestionDeclined
from intern.core.ids import ChannelId, GuildId, UserId
from intern.core.messages import ChatMessage
from intern.stores.tables.members import GreetedMembers
from intern.stores.tables.outbox import Outbox
from tests.worlds.chat import Sandbox
from tests.worlds.clock import HandClock

ALICE = UserId("1")


class Ledger(Outbox):
    """The threads in which the bot has answered."""

    def __init__(self) -> None:
        self.threads: set[ChannelId] = set()

    async def has_answer_in(self, thread_id: ChannelId) -> bool:
        return thread_id in self.threads


class Known(GreetedMembers):
    """Members who got the notice about private messages; outlives the sequencer."""

    def __init__(self) -> None:
        self.ids: set[UserId] = set()

    async def add(self, user_id: UserId) -> bool:
        if user_id in self.ids:
            return False
        self.ids.add(user_id)
        return True

    async def drop(self, user_id: UserId) -> None:
        self.ids.discard(user_id)


class Stage:
    """A server with a clock of its own, and its sequencer."""

    def __init__(
        self,
        *,
        modes: Mapping[ChannelId, ChannelMode] | None = None,
        default_mode: ChannelMode = "answer",
        per_hour: int = 0,
        guild_ids: Collection[GuildId] | None = None,
        sandbox: Sandbox | None = None,
        clock: HandClock | None = None,
        known: Known | None = None,
    ) -> None:
        self.clock = clock or HandClock()
        self.sandbox = sandbox or Sandbox(self.clock, team={"mira"})
        self.ledger = Ledger()
        self.dispatcher = BatchRouter(
            self.sandbox,
            self.ledger,
            ConversationOptions(
                channels=tuple(ChannelRule(id=place, mode=mode) for place, mode in (modes or {}).items()),
                default_mode=default_mode,
            ),
            guild_ids=[self.sandbox.guild_id] if guild_ids is None else guild_ids,
            admits=self.sandbox.admits,
            clock=self.clock,
            count_question=QuestionQuota(per_hour, clock=self.clock),
            private=PrivateNotices(self.sandbox, known or Known()),
        )

    async def goes(self, *messages: ChatMessage) -> list[str]:
        """Return the actors that a batch concerns, or why it is declined, with a `!` if its asker gets a notice."""
        batch = Batch(channel_id=messages[0].channel_id, author=messages[0].author, messages=messages)
        return [_said(request) for request in await self.dispatcher.route(batch)]


def _said(request: AnswerRequest | CaptureRequest | QuestionDeclined) -> str:
    if isinstance(request, QuestionDeclined):
        return request.reason + "!" * request.request.called
    return "answer" if isinstance(request, AnswerRequest) else "capture"


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


# The results of one batch.


async def requests_of(stage: Stage, *messages: ChatMessage) -> tuple[list[list[str]], list[list[str]]]:
    """Return the texts of the question, and of the captures."""
    batch = Batch(channel_id=messages[0].channel_id, author=messages[0].author, messages=messages)
    found = await stage.dispatcher.route(batch)
    asked = [[each.text for each in one.batch.messages] for one in found if isinstance(one, AnswerRequest)]
    return asked, [[each.text for each in one.messages] for one in found if isinstance(one, CaptureRequest)]


@pytest.mark.parametrize("reply_first", [True, False])
async def test_a_question_beside_a_reply_to_somebody_else_is_asked_without_it(*, reply_first: bool) -> None:
    stage = Stage()
    neighbour = stage.sandbox.say("bob", "My node is slow")
    lines = ["me too", "How do I restart it?"] if reply_first else ["How do I restart it?", "me too"]
    said = [stage.sandbox.say("alice", line, reply_to=neighbour.id if line == "me too" else None) for line in lines]
    assert await requests_of(stage, *said) == ([["How do I restart it?"]], [])


@pytest.mark.parametrize("mode", ["answer", "mention_only", "capture_only"])
async def test_a_team_message_that_mentions_who_asked_is_captured_like_a_reply(mode: ChannelMode) -> None:
    stage = staged(mode)
    asked = stage.sandbox.say("alice", "How do I restart it?")
    stage.clock.turn(minutes=14)
    answer = stage.sandbox.say("mira", f"<@{asked.author.id}> like this")
    assert (await requests_of(stage, answer))[1] == [["How do I restart it?", answer.text]]


async def test_a_team_message_that_mentions_a_colleague_or_who_asked_nothing_is_not_captured() -> None:
    clock = HandClock()
    stage = Stage(sandbox=Sandbox(clock, team={"mira", "noor"}), clock=clock)
    for name in ("alice", "noor"):
        bobs = stage.sandbox.say("bob", "Morning")
        hello = stage.sandbox.say(name, "Morning!", reply_to=bobs.id)
        assert await stage.goes(stage.sandbox.say("mira", f"<@{hello.author.id}> hello you")) == []


@pytest.mark.parametrize("mode", ["answer", "mention_only", "capture_only"])
async def test_an_askers_next_words_join_the_capture_and_are_asked_where_the_mode_has_it(mode: ChannelMode) -> None:
    stage = staged(mode)
    asked = stage.sandbox.say("alice", "How do I restart it?")
    answer = stage.sandbox.say("mira", "Like this.", reply_to=asked.id)
    stage.clock.turn(minutes=2)
    thanks = stage.sandbox.say("alice", "that worked")
    questions, captures = await requests_of(stage, thanks)
    assert captures == [["How do I restart it?", "Like this.", "that worked"]]
    assert questions == ([["that worked"]] if mode == "answer" else [])
    reply = stage.sandbox.say("alice", "and faster?", reply_to=answer.id)
    questions, captures = await requests_of(stage, reply)
    assert (questions, captures[0][-1]) == ([], "and faster?")


async def test_an_old_batch_of_an_asker_still_joins_the_capture() -> None:
    stage = Stage()
    asked = stage.sandbox.say("alice", "How do I restart it?")
    stage.sandbox.say("mira", "Like this.", reply_to=asked.id)
    thanks = stage.sandbox.say("alice", "that worked")
    stage.clock.turn(days=3)
    assert await stage.goes(thanks) == ["capture", "too old"]


async def test_a_question_for_somebody_else_is_not_swallowed_by_a_capture() -> None:
    stage = Stage()
    asked = stage.sandbox.say("alice", "How do I restart it?")
    stage.sandbox.say("mira", "Like this.", reply_to=asked.id)
    for text in ("@intern how do I stop it?", f"<@{stage.sandbox.author('bob').id}> how is yours?"):
        assert await requests_of(stage, stage.sandbox.say("alice", text)) == ([[text]], [])


async def test_an_askers_words_join_the_capture_though_discord_was_away_at_the_first_look() -> None:
    stage = Stage()
    asked = stage.sandbox.say("alice", "How do I restart it?")
    stage.sandbox.say("mira", "Like this.", reply_to=asked.id)
    thanks = stage.sandbox.say("alice", "that worked")
    stage.sandbox.fail("before", ChatUnavailableError("away for a moment"))
    with pytest.raises(ChatUnavailableError):
        await stage.goes(stage.sandbox.say("bob", "Morning"))
    assert await stage.goes(thanks) == ["capture", "answer"]


async def test_a_member_costs_no_reading_where_the_team_did_not_speak_lately() -> None:
    stage = Stage()
    morning = stage.sandbox.say("bob", "Morning")
    assert await stage.goes(morning) == ["answer"]
    stage.clock.turn(hours=1)
    before = stage.sandbox.calls["before"]
    assert await stage.goes(stage.sandbox.say("alice", "How?")) == ["answer"]
    assert await stage.goes(stage.sandbox.say("alice", "Good morning", reply_to=morning.id)) == []
    assert stage.sandbox.calls["before"] == before


@pytest.mark.parametrize("came_up_between", [False, True])
async def test_a_team_members_line_goes_with_their_line_before_though_a_batch_ended_between_them(
    *, came_up_between: bool
) -> None:
    stage = Stage()
    asked = stage.sandbox.say("alice", "How do I restart it?")
    await stage.goes(asked)
    answer = stage.sandbox.say("mira", "Like this.", reply_to=asked.id)
    stage.sandbox.say("bob", "Morning")
    assert await stage.goes(answer) == ["capture"]
    if came_up_between:
        stage = Stage(sandbox=stage.sandbox, clock=stage.clock)
    said = ["How do I restart it?", "Like this."]
    for text in ("And then also that.", "Done."):
        stage.clock.turn(seconds=59)
        more = stage.sandbox.say("mira", text)
        said = [*said, text]
        assert await requests_of(stage, more) == ([], [said])
    stage.clock.turn(seconds=61)
    assert await stage.goes(stage.sandbox.say("mira", "Lunch!")) == []


async def test_a_team_members_line_costs_no_reading_where_their_lines_before_are_for_no_one() -> None:
    stage = Stage()
    await stage.goes(asked := stage.sandbox.say("alice", "How do I restart it?"))
    await stage.goes(stage.sandbox.say("mira", "Like this.", reply_to=asked.id))
    stage.clock.turn(seconds=61)
    before = stage.sandbox.calls["before"]
    for text in ("Lunch!", "Anybody?"):
        assert await stage.goes(stage.sandbox.say("mira", text)) == []
    assert stage.sandbox.calls["before"] == before


# Audience.


async def test_a_channel_that_not_everyone_can_read_is_left_alone_until_it_is_listed() -> None:
    stage = Stage()
    question = stage.sandbox.say("alice", "How?")
    lesson = stage.sandbox.say("mira", "Like this.", reply_to=question.id)
    stage.sandbox.set_private(stage.sandbox.general)
    stage.sandbox.fail("before", ChatUnavailableError("nobody needs to read there"))
    assert await stage.goes(question) == []
    assert await stage.goes(lesson) == []
    with pytest.raises(ChatUnavailableError):
        await stage.sandbox.before(stage.sandbox.general, None, 1)
    stage.sandbox.listed = {stage.sandbox.general}
    assert await stage.goes(question) == ["answer"]
    assert await stage.goes(lesson) == ["capture"]


class _ClosingAudience:
    """Turns private after the first check."""

    def __init__(self) -> None:
        self.looks = 0

    def admits(self, channel: object) -> bool:
        self.looks += 1
        return self.looks == 1


async def test_a_channel_that_turns_private_while_we_read_is_left_alone() -> None:
    stage = Stage()
    stage.dispatcher.admits = _ClosingAudience().admits
    assert await stage.goes(stage.sandbox.say("alice", "How?")) == []


async def test_other_servers_are_nobody_s_business() -> None:
    stage = Stage(guild_ids=[GuildId("1")])
    assert await stage.goes(stage.sandbox.say("alice", "How?")) == []
    assert stage.sandbox.posts() == ()


# Finding B3.
async def test_a_voice_message_alone_gets_a_word_where_the_bot_is_addressed(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG", "intern.chat")
    stage = Stage()
    sandbox = stage.sandbox
    answer = await sandbox.send(sandbox.general, "Like this.", "nonce")

    def spoken(**more: Any) -> ChatMessage:
        return structs.replace(sandbox.say("alice", "", **more), is_voice=True)

    to_bot = spoken(reply_to=answer)
    assert await stage.goes(to_bot) == ["voice!"]
    assert await stage.goes(to_bot, sandbox.say("alice", "And on Windows?")) == ["answer"]
    assert await stage.goes(spoken()) == []
    assert [record.getMessage() for record in caplog.records if "'voice'" in record.getMessage()] != []
    thread = sandbox.open_thread(sandbox.general, sandbox.say("alice", "How?").id, "How?")
    stage.ledger.threads.add(thread)
    assert await stage.goes(spoken(channel_id=thread)) == ["voice!"]
    post = sandbox.open_post("alice", "Port of the relay", "")
    assert await stage.goes(structs.replace(post, is_voice=True)) == ["answer"]  # its title asks


# Age.


async def test_an_old_question_is_passed_over_and_an_old_lesson_is_not() -> None:
    stage = Stage()
    question = stage.sandbox.say("alice", "How?")
    lesson = stage.sandbox.say("mira", "Like this.", reply_to=question.id)
    stage.clock.turn(seconds=3600)
    assert await stage.goes(question) == ["answer"]
    stage.clock.turn(seconds=1)
    assert await stage.goes(question) == ["too old"]
    assert await stage.goes(lesson) == ["capture"]


async def test_who_called_the_bot_while_it_was_away_is_owed_a_word_for_a_day() -> None:
    stage = Stage()
    answer = await stage.sandbox.send(stage.sandbox.general, "Like this.", "nonce")
    mention = stage.sandbox.say("alice", "@intern how?")
    reply = stage.sandbox.say("alice", "And then?", reply_to=answer)
    to_another = stage.sandbox.say("bob", "Same here.", reply_to=mention.id)
    stage.clock.turn(days=1)
    assert await stage.goes(mention) == ["too old!"]
    assert await stage.goes(reply) == ["too old!"]
    assert await stage.goes(to_another) == []
    stage.clock.turn(seconds=1)
    assert await stage.goes(mention) == ["too old"]
    assert await stage.goes(reply) == ["too old"]


async def test_an_old_question_is_read_no_further_than_the_message_it_replies_to() -> None:
    stage = Stage()
    question = stage.sandbox.say("alice", "@intern how?", reply_to=stage.sandbox.say("bob", "Well").id)
    stage.clock.turn(hours=2)
    for method in ("before", "after"):
        stage.sandbox.fail(method, ChatUnavailableError("nobody needs to read there"))
    assert await stage.goes(question) == ["too old!"]


@pytest.mark.parametrize("mode", ["capture_only", "off"])
async def test_where_the_operator_chose_silence_nobody_is_told_anything(mode: ChannelMode) -> None:
    stage = staged(mode)
    question = stage.sandbox.say("alice", "@intern how?")
    stage.clock.turn(hours=2)
    assert await stage.goes(question) == []


async def test_where_not_everybody_can_read_nobody_is_told_anything() -> None:
    stage = Stage()
    question = stage.sandbox.say("alice", "@intern how?")
    stage.sandbox.set_private(stage.sandbox.general)
    stage.clock.turn(hours=2)
    assert await stage.goes(question) == []


# Limits.


async def test_over_the_limit_a_question_is_declined_with_a_reason() -> None:
    stage = Stage(per_hour=2)
    for _ in range(2):
        assert await stage.goes(stage.sandbox.say("alice", "How?")) == ["answer"]
    assert await stage.goes(stage.sandbox.say("alice", "@intern how?")) == ["asked too much!"]
    assert await stage.goes(stage.sandbox.say("alice", "How?")) == ["asked too much"]
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
    stage.sandbox.fail("before", ChatUnavailableError("as the test asked"))
    with pytest.raises(ChatUnavailableError):
        await stage.goes(question)
    assert await stage.goes(question) == ["answer"]


def test_an_hour_slides() -> None:
    clock = HandClock()
    count_question = QuestionQuota(2, clock=clock)
    assert count_question(ALICE) is None
    clock.turn(minutes=30)
    assert count_question(ALICE) is None
    assert count_question(ALICE) == "asked too much"
    clock.turn(minutes=30)
    assert count_question(ALICE) is None
    assert count_question(ALICE) == "asked too much"
    clock.turn(minutes=30)
    assert count_question(ALICE) is None


def test_no_limit_holds_nobody_back() -> None:
    count_question = QuestionQuota(0, clock=HandClock())
    assert not any(count_question(ALICE) for _ in range(1000))


def test_members_who_asked_long_ago_are_forgotten() -> None:
    clock = HandClock()
    count_question = QuestionQuota(3, clock=clock)
    for number in range(1000):
        assert count_question(UserId(str(number))) is None
        clock.turn(minutes=1)
    assert len(count_question._asked) <= 60


def test_a_clock_that_is_put_back_locks_nobody_out() -> None:
    clock = HandClock()
    count_question = QuestionQuota(1, clock=clock)
    assert count_question(ALICE) is None
    clock.turn(days=-365)
    assert count_question(ALICE) is None


def test_the_questions_of_a_day_are_for_all_members_and_begin_anew_at_midnight() -> None:
    clock = HandClock()
    count_question = QuestionQuota(2, clock=clock, per_day=3, asked_today=1)
    assert [count_question(ALICE), count_question(ALICE), count_question(ALICE)] == [None, None, "day used up"]
    assert count_question(UserId("7")) == "day used up"
    clock.turn(days=1)
    assert [count_question(ALICE), count_question(ALICE), count_question(ALICE)] == [None, None, "asked too much"]
    assert [count_question(UserId("7")), count_question(UserId("7"))] == [None, "day used up"]


# Private messages.


async def test_a_private_message_gets_one_friendly_note_also_over_a_restart() -> None:
    known, clock = Known(), HandClock()
    stage = Stage(known=known, clock=clock)
    direct = stage.sandbox.add_direct()
    for _ in range(2):
        assert await stage.goes(stage.sandbox.say("alice", "How?", channel_id=direct)) == []
    again = Stage(known=known, clock=clock, sandbox=stage.sandbox)
    assert await again.goes(stage.sandbox.say("alice", "How?", channel_id=direct)) == []
    assert [(post.channel_id, post.text) for post in stage.sandbox.posts()] == [(direct, get_phrases().private_note)]


async def test_a_private_message_gets_the_note_in_its_language() -> None:
    stage = Stage()
    direct = stage.sandbox.add_direct()
    await stage.goes(stage.sandbox.say("alice", "Hallo, wie ändere ich den Port?", channel_id=direct))
    assert [post.text for post in stage.sandbox.posts()] == [get_phrases("de").private_note]


async def test_a_note_that_discord_could_not_take_is_tried_again() -> None:
    stage = Stage()
    message = stage.sandbox.say("alice", "How?", channel_id=stage.sandbox.add_direct())
    stage.sandbox.fail("send", ChatUnavailableError("as the test asked"))
    with pytest.raises(ChatUnavailableError):
        await stage.goes(message)
    assert await stage.goes(message) == []
    assert [post.text for post in stage.sandbox.posts()] == [get_phrases().private_note]


async def test_a_note_that_discord_refuses_is_not() -> None:
    stage = Stage()
    message = stage.sandbox.say("alice", "How?", channel_id=stage.sandbox.add_direct())
    stage.sandbox.fail("send", ChatRefusedError("as the test asked"))
    assert await stage.goes(message) == []
    assert await stage.goes(message) == []
    assert stage.sandbox.posts() == ()


async def test_who_does_not_answer_private_messages_says_nothing() -> None:
    stage = Stage()
    message = stage.sandbox.say("alice", "How?", channel_id=stage.sandbox.add_direct())
    silent = BatchRouter(
        stage.sandbox, stage.ledger, ConversationOptions(), guild_ids=(), admits=stage.sandbox.admits, clock=stage.clock
    )
    batch = Batch(channel_id=message.channel_id, author=message.author, messages=(message,))
    assert await silent.route(batch) == ()
    assert stage.sandbox.posts() == ()
