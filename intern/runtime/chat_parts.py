"""The parts that read the chat platform and post there: progress, gateway, batches, their sequence, replies."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import NamedTuple

from intern.actors.activity import ActivityReporter
from intern.actors.backfill import Backfill
from intern.actors.batcher import batcher
from intern.actors.checkpointer import MessageSettler
from intern.actors.listener import GatewayListener
from intern.actors.missed_changes import MissedChangesGateway
from intern.actors.pipeline import Start
from intern.actors.poster import Poster, WaitingReplies
from intern.actors.sequencer import Sequencer
from intern.answering.replies import Decliner
from intern.answering.wordings import Wordings
from intern.chat.batching import OpenBatches
from intern.chat.checkpoints import Checkpoints
from intern.chat.delivery import OutboxDelivery, RecallableReplies
from intern.chat.platform import ChatPlatform
from intern.chat.quota import QuestionQuota
from intern.chat.routing import BatchRouter, PrivateNotices, Requests
from intern.core.flow import Batch
from intern.core.ids import parse_position, position_at
from intern.learning.answered_threads import AnsweredThreadLearner, ThreadReader
from intern.learning.approvals import ApprovalQueue
from intern.learning.message_changes import MessageChanges
from intern.learning.missed_changes import MissedChangeFinder
from intern.runtime.channel_admission import ChannelAdmission
from intern.service.activity_recorder import ASKED
from intern.service.gateway_watch import GatewayWatch, drop_deleted
from intern.service.stores import Stores
from intern.service.writer import Writer
from intern.stores.tables.checkpoints import CheckpointStore
from intern.stores.tables.members import GreetedMembers


class ReadingProgress(NamedTuple):
    """The channels that are read, and how far; and how much was asked there today."""

    audience: ChannelAdmission
    checkpoints: Checkpoints
    attended: datetime
    """When an earlier run was connected last."""
    late: MessageChanges
    settler: MessageSettler
    quota: QuestionQuota


@dataclass(frozen=True, kw_only=True)
class ChatParts:
    """The parts that read the chat platform and post there."""

    actors: Mapping[str, Start]
    watch: GatewayWatch
    approvals: ApprovalQueue
    outgoing: RecallableReplies
    delivery: OutboxDelivery
    waiting: WaitingReplies


async def open_reading(chat: ChatPlatform, writer: Writer) -> ReadingProgress:
    """Load how far the channels were read. Raises KnowledgeError."""
    stores, answered = writer.stores, writer.extraction.answered
    # On a server without checkpoints, messages are read as far back as the operator wants.
    first = position_at(stores.clock.now() - timedelta(seconds=stores.settings.discord.first_lookback)).id
    marks = await CheckpointStore(stores.db).load_or_create(chat.guild_ids, first)
    attended = [parse_position(marks.attended[guild_id]).time for guild_id in chat.guild_ids]
    chat.restore_roles(await stores.roles.read_recent())
    audience = ChannelAdmission(chat, stores.settings.conversations)
    await answered.open(ThreadReader(chat, audience.admits_id))
    late = MessageChanges(
        stores.archive,
        admits=audience.admits_id,
        pending=stores.pending,
        answered=answered.threads,
        done_with=stores.posts.is_done,
    )
    checkpoints, now = Checkpoints(marks, baseline=first), stores.clock.now()
    settler, quota = MessageSettler(checkpoints.settle, late.mark_settled), await _open_quota(stores)
    return ReadingProgress(audience, checkpoints, min(attended, default=now), late, settler, quota)


async def _open_quota(stores: Stores) -> QuestionQuota:
    counted = await stores.counts.read_day(stores.clock.now().date())
    return QuestionQuota(
        stores.settings.discord.max_questions_per_user_per_hour,
        clock=stores.clock,
        per_day=stores.settings.hosting.questions_per_day,
        asked_today=sum(counted.get(each, 0) for each in ASKED),
    )


def build_chat_parts(
    chat: ChatPlatform, reading: ReadingProgress, writer: Writer, *, wordings: Wordings, events: ActivityReporter
) -> ChatParts:
    """Build the parts that read the platform and post there."""
    stores, answered = writer.stores, writer.extraction.answered
    checkpoints, settler = reading.checkpoints, reading.settler
    batch_wait = stores.settings.discord.message_batch_wait_seconds
    watch, approvals, outgoing = GatewayWatch(stores.clock), ApprovalQueue(clock=stores.clock), RecallableReplies()
    delivery = _build_delivery(chat, stores, reading.audience, wordings, outgoing)
    poster = Poster(
        posts=delivery,
        outgoing=outgoing,
        records=stores.answers,
        settle=settler.settle,
        events=events,
        # The asker's last messages have become a question by then, or never will.
        hold_seconds=batch_wait + 5,
    )
    sequencer = Sequencer(
        dispatch=partial(_route_batch, _build_router(chat, stores, reading.quota), answered),
        declines=Decliner(wordings, records=stores.answers, clock=stores.clock),
        outgoing=outgoing,
        late=reading.late,
        settle=settler.settle,
        capturing=settler.expect_capture,
        events=events,
    )
    actors: dict[str, Start] = {
        "listener": _build_listener(chat, writer, reading, watch, approvals).run,
        "backfill": Backfill(checkpoints=checkpoints, pages=chat).run,
        "batcher": partial(
            batcher, open_batches=OpenBatches(batch_wait), settle=checkpoints.settle, clock=stores.clock
        ),
        "sequencer": sequencer.run,
        "poster": poster.run,
    }
    return ChatParts(
        actors=actors, watch=watch, approvals=approvals, outgoing=outgoing, delivery=delivery, waiting=poster.waiting
    )


def _build_listener(
    chat: ChatPlatform, writer: Writer, reading: ReadingProgress, watch: GatewayWatch, approvals: ApprovalQueue
) -> GatewayListener:
    """Return the listener, with all that subscribes to the events of the gateway."""
    stores = writer.stores
    missed = MissedChangeFinder(
        stores.archive,
        chat,
        is_withdrawn=stores.knowledge.is_withdrawn,
        admits=reading.audience.admits_id,
        mask=writer.extraction.answered.mask,
    )
    drops = (stores.answers.drop, stores.recorder.drop, stores.pending.drop)
    return GatewayListener(
        gateway=MissedChangesGateway(chat, missed.check, attended=reading.attended, clock=stores.clock),
        checkpoints=reading.checkpoints,
        subscribers=(watch.receive, *(partial(drop_deleted, drop) for drop in drops), approvals.receive),
        admits=chat.admits,
    )


def _build_delivery(
    chat: ChatPlatform, stores: Stores, audience: ChannelAdmission, wordings: Wordings, outgoing: RecallableReplies
) -> OutboxDelivery:
    return OutboxDelivery(
        chat,
        stores.posts,
        chat,
        outgoing=outgoing,
        clock=stores.clock,
        capabilities=chat.capabilities,
        admits=audience.admits_id,
        max_age=timedelta(seconds=stores.settings.discord.max_question_age),
        late={language: wording.late for language, wording in wordings.items()},
        unposted={language: wording.unposted for language, wording in wordings.items()},
        retracted={language: wording.retracted for language, wording in wordings.items()},
    )


def _build_router(chat: ChatPlatform, stores: Stores, quota: QuestionQuota) -> BatchRouter:
    return BatchRouter(
        chat,
        stores.posts,
        stores.settings.conversations,
        guild_ids=chat.guild_ids,
        admits=chat.admits,
        clock=stores.clock,
        count_question=quota,
        private=PrivateNotices(chat, GreetedMembers(stores.db, clock=stores.clock)),
    )


async def _route_batch(router: BatchRouter, answered: AnsweredThreadLearner, batch: Batch) -> Requests:
    """Decide the work for a batch; a thread that was read before is scheduled again because of it."""
    answered.receive(batch)
    return await router.route(batch)
