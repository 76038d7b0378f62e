"""`intern import`: progress and talk on stderr, data on stdout, mistakes in one line."""

from __future__ import annotations

import json
from pathlib import Path

from intern.core.ids import position_at
from tests.frontends.cli.conftest import Intern
from tests.worlds.clock import HandClock


def export(folder: Path, *, guild: str = "5") -> Path:
    clock = HandClock()
    asked, answer = position_at(clock.now()).id, position_at(clock.now(), 1).id
    at = clock.now().isoformat()
    messages = [
        {"id": asked, "timestamp": at, "content": "How do I stake tokens?", "author": {"id": "11", "name": "alice"}},
        {
            "id": answer,
            "timestamp": at,
            "content": "In the portal.",
            "author": {"id": "21", "name": "maya", "roles": [{"id": "77", "name": "Helpers"}]},
            "reference": {"messageId": asked},
        },
    ]
    path = folder / "general.json"
    path.write_text(json.dumps({"guild": {"id": guild}, "channel": {"id": "100"}, "messages": messages}))
    return path


def test_it_learns_from_a_file_and_tells_how_it_went(intern: Intern, folder: Path) -> None:
    path = export(folder)
    code, out, err = intern("import", str(path), "--team-id", "21")
    assert (code, out) == (0, "")
    assert "2 messages, 1 team replies, 1 conversations: 1 new, 0 fuller than before, 0 known already\n" in err
    assert "1 filed, 0 skipped" in err
    code, out, _ = intern("ask", "How do I stake tokens?")
    assert code == 0
    assert "In the portal." in out


def test_a_role_a_date_and_a_data_folder_can_be_named(intern: Intern, folder: Path) -> None:
    path = export(folder)
    code, out, _ = intern(
        "import", str(path), "--team-role-id", "77", "--since", "2027-01-01", "--data", "elsewhere", "--json"
    )
    done = json.loads(out)
    assert (code, done["archived"], done["skipped"]) == (0, 0, {"team replies before --since": 1})
    assert (folder / "elsewhere" / "intern.db").exists()
    assert not (folder / "data").exists()


def test_a_dry_run_says_what_it_would_cost(intern: Intern, folder: Path) -> None:
    code, out, err = intern("import", str(export(folder)), "--team-id", "21", "--dry-run")
    assert (code, out) == (0, "")
    assert "nothing was changed; filing these would take at most 2 model calls" in err
    assert not (folder / "data").exists()


# Finding E4.
def test_a_damaged_file_is_named_at_the_end_and_the_others_of_its_folder_are_learned(
    intern: Intern, folder: Path
) -> None:
    exports = folder / "exports"
    exports.mkdir()
    whole = export(exports).read_bytes()
    (exports / "cut-off.json").write_bytes(whole[:-40])
    code, out, err = intern("import", str(exports), "--team-id", "21")
    assert (code, out) == (3, "")
    assert "2 messages, 1 team replies, 1 conversations: 1 new" in err
    assert err.splitlines()[-1].startswith(f"left out: {exports / 'cut-off.json'} is damaged or cut off")
    code, out, _ = intern("import", str(exports), "--team-id", "21", "--json")
    done = json.loads(out)
    assert (code, done["archived"], done["known"], len(done["refused"])) == (3, 0, 1, 1)
    (exports / "general.json").unlink()
    (exports / "export.json").write_text("<!DOCTYPE html>")
    code, out, err = intern("import", str(exports), "--team-id", "21")
    assert (code, out, err.count("\n")) == (2, "", 2)  # a line for each file
    assert "export.json is HTML: export with --format Json" in err


def test_mistakes_are_one_line_and_code_2(intern: Intern, folder: Path) -> None:
    path = export(folder)
    code, out, err = intern("import", str(path))
    assert (code, out) == (2, "")
    assert err.startswith("intern: no team is set")
    assert err.endswith("Roles in the export: 77 Helpers (members: 1, messages: 1)\n")
    (folder / "cut.json").write_text("{")
    assert f"left out: {folder / 'cut.json'} is damaged" in intern("import", str(path), str(folder / "cut.json"))[2]
    for option in ("--team-id", "--team-role-id"):
        code, out, err = intern("import", str(path), "--team-id", "21", option, "@tess")
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert err.startswith(f"intern: {option} must hold Discord's ids, each of 17 to 20 digits; ")
        assert "tess" not in err
        assert not (folder / "data").exists()
    path.write_text(path.read_text()[:-9])
    code, out, err = intern("import", str(path), "--team-id", "21")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith(f"intern: {path} is damaged or cut off")
    assert intern("import", "none.json")[0] == 2
    assert intern("import")[0] == 2
