"""`intern community`: the registry, shown and changed, and one community exported and erased."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import anyio
import apsw
import pytest
from anyio import fail_after

from intern.core.errors import KnowledgeError
from intern.core.ids import GuildId
from intern.stores.engines.sqlite.database import SqliteDatabase
from intern.stores.folder_lock import FolderLock
from intern.stores.tables.communities import CommunityStore
from tests.frontends.cli.conftest import Intern
from tests.stores.test_communities import plant

DATA = Path("data")


@pytest.fixture(autouse=True)
def joined(folder: Path) -> None:
    """Two servers that have the bot, and what is known of each."""
    del folder

    async def work() -> None:
        with fail_after(20):
            async with await SqliteDatabase.open(DATA / "intern.db") as db:
                for guild_id, title in (("1", "One\x1b[2J"), ("2", "Other")):
                    known, _ = await CommunityStore(db).add_server(GuildId(guild_id), title)
                    await plant(db.for_community(known.name), f"planted {known.name}")
                    raw = DATA / "communities" / known.name / "team-knowledge/raw"
                    raw.mkdir(parents=True)
                    (raw / "note.txt").write_text(f"planted {known.name}", encoding="utf-8")

    anyio.run(work)


def rows_of(name: str, file: Path = DATA / "intern.db") -> list[str]:
    db: Any = apsw.Connection(str(file))
    found: list[str] = []
    for (table,) in db.execute("select name from sqlite_schema where type = 'table'").fetchall():
        columns = {each for _, each, *_ in db.execute(f"pragma table_info({table})")}
        if "community" in columns:
            found += map(repr, db.execute(f"select * from {table} where community = ?", (name,)))
    db.close()
    return found


def test_communities_are_listed_and_shown_with_their_limits(intern: Intern) -> None:
    code, out, err = intern("community")
    assert (code, err) == (0, "")
    assert [line.partition("  since")[0] for line in out.splitlines()] == [
        "one-2j  active  'One\\x1b[2J', server 1",
        "other  active  'Other', server 2",
    ]
    assert intern("community", "set", "other", "hosting.questions_per_day", "200").code == 0
    assert intern("community", "set", "other", "discord.team_role_ids", "[7]").code == 0
    shown = intern("community", "show", "other").out
    assert "questions today: 0 of 200" in shown
    assert 'discord.team_role_ids = ["7"]' in shown
    assert intern("community", "set", "other", "hosting.questions_per_day").code == 0
    assert "of 200" not in intern("community", "show", "other").out
    found = json.loads(intern("community", "list", "--json").out)
    assert [each["chosen"] for each in found] == [{}, {"discord": {"team_role_ids": ["7"]}}]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("show", "nowhere"), "there is no community 'nowhere'; `intern community list` names all"),
        (("set", "other", "llm.base_url", "http://evil.test"), "llm.base_url is no setting of a community"),
        (("set", "other", "discord.team_role_ids", "['x']"), "discord.team_role_ids: must hold Discord's ids"),
        (("set", "other", "hosting.sources", "1.5"), "community other: hosting.sources: expected a whole number"),
        (
            ("set", "other", "hosting.sources", "many"),
            "intern: 'many': hosting.sources is no string, so write it as in",
        ),
        (
            ("set", "other", "kb.links", '["http://10.0.0.1/"]'),
            "cannot be read: 10.0.0.1 is no public",
        ),
        (("resume", "other"), "community other is not suspended"),
        (("delete", "other"), "this erases all data of community other; make an export first"),
    ],
)
def test_what_cannot_be_done_is_said_and_changes_nothing(intern: Intern, arguments: tuple[str, ...], says: str) -> None:
    before = intern("community", "list", "--json").out
    code, out, err = intern("community", *arguments)
    assert (code, out) == (2, "")
    assert says in err
    assert intern("community", "list", "--json").out == before


def test_a_move_takes_all_communities_along_or_none(intern: Intern, monkeypatch: pytest.MonkeyPatch) -> None:
    async def full(*_: Any) -> None:
        raise KnowledgeError("the disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(CommunityStore, "import_communities", full)
        assert intern("move", "data/intern.db", "moved.db").code == 3
    assert rows_of("other", Path("moved.db")) == []
    assert intern("move", "data/intern.db", "moved.db").code == 0
    for name in ("one-2j", "other"):
        assert sorted(rows_of(name, Path("moved.db"))) == sorted(rows_of(name))
    Path("moved.db").replace("data/intern.db")
    assert len(json.loads(intern("community", "--json").out)) == 2


def test_a_suspended_community_is_served_again_when_it_is_resumed(intern: Intern) -> None:
    for act, state in (("suspend", "suspended"), ("resume", "active")):
        assert json.loads(intern("community", act, "other", "--json").out)["state"] == state


def test_other_commands_work_on_one_community_alone(intern: Intern) -> None:
    code, out, _ = intern("--community", "other", "status")
    assert code == 0
    assert out.startswith(f"{DATA}/communities/other: intern does not run")
    assert "feedback: 1 helpful" in out
    assert "feedback: 0 helpful" in intern("status").out
    assert intern("--community", "nowhere", "status").code == 2
    assert "intern backup is for the whole process" in intern("--community", "other", "backup", "x.db").err


def test_a_command_on_one_community_wants_its_name_where_there_are_many(
    intern: Intern, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("INTERN__HOSTING__ENABLED", "true")
    code, _, err = intern("status")
    assert (code, "`intern --community NAME status`" in err) == (2, True)
    assert intern("--community", "other", "status").code == 0
    assert intern("community", "list").code == 0
    assert intern("prompts", "check").code == 0


def test_an_export_has_what_the_community_chose_and_nothing_of_another(intern: Intern) -> None:
    intern("community", "set", "other", "ai.answer_scope", "Spools")
    code, _, err = intern("community", "export", "other", "copy")
    assert (code, err) == (0, f"wrote {len(list(Path('copy').rglob('*.*')))} files to copy\n")
    texts = "".join(path.read_text(encoding="utf-8") for path in Path("copy").rglob("*.*"))
    assert "planted other" in texts
    assert "Spools" in texts
    assert "one" not in texts.replace("None", "")


def test_nothing_of_an_erased_community_is_left_and_the_other_keeps_all(intern: Intern) -> None:
    kept = rows_of("other")
    assert rows_of("one-2j")
    assert intern("community", "delete", "one-2j", "--yes") == (0, "", "one-2j: all its data is erased\n")
    assert rows_of("one-2j") == []
    assert rows_of("other") == kept
    left = {path: path.read_bytes() for path in DATA.rglob("*") if path.is_file()}
    assert [path for path, data in left.items() if b"planted one" in data or b"One\x1b" in data] == []
    assert (DATA / "communities/other/team-knowledge/raw/note.txt") in left
    assert [each["name"] for each in json.loads(intern("community", "list", "--json").out)] == ["other"]


def test_a_suspended_community_that_is_erased_stays_suspended(intern: Intern) -> None:
    intern("community", "suspend", "other")
    assert intern("community", "delete", "other", "--yes").code == 0
    assert rows_of("other") == []
    states = {each["name"]: each["state"] for each in json.loads(intern("community", "list", "--json").out)}
    assert states == {"one-2j": "active", "other": "suspended"}


def test_a_command_that_no_process_will_carry_out_says_so(intern: Intern) -> None:
    intern("community", "suspend", "other")
    with FolderLock(DATA):
        code, _, err = intern("--community", "other", "forget", "--message", "1")
    assert (code, "no process works on community other, for it is suspended" in err) == (3, True)
    assert intern("--community", "other", "forget", "--message", "1").code == 1


def test_a_community_that_a_process_hosts_is_left_for_it_to_erase(intern: Intern, monkeypatch: Any) -> None:
    def tell(*_: Any) -> None:
        raise KnowledgeError("it waits")

    monkeypatch.setattr("intern.service.community_registry.report_progress", tell)
    with FolderLock(DATA):
        assert intern("community", "delete", "other", "--yes") == (3, "", "intern: it waits\n")
    [found] = [each for each in json.loads(intern("community", "list", "--json").out) if each["name"] == "other"]
    assert found["state"] == "left"
    assert rows_of("other")
