"""The reviewer: the effects of a team member's ✅, and when it has none."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager

import pytest
from anyio import create_memory_object_stream, fail_after
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from msgspec.structs import replace

from intern.actors.loops import wake
from intern.actors.reviewer import LOOK_AGAIN_SECONDS, Reviewer
from intern.core.captures import CapturedPair
from intern.core.decisions import PairApproved, PairDecision
from intern.core.errors import ChatRefusedError, ChatUnavailableError, ConfigError, InternError, KnowledgeError
from intern.core.flow import ApprovalReaction, CaptureArchived
from intern.core.ids import ChannelId, MessageId, QAId, UserId
from intern.learning.approvals import HELD_FOR, ApprovalQueue
from intern.learning.review import Review
from tests.worlds.actors import finishing
from tests.worlds.bot import Watching
from tests.worlds.clock import HandClock, all_quiet, leap
from tests.worlds.samples import CHANNEL, GUILD, pair

NOW = HandClock().now()
OLDER = replace(pair(n=-3), qa_id=QAId("qa_older"), timestamp=NOW)
NEWER = replace(pair(n=-2), qa_id=QAId("qa_newer"), timestamp=NOW)
LATER = replace(pair(n=5), qa_id=QAId("qa_later"), timestamp=NOW)  # it has messages from after the approval
WORD = ApprovalReaction(guild_id=GUILD, channel_id=CHANNEL, message_id=NEWER.message_ids[1], by=UserId("77"))


pytestmark = pytest.mark.leaps


class Reviews:
    """Has the waiting pairs, newest first, and notes the decisions; may fail first."""

    def __init__(self, *waiting: CapturedPair) -> None:
        self.waiting = waiting
        self.said: list[Review] = []
        self.failing: list[InternError] = []

    async def find_waiting_pairs(self, message_id: MessageId, /) -> Sequence[CapturedPair]:
        return self.waiting

    async def review(self, review: Review, /) -> Sequence[PairDecision]:
        if self.failing:
            raise self.failing.pop(0)
        self.said.append(review)
        return [PairApproved(qa_id=qa_id, by=review.by, at=NOW) for qa_id in review.qa_ids]


class Door:
    """Admits channels, or raises an error."""

    def __init__(self, *answers: bool | InternError) -> None:
        self.answers = list(answers)
        self.asked: list[ChannelId] = []

    async def admits(self, channel_id: ChannelId) -> bool:
        self.asked.append(channel_id)
        answer = self.answers.pop(0) if self.answers else True
        if isinstance(answer, InternError):
            raise answer
        return answer


class Room:
    """A reviewer at work, and its two clocks turned together."""

    def __init__(
        self,
        approvals: ApprovalQueue,
        clock: HandClock,
        approved: MemoryObjectSendStream[ApprovalReaction],
        archived: MemoryObjectReceiveStream[CaptureArchived],
        events: Watching,
    ) -> None:
        self.approvals = approvals
        self.events = events
        self._clock = clock
        self._approved = approved
        self._archived = archived

    async def hear(self, word: ApprovalReaction = WORD) -> None:
        self.approvals.receive(word)
        wake(self._approved, word)
        await all_quiet()

    async def pass_time(self, seconds: float = LOOK_AGAIN_SECONDS) -> None:
        self._clock.turn(seconds=seconds)
        await leap(seconds)
        await all_quiet()

    @property
    def woken(self) -> bool:
        return self._archived.statistics().current_buffer_used == 1


@asynccontextmanager
async def at_work(reviews: Reviews, door: Door | None = None) -> AsyncGenerator[Room]:
    clock = HandClock(NOW)
    approvals, events = ApprovalQueue(clock=clock), Watching()
    approved, to_review = create_memory_object_stream[ApprovalReaction](1)
    archived, to_classify = create_memory_object_stream[CaptureArchived](1)
    with fail_after(100_000), approved, to_classify:
        async with finishing(
            Reviewer(approvals=approvals, reviews=reviews, admits=(door or Door()).admits, events=events).run,
            to_review,
            archived,
        ):
            await all_quiet()
            yield Room(approvals, clock, approved, to_classify, events)
            approved.close()  # it ends with its wakeups, whatever is still held


def approving(*pairs: CapturedPair) -> list[Review]:
    return [Review(action="approve", qa_ids=(each.qa_id,), by="77") for each in pairs]


async def test_the_newest_capture_that_waits_is_approved_by_whoever_did_it_and_filed_next() -> None:
    reviews, door = Reviews(NEWER, OLDER), Door()
    async with at_work(reviews, door) as room:
        await room.hear()
        assert reviews.said == approving(NEWER)
        assert (room.woken, door.asked, room.approvals.list_waiting()) == (True, [CHANNEL], ())
        assert room.events.all_of(PairApproved) == [PairApproved(qa_id=NEWER.qa_id, by="77", at=NOW)]


async def test_what_was_said_after_the_word_is_left_to_wait() -> None:
    reviews = Reviews(LATER, OLDER)
    async with at_work(reviews) as room:
        await room.hear()
        assert reviews.said == approving(OLDER)


async def test_a_word_that_is_faster_than_the_capture_counts_once_that_is_there() -> None:
    reviews, door = Reviews(), Door()
    async with at_work(reviews, door) as room:
        await room.hear()
        await room.pass_time()
        assert (reviews.said, door.asked, room.woken) == ([], [], False)
        reviews.waiting = (NEWER,)
        await room.pass_time()
        assert (reviews.said, room.woken) == (approving(NEWER), True)
        await room.pass_time()
        assert len(reviews.said) == 1


async def test_a_word_is_held_no_longer_than_a_capture_may_take() -> None:
    reviews = Reviews()
    async with at_work(reviews) as room:
        await room.hear()
        await room.pass_time(HELD_FOR.total_seconds() + 1)
        reviews.waiting = (NEWER,)
        await room.pass_time()
        assert reviews.said == []


@pytest.mark.parametrize("answer", [False, ChatRefusedError("unknown channel")])
async def test_where_intern_may_not_listen_nobody_approves_anything(answer: bool | InternError) -> None:  # noqa: FBT001
    reviews = Reviews(NEWER)
    async with at_work(reviews, Door(answer)) as room:
        await room.hear()
        await room.pass_time()
        assert (reviews.said, room.woken, room.approvals.list_waiting()) == ([], False, ())


async def test_discord_and_the_disk_may_fail_a_while() -> None:
    reviews = Reviews(NEWER)
    reviews.failing = [KnowledgeError("the disk is full")]
    async with at_work(reviews, Door(ChatUnavailableError("down"))) as room:
        await room.hear()
        await room.pass_time()
        assert (reviews.said, room.woken) == ([], False)
        await room.pass_time()
        assert (reviews.said, room.woken) == (approving(NEWER), True)


async def test_who_was_faster_with_the_command_has_the_last_word() -> None:
    reviews = Reviews(NEWER)
    reviews.failing = [ConfigError("it has been rejected already")]
    async with at_work(reviews) as room:
        await room.hear()
        await room.pass_time()
        assert (reviews.said, room.approvals.list_waiting()) == ([], ())
