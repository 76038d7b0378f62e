"""`intern retry`: what it says of each pair, and how it ends, with and without a bot at work."""

from __future__ import annotations

import json
from pathlib import Path

import anyio
import pytest
from anyio.to_thread import run_sync

from intern.core.decisions import PairFiled, PairParked, PairRejected
from intern.core.ids import QAId, TopicName
from intern.stores.archive import Archive
from tests.frontends.cli.conftest import Intern, environment
from tests.frontends.cli.test_ask_and_index import bot
from tests.worlds import samples
from tests.worlds.clock import HandClock
from tests.worlds.endpoint import endpoint_double, refuse
from tests.worlds.knowledge import decide, known
from tests.worlds.program import program

DATA = Path("data")
TEAM = DATA / "team-knowledge"


def parked(count: int = 2) -> list[QAId]:
    clock = HandClock()
    archive = Archive(TEAM / "raw", clock=clock)
    questions = ["How do I purge the spool?", "Where do the agents keep their keys?", "Which port is the relay's?"]
    ids = [archive.append(samples.capture(questions[n], "Like this.", n=n)).qa_id for n in range(count)]
    decide(DATA, *(PairParked(qa_id=qa_id, reason="gibberish", at=clock.now()) for qa_id in ids))
    return ids


def standing(qa_id: QAId) -> str:
    return known(DATA, lambda log: type(log.last_decision(qa_id)).__name__)


def model(url: str) -> None:
    Path("intern.toml").write_text(f'[llm]\nbase_url = "{url}"\nmodel = "double"\nmax_retries = 0\n')


def test_all_that_is_parked_is_filed_and_told_pair_by_pair(intern: Intern) -> None:
    ids = parked()
    code, out, err = intern("retry")
    assert (code, err) == (0, "")
    assert [line.split("  ")[1] for line in out.splitlines()] == ids
    assert [standing(qa_id) for qa_id in ids] == ["PairFiled", "PairFiled"]
    assert intern("retry") == (0, "", "nothing is parked\n")


def test_only_those_that_are_named_are_tried(intern: Intern) -> None:
    first, second = parked()
    code, out, _ = intern("retry", second, "--json")
    assert code == 0
    assert [(each["action"], each["qa_id"]) for each in json.loads(out)] == [("filed", second)]
    assert standing(first) == "PairParked"


@pytest.mark.parametrize("at_end", [PairFiled, PairRejected])
def test_a_pair_that_is_unknown_or_not_parked_is_2_and_nothing_is_tried(
    intern: Intern, at_end: type[PairFiled | PairRejected]
) -> None:
    first, second = parked()
    at = HandClock().now()
    done = (
        PairRejected(qa_id=first, at=at)
        if at_end is PairRejected
        else PairFiled(qa_id=first, topic=TopicName("x"), at=at)
    )
    decide(DATA, done)
    undecided = Archive(TEAM / "raw").append(samples.capture(n=9)).qa_id
    for wrong, why in (
        (first, f"{first} is not parked but {at_end.__struct_config__.tag}"),
        (undecided, f"{undecided} is not parked"),
        ("qa_19990101_000000", "holds no pair"),
        ("../../etc/passwd", "holds no pair"),
    ):
        code, out, err = intern("retry", second, wrong)
        assert (code, out) == (2, "")
        assert why in err
        assert err.count("\n") == 1
    assert standing(second) == "PairParked"


def test_a_pair_that_is_parked_again_says_why_and_ends_with_3_after_the_others(intern: Intern) -> None:
    ids = parked()
    with endpoint_double(lambda _: refuse(400, says="too long")) as endpoint:
        model(endpoint.base_url)
        code, out, err = intern("retry")
    assert (code, err) == (3, "")
    told = [line.split("  ")[1:] for line in out.splitlines()]
    assert [qa_id for qa_id, _ in told] == ids
    assert all(what.startswith("parked: ") and "gibberish" not in what for _, what in told)
    assert json.loads(intern("status", "--json").out)["parked"][0]["tries"] == 1


def test_a_model_that_is_away_ends_it_with_3_and_one_line(intern: Intern) -> None:
    ids = parked()
    with endpoint_double(lambda _: refuse(503)) as endpoint:
        model(endpoint.base_url)
        code, out, err = intern("retry")
    assert (code, out) == (3, "")
    assert err.startswith("intern: ")
    assert err.count("\n") == 1
    assert {standing(qa_id) for qa_id in ids} == {"PairParked"}


@pytest.fixture
def passed_over(folder: Path) -> list[QAId]:
    """Parked pairs that the bot does not try by itself."""
    ids = parked()
    (folder / "intern.toml").write_text(f'[kb]\nqa_raw_last_processed_id = "{ids[-1]}"\n')
    return ids


@pytest.mark.rest
@pytest.mark.usefixtures("sources")
async def test_the_bot_that_holds_the_folder_does_it(passed_over: list[QAId]) -> None:
    first, second = passed_over
    async with bot():
        assert await run_sync(standing, first) == "PairParked"
        done = await anyio.run_process(program("retry", first), env=environment(), check=False)
        assert (done.returncode, done.stderr) == (0, b"")
        assert first.encode() in done.stdout
        wrong = await anyio.run_process(program("retry", "qa_1"), env=environment(), check=False)
        assert (wrong.returncode, wrong.stdout) == (2, b"")
        assert b"holds no pair 'qa_1'" in wrong.stderr
    assert [await run_sync(standing, each) for each in (first, second)] == ["PairFiled", "PairParked"]
