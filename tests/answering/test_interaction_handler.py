"""Commands and buttons, on a Discord in memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, get_args

import pytest
from anyio import create_task_group, fail_after
from msgspec import structs

from intern.answering import interaction_handler as commands
from intern.answering.interaction_handler import InteractionHandler, InteractionReply, format_trace, make_text_reply
from intern.answering.wordings import Wording
from intern.chat.options import ChannelMode, ConversationOptions
from intern.chat.phrases import get_phrases
from intern.core.errors import ChatRefusedError, ChatUnavailableError, KnowledgeError
from intern.core.flow import (
    AskCommand,
    ButtonPressed,
    DeclineReason,
    InteractionTicket,
    LearnCommand,
    ServerCommand,
    SetupCommand,
    StatusCommand,
    UnknownInteraction,
    WhyCommand,
)
from intern.core.ids import ChannelId, GuildId, MessageId, SourceId, UserId, position_at
from intern.core.messages import (
    SILENCES,
    AnswerResult,
    Attachment,
    Author,
    ChatMessage,
    Citation,
    Conversation,
    RequestContext,
    SilenceReason,
)
from intern.core.text.secret_values import Secret
from intern.stores.tables.answers import AnswerRecord, AnswerStore, QuestionWords
from intern.stores.tables.feedback import FeedbackStore, Votes
from tests.worlds.chat import Sandbox
from tests.worlds.clock import HandClock
from tests.worlds.samples import START

pytestmark = pytest.mark.anyio

WORDS = get_phrases()
PORTS = Citation(source_id=SourceId("kb:ports.md"), title="Ports")
WORDING = Wording(
    unknown="dunno",
    links="perhaps",
    handoff="told",
    refused="not mine",
    cannot_look="cannot look",
    over_budget="over budget",
    greeting="I am here",
    limit="enough",
    busy="full",
    late="away",
    voice="voice",
    unposted="unposted",
    retracted="taken back",
    welcome="hello",
)


class Answers:
    """Gives a prepared answer, and remembers the questions."""

    def __init__(self) -> None:
        self.result = AnswerResult(should_reply=True, reply_text="Like this.")
        self.asked: list[tuple[Conversation, RequestContext]] = []

    async def answer(
        self, conversation: Conversation, context: RequestContext, *, addressed: bool = False
    ) -> AnswerResult:
        assert addressed
        self.asked.append((conversation, context))
        return self.result


class Feedback(FeedbackStore):
    def __init__(self) -> None:
        self.votes: list[tuple[MessageId, UserId, bool]] = []
        self.counted = Votes()

    async def vote(self, question_id: MessageId, user_id: UserId, *, up: bool) -> None:
        self.votes.append((question_id, user_id, up))

    async def read_votes(self, question_id: MessageId | None = None) -> Votes:
        del question_id
        return self.counted


def kept(
    question_id: str, outcome: str = "posted", reason: str = "", debug: Mapping[str, Any] | None = None
) -> AnswerRecord:
    return AnswerRecord(
        question_id=MessageId(question_id),
        channel_id=ChannelId("1"),
        at=START,
        changed_at=START,
        outcome=outcome,
        reason=reason,
        debug=dict(debug or {}),
    )


class Records(AnswerStore):
    def __init__(self) -> None:
        self.accounts: dict[str, AnswerRecord] = {}
        self.kept: list[tuple[tuple[MessageId, ...], ChannelId, str, str]] = []
        self.broken = False

    async def find(self, message_id: MessageId) -> AnswerRecord | None:
        return self.accounts.get(message_id)

    async def find_newest_in(self, channel_id: ChannelId) -> AnswerRecord | None:
        return self.accounts.get(channel_id)

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
        assert beside, "what became of the message by itself stays known"
        if self.broken:
            raise KnowledgeError("the disk is gone")
        self.kept.append((tuple(message_ids), channel_id, outcome, reason))


class World:
    """A sandbox, a team member (maya), and the handler."""

    def __init__(self, *, answers_kept: int = 5, limit: int = 1000, mode: ChannelMode = "answer") -> None:
        self.clock = HandClock()
        self.discord = Sandbox(self.clock, team=["maya"])
        self.answers, self.feedback, self.records = Answers(), Feedback(), Records()
        self.allowed: list[UserId] = []
        self.counted: list[AnswerResult] = []
        self.over_limit = 0
        self._limit = limit
        self.desk = InteractionHandler(
            answers=self.answers,
            history=self.discord,
            admits=self.discord.admits,
            outlet=self.discord,
            feedback=self.feedback,
            records=self.records,
            options=ConversationOptions(default_mode=mode),
            guild_ids=(self.discord.guild_id,),
            wordings={"en": WORDING, "de": structs.replace(WORDING, greeting="Ich bin da", limit="genug")},
            count_question=self._refuses,
            count=self.counted.append,
            turned_away=self._turn_away,
            answers_kept=answers_kept,
        )
        self._serial = 0

    def _turn_away(self, reason: DeclineReason) -> None:
        assert reason == "asked too much"
        self.over_limit += 1

    def _refuses(self, user_id: UserId) -> DeclineReason | None:
        self.allowed.append(user_id)
        return None if len(self.allowed) <= self._limit else "asked too much"

    def person(self, name: str) -> Author:
        return self.discord.author(name)

    def ticket(self, channel: ChannelId | None = None, guild: GuildId | None = None) -> InteractionTicket:
        self._serial += 1
        return InteractionTicket(
            id=position_at(self.clock.now(), self._serial).id,
            token=Secret("t"),
            application_id="1",
            guild_id=guild or self.discord.guild_id,
            channel_id=channel or self.discord.general,
        )

    async def ask(
        self, question: str = "How?", *, by: str = "alice", channel: ChannelId | None = None
    ) -> InteractionReply:
        command = AskCommand(interaction=self.ticket(channel), user=self.person(by), question=question)
        return await self.desk.handle(command)

    async def ask_with(self, *files: Attachment) -> InteractionReply:
        ticket, user = self.ticket(), self.person("alice")
        command = AskCommand(interaction=ticket, user=user, question="How?", attachments=files)
        return await self.desk.handle(command)

    async def ask_on(self, message: ChatMessage, *, by: str = "bob") -> InteractionReply:
        command = AskCommand(
            interaction=self.ticket(message.channel_id), user=self.person(by), question=message.text, on=message
        )
        return await self.desk.handle(command)

    async def press(self, button: str, *, by: str = "alice", channel: ChannelId | None = None) -> InteractionReply:
        pressed = ButtonPressed(
            interaction=self.ticket(channel), user=self.person(by), button=button, message_id=MessageId("1")
        )
        return await self.desk.handle(pressed)

    async def learn(self, message: ChatMessage, *, by: str = "maya") -> InteractionReply:
        command = LearnCommand(interaction=self.ticket(message.channel_id), user=self.person(by), on=message)
        return await self.desk.handle(command)

    async def why(self, about: str = "", *, by: str = "maya") -> InteractionReply:
        return await self.desk.handle(WhyCommand(interaction=self.ticket(), user=self.person(by), about=about))


def share_of(answer: InteractionReply) -> str:
    return next(button.custom_id for button in answer.buttons if button.label == "Share")


# Asking


# Finding B2.
async def test_a_file_goes_with_the_question() -> None:
    world, file = World(), Attachment(id="7", filename="latest.log", url="https://cdn/7", size=9)
    await world.ask_with(file)
    ((conversation, _),) = world.answers.asked
    assert [message.attachments for message in conversation.messages] == [(file,)]


async def test_an_answer_comes_with_sources_and_buttons_and_is_posted_nowhere() -> None:
    world = World()
    world.answers.result = AnswerResult(
        should_reply=True,
        reply_text="Read [this](https://evil.example/x), it is https://evil.example",
        citations=(Citation(source_id=SourceId("kb:install.md"), title="Install"),),
    )
    answer = await world.ask("How do I install it?")

    (text,) = answer.parts
    assert "`install.md`" in text or "kb:install.md" in text
    assert "https://" not in text
    labels = [button.label or button.emoji for button in answer.buttons]
    assert labels == ["Share", "👍", "👎", "Why?"]
    ((conversation, context),) = world.answers.asked
    assert [(message.role, message.text) for message in conversation.messages] == [("user", "How do I install it?")]
    assert context.channel_id == world.discord.general
    assert world.discord.posts() == ()


async def test_a_long_answer_is_split() -> None:
    world = World()
    world.answers.result = AnswerResult(should_reply=True, reply_text="\n\n".join(["word " * 100] * 9))
    answer = await world.ask()
    assert len(answer.parts) > 1
    assert all(len(part) <= 2000 for part in answer.parts)


async def test_answer_this_takes_the_message_with_its_surroundings_whoever_asks() -> None:
    world = World()
    first = world.discord.say("alice", "I have a Mac")
    world.clock.turn(seconds=200)
    question = world.discord.say("alice", "How?", reply_to=first.id)
    answer = await world.ask_on(question, by="bob")

    assert answer.parts == ("Like this.",)
    conversation, context = world.answers.asked[0]
    assert [message.text for message in conversation.messages] == ["I have a Mac", "How?"]
    assert context.message_id == question.id


async def test_surroundings_that_cannot_be_read_do_not_withhold_the_answer() -> None:
    world = World()
    first = world.discord.say("alice", "I have a Mac")
    question = world.discord.say("alice", "How?", reply_to=first.id)
    world.discord.fail("before", ChatUnavailableError("down"))
    assert (await world.ask_on(question)).parts == ("Like this.",)


@pytest.mark.parametrize("reason", [reason for reason in get_args(SilenceReason) if reason])
async def test_silence_is_put_into_words(reason: SilenceReason) -> None:
    world = World()
    world.answers.result = AnswerResult(should_reply=False, reason=reason)
    answer = await world.ask()
    expected = {
        "not_a_question": WORDING.greeting,
        "not_answerable": WORDING.refused,
        "over_budget": WORDING.over_budget,
    } | dict.fromkeys(
        (
            "sources_unreadable",
            "images_unavailable",
            "timeout",
            "model_unavailable",
            "model_failed",
            "knowledge_failed",
        ),
        WORDING.cannot_look,
    )
    assert answer == make_text_reply(expected.get(reason, WORDS.not_known))


async def test_what_holds_no_question_of_a_person_is_not_asked() -> None:
    world = World()
    by_bot = world.discord.say(world.discord.bot, "So it is.")
    assert await world.ask_on(by_bot) == make_text_reply(WORDS.from_bot)
    assert await world.ask("  ") == make_text_reply(WORDS.no_text)
    assert world.answers.asked == []
    assert world.allowed == []


async def test_who_asks_a_lot_is_told_so() -> None:
    world = World(limit=2)
    assert [(await world.ask()).parts[0] for _ in range(3)] == ["Like this.", "Like this.", WORDING.limit]
    assert len(world.answers.asked) == 2
    assert world.over_limit == 1


async def test_what_became_of_it_is_kept_under_an_id_of_its_own() -> None:
    world = World()
    question = world.discord.say("alice", "How?")
    await world.ask_on(question)
    world.answers.result = AnswerResult(should_reply=False, reason="no_sources")
    await world.ask()
    (on, first, _, _), (alone, _, outcome, reason) = [(ids, ids[-1], o, r) for ids, _, o, r in world.records.kept]
    assert on == (question.id, first)
    assert first != question.id
    assert len(alone) == 1
    assert (outcome, reason) == ("silent for one member", "no_sources")


async def test_an_answer_is_not_withheld_because_its_account_cannot_be_kept() -> None:
    world = World()
    world.records.broken = True
    assert (await world.ask()).parts == ("Like this.",)


async def test_what_was_thought_over_is_counted_be_its_account_kept_or_not_and_what_was_refused_is_not() -> None:
    world = World(limit=2)
    world.records.broken = True
    answer = world.answers.result
    await world.ask()
    world.answers.result = silence = AnswerResult(should_reply=False, reason="no_sources")
    await world.ask_on(world.discord.say("alice", "How?"))
    await world.ask("  ")
    await world.ask()
    assert world.counted == [answer, silence]
    assert world.over_limit == 1


# Where


async def test_other_servers_private_messages_and_private_channels_are_refused_politely() -> None:
    world = World()
    hidden = world.discord.add_channel("hidden")
    world.discord.set_private(hidden)
    answer = world.discord.say("maya", "like this", channel_id=hidden)

    assert await world.ask(channel=hidden) == make_text_reply(WORDS.not_public)
    assert await world.learn(answer) == make_text_reply(WORDS.not_public)
    assert await world.ask(channel=ChannelId("5")) == make_text_reply(WORDS.not_public)
    foreign = AskCommand(interaction=world.ticket(guild=GuildId("5")), user=world.person("alice"), question="How?")
    assert await world.desk.handle(foreign) == make_text_reply(WORDS.foreign_server)
    nowhere = InteractionTicket(
        id="1", token=Secret("t"), application_id="1", guild_id=None, channel_id=world.discord.general
    )
    private = AskCommand(interaction=nowhere, user=world.person("alice"), question="How?")
    assert await world.desk.handle(private) == make_text_reply(WORDS.in_private)
    assert world.answers.asked == []


async def test_a_channel_that_cannot_be_looked_up_now_is_not_refused_for_good() -> None:
    world = World()
    world.discord.fail("channel", ChatUnavailableError("down"))
    with pytest.raises(ChatUnavailableError):
        await world.ask()


async def test_what_is_not_understood_is_said() -> None:
    world = World()
    unknown = UnknownInteraction(interaction=world.ticket(), what="of type 5")
    assert await world.desk.handle(unknown) == make_text_reply(WORDS.unknown_command)
    for button in (
        "",
        "intern:up:",
        "intern:up:x",
        "intern:dance:1",
        "other:up:1",
        "intern:up:1:2",
        "intern:why:1:it",
        "intern:why:1:../de",
    ):
        assert await world.press(button) == make_text_reply(WORDS.unknown_command)
    assert world.feedback.votes == []


async def test_a_question_is_answered_in_its_language_and_so_is_a_press_on_the_answers_buttons() -> None:
    world, german = World(limit=2), get_phrases("de")
    world.answers.result = AnswerResult(should_reply=True, reply_text="So.", citations=(PORTS,))
    answer = await world.ask("Wie ändere ich den Port?")
    assert german.sources in answer.parts[0].splitlines()
    assert [button.label or button.emoji for button in answer.buttons] == [german.share, "👍", "👎", german.why]
    share, up, _, why = [button.custom_id for button in answer.buttons]
    assert await world.press(up) == make_text_reply(german.thanks)
    assert await world.press(why) == make_text_reply(german.why_unknown)
    assert await world.press(share, by="bob") == make_text_reply(german.not_yours)
    assert await world.press(share) == make_text_reply(german.shared)
    (post,) = world.discord.posts()
    assert world.discord.sent[post.id].buttons == answer.buttons[1:]
    world.answers.result = AnswerResult(should_reply=False, reason="not_a_question")
    assert await world.ask("Wie geht es dir?") == make_text_reply("Ich bin da")
    assert await world.ask("Und wie geht es jetzt weiter?") == make_text_reply("genug")
    world.discord.set_private(world.discord.general)
    assert await world.ask("Wie geht es jetzt weiter?") == make_text_reply(german.not_public)


# Buttons


async def test_votes_are_kept() -> None:
    world = World()
    answer = await world.ask()
    up, down, _ = [button.custom_id for button in answer.buttons[1:]]
    assert await world.press(up, by="alice") == make_text_reply(WORDS.thanks)
    assert await world.press(down, by="bob") == make_text_reply(WORDS.thanks)
    assert [up for _, _, up in world.feedback.votes] == [True, False]
    assert [user for _, user, _ in world.feedback.votes] == [world.person("alice").id, world.person("bob").id]


async def test_anybody_is_told_in_one_line_why_an_answer_was_given() -> None:
    world = World()
    why = (await world.ask()).buttons[-1].custom_id
    assert await world.press(why) == make_text_reply(WORDS.why_unknown)
    question_id = MessageId(why.rpartition(":")[2])
    told: dict[str, Any] = {"generation": {"citations": ["kb:https://docs.example.com/a"], "strange_urls_count": 0}}
    world.records.accounts[question_id] = kept(question_id, debug=told)
    line = "From the page `docs.example.com/a`; links checked."
    assert (await world.press(why, by="bob")).parts == (line,)
    assert f"- {line}" in (await world.why(question_id)).parts[0]


async def test_who_asked_may_share_once_with_the_question_above_and_votes_below() -> None:
    world = World()
    share = share_of(await world.ask("How do I\ninstall <@5> it?"))

    assert await world.press(share, by="bob") == make_text_reply(WORDS.not_yours)
    assert world.discord.posts() == ()
    assert await world.press(share) == make_text_reply(WORDS.shared)
    assert await world.press(share) == make_text_reply(WORDS.shared_already)
    (post,) = world.discord.posts()
    assert post.text == "**How do I install it?**\n\nLike this."
    assert post.channel_id == world.discord.general
    assert [button.emoji or button.label for button in world.discord.sent[post.id].buttons] == ["👍", "👎", "Why?"]
    assert world.discord.sent[post.id].pings == ()


async def test_two_presses_at_once_share_once() -> None:
    world = World()
    share = share_of(await world.ask())
    with fail_after(5):
        async with create_task_group() as tg:
            for _ in range(2):
                tg.start_soon(world.press, share)
    assert len(world.discord.posts()) == 1


@pytest.mark.parametrize("done", [False, True])
async def test_a_share_that_failed_can_be_pressed_again_and_posts_once(done: bool) -> None:  # noqa: FBT001
    world = World()
    share = share_of(await world.ask())
    world.discord.fail("send", ChatUnavailableError("down"), done=done)
    with pytest.raises(ChatUnavailableError):
        await world.press(share)
    assert await world.press(share) == make_text_reply(WORDS.shared)
    assert len(world.discord.posts()) == 1


async def test_where_the_bot_may_not_write_or_everybody_may_not_read_nothing_is_shared() -> None:
    world = World()
    share = share_of(await world.ask())
    world.discord.fail("send", ChatRefusedError("no permission"))
    assert await world.press(share) == make_text_reply(WORDS.cannot_speak)
    world.discord.set_private(world.discord.general)
    assert await world.press(share) == make_text_reply(WORDS.not_public)
    assert world.discord.posts() == ()


async def test_nothing_is_shared_where_the_operator_wants_it_to_listen_only() -> None:
    world = World(mode="capture_only")
    assert await world.press(share_of(await world.ask())) == make_text_reply(WORDS.not_speaking)
    assert world.discord.posts() == ()


async def test_only_the_last_answers_are_held_for_sharing() -> None:
    world = World(answers_kept=2)
    shares = [share_of(await world.ask(f"{n}?")) for n in range(3)]
    assert await world.press(shares[0]) == make_text_reply(WORDS.gone)
    assert await world.press(shares[1]) == make_text_reply(WORDS.shared)
    assert await world.press("intern:share:123") == make_text_reply(WORDS.gone)


# The team


async def test_the_team_alone_teaches_and_asks_why() -> None:
    world = World()
    question = world.discord.say("alice", "How?")
    answer = world.discord.say("maya", "like this", reply_to=question.id)
    assert await world.learn(answer, by="alice") == make_text_reply(WORDS.team_only)
    assert await world.why(by="alice") == make_text_reply(WORDS.team_only)


async def test_a_conversation_is_handed_on_and_the_teacher_is_told_what_it_is() -> None:
    world = World()
    question = world.discord.say("alice", "How do I install it?")
    answer = world.discord.say("maya", "like this", reply_to=question.id)
    learned = await world.learn(answer)
    (request,) = learned.captures
    assert request.messages == (question, answer)
    (text,) = learned.parts
    assert "1 message of members and 1 message of the team" in text
    assert text.endswith("beginning with “How do I install it?”.")


async def test_where_there_is_nothing_to_learn_the_teacher_is_told_so() -> None:
    world = World()
    alone = world.discord.say("alice", "How?")
    assert await world.learn(alone) == make_text_reply(commands.NOTHING_TO_LEARN)
    world.discord.delete(alone.channel_id, alone.id)
    assert await world.learn(alone) == make_text_reply(commands.NOTHING_TO_LEARN)


@pytest.mark.parametrize(
    "about",
    [
        "1234567890123456789",
        "https://discord.com/channels/1/2/1234567890123456789",
        "<https://discord.com/channels/1/2/1234567890123456789>",
        " 1234567890123456789 ",
    ],
)
async def test_why_takes_an_id_or_a_link(about: str) -> None:
    world = World()
    world.records.accounts["1234567890123456789"] = kept("1234567890123456789", outcome="posted")
    assert "**posted**" in (await world.why(about)).parts[0]


async def test_a_server_is_managed_by_members_who_may_and_only_where_the_operator_lets_them() -> None:
    world = World()
    seen: list[str] = []

    async def manage(command: ServerCommand) -> str:
        seen.append(command.user.name)
        return "done"

    async def use(kind: type[ServerCommand], by: str, *, manages: bool = False) -> InteractionReply:
        return await world.desk.handle(kind(interaction=world.ticket(), user=world.person(by), manages=manages))

    assert await use(SetupCommand, "alice", manages=True) == make_text_reply(WORDS.unknown_command)
    world.desk.manage = manage
    assert await use(SetupCommand, "alice", manages=True) == await use(StatusCommand, "maya") == make_text_reply("done")
    assert await use(SetupCommand, "maya") == await use(StatusCommand, "bob") == make_text_reply(WORDS.managers_only)
    assert seen == ["alice", "maya"]


async def test_why_tells_what_people_thought_of_the_answer_and_what_it_cites() -> None:
    world = World()
    world.records.accounts["1234567890123456789"] = kept(
        "1234567890123456789", debug={"generation": {"citations": ["kb:a.md", "kb:b.md"]}}
    )
    assert "votes" not in (await world.why("1234567890123456789")).parts[0]
    world.feedback.counted = Votes(up=3, down=1)
    (text,) = (await world.why("1234567890123456789")).parts
    assert "votes: 👍 3, 👎 1" in text
    assert "citations `kb:a.md`, `kb:b.md`" in text


@pytest.mark.parametrize("reason", sorted({*get_args(DeclineReason), "team_answered", "not_public"}))
async def test_why_tells_in_words_why_a_question_was_declined_or_its_reply_withheld(reason: str) -> None:
    world = World()
    world.records.accounts[world.discord.general] = kept("7", outcome="shed", reason=reason)
    (text,) = (await world.why()).parts
    assert text.startswith("Message 7: **shed**. ")
    assert text.endswith(".")
    assert not text.endswith(f" {reason}")


async def test_why_without_a_message_is_about_the_newest_question_of_the_channel() -> None:
    world = World()
    assert await world.why() == make_text_reply(commands.NO_RECORD)
    world.records.accounts[world.discord.general] = kept("7", outcome="silent", reason="rejected")
    assert "Message 7: **silent**" in (await world.why()).parts[0]
    assert await world.why("the one above") == make_text_reply(commands.NO_MESSAGE)
    assert await world.why("1234567890123456789") == make_text_reply(commands.NO_RECORD)


def test_an_account_tells_each_step_and_its_sources() -> None:
    text = format_trace(
        kept(
            "7",
            outcome="silent",
            reason="rejected",
            debug={
                "gate": {"kind": "question", "reason": "asks\nhow", "seconds": 0.1},
                "selection": {"source_ids": ["kb:a.md", "team:b`.txt"]},
                "verification": {"is_good_enough": False, "issues": []},
                "seconds": 1.5,
            },
        )
    )
    assert text.splitlines() == [
        "Message 7: **silent**. The answer failed its check.",
        "- gate: kind question; reason asks how; seconds 0.1",
        "- selection: source ids `kb:a.md`, `team:b.txt`",
        "- verification: is good enough False",
        "- seconds: 1.5",
    ]


async def test_an_account_shows_no_link_of_strangers() -> None:
    world = World()
    world.records.accounts[world.discord.general] = kept(
        "7",
        reason="see https://evil.example [x](https://evil.example)",
        debug={"gate": "x" * 900},
    )
    (text,) = (await world.why()).parts
    assert "https://" not in text


def test_each_reason_has_words() -> None:
    assert {each for each in get_args(SilenceReason) if each} <= set(SILENCES)
