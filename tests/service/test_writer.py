"""The writer: the work that it finishes when it opens, the questions without a model, and the order of waiting."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from anyio import Event, create_task_group, fail_after
from anyio.lowlevel import checkpoint
from structlog.testing import capture_logs

from intern.actors.job_worker import do_jobs_forever
from intern.actors.loops import DueRecord
from intern.core.captures import CapturedPair
from intern.core.decisions import PairApproved, PairFiled, PairParked, PairRejected, PairReviewRequested
from intern.core.errors import ConfigError, KnowledgeError, ModelReplyError, ModelUnavailableError
from intern.core.flow import FilingDecision, TopicChoice
from intern.core.ids import QAId, TopicName
from intern.core.messages import Image
from intern.learning.filing import DecisionCounts
from intern.learning.forgetting import ForgetRequest
from intern.learning.offline_rules import split_topic
from intern.learning.prompts import CLASSIFY, INTEGRATE, SPLIT_TOPIC, ClassifyOut, IntegrateOut
from intern.learning.review import Review
from intern.models.prompt import InT, OfflineModel, OutT, Prompt
from intern.service.job_kinds import CAPTURE, INDEX, REGENERATE, RETRY, REVIEW
from intern.service.models import collect_offline_rules
from intern.service.writer import Writer
from intern.sources.catalogue import Catalogue
from intern.stores.qa_ids import make_qa_id
from intern.stores.tables.jobs import JobKind
from tests.service.writers import settings_in, writer_in
from tests.worlds import samples
from tests.worlds.clock import HandClock, all_quiet
from tests.worlds.model import ScriptedModel

pytestmark = pytest.mark.anyio

SPOOL = TopicName("spool")


class Gated:
    """Rules that do not answer CLASSIFY before the gate is open."""

    def __init__(self) -> None:
        self._rules = OfflineModel(collect_offline_rules())
        self.begun, self.gate = Event(), Event()

    async def ask(self, prompt: Prompt[InT, OutT], given: InT, *, images: Sequence[Image] = ()) -> OutT:
        if prompt.name == CLASSIFY.name:
            self.begun.set()
            await self.gate.wait()
        return await self._rules.ask(prompt, given)


async def kept(writer: Writer, n: int, question: str = "", *, conversation: str = "") -> CapturedPair:
    """Return the `n`th pair, in the archive."""
    question = question or f"How do I purge spool number {n}?"
    pair = await writer.learning.keep(samples.capture(question, f"Purge it {n} times.", n=n, conversation=conversation))
    assert pair is not None
    return pair


def named(topic: str) -> ClassifyOut:
    return ClassifyOut(skip=False, topic_name=topic)


def filing(pair: CapturedPair) -> FilingDecision:
    return FilingDecision(pair=pair, choice=TopicChoice(name=SPOOL))


async def test_what_a_killed_process_had_begun_to_write_is_cleared_away(tmp_path: Path) -> None:
    team = tmp_path / "team-knowledge"
    begun = [
        *(team / name for name in ("raw/.2026-W05.txt.tmp", "topics/.gpu.txt.tmp", ".index-team.txt.tmp")),
        tmp_path / "knowledge-base" / ".index-cache.json.tmp",
    ]
    for path in begun:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("what somebody may have deleted since")
    kept = team / "topics" / ".gpu.txt.damaged"
    kept.write_text("somebody's work")
    async with writer_in(settings_in(tmp_path)):
        assert [path for path in begun if path.exists()] == []
        assert kept.exists()


# Finding A4.
async def test_hidden_files_of_other_programs_stay_wherever_our_own_are(tmp_path: Path) -> None:
    shared, ours = tmp_path / "shared", tmp_path / "team-knowledge"
    settings = settings_in(tmp_path, index_path=str(shared / "index.txt"))
    names = (".other-program.tmp", ".index.txt.bak.tmp", ".my index.txt.tmp", ".notes.edited", ".index.txt.old.edited")
    folders = (shared, ours, ours / "raw", ours / "topics", tmp_path / "knowledge-base")
    others = [folder / name for folder in folders for name in names]
    begun = [shared / ".index.txt.tmp", shared / "..index.txt.2.edited.tmp", ours / ".decisions.jsonl.tmp"]
    for path in (*others, *begun):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("somebody's work")
    async with writer_in(settings) as writer:
        assert [path for path in begun if path.exists()] == []
        pair = await kept(writer, 1)
        for path in others:
            path.write_text(f"somebody's work on {pair.qa_id} {pair.message_ids[0]}\n")
        await writer.learning.file(filing(pair))
        await writer.forget(ForgetRequest(message_ids=(pair.message_ids[0],)))
        assert [path for path in others if not path.exists()] == []
    assert len({path.read_text() for path in others}) == 1


async def test_no_model_is_asked_about_a_conversation_that_has_its_topic(tmp_path: Path) -> None:
    async with writer_in(settings_in(tmp_path), ScriptedModel()) as writer:
        await writer.learning.file(filing(await kept(writer, 1, conversation="reply_1")))
        fuller = await kept(writer, 2, conversation="reply_1")
        assert await writer.learning.choose_topic(fuller) == TopicChoice(name=SPOOL)


async def test_what_the_operator_wants_passed_over_is_not_filed(tmp_path: Path) -> None:
    async with writer_in(settings_in(tmp_path)) as writer:
        assert writer.stores.find_last_decided() is None
        pairs = [await kept(writer, n) for n in range(1, 5)]
        await writer.learning.file(filing(pairs[0]))
        assert writer.stores.find_last_decided() == pairs[0].qa_id

    passing_over = settings_in(tmp_path, qa_raw_last_processed_id=pairs[2].qa_id)
    async with writer_in(passing_over) as writer:
        assert writer.stores.find_last_decided() == pairs[2].qa_id
        tally = await writer.learning.catch_up()
        assert tally.filed == 1
        assert [writer.stores.knowledge.find_topic(pair.qa_id) is not None for pair in pairs] == [
            True,
            False,
            False,
            True,
        ]
        # From then on the setting is history.
        assert writer.stores.find_last_decided() == pairs[3].qa_id


@pytest.mark.parametrize("archived", [False, True])
async def test_nothing_that_is_still_to_come_can_be_passed_over(tmp_path: Path, archived: bool) -> None:  # noqa: FBT001
    now = HandClock()
    if archived:
        async with writer_in(settings_in(tmp_path), clock=now) as writer:
            await kept(writer, 1)
    for qa_id in ("qa_20990101_000000", make_qa_id(now.now() + timedelta(seconds=1))):
        with pytest.raises(ConfigError, match=rf"kb\.qa_raw_last_processed_id: {qa_id} lies in the future"):
            async with writer_in(settings_in(tmp_path, qa_raw_last_processed_id=qa_id), clock=now):
                pass
    for qa_id in ("qa_20200101_000000", make_qa_id(now.now())):
        async with writer_in(settings_in(tmp_path, qa_raw_last_processed_id=qa_id), clock=now) as writer:
            assert writer.stores.find_last_decided() == qa_id


async def test_what_was_archived_can_be_passed_over_though_the_clock_went_back(tmp_path: Path) -> None:
    async with writer_in(settings_in(tmp_path)) as writer:
        pair = await kept(writer, 1)
    clock = HandClock()
    clock.turn(days=-1)
    async with writer_in(settings_in(tmp_path, qa_raw_last_processed_id=pair.qa_id), clock=clock) as writer:
        assert writer.stores.find_last_decided() == pair.qa_id


OTHERS: dict[str, Callable[[Writer, CapturedPair], Awaitable[object]]] = {
    "file": lambda writer, pair: writer.learning.file(filing(pair)),
    "catch_up": lambda writer, _: writer.learning.catch_up(),
    "regenerate": lambda writer, _: writer.learning.regenerate(),
}


@pytest.mark.rest
@pytest.mark.parametrize("first", ["regenerate", "catch_up"])
@pytest.mark.parametrize("second", list(OTHERS))
async def test_whoever_changes_topics_waits_for_who_is_at_it(tmp_path: Path, first: str, second: str) -> None:
    model, ended = Gated(), list[str]()

    async def run(what: str, pair: CapturedPair) -> None:
        await OTHERS[what](writer, pair)
        ended.append(what)

    async with writer_in(settings_in(tmp_path), model) as writer:
        pair = await kept(writer, 1)
        async with create_task_group() as tg:
            tg.start_soon(run, first, pair)
            await model.begun.wait()
            tg.start_soon(run, second, pair)
            await all_quiet()
            assert ended == []
            assert writer.stores.knowledge.topic_names() == ()
            model.gate.set()
        assert sorted(ended) == sorted([first, second])
        [topic] = writer.stores.knowledge.topic_names()
        assert [block.qa_id for block in writer.stores.knowledge.read_topic(topic)] == [pair.qa_id]


async def test_a_deletion_is_written_down_whoever_is_filing(tmp_path: Path) -> None:
    model = Gated()
    async with writer_in(settings_in(tmp_path), model) as writer:
        pair = await kept(writer, 1)
        async with create_task_group() as tg:
            tg.start_soon(writer.learning.catch_up)
            await model.begun.wait()
            assert await writer.learning.withdraw(pair.message_ids) is not None
            model.gate.set()
        assert writer.stores.knowledge.topic_names() == ()


@pytest.mark.parametrize(("kind", "looks"), [(INDEX, 0), (REGENERATE, 1), (CAPTURE, 1)])
async def test_a_job_says_once_that_there_is_something_to_see(
    tmp_path: Path, kind: JobKind[Any, Any], looks: int
) -> None:
    settings = settings_in(tmp_path)
    settings.paths.sources.mkdir(parents=True)
    seen: list[Any] = []
    async with writer_in(settings) as writer:
        jobs = writer.stores.jobs
        job_id = await (jobs.submit(CAPTURE, samples.capture()) if kind is CAPTURE else jobs.submit(kind, None))

        def look() -> None:
            seen.append(writer.stores.find_last_decided())

        with fail_after(10):
            async with create_task_group() as tg:
                tg.start_soon(partial(do_jobs_forever, jobs, writer.handlers, wakes=look))
                while await jobs.result(job_id) is None:
                    await checkpoint()
                tg.cancel_scope.cancel()
        assert seen == [writer.stores.find_last_decided()] * looks
        assert (writer.stores.find_last_decided() is not None) == (kind is CAPTURE)


def approving(*pairs: CapturedPair) -> Review:
    return Review(action="approve", qa_ids=tuple(pair.qa_id for pair in pairs))


async def test_a_capture_waits_for_review_and_a_command_that_approves_it_files_it(tmp_path: Path) -> None:
    async with writer_in(settings_in(tmp_path, review=True)) as writer:
        pairs = [await kept(writer, n) for n in range(1, 4)]
        assert (await writer.learning.catch_up()).awaiting_review == 3
        assert (await writer.learning.catch_up()) == DecisionCounts()
        first, second = await writer.handlers.run(REVIEW, approving(*pairs[:2]))
        assert isinstance(first, PairFiled)
        assert isinstance(second, PairFiled)
        [rejected] = await writer.handlers.run(REVIEW, Review(action="reject", qa_ids=(pairs[2].qa_id,), by="77"))
        assert rejected == PairRejected(qa_id=pairs[2].qa_id, by="77", at=HandClock().now())
        # A job may be done twice.
        assert await writer.handlers.run(REVIEW, approving(*pairs[:2])) == (first, second)
        assert set(Catalogue(writer.stores.knowledge, "team").entries()) == {
            f"team:{first.topic}.txt",
            f"team:{second.topic}.txt",
        }


async def test_with_review_what_the_operator_wants_passed_over_waits_for_nobody(tmp_path: Path) -> None:
    async with writer_in(settings_in(tmp_path)) as writer:
        pair = await kept(writer, 1)
    async with writer_in(settings_in(tmp_path, review=True, qa_raw_last_processed_id=pair.qa_id)) as writer:
        assert (await writer.learning.regenerate()).tally == DecisionCounts(filed=1)


async def test_what_was_approved_while_the_model_is_away_is_due(tmp_path: Path) -> None:
    model = ScriptedModel()
    model.next(CLASSIFY, ModelUnavailableError("down"))
    async with writer_in(settings_in(tmp_path, review=True), model) as writer:
        pair = await kept(writer, 1)
        await writer.learning.catch_up()
        [decision] = await writer.handlers.run(REVIEW, approving(pair))
        assert isinstance(decision, PairApproved)
        model.next(CLASSIFY, ClassifyOut(skip=False, topic_name="spool"))
        assert (await writer.learning.find_next_due(set())).record == pair
        assert (await writer.learning.catch_up()).filed == 1
        assert (await writer.learning.find_next_due(set())).record is None


@pytest.mark.parametrize("kind", [REVIEW, RETRY])
async def test_an_id_that_is_unknown_is_told_and_nothing_is_done(tmp_path: Path, kind: JobKind[Any, Any]) -> None:
    async with writer_in(settings_in(tmp_path, review=True)) as writer:
        pair = await kept(writer, 1)
        await writer.learning.catch_up()
        ids = (pair.qa_id, QAId("qa_19990101_000000"))
        with pytest.raises(ConfigError, match="qa_19990101_000000"):
            await writer.handlers.run(kind, Review(action="approve", qa_ids=ids) if kind is REVIEW else ids)
        assert isinstance(writer.stores.knowledge.last_decision(pair.qa_id), PairReviewRequested)


async def parked_pairs(writer: Writer, model: ScriptedModel, count: int) -> list[CapturedPair]:
    pairs = [await kept(writer, n) for n in range(1, count + 1)]
    model.next(CLASSIFY, *[ModelReplyError("gibberish")] * count)
    assert (await writer.learning.catch_up()).parked == count
    return pairs


async def test_parked_pairs_can_be_tried_at_once_and_one_that_fails_again_stops_no_other(tmp_path: Path) -> None:
    model = ScriptedModel()
    async with writer_in(settings_in(tmp_path), model) as writer:
        pairs = await parked_pairs(writer, model, 3)
        model.next(CLASSIFY, ModelReplyError("nonsense"), named("spool"), named("drum"))
        first, *others = await writer.handlers.run(RETRY, ())
        reason = "the model's reply did not fit classify; the log says how"
        assert first == PairParked(qa_id=pairs[0].qa_id, reason=reason, at=HandClock().now())
        assert all(isinstance(each, PairFiled) for each in others)
        assert {qa_id: retry.tries for qa_id, retry in (await writer.stores.attempts.read_retries()).items()} == {
            pairs[0].qa_id: 2
        }
        # Pairs with a final decision keep it.
        model.next(CLASSIFY, named("wheel"))
        again = await writer.handlers.run(RETRY, [pair.qa_id for pair in pairs])
        assert again[1:] == tuple(others)
        assert isinstance(again[0], PairFiled)
        assert await writer.stores.attempts.read_retries() == {}
        assert await writer.handlers.run(RETRY, ()) == ()


async def test_an_outage_ends_a_retry_and_is_counted_against_nobody(tmp_path: Path) -> None:
    model = ScriptedModel()
    async with writer_in(settings_in(tmp_path), model) as writer:
        pairs = await parked_pairs(writer, model, 2)
        for _ in range(5):
            model.next(CLASSIFY, ModelUnavailableError("down"))
            with pytest.raises(ModelUnavailableError):
                await writer.learning.retry()
        assert {retry.tries for retry in (await writer.stores.attempts.read_retries()).values()} == {1}
        model.next(CLASSIFY, named("spool"), named("drum"))
        assert [type(each) for each in await writer.learning.retry()] == [PairFiled, PairFiled]
        assert all(writer.stores.knowledge.find_topic(pair.qa_id) for pair in pairs)


async def test_a_pair_that_keeps_ending_the_process_is_given_up_by_commands_too(tmp_path: Path) -> None:
    model = ScriptedModel()
    model.always(CLASSIFY, ZeroDivisionError())
    settings = settings_in(tmp_path)
    async with writer_in(settings, model) as writer:
        pair = await kept(writer, 1)
        for _ in range(3):
            with pytest.raises(ZeroDivisionError):
                await writer.learning.catch_up()
        assert (await writer.learning.catch_up()).parked == 1
        assert len(model.asked) == 3
        [parked] = writer.stores.knowledge.list_parked()
        assert "the process ended each time" in parked.reason
        assert (await writer.stores.attempts.read_retries())[pair.qa_id].next_at is None


async def test_parked_pairs_come_again_after_ten_minutes_an_hour_and_six_hours_then_only_when_asked(
    tmp_path: Path,
) -> None:
    model, clock = ScriptedModel(), HandClock()
    async with writer_in(settings_in(tmp_path), model, clock) as writer:
        [pair] = await parked_pairs(writer, model, 1)
        model.always(CLASSIFY, ModelReplyError("gibberish"))
        for pause in (600, 3600, 21_600):
            assert await writer.learning.find_next_due(set()) == DueRecord(seconds=pause)
            clock.turn(seconds=pause - 1)
            assert await writer.learning.catch_up() == DecisionCounts()
            clock.turn(seconds=1)
            assert (await writer.learning.find_next_due(set())).record == pair
            assert (await writer.learning.catch_up()).parked == 1
        assert await writer.learning.find_next_due(set()) == DueRecord()
        clock.turn(days=30)
        assert await writer.learning.catch_up() == DecisionCounts()
        assert [type(each) for each in await writer.learning.retry([pair.qa_id])] == [PairParked]
        assert await writer.learning.find_next_due(set()) == DueRecord()


async def test_what_the_operator_passes_over_is_not_tried_again_by_itself(tmp_path: Path) -> None:
    model, clock = ScriptedModel(), HandClock()
    async with writer_in(settings_in(tmp_path), model, clock) as writer:
        pairs = await parked_pairs(writer, model, 2)
    clock.turn(days=1)
    async with writer_in(settings_in(tmp_path, qa_raw_last_processed_id=pairs[0].qa_id), model, clock) as writer:
        found = await writer.learning.find_next_due(set())
        assert found.record == pairs[1]
        assert (await writer.learning.find_next_due({found.key})).record is None


async def test_what_is_in_work_is_looked_after_though_no_time_for_it_is_known(tmp_path: Path) -> None:
    async with writer_in(settings_in(tmp_path)) as writer:
        assert await writer.learning.find_next_due(set()) == DueRecord()
        await kept(writer, 1)
        assert await writer.learning.find_next_due(set()) == DueRecord(seconds=600)
        await writer.learning.catch_up()
        assert await writer.learning.find_next_due(set()) == DueRecord()


async def test_a_topic_that_outgrows_its_bound_is_split_and_both_are_in_the_index_at_once(tmp_path: Path) -> None:
    settings = settings_in(tmp_path, max_topic_chars=800)
    async with writer_in(settings) as writer:
        pairs = [
            await kept(writer, n, f"How do I {'oil the drum' if n % 2 else 'wind the spool'} of part {n}?")
            for n in range(1, 7)
        ]
        for pair in pairs:
            await writer.learning.file(filing(pair))
        assert len(writer.stores.knowledge.topic_names()) > 1
        assert all(
            len(writer.stores.knowledge.read_text(name)) <= 800 for name in writer.stores.knowledge.topic_names()
        )
        assert sorted(pair.qa_id for pair in pairs) == sorted(
            block.qa_id
            for name in writer.stores.knowledge.topic_names()
            for block in writer.stores.knowledge.read_topic(name)
        )
        listed = Catalogue(writer.stores.knowledge, "team").entries()
        assert sorted(listed) == [f"team:{name}.txt" for name in writer.stores.knowledge.topic_names()]


async def test_a_split_that_fails_costs_no_filing(tmp_path: Path) -> None:
    model = ScriptedModel()
    model.always(INTEGRATE, IntegrateOut(skip=False, remove_ids=()))
    model.next(SPLIT_TOPIC, ModelUnavailableError("down"), ModelReplyError("gibberish"))
    async with writer_in(settings_in(tmp_path, max_topic_chars=1), model) as writer:
        with capture_logs() as logs:
            for n in range(1, 5):
                assert isinstance(await writer.learning.file(filing(await kept(writer, n))), PairFiled)
                if n == 3:
                    model.next(SPLIT_TOPIC, split_topic)
        assert [log["event"] for log in logs if log["event"].startswith("topic_split")] == [
            "topic_split_delayed",
            "topic_split_failed",
            "topic_split",
        ]
        assert len(writer.stores.knowledge.topic_names()) == 2


async def test_a_job_that_this_version_does_not_know_is_refused(tmp_path: Path) -> None:
    async with writer_in(settings_in(tmp_path)) as writer:
        with pytest.raises(KnowledgeError, match="no job 'dance'"):
            await writer.handlers.run(JobKind(name="dance", takes=None, gives=None), None)
