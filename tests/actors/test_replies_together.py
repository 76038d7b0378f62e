"""Responder and poster together, with the real ledger and traces, on a Discord in memory."""

from __future__ import annotations

import math
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from anyio import Event, create_memory_object_stream, create_task_group, fail_after, wait_all_tasks_blocked

from intern.actors.activity import ActivityReporter
from intern.actors.poster import Poster
from intern.actors.responder import Responder
from intern.answering.replies import ReplyBuilder, answer_buttons
from intern.answering.wordings import load_wordings
from intern.chat.context import BatchContext
from intern.chat.conversations import build_answer_request
from intern.chat.delivery import RecallableReplies
from intern.chat.options import ConversationOptions
from intern.core.errors import KnowledgeError
from intern.core.flow import AnswerRequest, Batch, MessageRevisions, Reply
from intern.core.ids import ChannelId, MessageId, RoleId
from intern.core.messages import AnswerResult, ChatMessage, Conversation, RequestContext, SilenceReason
from intern.stores.engines.sqlite.database import SqliteDatabase
from intern.stores.tables.answers import AnswerStore
from intern.stores.tables.outbox import Outbox, Post
from tests.worlds.actors import NO_PAUSES
from tests.worlds.chat import PostDetails, Sandbox, make_delivery
from tests.worlds.clock import HandClock

TEAM = RoleId("42")


class FullDisk(Outbox):
    """A ledger that fails at one of its steps, until there is room again after so many tries."""

    full_at = ""
    tries = math.inf

    async def begin(self, *reply: Any, **more: Any) -> Post:
        self._needs_room("begin")
        return await super().begin(*reply, **more)

    async def save_thread(self, question_id: MessageId, thread_id: ChannelId) -> None:
        self._needs_room("thread_made")
        await super().save_thread(question_id, thread_id)

    async def save_sent_part(self, question_id: MessageId, n: int, message_id: MessageId) -> None:
        self._needs_room("part_sent")
        await super().save_sent_part(question_id, n, message_id)

    async def mark_finished(self, question_id: MessageId) -> None:
        self._needs_room("finished")
        await super().mark_finished(question_id)

    def _needs_room(self, step: str) -> None:
        if step == self.full_at and self.tries:
            self.tries -= 1
            raise KnowledgeError("database or disk is full")


class Bot:
    """Both actors at work; echoes the question, or is silent for the reason `silence`, once `gate` is open."""

    def __init__(self, db: SqliteDatabase, clock: HandClock, discord: Sandbox | None = None) -> None:
        self.clock = clock
        self.discord = discord or Sandbox(clock, team={"mira"})
        self.records = AnswerStore(db, clock=clock)
        self.ledger = FullDisk(db, clock=clock)
        self.settled: set[MessageId] = set()
        self.gate = Event()
        self.silence: SilenceReason = ""
        outgoing, options, events = RecallableReplies(), ConversationOptions(), ActivityReporter()
        self.requests, self._inbox = create_memory_object_stream[AnswerRequest | MessageRevisions](16)
        self._replies, self._to_post = create_memory_object_stream[Reply](16)
        self._for_responder = Responder(
            answers=self,
            replying=ReplyBuilder(load_wordings(), options, handoff_role_id=TEAM),
            outgoing=outgoing,
            done_with=self.ledger.is_done,
            typing=self.discord.typing,
            records=self.records,
            settle=self.settle,
            events=events,
        )
        self._for_poster = Poster(
            posts=make_delivery(self.discord, self.ledger, self.discord, outgoing=outgoing, clock=clock),
            outgoing=outgoing,
            records=self.records,
            settle=self.settle,
            events=events,
            hold_seconds=60,
            backoff=NO_PAUSES,
        )

    async def answer(
        self, conversation: Conversation, context: RequestContext, *, addressed: bool = False
    ) -> AnswerResult:
        await self.gate.wait()
        if self.silence:
            return AnswerResult(should_reply=False, reason=self.silence)
        return AnswerResult(should_reply=True, reply_text=" ".join(each.text for each in conversation.messages))

    def settle(self, channel_id: ChannelId, message_ids: Sequence[MessageId]) -> None:
        self.settled.update(message_ids)

    async def ask(self, *messages: ChatMessage) -> AnswerRequest:
        batch = Batch(channel_id=messages[-1].channel_id, author=messages[-1].author, messages=messages)
        place = await self.discord.channel(batch.channel_id)
        asked = build_answer_request(batch, place, BatchContext(), ConversationOptions(), addressed=False)
        await self.requests.send(asked)
        await wait_all_tasks_blocked()
        return asked

    async def until_settled(self, *messages: ChatMessage) -> None:
        while not self.settled >= {message.id for message in messages}:
            await wait_all_tasks_blocked()

    async def run(self) -> None:
        async with create_task_group() as tg:
            tg.start_soon(self._for_responder.run, self._inbox, self._replies)
            tg.start_soon(self._for_poster.run, self._to_post)


@asynccontextmanager
async def at_work(folder: Path, earlier: Bot | None = None) -> AsyncGenerator[Bot]:
    with fail_after(30):
        async with await SqliteDatabase.open(folder / "intern.db") as db, create_task_group() as tg:
            bot = Bot(db, earlier.clock, earlier.discord) if earlier else Bot(db, HandClock())
            async with bot.requests:
                tg.start_soon(bot.run)
                yield bot


async def test_a_question_is_answered_in_its_thread_with_buttons_and_what_became_of_it_is_known(tmp_path: Path) -> None:
    async with at_work(tmp_path) as bot:
        question = bot.discord.say("alice", "How do I start?")
        await bot.ask(question)
        while not bot.discord.typed_in:
            await wait_all_tasks_blocked()
        bot.gate.set()
        await bot.until_settled(question)
        [reply] = bot.discord.posts()
        assert (reply.channel_id, reply.text) == (ChannelId(question.id), "How do I start?")
        assert bot.discord.sent[reply.id] == PostDetails(buttons=answer_buttons(question.id))
        assert bot.discord.typed_in == [bot.discord.general]
        trace = await bot.records.find(reply.id)
        while trace is None or trace.outcome != "answer posted":
            trace = await bot.records.find(reply.id)
        assert trace.question_id == question.id


async def test_what_the_asker_adds_before_the_reply_left_is_answered_with_it_in_one_reply(tmp_path: Path) -> None:
    async with at_work(tmp_path) as bot:
        bot.gate.set()
        first = bot.discord.say("alice", "How do I start?")
        second = bot.discord.say("alice", "On Windows.")
        await bot.ask(first)
        await wait_all_tasks_blocked()
        assert bot.discord.posts() == (), "it is held: she was not through"
        await bot.ask(second)
        await bot.until_settled(first, second)
        [reply] = bot.discord.posts()
        assert (reply.channel_id, reply.text) == (ChannelId(second.id), "How do I start? On Windows.")
        await bot.ask(first)
        await wait_all_tasks_blocked()
        assert len(bot.discord.posts()) == 1, "a question that comes again, after a restart say, has its reply"


async def test_a_question_that_is_deleted_while_it_is_thought_over_gets_no_reply(tmp_path: Path) -> None:
    async with at_work(tmp_path) as bot:
        question = bot.discord.say("alice", "How do I start?")
        await bot.ask(question)
        bot.discord.delete(bot.discord.general, question.id)
        await bot.requests.send(MessageRevisions(versions={question.id: None}))
        await bot.until_settled(question)
        bot.gate.set()
    assert bot.discord.posts() == ()


@pytest.mark.rest
@pytest.mark.parametrize("step", ["begin", "thread_made", "part_sent", "finished"])
async def test_a_reply_that_the_ledger_had_no_room_for_is_posted_once_when_there_is_room(
    tmp_path: Path, step: str
) -> None:
    async with at_work(tmp_path) as bot:
        bot.gate.set()
        bot.ledger.full_at, bot.ledger.tries = step, 3
        question = bot.discord.say("alice", "How do I start?")
        await bot.ask(question)
        await bot.until_settled(question)
        assert not bot.ledger.tries
        [reply] = bot.discord.posts()
        assert (reply.channel_id, reply.text) == (ChannelId(question.id), "How do I start?")


@pytest.mark.rest
@pytest.mark.parametrize("step", ["begin", "thread_made", "part_sent", "finished"])
async def test_a_reply_that_the_ledger_had_no_room_for_is_posted_once_by_the_next_start(
    tmp_path: Path, step: str
) -> None:
    async with at_work(tmp_path) as bot:
        bot.gate.set()
        bot.ledger.full_at = step
        question = bot.discord.say("alice", "How do I start?")
        await bot.ask(question)
        trace = None
        while trace is None or trace.outcome != "answer failed":
            trace = await bot.records.find(question.id)
        assert bot.settled == set(), "Discord's history brings it back"
    bot.clock.turn(hours=1)  # no nonce protects any more
    async with at_work(tmp_path, bot) as again:
        again.gate.set()
        await again.ask(question)
        await again.until_settled(question)
        while await again.ledger.list_unfinished():
            await wait_all_tasks_blocked()
        [reply] = again.discord.posts()
        assert (reply.channel_id, reply.text) == (ChannelId(question.id), "How do I start?")


async def test_the_team_is_told_where_it_is_said_and_nobody_else_is(tmp_path: Path) -> None:
    async with at_work(tmp_path) as bot:
        bot.gate.set()
        bot.silence = "no_sources"
        asked = bot.discord.say("alice", "@intern how do I start?")
        other = bot.discord.say("bob", "how do I stop?")
        await bot.ask(asked)
        await bot.ask(other)
        await bot.until_settled(asked, other)
        [reply] = bot.discord.posts()
        assert reply.text == "I don't know this yet; the team has been told. <@&42>"
        assert bot.discord.sent[reply.id] == PostDetails(pings=(TEAM,))
        assert not await bot.ledger.has_answer_in(reply.channel_id)
