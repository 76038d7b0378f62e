"""The calibration of a folder: too few judged answers change nothing, enough set a score, or end the answers."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from msgspec.structs import replace

from intern.core.captures import CapturedPair
from intern.core.flow import Reply
from intern.core.ids import MessageId
from intern.frontends.wording import describe_calibration
from intern.service.calibration import calibrate, describe_setup
from intern.service.health import CalibrationWatch
from intern.settings.settings import Settings
from intern.stores.engines.sqlite.database import SqliteDatabase
from intern.stores.tables.judgements import Judge, Judgement, JudgementStore, read_judgements
from tests.worlds.bot import Watching, at_work, settings_in
from tests.worlds.chat import Sandbox
from tests.worlds.clock import HandClock

pytestmark = pytest.mark.anyio

SETTINGS = Settings()
START = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture
async def store(tmp_path: Path) -> AsyncGenerator[JudgementStore]:
    async with await SqliteDatabase.open(tmp_path / "intern.db") as db:
        yield JudgementStore(db, clock=HandClock())


def judged(
    right: int, wrong: int = 0, *, judge: Judge = "backtest", first: int = 0, at: datetime = START
) -> list[Judgement]:
    """Return judgements of answers with one score."""
    return [
        Judgement(
            question_id=MessageId(str(first + n)),
            judge=judge,
            setup=describe_setup(SETTINGS),
            score=0.6,
            wrong=n < wrong,
            at=at,
        )
        for n in range(right + wrong)
    ]


async def note_of(store: JudgementStore) -> str:
    watch = CalibrationWatch(store.db, SETTINGS)
    await watch.check()
    return "".join(each.note for each in watch.checks())


async def test_with_too_few_judged_answers_nothing_changes_and_the_missing_ones_are_counted(
    store: JudgementStore,
) -> None:
    stands = await calibrate(store, SETTINGS, judged(40))
    assert stands.current is None
    lines = list(describe_calibration(stands))
    assert "Nothing is calibrated: answers are given as the checks allow." in lines
    assert lines[-1].startswith("5 more judged answers are needed, if all are right: 45 right ones are the least")
    assert await note_of(store) == ""


async def test_where_enough_is_judged_and_no_score_keeps_to_the_bound_answers_end_and_a_note_says_so(
    store: JudgementStore,
) -> None:
    stands = await calibrate(store, SETTINGS, judged(30, 20))
    assert stands.gives_none
    assert "no score keeps to ai.max_wrong = 0.05" in "\n".join(describe_calibration(stands))
    note = await note_of(store)
    assert note.startswith("no answers are given: 20 of 50 judged answers were wrong")
    assert "raise ai.max_wrong" in note
    # Better answers to the same questions bring them back.
    stands = await calibrate(store, SETTINGS, judged(50, at=START + timedelta(days=1)))
    assert stands.current is not None
    assert stands.current.score == 0.6
    assert await note_of(store) == ""


async def test_drift_after_a_calibration_is_a_note_and_earlier_judgements_count_no_more(store: JudgementStore) -> None:
    await calibrate(store, SETTINGS, judged(1_000, first=1_000))
    later = store.clock.now() + timedelta(days=1)
    await store.add(judged(30, 1, judge="vote", first=100, at=later))
    assert await note_of(store) == ""
    await store.add(judged(10, 15, judge="team", first=200, at=later + timedelta(days=1)))
    assert (await note_of(store)).startswith("16 of 56 answers judged since the calibration were wrong, more than")
    stands = await calibrate(store, SETTINGS)
    assert stands.current is not None
    assert (stands.current.judged, stands.gives_none) == (56, True)
    # The times before the drift do not come back with the next calibration.
    assert (await calibrate(store, SETTINGS)).current == replace(stands.current, at=store.clock.now())


async def test_a_score_that_can_be_shown_no_more_stays_and_is_told(store: JudgementStore) -> None:
    await calibrate(store, SETTINGS, judged(60))
    stands = await calibrate(store, SETTINGS, judged(92, 8, first=100))
    assert (stands.found, stands.none_keeps) == (None, False)
    assert stands.current is not None
    assert stands.current.score == 0.6
    assert "no score can be shown to keep to ai.max_wrong; the one in use stays." in "\n".join(
        describe_calibration(stands)
    )


@pytest.mark.rest
async def test_a_deletion_and_the_teams_words_judge_the_answers_of_a_bot_at_work(tmp_path: Path) -> None:
    sandbox, seen = Sandbox(HandClock(), team={"mira"}), Watching()
    places = [sandbox.add_channel(f"help-{n}") for n in range(2)]
    async with at_work(tmp_path / "data", sandbox, seen):
        asked = [
            sandbox.say("bob", "@intern which port does the relay listen on?", channel_id=place) for place in places
        ]
        await seen.one_of(Reply, after=1)
        [thread] = sandbox.threads(places[0])
        [answer] = [post for post in sandbox.posts() if post.channel_id == thread.id]
        sandbox.delete(thread.id, answer.id)
        sandbox.say("mira", "It is 7481 by now.", reply_to=asked[1].id, channel_id=places[1])
        await seen.one_of(CapturedPair)
    settings = settings_in(tmp_path / "data")
    async with await SqliteDatabase.open(settings.paths.database) as db:
        judged = await db.read(lambda tx: read_judgements(tx, describe_setup(settings)))
    assert {(each.question_id, each.judge, each.wrong) for each in judged} == {
        (asked[0].id, "deletion", True),
        (asked[1].id, "team", True),
    }
