"""Commands with a vector engine: what they say while it is away, and once it is back."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from intern.search.embedding_local import is_english_installed
from tests.contracts.vector_engines import KEY, QdrantDouble, serving
from tests.frontends.cli.conftest import Intern

pytestmark = pytest.mark.skipif(not is_english_installed(), reason="needs the extra: embeddings")


@pytest.mark.rest
def test_what_is_owed_to_an_engine_that_is_away_is_told_until_it_is_paid(
    intern: Intern, folder: Path, sources: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    double = QdrantDouble()
    monkeypatch.setenv("INTERN__SEARCH__API_KEY", KEY)
    with serving(double) as url:
        search = f'[search]\nvectors = "qdrant"\nurl = "{url}"\n'
        (folder / "intern.toml").write_text(f'[embeddings]\nprovider = "local"\n{search}')
        assert intern("index").code == 0
        assert "all-MiniLM-L6-v2-int8, in qdrant\n" in intern("status").out
        assert "it holds 4 of 4 vectors" in intern("doctor").err
        double.is_away = True
        (sources / "logs.md").unlink()
        assert intern("index").code == 0
        assert "in qdrant (still to be copied there: 2)" in intern("status").out
        assert "the vector engine gave no answer" in intern("doctor").err
        [found] = json.loads(intern("search", "port", "--json").out)
        assert found["likeness_place"] == 1, "local vectors do"
        _, _, err = intern("forget", "--message", "4711")
        assert "copies in the vector engine are deleted once it is back: qdrant at" in err
        assert KEY not in err
        code, _, err = intern("index", "--rebuild-search")
        assert (code, "qdrant at" in err) == (3, True)
        double.is_away = False
        assert "once it is back" not in intern("forget", "--message", "4711").err
        assert "in qdrant\n" in intern("status").out


@pytest.mark.rest
@pytest.mark.parametrize("command", [["import-notes", "notes", "--data", "other"], ["try", "--play"]])
def test_another_data_folder_than_that_of_the_settings_leaves_the_engine_alone(
    intern: Intern, folder: Path, command: list[str]
) -> None:
    double = QdrantDouble()
    (folder / "notes").mkdir()
    (folder / "notes" / "ports.md").write_text("# Ports\n\nThe relay listens on port 7480.\n")
    with serving(double) as url:
        search = f'[search]\nvectors = "qdrant"\nurl = "{url}"\n'
        (folder / "intern.toml").write_text(f'[embeddings]\nprovider = "local"\n{search}')
        assert intern(*command).code == 0
    assert double.asked == []
