"""The main job on real chat: from messages to topic files, by the real actors and the offline model."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import pytest
from anyio import create_task_group, fail_after
from anyio.streams.memory import MemoryObjectReceiveStream

from intern.actors.activity import ActivityReporter
from intern.actors.batcher import batcher
from intern.actors.capturer import capturer
from intern.actors.classifier import Classifier
from intern.actors.integrator import Integrator
from intern.actors.pipeline import (
    ANSWERS,
    ARCHIVED,
    BATCHES,
    CAPTURES,
    CHANGES,
    DECIDED,
    EVENTS,
    FILINGS,
    PENDING,
    REPLIES,
    WITHDRAWALS,
)
from intern.actors.sequencer import Sequencer
from intern.answering.replies import Decliner
from intern.chat.batching import OpenBatches
from intern.chat.checkpoints import Checkpoints
from intern.chat.delivery import RecallableReplies
from intern.chat.routing import BatchRouter
from intern.core.flow import AnswerRequest, MessageCreated, MessageRevisions, QuestionDeclined, Reply
from intern.core.ids import ChannelId, MessageId
from intern.core.messages import ChatMessage
from intern.learning.message_changes import MessageChanges
from intern.models.prompt import OfflineModel
from intern.service.models import collect_offline_rules
from intern.service.writer import Writer
from intern.settings.loading import load_settings
from intern.settings.settings import Settings
from intern.stores.engines.sqlite.database import SqliteDatabase
from intern.stores.tables.checkpoints import StoredCheckpoints
from tests.eval.chats import EVAL, ChatLine, Exchange, chat_lines, exchanges
from tests.service.writers import open_writer
from tests.worlds.actors import Attempts
from tests.worlds.chat import Sandbox
from tests.worlds.clock import HandClock
from tests.worlds.learners import NoPictures

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.rest,
    pytest.mark.skipif(not EVAL.is_dir(), reason="needs the real chats, which are not part of the project"),
]


@pytest.fixture
def anyio_backend() -> str:
    """One is enough: each actor is tested on both by itself, and this is some thousand messages."""
    return "trio"


class LogClock(HandClock):
    """Tells the time of the log that is read."""

    def set(self, now: datetime) -> None:
        self._now = now


def settings_in(folder: Path) -> Settings:
    return load_settings(environ={}, overrides={"data": {"dir": str(folder)}, "kb": {"mask_secrets": False}})


def in_a_thread(each: Exchange, sandbox: Sandbox, clock: LogClock) -> list[ChatMessage]:
    """An exchange as a Discord thread on its first message: questions, answers and follow-ups in the log's order."""
    parent = sandbox.add_channel(each.channel)
    place = parent
    messages: list[ChatMessage] = []
    for line in (chat_lines()[message_id] for message_id in each.ids):
        clock.set(line.at)
        message = sandbox.say(name_of(line, each), line.text, channel_id=place)
        if place == parent:
            place = sandbox.open_thread(parent, message.id, "a question")
        messages.append(message)
    return messages


def in_replies(each: Exchange, sandbox: Sandbox, clock: LogClock) -> list[ChatMessage]:
    """An exchange in a channel of its own; each line that replies in the log is a Discord reply to the same line."""
    place = sandbox.add_channel(each.channel)
    said: dict[str, ChatMessage] = {}
    for line in (chat_lines()[message_id] for message_id in each.ids):
        clock.set(line.at)
        target = next((said[message_id] for message_id in line.reply_to if message_id in said), None)
        said[line.message_id] = sandbox.say(
            name_of(line, each), line.text, channel_id=place, reply_to=target.id if target else None
        )
    return list(said.values())


def name_of(line: ChatLine, each: Exchange) -> str:
    """Return an author's name, with a mark for the team, which differs by channel."""
    return f"{line.author} (team)" if line.author in each.team else f"{line.author}"


async def everywhere(_: ChannelId) -> bool:
    return True


async def unanswered(asked: MemoryObjectReceiveStream[AnswerRequest | MessageRevisions]) -> None:
    """Nobody answers questions here."""
    async with asked:
        async for _ in asked:
            pass


class Unsaid(Decliner):
    """Nobody is told why there is no answer."""

    def __init__(self) -> None:
        """Without words."""

    async def record_decline(self, declined: QuestionDeclined) -> None:
        del declined

    def decide_reply(self, declined: QuestionDeclined) -> Reply | None:
        del declined
        return None


async def learned(folder: Path, conversations: Sequence[list[ChatMessage]], sandbox: Sandbox) -> Writer:
    """Everything through batcher, sequencer, capturer, classifier and integrator; the stores as they are afterwards."""
    settings, events = settings_in(folder), ActivityReporter()
    async with await SqliteDatabase.open(settings.paths.database) as db:
        writer = open_writer(
            settings, db, OfflineModel(collect_offline_rules()), HandClock(datetime(2026, 1, 1, tzinfo=UTC))
        )
        dispatch = BatchRouter(
            sandbox,
            writer.stores.posts,
            settings.conversations,
            guild_ids=[sandbox.guild_id],
            admits=sandbox.admits,
            clock=HandClock(),
        )
        late = MessageChanges(writer.stores.archive, admits=everywhere, pending=writer.stores.pending)
        checkpoints = Checkpoints(StoredCheckpoints(), baseline=MessageId("0"))
        heard, to_batch = EVENTS.open()
        batches, to_route = BATCHES.open()
        questions, asked = ANSWERS.open()
        captures, to_capture = CAPTURES.open()
        archived, to_classify = ARCHIVED.open()
        filings, to_file = FILINGS.open()
        withdrawals, to_withdraw = WITHDRAWALS.open()
        changed, nudged = CHANGES.open()
        decided, to_extract = DECIDED.open()
        words, said = REPLIES.open()
        waiting, pending = PENDING.open()
        async with nudged, to_extract, said, pending, create_task_group() as tg:
            tg.start_soon(unanswered, asked)
            tg.start_soon(
                partial(
                    batcher,
                    to_batch,
                    batches,
                    open_batches=OpenBatches(0),
                    settle=checkpoints.settle,
                    clock=HandClock(),
                    flush=True,
                )
            )
            tg.start_soon(
                Sequencer(
                    dispatch=dispatch.route,
                    declines=Unsaid(),
                    outgoing=RecallableReplies(),
                    late=late,
                    settle=checkpoints.settle,
                    events=events,
                ).run,
                to_route,
                questions,
                captures,
                withdrawals,
                words,
            )
            tg.start_soon(
                partial(
                    capturer,
                    to_capture,
                    archived,
                    waiting,
                    keep=writer.learning.keep,
                    known=NoPictures().known,
                    pending=writer.stores.pending,
                    settle=checkpoints.settle,
                    events=events,
                )
            )
            tg.start_soon(
                Classifier(
                    archive=writer.learning.read_pairs_after,
                    after=None,
                    choose=writer.learning.choose_topic,
                    events=events,
                    attempts=Attempts(),
                ).run,
                to_classify,
                filings,
            )
            tg.start_soon(
                Integrator(filer=writer.learning, attempts=Attempts(), events=events).run,
                to_file,
                to_withdraw,
                changed,
                decided,
            )
            async with heard:
                for messages in conversations:
                    for message in messages:
                        await heard.send(MessageCreated(message=message))
        return writer


def team_of(held: Sequence[Exchange]) -> set[str]:
    return {f"{name} (team)" for each in held for name in each.team}


@pytest.mark.timeout(600)
async def test_every_message_of_an_answered_question_is_archived_and_most_are_filed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    clock, held = LogClock(), exchanges()
    sandbox = Sandbox(clock, team=team_of(held))
    conversations = [in_a_thread(each, sandbox, clock) for each in held]
    with fail_after(500):
        writer = await learned(tmp_path, conversations, sandbox)

    filed = 0
    for messages in conversations:
        home = next(iter(writer.stores.archive.find_conversations(messages[0].id)), None)
        assert home is not None
        pair = writer.stores.archive.latest_capture(home)
        assert pair is not None
        assert [turn.text for turn in pair.turns] == [message.text for message in messages]
        decision = writer.stores.knowledge.last_decision(pair.qa_id)
        assert decision is not None
        topic = writer.stores.knowledge.find_topic(pair.qa_id)
        if topic is None:
            assert decision.reason
            continue
        [block] = [block for block in writer.stores.knowledge.read_topic(topic) if block.qa_id == pair.qa_id]
        assert block.turns == pair.turns
        filed += 1
    with capsys.disabled():
        print(f"\n{len(held)} exchanges, {filed} in {len(writer.stores.knowledge.topic_names())} topic files")
    assert filed >= 0.9 * len(held)


@pytest.mark.timeout(600)
async def test_every_team_reply_in_a_channel_is_archived_with_what_it_replies_to(tmp_path: Path) -> None:
    clock, held = LogClock(), exchanges()
    sandbox = Sandbox(clock, team=team_of(held))
    conversations = [in_replies(each, sandbox, clock) for each in held]
    with fail_after(500):
        writer = await learned(tmp_path, conversations, sandbox)

    answers = 0
    for messages in conversations:
        by_id = {message.id: message for message in messages}
        for answer in messages:
            question = by_id.get(answer.reply_to) if answer.reply_to else None
            if answer.author.type != "team_member" or question is None or question.author.type != "community_user":
                continue
            home = next(iter(writer.stores.archive.find_conversations(answer.id)), None)
            assert home is not None
            pair = writer.stores.archive.latest_capture(home)
            assert pair is not None
            texts = [turn.text for turn in pair.turns]
            assert question.text in texts
            assert answer.text in texts
            answers += 1
    assert answers > len(held)
