"""`intern review`: what waits for the team, and their word on it, with and without a bot at work."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path

import anyio
import pytest
from anyio.to_thread import run_sync
from msgspec.structs import replace

from intern.core.captures import CapturedPair, Turn
from intern.core.clock import SystemClock
from intern.core.decisions import MessagesWithdrawn, PairApproved, PairFiled, PairRejected, PairReviewRequested
from intern.core.ids import QAId
from intern.stores.archive import Archive
from intern.stores.tables.knowledge import KnowledgeStore
from tests.frontends.cli.conftest import Intern, environment
from tests.frontends.cli.test_ask_and_index import bot
from tests.wording import Wording
from tests.worlds import samples
from tests.worlds.clock import HandClock
from tests.worlds.endpoint import endpoint_double, refuse
from tests.worlds.knowledge import decide, known
from tests.worlds.program import program

DATA = Path("data")
TEAM = DATA / "team-knowledge"
QUESTIONS = ("How do I purge the spool?", "Where do the agents keep their keys?\n\x1b[2JOn a Pi.", "Which port?")


@pytest.fixture(autouse=True)
def reviewing(folder: Path) -> None:
    """The team reviews all that is captured here."""
    (folder / "intern.toml").write_text("[kb]\nreview = true\n")


def waiting(count: int = 3) -> list[CapturedPair]:
    """Pairs that wait since three hours ago."""
    clock = HandClock(SystemClock().now() - timedelta(hours=3))
    archive = Archive(TEAM / "raw", clock=clock)
    pairs = [archive.append(samples.capture(QUESTIONS[n], "Like this.\nAnd so.", n=n)) for n in range(count)]
    decide(DATA, *(PairReviewRequested(qa_id=each.qa_id, at=clock.now()) for each in pairs))
    return pairs


def fuller(pair: CapturedPair) -> CapturedPair:
    """A newer version, which waits, too."""
    more = samples.capture(n=50)
    newer = Archive(TEAM / "raw", clock=SystemClock()).append(
        replace(
            more,
            conversation_id=pair.conversation_id,
            turns=(*pair.turns, Turn("Team", "No: like that.")),
            message_ids=(*pair.message_ids, more.message_ids[0]),
            replaces=pair.qa_id,
        )
    )
    decide(DATA, PairReviewRequested(qa_id=newer.qa_id, at=SystemClock().now()))
    return newer


def standing(*pairs: CapturedPair) -> list[str]:
    return known(DATA, lambda log: [type(log.last_decision(pair.qa_id)).__name__ for pair in pairs])


def listing() -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in Path("data").rglob("*") if path.is_file()}


def test_what_waits_is_shown_whole_with_its_id_and_age_and_nothing_is_changed(intern: Intern) -> None:
    pairs = waiting()
    before = listing()
    code, out, err = intern("review")
    assert (code, err) == (0, "")
    assert [line.split(",")[0] for line in out.splitlines() if line.startswith("qa_")] == [p.qa_id for p in pairs]
    assert out.count("captured 3 hours ago") == 3
    assert "  User: Where do the agents keep their keys?\n    \\x1b[2JOn a Pi.\n  Team: Like this.\n    And so." in out
    assert intern("review", "list").out == out
    told = json.loads(intern("review", "list", "--json").out)
    assert [each["qa_id"] for each in told] == [pair.qa_id for pair in pairs]
    assert told[1]["turns"] == [
        {"speaker": "User", "text": QUESTIONS[1]},
        {"speaker": "Team", "text": "Like this.\nAnd so."},
    ]
    assert listing() == before


@pytest.mark.usefixtures("made")
def test_where_nothing_waits_it_says_so_and_makes_nothing(intern: Intern, wording: Wording) -> None:
    assert wording(intern("review")).code == 0
    assert intern("review", "list", "--json") == (0, "[]\n", "")
    assert wording(intern("review", "approve", "--all")).code == 0
    assert not (Path("data") / "intern.db").exists()


def test_what_was_deleted_since_is_not_shown(intern: Intern) -> None:
    first, second, _ = waiting()
    decide(DATA, MessagesWithdrawn(message_ids=first.message_ids[1:], at=HandClock().now()))
    newer = fuller(second)
    decide(DATA, MessagesWithdrawn(message_ids=newer.message_ids[1:2], at=HandClock().now()))
    out = intern("review").out
    assert f"{first.qa_id}" in out
    assert "purge the spool" not in out
    assert "(its question or its answer was deleted)" in out
    assert f"in {newer.qa_id}, too" in out
    assert out.count("Team: No: like that.") == 1


def test_approved_is_filed_and_rejected_is_not_and_the_rest_waits(intern: Intern) -> None:
    first, second, third = waiting()
    code, out, err = intern("review", "approve", first.qa_id)
    assert (code, err) == (0, "")
    assert f"{first.qa_id}  filed under " in out
    code, out, err = intern("review", "reject", second.qa_id, "--json")
    assert (code, err) == (0, "")
    assert [(each["action"], each["qa_id"]) for each in json.loads(out)] == [("rejected", second.qa_id)]
    assert standing(first, second, third) == ["PairFiled", "PairRejected", "PairReviewRequested"]
    assert intern("review").out.startswith(third.qa_id)


def test_all_approves_each_conversation_in_its_newest_version(intern: Intern) -> None:
    first, second = waiting(2)
    newer = fuller(first)
    code, out, _ = intern("review", "approve", "--all")
    assert code == 0
    assert first.qa_id not in [line.split("  ")[1] for line in out.splitlines()]
    assert standing(first, second, newer) == ["PairReplaced", "PairFiled", "PairFiled"]
    assert not [
        each
        for each in known(DATA, KnowledgeStore.read_decisions)
        if isinstance(each, PairApproved) and each.qa_id == first.qa_id
    ]


def test_all_of_a_topic_are_approved_or_rejected_and_the_others_wait(intern: Intern) -> None:
    first, second = waiting(2)
    intern("review", "approve", first.qa_id)
    [filed] = known(
        DATA, lambda log: [decision for decision in log.read_decisions() if isinstance(decision, PairFiled)]
    )
    newer = fuller(first)
    assert intern("review", "topics").out == f"   1  {filed.topic}\n   1  (no topic yet)\n"
    assert json.loads(intern("review", "topics", "--json").out) == {filed.topic: 1, "": 1}
    code, _, err = intern("review", "approve", "--topic", "nothing-of-that-name")
    assert (code, "intern review topics" in err) == (2, True)
    assert intern("review", "approve", "--topic", filed.topic).code == 0
    assert standing(second, newer) == ["PairReviewRequested", "PairFiled"]
    newest = fuller(newer)
    newest_of_all = fuller(newest)
    assert intern("review", "reject", "--topic", filed.topic).code == 0
    assert standing(second, newest, newest_of_all) == ["PairReviewRequested", "PairRejected", "PairRejected"]


@pytest.mark.rest
@pytest.mark.parametrize("action", ["approve", "reject"])
def test_an_id_that_is_unknown_or_does_not_wait_is_2_and_nothing_is_written(intern: Intern, action: str) -> None:
    first, second, third = waiting()
    at = HandClock().now()
    decide(
        DATA,
        PairRejected(qa_id=second.qa_id, at=at) if action == "approve" else PairApproved(qa_id=second.qa_id, at=at),
    )
    undecided = Archive(TEAM / "raw").append(samples.capture(n=9)).qa_id
    for wrong, why in (
        (second.qa_id, "does not wait for review"),
        (undecided, "not been looked at yet"),
        (QAId("qa_19990101_000000"), "holds no pair"),
        (QAId("nonsense"), "holds no pair"),
    ):
        code, out, err = intern("review", action, first.qa_id, wrong)
        assert (code, out) == (2, "")
        assert why in err
        assert err.count("\n") == 1
    assert standing(first, third) == ["PairReviewRequested"] * 2


@pytest.mark.parametrize("action", ["approve", "reject"])
def test_what_was_said_of_a_pair_before_is_2_when_it_is_said_again(intern: Intern, action: str) -> None:
    [pair] = waiting(1)
    assert intern("review", action, pair.qa_id).code == 0
    before = known(DATA, KnowledgeStore.read_decisions)
    code, out, err = intern("review", action, pair.qa_id)
    assert (code, out) == (2, "")
    assert f"{pair.qa_id} does not wait for review: it has been {action}" in err
    assert known(DATA, KnowledgeStore.read_decisions) == before


@pytest.mark.parametrize("arguments", [("approve",), ("reject",), ("approve", "qa_1", "--all")])
def test_which_ones_must_be_said(intern: Intern, arguments: tuple[str, ...]) -> None:
    [pair] = waiting(1)
    code, out, err = intern("review", *arguments)
    assert (code, out) == (2, "")
    assert "say which: ids from `intern review`" in err
    assert standing(pair) == ["PairReviewRequested"]


def test_while_the_model_is_away_the_word_is_kept_and_saying_it_again_files(intern: Intern) -> None:
    [pair] = waiting(1)
    with endpoint_double(lambda _: refuse(503)) as endpoint:
        away = f'[llm]\nbase_url = "{endpoint.base_url}"\nmodel = "double"\nmax_retries = 0\n'
        Path("intern.toml").write_text(f"[kb]\nreview = true\n{away}")
        code, out, err = intern("review", "approve", pair.qa_id)
    assert code == 0
    assert f"{pair.qa_id}  approved\n" in out
    assert "is filed once the model is there" in err
    assert "0 wait for the team, 1 approved and not filed yet" in intern("status").out
    Path("intern.toml").write_text("[kb]\nreview = true\n")
    assert "filed under" in intern("review", "approve", pair.qa_id).out
    assert standing(pair) == ["PairFiled"]


def test_what_cannot_be_read_is_3(intern: Intern) -> None:
    DATA.mkdir()
    (DATA / "intern.db").write_bytes(b"no database at all" * 100)
    code, out, err = intern("review")
    assert (code, out) == (3, "")
    assert err.count("\n") == 1


def test_who_approved_it_is_told_with_the_pair(intern: Intern) -> None:
    [pair] = waiting(1)
    decide(DATA, PairApproved(qa_id=pair.qa_id, by="77", at=HandClock().now()))
    assert f"{pair.qa_id}  approved by member 77" in intern("archive", "show", pair.qa_id).out


@pytest.mark.rest
@pytest.mark.usefixtures("sources")
async def test_the_bot_that_holds_the_folder_does_it_while_the_list_disturbs_nobody() -> None:
    first, second = await run_sync(waiting, 2)
    async with bot():
        listed = await anyio.run_process(program("review"), env=environment(), check=False)
        assert (listed.returncode, listed.stderr) == (0, b"")
        assert listed.stdout.count(b"captured 3 hours ago") == 2
        done = await anyio.run_process(program("review", "approve", first.qa_id), env=environment(), check=False)
        assert (done.returncode, done.stderr) == (0, b"")
        assert b"filed under" in done.stdout
        again = await anyio.run_process(program("review", "reject", first.qa_id), env=environment(), check=False)
        assert (again.returncode, again.stdout) == (2, b"")
    assert await run_sync(standing, first, second) == ["PairFiled", "PairReviewRequested"]
