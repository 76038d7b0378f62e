"""`intern backup`: what it says and how it ends."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.frontends.cli.conftest import Intern


def test_it_says_where_the_copy_is_and_what_else_belongs_to_it(intern: Intern, sources: Path, folder: Path) -> None:
    (folder / "intern.toml").write_text('[llm]\nprovider = "offline"\n[embeddings]\nprovider = "none"\n')
    assert intern("index").code == 0
    code, out, err = intern("backup", "copy.db")
    assert (code, out) == (0, "copy.db\n")
    assert "also copy, as they are: data" in err
    assert sources.is_relative_to(folder / "data")
    code, out, err = intern("backup", "copy.db")
    assert (code, out) == (2, "")
    assert "--force" in err
    code, out, _ = intern("backup", "copy.db", "--force", "--json")
    assert code == 0
    assert json.loads(out)["bytes"] == (folder / "copy.db").stat().st_size


@pytest.mark.usefixtures("made")
def test_without_a_database_it_ends_with_3(intern: Intern) -> None:
    code, out, err = intern("backup", "copy.db")
    assert (code, out) == (3, "")
    assert "there is no database" in err
