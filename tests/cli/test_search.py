"""`intern search`, `intern discover` and `intern status --sources`."""

from __future__ import annotations

import json
from pathlib import Path

from tests.cli.conftest import Intern


def test_a_search_tells_what_was_found_where_and_why(intern: Intern, sources: Path) -> None:
    assert intern("search", "port").code == 1
    intern("index")
    code, out, err = intern("search", "which", "port?")
    assert (code, err) == (0, "")
    assert out.startswith("kb:ports.md  (document)\n  Ports.")
    assert out.endswith("  holds: port\n")
    assert intern("search", "xylophone") == (1, "", "nothing was found\n")


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


def test_a_search_that_cannot_look_ends_with_3(intern: Intern, folder: Path) -> None:
    (folder / "data").mkdir()
    (folder / "data" / "intern.db").write_bytes(b"this is no database, whoever looks at it" * 100)
    code, out, err = intern("search", "port")
    assert (code, out) == (3, "")
    assert "damaged" in err


def test_discovery_is_off_until_it_is_told_where_to_look(intern: Intern) -> None:
    assert intern("discover") == (0, "", "discovery is off: discovery.scan_paths names no folder\n")


def test_the_feed_is_shown_and_worked_on_once(intern: Intern, folder: Path) -> None:
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
    assert intern("discover") == (0, "", "all that was found is indexed\n")
    code, out, _ = intern("search", "spools", "--type", "documentation")
    assert code == 0
    assert out.startswith(f"{docs / 'a.md'}  (documentation)\n")


def test_each_source_is_told_of(intern: Intern, sources: Path) -> None:
    assert "no sources" in intern("status", "--sources").out
    intern("index")
    code, out, _ = intern("status", "--sources")
    assert code == 0
    assert [line.split()[:2] for line in out.splitlines()] == [["ok", "kb:logs.md"], ["ok", "kb:ports.md"]]
    [logs, _] = json.loads(intern("status", "--sources", "--json").out)
    assert (logs["state"], logs["last_error"], logs["check_every_seconds"]) == ("ok", None, 600)
