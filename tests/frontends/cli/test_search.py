"""`intern search`, `intern discover` and `intern status --sources`."""

from __future__ import annotations

import fcntl
import json
import os
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import anyio
import apsw
import pytest
from msgspec.structs import replace

from intern.core.ids import SourceId
from intern.core.search_documents import SearchDocument
from intern.frontends.cli.asking import _highlight_words  # pyright: ignore[reportPrivateUsage]
from intern.frontends.wording import excerpt
from intern.search.embedding_local import is_english_installed
from intern.stores.engines.sqlite.database import SqliteDatabase
from intern.stores.tables.documents import DocumentStore
from tests.frontends.cli.conftest import Intern
from tests.wording import Wording
from tests.worlds.endpoint import Reply, endpoint_double


def test_a_search_tells_what_was_found_where_and_why(intern: Intern, sources: Path) -> None:
    assert intern("search", "port").code == 1
    intern("index")
    code, out, err = intern("search", "which", "port?")
    assert (code, err) == (0, "")
    assert out.startswith("kb:ports.md  Ports  (document)\n  ")
    assert "The relay listens on port 7480. Set `listen` to change the port.\n" in out
    assert "Key terms" not in out
    assert intern("search", "xylophone", "--kind", "fact") == (1, "", "nothing was found\n")


def test_the_words_are_marked_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = excerpt(
        "Nothing here.\n\nNor here.\nThe relays listen.\nPorts: one \x1b[2J.\nEnd.", frozenset({"port", "relai"})
    )
    assert lines == ["The relays listen.", "Ports: one \x1b[2J."]
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert _highlight_words(lines[1], frozenset({"port"})) == "\x1b[32m\x1b[1mPorts\x1b[0m: one \\x1b[2J."


def test_a_document_that_is_new_changed_or_gone_is_searched_as_it_is_now(intern: Intern, sources: Path) -> None:
    intern("index")
    assert intern("search", "zanzibar").code == 1
    (sources / "ports.md").write_text("# Ports\n\nThe relay listens at zanzibar.\n")
    (sources / "new.md").write_text("# Harbours\n\nAll ships call at mombasa.\n")
    (sources / "logs.md").unlink()
    assert intern("search", "zanzibar").out.startswith("kb:ports.md")
    assert intern("search", "mombasa").out.startswith("kb:new.md")
    assert intern("search", "lumen").code == 1


@pytest.mark.rest
def test_a_search_asks_no_model_to_describe_what_it_finds_changed(intern: Intern, sources: Path) -> None:
    with endpoint_double(lambda _: Reply(content={"description": "About the relay."})) as endpoint:
        Path("intern.toml").write_text(
            f'[llm]\nbase_url = "{endpoint.base_url}"\nmodel = "double"\n[embeddings]\nprovider = "none"\n'
        )
        assert intern("index").code == 0
        asked = len(endpoint.requests)
        (sources / "ports.md").write_text("# Ports\n\nThe relay listens at zanzibar.\n")
        assert intern("search", "zanzibar").out.startswith("kb:ports.md")
        assert len(endpoint.requests) == asked
        intern("index")
        assert len(endpoint.requests) == asked + 1


def test_a_file_that_is_no_document_makes_no_search_look_again(intern: Intern, sources: Path) -> None:
    (sources / "picture.md").write_bytes(b"\0\0\0")
    (sources / " ").write_text("no name")
    intern("index")
    lock = os.open(sources.parents[1] / ".lock", os.O_RDWR)
    fcntl.flock(lock, fcntl.LOCK_EX)  # another process that indexes now would have to wait
    try:
        assert intern("search", "port").out.startswith("kb:ports.md")
    finally:
        os.close(lock)


def test_a_search_for_scripts_holds_all_of_it(intern: Intern, sources: Path) -> None:
    intern("index")
    code, out, err = intern("search", "relay", "--json", "--top", "1", "--kind", "source", "--type", "document")
    assert (code, err) == (0, "")
    [found] = json.loads(out)
    assert found["source_id"] in {"kb:ports.md", "kb:logs.md"}
    assert found["matched"] == ["relay"]
    assert intern("search", "relay", "--json", "--kind", "file") == (1, "[]\n", "")
    assert intern("search", "relay", "--before", "2001-01-01").code == 1
    assert intern("search", "relay", "--after", "2001-01-01", "--status", "ok").code == 0


def put(folder: Path, *documents: SearchDocument) -> None:
    async def work() -> None:
        async with await SqliteDatabase.open(folder / "data" / "intern.db") as db:
            await DocumentStore(db).replace_documents(documents)

    anyio.run(work)


def test_nuggets_and_facts_are_found_and_say_how_far_they_can_be_trusted(intern: Intern, folder: Path) -> None:
    at = datetime(2026, 2, 1, tzinfo=UTC)
    nugget = SearchDocument(
        id="nugget:1",
        source_id=SourceId("nugget:1"),
        kind="nugget",
        status="SPECULATION",
        guild_id="7",
        title="Spools",
        text="The xylophone may clog the spool.",
        at=at,
    )
    fact = replace(nugget, id="fact:1", source_id=SourceId("fact:1"), kind="fact", type="technical", guild_id="8")
    put(folder, nugget, replace(fact, status="active", visibility="private", text="A xylophone weighs 4 kg."))
    code, out, err = intern("search", "xylophone", "--kind", "nugget", "--kind", "fact")
    assert (code, err) == (0, "")
    assert "nugget:1  Spools  (nugget, SPECULATION)\n  The xylophone may clog the spool." in out
    assert "fact:1  Spools  (fact, technical, active, private)\n  A xylophone weighs 4 kg." in out
    [found] = json.loads(
        intern("search", "xylophone", "--kind", "nugget", "--kind", "fact", "--guild", "7", "--json").out
    )
    assert (found["source_id"], found["guild_id"], found["stale"]) == ("nugget:1", "7", False)
    assert (found["matched"], found["words_place"], found["words_only"]) == (["xylophone"], 1, False)
    assert found["score"] > 0
    assert intern("search", "xylophone", "--kind", "fact", "--status", "retired").code == 1


def test_a_filter_that_nothing_can_pass_is_wrong_use(intern: Intern, folder: Path) -> None:
    document = SearchDocument(
        id="nugget:1",
        source_id=SourceId("nugget:1"),
        kind="nugget",
        status="FACT",
        guild_id="7",
        text="The xylophone may clog the spool.",
        at=datetime(2026, 2, 1, tzinfo=UTC),
    )
    put(folder, document)
    for option, bogus, valid in (("--type", "doc", "page"), ("--status", "FICTION", "FACT"), ("--guild", "8", "7")):
        code, out, err = intern("search", "xylophone", option, bogus)
        assert (code, out) == (2, "")
        assert repr(bogus) in err
        assert valid in err
    assert intern("search", "xylophone", "--guild", "7", "--status", "FACT").code == 0
    assert intern("search", "xylophone", "--guild", "7", "--type", "page").code == 1


def test_nuggets_are_listed_by_status_and_age_as_answers_draw_on_them(intern: Intern, folder: Path) -> None:
    now = datetime.now(UTC)
    guess = SearchDocument(
        id="nugget:guess",
        source_id=SourceId("nugget:guess"),
        kind="nugget",
        status="SPECULATION",
        text="The xylophone may clog the spool.",
        at=now - timedelta(days=3 * 365),
    )
    put(
        folder,
        guess,
        replace(guess, id="nugget:heard", source_id=SourceId("nugget:heard"), status="COMMUNITY_OPINION", at=now),
        replace(guess, id="nugget:old", source_id=SourceId("nugget:old"), status="FACT"),
        replace(guess, id="nugget:known", source_id=SourceId("nugget:known"), status="FACT", at=now),
    )
    found = json.loads(intern("search", "xylophone", "--json").out)
    assert [each["source_id"][7:] for each in found] == ["known", "heard", "old", "guess"]
    assert [each["score"] for each in found] == pytest.approx([1.0, 0.85, 0.825, 0.619], abs=0.01)
    [best] = json.loads(intern("search", "xylophone", "--json", "--top", "1").out)
    assert best["source_id"] == "nugget:known"


@pytest.mark.skipif(not is_english_installed(), reason="needs the extra: embeddings")
def test_with_vectors_what_nobody_wrote_of_is_not_found(intern: Intern, sources: Path) -> None:
    (sources / "car.md").write_text("# Cars\n\nWhat to do when the car will not start.\n")
    # Any made-up word is a little like this.
    (sources / "glossary.md").write_text("# Glossary\n\nzsh, zstd, xz, gzip and bzip2.\n")
    (sources.parents[2] / "intern.toml").write_text('[embeddings]\nprovider = "local"\n')
    assert intern("index").code == 0
    for asked in ("qwertzuiop", "flurbo gnarp", "zxcvbnm"):
        assert intern("search", asked) == (1, "", "nothing was found\n")
    code, out, _ = intern("search", "automobile")
    assert code == 0
    assert out.startswith("kb:car.md")


def test_the_search_is_made_anew_when_somebody_asks_for_that(intern: Intern, folder: Path, sources: Path) -> None:
    del sources
    assert intern("index").code == 0
    file: Any = apsw.Connection(str(folder / "data" / "search.db"))
    file.execute("delete from search_documents")
    file.close()
    assert intern("search", "port").code == 1
    assert intern("index", "--rebuild-search").code == 0
    assert intern("search", "port").code == 0


def test_a_search_that_cannot_look_ends_with_3(intern: Intern, folder: Path) -> None:
    (folder / "data").mkdir()
    (folder / "data" / "intern.db").write_bytes(b"this is no database, whoever looks at it" * 100)
    code, out, err = intern("search", "port")
    assert (code, out) == (3, "")
    assert "damaged" in err


@pytest.mark.usefixtures("made")
def test_discovery_is_off_until_it_is_told_where_to_look(intern: Intern, wording: Wording) -> None:
    assert wording(intern("discover")).code == 0


@pytest.mark.usefixtures("made")
def test_the_feed_is_shown_and_worked_on_once(intern: Intern, folder: Path, wording: Wording) -> None:
    docs = folder / "docs"
    docs.mkdir()
    (docs / "a.md").write_text("# Spools\n\nHow spools are purged.\n")
    (folder / "intern.toml").write_text(f'[discovery]\nscan_paths = ["{docs}"]\n')
    code, out, _ = intern("discover")
    assert code == 0
    assert out == f"medium  new             documentation  What knowledge does {docs / 'a.md'} contain?\n"
    [item] = json.loads(intern("discover", "--json").out)
    assert item["hypothesis"] == "UNINDEXED_KNOWLEDGE_a_md"
    assert intern("discover", "--once") == (0, "", "1 indexed, 0 passed over, 0 gone, 0 left\n")
    assert wording(intern("discover")).code == 0
    code, out, _ = intern("search", "spools", "--type", "documentation")
    assert code == 0
    assert out.startswith(f"{docs / 'a.md'}  (documentation)\n")


@pytest.mark.usefixtures("made")
def test_a_scan_path_that_cannot_be_looked_at_is_named_and_no_found_nothing(
    intern: Intern, folder: Path, wording: Wording
) -> None:
    docs, gone, loop = folder / "docs", folder / "gone", folder / "loop"
    loop.symlink_to(loop)
    (folder / "intern.toml").write_text(f'[discovery]\nscan_paths = ["{gone}", "{loop}", "{gone}/*.md"]\n')
    for arguments in (["discover"], ["discover", "--once"], ["discover", "--json"]):
        code, out, err = intern(*arguments)
        assert code == 3
        assert f"intern: {gone} could not be looked at (No such file or directory); correct discovery.scan_paths" in err
        assert f"intern: {loop} could not be looked at (Too many levels of symbolic links)" in err
        assert "all that was found is indexed" not in out + err
    assert json.loads(intern("discover", "--once", "--json").out)["unreadable"].keys() == {str(gone), str(loop)}

    docs.mkdir()
    (folder / "intern.toml").write_text(f'[discovery]\nscan_paths = ["{gone}", "{docs}"]\n')
    code, out, err = intern("discover")
    assert (code, out) == (0, "")
    could_not, *found = err.splitlines()
    assert could_not.startswith(f"intern: {gone} could not be looked at (No such file or directory); ")
    wording(found)


def test_each_source_is_told_of(intern: Intern, sources: Path) -> None:
    assert "no sources" in intern("status", "--sources").err
    intern("index")
    code, out, _ = intern("status", "--sources")
    assert code == 0
    assert [line.split()[:2] for line in out.splitlines()] == [["ok", "kb:logs.md"], ["ok", "kb:ports.md"]]
    [logs, _] = json.loads(intern("status", "--sources", "--json").out)
    assert (logs["state"], logs["last_error"], logs["check_every_seconds"]) == ("ok", None, 600)
