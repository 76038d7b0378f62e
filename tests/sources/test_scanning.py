"""A scan finds the right files, and never leaves the scan paths."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from intern.sources.options import DiscoveryOptions
from intern.sources.scanning import FileUnreadableError, Scanner, read_file


def trouble(path: str) -> str:
    with pytest.raises(FileUnreadableError) as raised:
        read_file(path)
    return raised.value.trouble


def scanner(*paths: Path | str) -> Scanner:
    return Scanner(DiscoveryOptions(scan_paths=tuple(map(str, paths))))


def names(found: Scanner) -> list[str]:
    return [file.path.rpartition("/")[2] for file in found.scan().files]


def put(path: Path, text: str = "x") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_only_files_of_a_known_type_are_found_and_some_folders_never(tmp_path: Path) -> None:
    for name in (
        "a.md",
        "sub/b.TXT",
        "c.py",
        "c.pyc",
        "d.bin",
        "__pycache__/e.py",
        ".venv/f.py",
        ".git/g.md",
        "node_modules/h.md",
        "i.backup.md",
        "k.md.backup1",
        ".hidden.md",
    ):
        put(tmp_path / name)
    assert names(scanner(tmp_path)) == ["a.md", "c.py", "b.TXT"]


def test_a_scan_path_may_be_a_file_a_pattern_or_in_the_home_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = put(tmp_path / "one" / "a.md")
    put(tmp_path / "etc" / "klr-a.service")
    put(tmp_path / "etc" / "other.service")
    assert names(scanner(one)) == ["a.md"]
    assert names(scanner(tmp_path / "etc" / "klr-*.service")) == ["klr-a.service"]
    monkeypatch.setenv("HOME", str(tmp_path))
    assert names(scanner("~/one")) == ["a.md"]


def test_links_lead_nowhere_but_inside(tmp_path: Path) -> None:
    secret = put(tmp_path / "secret" / "key.md")
    root = tmp_path / "docs"
    inside = put(root / "a.md")
    (root / "out.md").symlink_to(secret)
    (root / "folder").symlink_to(secret.parent)
    (root / "again.md").symlink_to(inside)
    (root / "circle").symlink_to(root)
    (root / "broken.md").symlink_to(tmp_path / "nothing")
    assert [file.path for file in scanner(root).scan().files] == [str(inside)]
    assert names(scanner(root / "*.md")) == ["a.md"]
    look = scanner(root).check_file
    assert look(str(inside)) is not None
    assert look(str(root / "out.md")) is None
    assert look(str(secret)) is None
    assert look(f"{root}/../secret/key.md") is None


def test_a_file_that_becomes_a_link_after_the_scan_is_not_read(tmp_path: Path) -> None:
    secret = put(tmp_path / "secret.md", "secret")
    path = put(tmp_path / "docs" / "a.md")
    [file] = scanner(tmp_path / "docs").scan().files
    path.unlink()
    path.symlink_to(secret)
    assert trouble(file.path) == "gone"
    path.unlink()
    os.mkfifo(path)
    assert trouble(file.path) == "unsupported_type"  # and no process waits for a writer


def test_a_folder_that_becomes_a_link_after_the_scan_is_not_entered(tmp_path: Path) -> None:
    put(tmp_path / "secret" / "a.md", "secret")
    put(tmp_path / "docs" / "sub" / "a.md")
    [file] = scanner(tmp_path / "docs").scan().files
    (tmp_path / "docs" / "sub").rename(tmp_path / "docs" / "was")
    (tmp_path / "docs" / "sub").symlink_to(tmp_path / "secret")
    assert trouble(file.path) == "gone"


def test_intern_s_own_folder_is_left_alone_also_through_a_link(tmp_path: Path) -> None:
    put(tmp_path / "data" / "team-knowledge" / "raw" / "a.txt")
    put(tmp_path / "b.md")
    (tmp_path / "c.txt").symlink_to(tmp_path / "data" / "team-knowledge" / "raw" / "a.txt")
    found = Scanner(DiscoveryOptions(scan_paths=(str(tmp_path),)), never=[tmp_path / "data"])
    assert names(found) == ["b.md"]
    assert names(Scanner(DiscoveryOptions(scan_paths=(str(tmp_path / "data"),)), never=[tmp_path / "data"])) == []
    assert (
        names(
            Scanner(
                DiscoveryOptions(scan_paths=(str(tmp_path / "data" / "team-knowledge"),)), never=[tmp_path / "data"]
            )
        )
        == []
    )


def test_a_file_below_a_scan_path_that_is_away_cannot_be_looked_at_and_is_not_gone(tmp_path: Path) -> None:
    file = put(tmp_path / "docs" / "a.md")
    for scan_path in (tmp_path / "docs", tmp_path / "docs" / "*.md"):
        found = scanner(scan_path)
        file.parent.rename(tmp_path / "away")
        with pytest.raises(OSError, match="No such file"):
            found.check_file(str(file))
        assert (found.scan().nowhere, list(found.find_unreadable_paths())) == (True, [str(file.parent)])
        (tmp_path / "away").rename(file.parent)
        file.unlink()
        assert found.check_file(str(file)) is None
        assert not found.scan().nowhere
        put(file)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_folders_that_may_not_be_listed_are_noted_wherever_a_pattern_leads_through_them(tmp_path: Path) -> None:
    put(tmp_path / "ann" / "docs" / "a.md")
    put(tmp_path / "bob" / "docs" / "a.md")
    for closed in (tmp_path / "bob", tmp_path / "bob" / "docs"):
        closed.chmod(0)
        scanned = scanner(tmp_path / "*" / "docs" / "*.md").scan()
        closed.chmod(0o755)
        assert (len(scanned.files), list(scanned.troubles), scanned.nowhere) == (1, [str(closed)], False)


def test_what_cannot_be_looked_at_is_told_apart_from_what_is_gone(tmp_path: Path) -> None:
    scanned = scanner(tmp_path / "missing", tmp_path / "absent" / "*.md").scan()
    assert scanned.files == ()
    assert sorted(scanned.troubles) == [str(tmp_path / "absent"), str(tmp_path / "missing")]


def test_names_that_could_forge_a_line_are_left_out(tmp_path: Path) -> None:
    put(tmp_path / "a\nkb:evil.md")
    Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff.md")).write_text("x")
    put(tmp_path / "b.md")
    assert names(scanner(tmp_path)) == ["b.md"]
