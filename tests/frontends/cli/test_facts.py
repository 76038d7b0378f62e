"""`intern facts` and `intern nuggets`: what is known, shown to operators, and one retired."""

from __future__ import annotations

import json
from pathlib import Path

import anyio
import pytest
from anyio import fail_after

from intern.core.ids import FactId
from intern.core.knowledge import NewFact, UpdatedFact
from intern.stores.engines.sqlite.database import SqliteDatabase
from intern.stores.tables.documents import DocumentStore
from intern.stores.tables.extractions import ExtractionLog
from intern.stores.tables.facts import FactFilter, FactStore
from tests.frontends.cli.conftest import Intern, environment
from tests.frontends.cli.test_ask_and_index import bot
from tests.stores.taught import conversation, fact, nugget, outcome, said
from tests.worlds.clock import HandClock
from tests.worlds.program import program

PORT, NEW_PORT = "The relay listens on port 7480.", "The relay listens on port 7481.\x1b[2J"
SECRET = "The password of the relay is hunter2."
DATABASE = Path("data/intern.db")


@pytest.fixture(autouse=True)
def known(folder: Path) -> None:
    """An older fact, what took its place a day later, and a secret."""
    del folder

    async def work() -> None:
        with fail_after(10):
            async with await SqliteDatabase.open(DATABASE) as db:
                log = ExtractionLog(db, clock=HandClock())
                old = NewFact(fact=fact("aa1", PORT), occurrence=said("aa1", 1, snippet="7480, says the manual"))
                await log.apply(outcome(conversation(1), [old], [nugget("ee1", 1), nugget("ee2", 1, "Ports\x07.")]))
                taken = fact("ab2", NEW_PORT, 1440, supersedes=FactId("aa1"))
                new = UpdatedFact(fact=taken, occurrence=said("ab2", 2, 1440))
                hidden = fact("cc3", SECRET, 1440, visibility="secret")
                kept = NewFact(fact=hidden, occurrence=said("cc3", 2, 1440))
                await log.apply(outcome(conversation(2, 1440), [new, kept]))

    anyio.run(work)


def ids(out: str) -> list[str]:
    return [each["id"] for each in json.loads(out)]


def test_active_facts_are_listed_and_secret_ones_only_where_they_are_asked_for(intern: Intern) -> None:
    code, out, err = intern("facts")
    assert (code, err) == (0, "")
    assert out.startswith("ab2  2026-01-06 09:00  (technical, shared, said 1×)  The relay listens on port 7481.\\x1b")
    assert len(out.splitlines()) == 1
    assert ids(intern("facts", "list", "--json").out) == ["ab2"]
    assert ids(intern("facts", "list", "--all", "--json").out) == ["ab2", "aa1"]
    assert ids(intern("facts", "list", "--secret", "--json").out) == ["cc3", "ab2"]
    assert ids(intern("facts", "list", "--category", "decision", "--json").out) == []
    assert ids(intern("facts", "list", "--top", "1", "--all", "--json").out) == ["ab2"]


@pytest.mark.parametrize(
    ("when", "believed"),
    [
        ("2026-01-04", []),
        ("2026-01-05", ["aa1"]),
        ("2026-01-06T08:59", ["aa1"]),
        ("2026-01-06T10:30+02:00", ["aa1"]),
        ("2026-01-06", ["ab2"]),
    ],
)
def test_what_was_believed_on_a_date_is_told(intern: Intern, when: str, believed: list[str]) -> None:
    assert ids(intern("facts", "list", "--as-of", when, "--json").out) == believed


def test_a_date_that_is_none_is_wrong_use(intern: Intern) -> None:
    code, out, err = intern("facts", "list", "--as-of", "yesterday")
    assert (code, out) == (2, "")
    assert "2026-03-01" in err


def test_facts_are_found_by_their_words_and_nothing_found_is_exit_code_1(intern: Intern) -> None:
    assert ids(intern("facts", "search", "which", "PORT?", "--json").out) == ["ab2"]
    assert ids(intern("facts", "search", "port", "--as-of", "2026-01-05", "--json").out) == ["aa1"]
    code, out, err = intern("facts", "search", "password")
    assert (code, out, err) == (1, "", "nothing was found\n")
    assert ids(intern("facts", "search", "password", "--secret", "--json").out) == ["cc3"]


def test_a_fact_is_shown_whole_by_the_beginning_of_its_id(intern: Intern) -> None:
    code, out, _ = intern("facts", "show", "fact:AA")
    assert code == 0
    assert "  retired 2026-01-06 09:00: a newer fact took its place" in out
    assert "  said 2026-01-05 09:00 in reply_1 (neutral): 7480, says the manual" in out
    shown = json.loads(intern("facts", "show", "aa1", "--json").out)
    assert shown["fact"]["content"] == PORT
    assert len(shown["occurrences"]) == 1


def test_the_history_of_a_fact_is_its_whole_chain(intern: Intern) -> None:
    for link in ("aa1", "ab2"):
        history = json.loads(intern("facts", "history", link, "--json").out)
        assert [each["fact"]["id"] for each in history] == ["aa1", "ab2"]
    assert "took the place of aa1" in intern("facts", "history", "ab").out


@pytest.mark.parametrize("action", ["show", "history"])
def test_an_id_that_is_unknown_secret_or_not_the_only_one_is_wrong_use(intern: Intern, action: str) -> None:
    for name, why in (("zz", "no fact zz"), ("a", "2 facts"), ("cc3", "no fact cc3"), ("", "no fact")):
        code, out, err = intern("facts", action, name)
        assert (code, out) == (2, ""), name
        assert why in err
    assert SECRET in intern("facts", action, "cc3", "--secret").out


def test_a_fact_is_retired_with_a_reason_once(intern: Intern) -> None:
    code, out, err = intern("facts", "retire", "ab", "--why", "the port moved")
    assert (code, out, err) == (0, "ab2  retired: the port moved\n", "")
    assert ids(intern("facts", "list", "--json").out) == []
    assert "the port moved" in intern("facts", "show", "ab2").out
    code, _, err = intern("facts", "retire", "ab2", "--why", "again")
    assert code == 2
    assert "retired already" in err


def test_retiring_needs_a_reason_and_a_fact(intern: Intern) -> None:
    assert intern("facts", "retire", "ab2").code == 2
    assert intern("facts", "retire", "ab2", "--why", " ").code == 2
    assert intern("facts", "retire", "zz", "--why", "no").code == 2
    assert ids(intern("facts", "list", "--json").out) == ["ab2"]


def test_a_secret_fact_is_retired_without_telling_it(intern: Intern) -> None:
    ended = intern("facts", "retire", "cc3", "--why", "rotated", "--json")
    assert json.loads(ended.out) == {"fact_id": "cc3", "why": "rotated"}
    assert b"hunter2" not in b"".join(_jobs())


@pytest.mark.rest
@pytest.mark.usefixtures("sources")
async def test_while_the_bot_runs_it_retires_the_fact_and_searches_know_of_it() -> None:
    async with bot():
        arguments = ("facts", "retire", "ab2", "--why", "the port moved", "--json")
        done = await anyio.run_process(program(*arguments), env=environment(), check=False)
        assert (done.returncode, done.stderr) == (0, b"")
        assert json.loads(done.stdout) == {"fact_id": "ab2", "why": "the port moved"}
        async with await SqliteDatabase.open(DATABASE) as db:
            assert await FactStore(db, clock=HandClock()).all(FactFilter()) == ()
            documents = await DocumentStore(db).list_documents("fact")
    assert {(each.source_id, each.status) for each in documents} == {
        ("fact:aa1", "retired"),
        ("fact:ab2", "retired"),
    }


def test_nuggets_are_listed_and_shown(intern: Intern) -> None:
    code, out, err = intern("nuggets")
    assert (code, err) == (0, "")
    assert out.splitlines() == [
        "ee1  2026-01-05 09:00  (FACT)  ports: The relay listens on port 7480.",
        "ee2  2026-01-05 09:00  (FACT)  ports: Ports\\x07.",
    ]
    assert ids(intern("nuggets", "list", "--top", "1", "--json").out) == ["ee1"]
    assert ids(intern("nuggets", "list", "--status", "SPECULATION", "--json").out) == []
    shown = intern("nuggets", "show", "nugget:ee1").out
    assert "  The relay listens on port 7480. User_1 said so.\n" in shown
    assert "  from reply_1, messages 12\n" in shown
    assert json.loads(intern("nuggets", "show", "ee1", "--json").out)["status"] == "FACT"
    for name, why in (("ee", "2 nuggets"), ("x", "no nugget x"), ("", "no nugget")):
        code, _, err = intern("nuggets", "show", name)
        assert code == 2
        assert why in err


def _jobs() -> list[bytes]:
    async def work() -> list[bytes]:
        async with await SqliteDatabase.open(DATABASE) as db:
            rows = await db.read(lambda tx: tx.rows("select payload, coalesce(result, x'') from jobs"))
            return [each for row in rows for each in row if isinstance(each, bytes)]

    return anyio.run(work)
