"""`intern topics` and `intern archive`: what people see of what was learned."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from intern.core.captures import Capture, CapturedPair
from intern.core.decisions import MessagesForgotten, PairFiled
from intern.core.ids import MessageId, QAId, TopicName
from intern.stores.archive import Archive
from tests.frontends.cli.conftest import Intern
from tests.wording import Wording
from tests.worlds import samples
from tests.worlds.clock import HandClock
from tests.worlds.knowledge import decide, known, put

DATA = Path("data")
TEAM = DATA / "team-knowledge"
PORTS = TopicName("ports")


def archived(*captures: Capture) -> list[CapturedPair]:
    archive = Archive(TEAM / "raw", clock=HandClock())
    return [archive.append(each) for each in captures]


@pytest.fixture
def pairs(folder: Path) -> list[CapturedPair]:
    """Two pairs about ports, where the newer one made the older one obsolete, and a third one without a decision."""
    del folder
    older, newer, waiting = archived(
        samples.capture("Which port?", "Port 80.", n=1),
        samples.capture("Which port now?", "Port 7480.\nSince 2.0.", n=2),
        samples.capture("Where are the logs?", "In /var/log.", n=3),
    )
    put(DATA, PORTS, newer)
    at = HandClock().now()
    decide(
        DATA,
        PairFiled(qa_id=older.qa_id, topic=PORTS, at=at),
        PairFiled(qa_id=newer.qa_id, topic=PORTS, removed=(older.qa_id,), at=at),
    )
    return [older, newer, waiting]


def listing() -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in Path("data").rglob("*") if path.is_file()}


@pytest.mark.usefixtures("made")
def test_an_empty_folder_lists_nothing_and_is_left_so(intern: Intern, wording: Wording) -> None:
    assert wording(intern("topics")).code == 0
    assert wording(intern("archive")).code == 0
    assert intern("topics", "list", "--json") == (0, "[]\n", "")
    assert listing() == {}


def test_topics_are_listed_with_what_they_hold(intern: Intern, pairs: list[CapturedPair]) -> None:
    del pairs
    code, out, err = intern("topics", "list", "--json")
    assert (code, err) == (0, "")
    [topic] = json.loads(out)
    assert (topic["name"], topic["blocks"]) == ("ports", 1)
    assert topic["chars"] == len(known(DATA, lambda knowledge: knowledge.read_text(PORTS)))
    assert "ports" in intern("topics").out


def test_a_topic_is_met_by_its_label_and_shows_its_pairs(intern: Intern, pairs: list[CapturedPair]) -> None:
    out = intern("topics", "show", "../Ports.txt").out
    assert "Team: Port 7480.\n    Since 2.0." in out
    assert "Port 80." not in out
    assert pairs[1].qa_id in out


def test_what_a_newer_pair_removed_stays_visible(intern: Intern, pairs: list[CapturedPair]) -> None:
    out = intern("topics", "show", "ports", "--removed").out
    assert f"{pairs[0].qa_id}, removed" in out
    assert f"for {pairs[1].qa_id}" in out
    assert "Team: Port 80." in out


def test_a_topic_s_history_tells_each_decision_in_order(intern: Intern, pairs: list[CapturedPair]) -> None:
    first, second = intern("topics", "history", "ports").out.splitlines()
    assert first.endswith(f"{pairs[0].qa_id}  filed under ports")
    assert second.endswith(f"{pairs[1].qa_id}  filed under ports, removing {pairs[0].qa_id}")


@pytest.mark.parametrize("arguments", [("show", "nothing"), ("history", "nothing"), ("show", "///")])
def test_a_topic_that_there_is_not_is_wrong_use(
    intern: Intern, pairs: list[CapturedPair], arguments: tuple[str, ...]
) -> None:
    del pairs
    code, out, err = intern("topics", *arguments)
    assert (code, out) == (2, "")
    assert "`intern topics` lists" in err


def test_the_archive_lists_pairs_with_what_became_of_them(intern: Intern, pairs: list[CapturedPair]) -> None:
    lines = intern("archive").out.splitlines()
    assert [line.split("  ")[0] for line in lines] == [pair.qa_id for pair in pairs]
    assert "filed ports: Which port now?" in lines[1]
    assert "waiting: Where are the logs?" in lines[2]


@pytest.mark.rest
def test_a_long_archive_lists_its_newest_pairs_unless_all_are_asked_for(intern: Intern) -> None:
    ids = [pair.qa_id for pair in archived(*(samples.capture(n=n) for n in range(60)))]
    assert [line.split("  ")[0] for line in intern("archive").out.splitlines()] == ids[-50:]
    assert len(intern("archive", "list", "--all").out.splitlines()) == 60


def test_a_pair_is_shown_with_all_that_was_decided_about_it(intern: Intern, pairs: list[CapturedPair]) -> None:
    forgotten = MessagesForgotten(message_ids=(MessageId(pairs[0].message_ids[0]),), at=HandClock().now())
    decide(DATA, forgotten)
    out = intern("archive", "show", pairs[0].qa_id).out
    assert "Team: Port 80." in out
    assert "filed under ports\n" in out
    assert "filed under ports, removing" in out
    assert "1 messages  forgotten" in out
    assert json.loads(intern("archive", "show", pairs[0].qa_id, "--json").out)["pair"]["qa_id"] == pairs[0].qa_id


@pytest.mark.parametrize("qa_id", ["qa_20300101_000000", "../../etc/passwd"])
def test_a_pair_that_there_is_not_is_wrong_use(intern: Intern, pairs: list[CapturedPair], qa_id: str) -> None:
    assert QAId(qa_id) not in [pair.qa_id for pair in pairs]
    code, out, err = intern("archive", "show", qa_id)
    assert (code, out) == (2, "")
    assert "`intern archive` lists" in err


def test_what_members_wrote_cannot_act_on_the_terminal(intern: Intern, folder: Path) -> None:
    del folder
    archived(samples.capture("How \x1b[2J?", "Like \x07this.", n=1))
    out = intern("archive").out
    assert "\x1b" not in out
    assert "\\x1b[2J" in out


def test_reading_changes_nothing(intern: Intern, pairs: list[CapturedPair]) -> None:
    before = listing()
    for arguments in (("topics",), ("topics", "show", "ports"), ("archive",), ("archive", "show", pairs[0].qa_id)):
        assert intern(*arguments).code == 0
    assert listing() == before
