"""`intern init`: what it writes, and that it never overwrites."""

from __future__ import annotations

import os
from pathlib import Path

from intern.settings.loading import load_settings
from intern.settings.settings import Settings
from tests.frontends.cli.conftest import SOURCE_TREE, Intern
from tests.wording import Wording


def test_it_writes_the_commented_settings_and_the_folders(intern: Intern, folder: Path, wording: Wording) -> None:
    code, out, err = intern("init")
    assert (code, out) == (0, "")
    wording(err)
    assert Path("intern.toml").read_text("utf-8") == (SOURCE_TREE / "intern.toml.example").read_text("utf-8")
    assert load_settings(environ={}) == Settings()
    assert (folder / "data" / "knowledge-base" / "sources").is_dir()
    assert (folder / "data" / "team-knowledge" / "raw").is_dir()
    assert (folder / "data" / "team-knowledge" / "topics").is_dir()
    assert intern("index") == (0, "", "0 described, 0 removed\n")


def test_only_its_owner_may_read_the_settings(intern: Intern) -> None:
    mask = os.umask(0)
    try:
        intern("init")
    finally:
        os.umask(mask)
    assert Path("intern.toml").stat().st_mode & 0o777 == 0o600


def test_what_is_there_stays_as_it_is(intern: Intern, sources: Path) -> None:
    Path("intern.toml").write_text("# mine\n")
    Path("intern.toml").chmod(0o644)
    document = (sources / "ports.md").read_bytes()
    for _ in range(2):
        code, _, err = intern("init")
        assert code == 0
        assert "intern.toml is there already; left as it is" in err
    assert Path("intern.toml").read_text() == "# mine\n"
    assert Path("intern.toml").stat().st_mode & 0o777 == 0o644
    assert (sources / "ports.md").read_bytes() == document


def test_a_link_to_nowhere_is_not_written_through(intern: Intern) -> None:
    Path("intern.toml").symlink_to("elsewhere.toml")
    assert "is there already" in intern("init").err
    assert not Path("elsewhere.toml").exists()


def test_another_folder_is_made_if_need_be(intern: Intern) -> None:
    code, _, err = intern("init", "deep/er")
    assert code == 0
    assert "wrote deep/er/intern.toml" in err
    assert Path("deep/er/data/knowledge-base/sources").is_dir()


def test_where_nothing_can_be_written_it_says_so(intern: Intern, wording: Wording) -> None:
    Path("file").write_text("")
    code, out, err = intern("init", "file/below")
    assert (code, out, err.count("\n")) == (3, "", 1)
    wording(err)
    assert intern("init", "file").code == 2
