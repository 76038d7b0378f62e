from __future__ import annotations

from pathlib import Path

import pytest

from intern.core.errors import KnowledgeError, SourceError
from intern.sources.library import PageCopies, PageCopy, read_links

URL = "https://docs.example.org/a"


def copy(url: str = URL, text: str = "Text.") -> PageCopy:
    return PageCopy(url=url, title="A", text=text, status="ok", body_hash="0")


def test_a_list_holds_an_address_a_line_and_comments(tmp_path: Path) -> None:
    path = tmp_path / "links.txt"
    assert read_links(path) == ()
    path.write_bytes(
        b"\xef\xbb\xbf# ours\r\n\r\nhttps://a.example/#top  # why\r\n  https://b.example/x y\n#https://c\n\xff"
    )
    assert read_links(path) == (
        (3, "https://a.example/#top"),
        (4, "https://b.example/x y"),
        (6, "\ufffd"),
    )


def test_a_list_that_cannot_be_read_is_no_empty_list(tmp_path: Path) -> None:
    (tmp_path / "links.txt").mkdir()
    with pytest.raises(KnowledgeError):
        read_links(tmp_path / "links.txt")


def test_a_copy_is_kept_under_a_name_that_no_address_can_choose(tmp_path: Path) -> None:
    copies = PageCopies(tmp_path / "web-cache")
    for url in (URL, "https://docs.example.org/../../../etc/passwd", "https://docs.example.org/" + "x" * 1900):
        copies.save(copy(url))
        assert copies.load(url) == copy(url)
    names = [path.name for path in (tmp_path / "web-cache").iterdir()]
    assert len(names) == 3
    assert all(len(name) == 69 for name in names)
    assert [path.name for path in tmp_path.iterdir()] == ["web-cache"]


def test_a_lost_or_damaged_copy_is_none(tmp_path: Path) -> None:
    copies = PageCopies(tmp_path)
    assert copies.get(URL) is None
    copies.save(copy())
    [path] = tmp_path.iterdir()
    for damage in (b"", b"{", b'{"url":1}', b"\xff"):
        path.write_bytes(damage)
        assert copies.get(URL) is None
        with pytest.raises(SourceError, match="next indexing"):
            copies.load(URL)


def test_only_copies_are_ever_removed(tmp_path: Path) -> None:
    copies = PageCopies(tmp_path)
    assert PageCopies(tmp_path / "nowhere").remove_others(()) == 0
    copies.save(copy())
    copies.save(copy("https://docs.example.org/b"))
    (tmp_path / "notes.txt").write_text("mine")
    assert copies.remove_others({URL}) == 1
    assert copies.get(URL) == copy()
    assert (tmp_path / "notes.txt").exists()
    assert copies.remove_others(()) == 1
