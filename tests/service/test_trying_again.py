"""The followers at work on a real folder: parked or approved pairs are filed without a command."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from anyio import create_memory_object_stream, create_task_group, fail_after
from anyio.streams.memory import MemoryObjectSendStream
from anyio.to_thread import run_sync

from intern.actors.activity import ActivityReporter
from intern.actors.classifier import Classifier
from intern.actors.integrator import Integrator
from intern.actors.loops import wake
from intern.core.captures import CapturedPair
from intern.core.decisions import PairApproved, PairFiled, PairParked
from intern.core.errors import ModelReplyError, ModelUnavailableError
from intern.core.flow import CaptureArchived, DecisionRecorded, FilingDecision, MessageWithdrawal, SourceChanged
from intern.learning.prompts import CLASSIFY, INTEGRATE, ClassifyOut, IntegrateOut
from intern.learning.review import Review
from intern.service.writer import Writer
from intern.settings.loading import load_settings
from intern.stores.engines.sqlite.database import SqliteDatabase
from tests.service.writers import open_writer
from tests.worlds import samples
from tests.worlds.clock import HandClock, all_quiet, leap, leaping
from tests.worlds.model import ScriptedModel

pytestmark = pytest.mark.anyio


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, Any]]:
    return leaping(request.param)


class Room:
    """A folder with its followers at work, and its two clocks turned together."""

    def __init__(
        self, writer: Writer, db: SqliteDatabase, clock: HandClock, archived: MemoryObjectSendStream[CaptureArchived]
    ) -> None:
        self.writer = writer
        self._db = db
        self._clock = clock
        self._archived = archived

    async def capture(self, n: int) -> CapturedPair:
        pair = await self.writer.learning.keep(samples.capture(f"How do I oil part {n}?", "Like this.", n=n))
        assert pair is not None
        await self.look()
        return pair

    async def look(self) -> None:
        wake(self._archived, CaptureArchived())
        await self.quiet()

    async def pass_time(self, seconds: float) -> None:
        self._clock.turn(seconds=seconds)
        await leap(seconds)
        await self.quiet()

    async def quiet(self) -> None:
        """Wait until all work that is due is done; each round sees one more write through, after all reads."""
        for _ in range(10):
            await all_quiet(self._db._limiter)
            await self._db.write(lambda _: None)
        await all_quiet(self._db._limiter)


@asynccontextmanager
async def room_in(folder: Path, model: ScriptedModel, clock: HandClock, **kb: object) -> AsyncGenerator[Room]:
    settings = load_settings(environ={}, overrides={"data": {"dir": str(folder)}, "kb": kb})
    archived, to_classify = create_memory_object_stream[CaptureArchived](1)
    filings, to_file = create_memory_object_stream[FilingDecision](0)
    withdrawals, to_withdraw = create_memory_object_stream[MessageWithdrawal](1)
    changed, to_index = create_memory_object_stream[SourceChanged](1)
    decided, to_extract = create_memory_object_stream[DecisionRecorded](1)
    with fail_after(1_000_000), archived, withdrawals, to_index, to_extract:
        async with await SqliteDatabase.open(settings.paths.database) as db:
            writer = await run_sync(open_writer, settings, db, model, clock)
            events, attempts = ActivityReporter(), writer.stores.attempts
            async with create_task_group() as tg:
                tg.start_soon(
                    Classifier(
                        archive=writer.learning.read_pairs_after,
                        after=writer.stores.find_last_decided(),
                        choose=writer.learning.choose_topic,
                        again=writer.learning.find_next_due,
                        attempts=attempts,
                        events=events,
                    ).run,
                    to_classify,
                    filings,
                )
                tg.start_soon(
                    Integrator(filer=writer.learning, attempts=attempts, events=events).run,
                    to_file,
                    to_withdraw,
                    changed,
                    decided,
                )
                room = Room(writer, db, clock, archived)
                await room.quiet()
                yield room
                tg.cancel_scope.cancel()


def named(topic: str) -> ClassifyOut:
    return ClassifyOut(skip=False, topic_name=topic)


GIBBERISH = ModelReplyError("gibberish")


async def test_a_parked_pair_is_tried_again_by_itself_when_its_time_has_come(tmp_path: Path) -> None:
    model, clock = ScriptedModel(), HandClock()
    async with room_in(tmp_path, model, clock) as room:
        model.next(CLASSIFY, GIBBERISH, GIBBERISH, named("drum"))
        pair = await room.capture(1)
        asked = [len(model.asked)]
        for seconds in (590, 10, 3590, 11, 100_000):
            await room.pass_time(seconds)
            asked.append(len(model.asked))
        assert asked == [1, 1, 2, 2, 3, 3]
        assert isinstance(room.writer.stores.knowledge.last_decision(pair.qa_id), PairFiled)


async def test_after_three_times_it_waits_for_a_person_and_others_go_on(tmp_path: Path) -> None:
    model, clock = ScriptedModel(), HandClock()
    async with room_in(tmp_path, model, clock) as room:
        model.next(CLASSIFY, *[GIBBERISH] * 4)
        pair = await room.capture(1)
        for seconds in (601, 3601, 21_601, 100_000):
            await room.pass_time(seconds)
        assert len(model.asked) == 4
        assert isinstance(room.writer.stores.knowledge.last_decision(pair.qa_id), PairParked)
        model.next(CLASSIFY, named("drum"))
        other = await room.capture(2)
        assert room.writer.stores.knowledge.find_topic(other.qa_id) == "drum"


async def test_what_fell_due_while_nobody_was_there_is_tried_at_the_start(tmp_path: Path) -> None:
    model, clock = ScriptedModel(), HandClock()
    async with room_in(tmp_path, model, clock) as room:
        model.next(CLASSIFY, GIBBERISH)
        pair = await room.capture(1)
    clock.turn(hours=1)
    model.next(CLASSIFY, named("drum"))
    async with room_in(tmp_path, model, clock) as room:
        assert room.writer.stores.knowledge.find_topic(pair.qa_id) == "drum"


async def test_an_outage_delays_a_retry_and_does_not_count(tmp_path: Path) -> None:
    model, clock = ScriptedModel(), HandClock()
    async with room_in(tmp_path, model, clock) as room:
        model.next(CLASSIFY, GIBBERISH, *[ModelUnavailableError("down")] * 3, GIBBERISH)
        pair = await room.capture(1)
        await room.pass_time(600)
        for _ in range(3):
            await room.pass_time(300)
        assert len(model.asked) == 5
        assert (await room.writer.stores.attempts.read_retries())[pair.qa_id].tries == 2


@pytest.mark.rest
async def test_one_that_is_parked_long_after_it_was_handed_on_comes_again_too(tmp_path: Path) -> None:
    model, clock = ScriptedModel(), HandClock()
    async with room_in(tmp_path, model, clock) as room:
        model.always(CLASSIFY, named("drum"))
        await room.capture(1)
        away = [ModelUnavailableError("down")] * 12
        model.next(INTEGRATE, *away, GIBBERISH, IntegrateOut(skip=False, remove_ids=()))
        pair = await room.capture(2)
        for _ in away:
            assert room.writer.stores.knowledge.last_decision(pair.qa_id) is None
            await room.pass_time(300)
        assert isinstance(room.writer.stores.knowledge.last_decision(pair.qa_id), PairParked)
        await room.pass_time(590)
        assert len(model.calls(INTEGRATE)) == len(away) + 1
        await room.pass_time(11)
        assert room.writer.stores.knowledge.find_topic(pair.qa_id) == "drum"


async def test_what_is_approved_is_filed_once_the_followers_look(tmp_path: Path) -> None:
    model, clock = ScriptedModel(), HandClock()
    async with room_in(tmp_path, model, clock, review=True) as room:
        pair = await room.capture(1)
        assert model.asked == []
        model.next(CLASSIFY, named("drum"))
        [said] = await room.writer.learning.review(Review(action="approve", qa_ids=(pair.qa_id,), by="77"))
        assert isinstance(said, PairApproved)
        await room.look()
        assert room.writer.stores.knowledge.find_topic(pair.qa_id) == "drum"
        await room.look()
        assert len(model.asked) == 1
