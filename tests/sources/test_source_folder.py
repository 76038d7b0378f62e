"""The sources folder: only text, only from inside, and everything else is named with its reason."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from intern.core.errors import SourceError
from intern.sources import source_folder
from intern.sources.source_folder import NotASourceError, SkippedFile, SourceFile, SourceFolder
from intern.stores.source_cache import IncludedFile


def make(folder: Path, **contents: bytes) -> None:
    for name, content in contents.items():
        (folder / name).write_bytes(content)


def looked_into(folder: SourceFolder) -> dict[str, str]:
    """Why each file is passed over, once all were read."""
    for file in folder.scan().files:
        try:
            folder.read(file.rel_path)
        except NotASourceError:
            continue
    return dict(folder.scan().skipped)


def test_documents_are_listed_by_path_with_size_and_time(tmp_path: Path) -> None:
    (tmp_path / "guide" / "deep").mkdir(parents=True)
    for name in ("z.md", "guide/deep/a.RST", "guide/b.txt", "a.md", "ü ☃.md"):
        (tmp_path / name).write_text("text")
        os.utime(tmp_path / name, ns=(1, 12_345))

    scan = SourceFolder(tmp_path, 1000).scan()
    assert scan.files == tuple(
        SourceFile(name, 4, 12_345) for name in ("a.md", "guide/b.txt", "guide/deep/a.RST", "z.md", "ü ☃.md")
    )
    assert scan.skipped == ()


def test_the_text_of_a_document_is_its_blocks(tmp_path: Path) -> None:
    make(tmp_path, **{"a.md": b"\xef\xbb\xbf# \xc3\x9c\r\n<!-- Hidden -->\r\n"})

    assert SourceFolder(tmp_path, 1000).read("a.md") == "# Ü"


def test_what_is_odd_about_the_bytes_of_a_document_is_told_once(tmp_path: Path) -> None:
    make(tmp_path, **{"a.md": "Für Gäste".encode("cp1252"), "b.md": "Für Gäste".encode()})
    folder = SourceFolder(tmp_path, 1000)
    with capture_logs() as logs:
        for name in ("a.md", "b.md", "a.md"):
            assert folder.read(name) == "Für Gäste"
    [odd] = logs
    assert (odd["event"], odd["path"]) == ("document_odd", "a.md")
    assert "Windows-1252" in odd["reason"]


def test_a_document_includes_others_of_the_folder_and_none_that_is_no_document(tmp_path: Path) -> None:
    (tmp_path / "sources").mkdir()
    names = ("b.adoc", "c.pem", "../d.adoc", ".e.adoc", "gone.adoc")
    make(tmp_path, **{"sources/a.adoc": "\n\n".join(f"include::{name}[]" for name in names).encode()})
    make(
        tmp_path,
        **{"sources/b.adoc": b"Bee.", "sources/c.pem": b"Key.", "d.adoc": b"Dee.", "sources/.e.adoc": b"Hidden."},
    )

    assert SourceFolder(tmp_path / "sources", 1000).read("a.adoc") == "Bee."


def test_what_is_no_document_is_passed_over_with_its_reason(tmp_path: Path) -> None:
    make(
        tmp_path,
        **{
            "big.md": b"x" * 2001,
            "long.md": b"x" * 101,
            "full.md": b"x" * 100,
            "binary.md": b"a\0b",
            "latin.md": b"\xe9t\xe9",
            "picture.png": b"x",
            "README": b"x",
            "settings.toml": b"port = 1",
            "page.html": b"<p>text",
            "empty.html": b"<script>x()</script>",
            "book.ipynb": json.dumps({"cells": [{"cell_type": "markdown", "source": "text"}]}).encode(),
            "broken.ipynb": b"{}",
            "fake.pdf": b"text",
            "code.py": b"x = 1",
            "id_ed25519": b"-----BEGIN OPENSSH PRIVATE KEY-----",
            ".hidden.md": b"x",
            "a.md~": b"x",
            ".a.md.swp": b"x",
            "b.md.tmp": b"x",
            "#c.md#": b"x",
            "~$d.md": b"x",
            "forged\nteam:x.txt.md": b"x",
            "forged\u2028.md": b"x",
        },
    )
    (tmp_path / os.fsdecode(b"latin-\xe9.md")).write_text("x")
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git" / "notes.md").write_text("x")
    os.mkfifo(tmp_path / "pipe.md")
    folder = SourceFolder(tmp_path, 100)

    reasons = looked_into(folder)
    scan = folder.scan()
    fit = ["README", "book.ipynb", "full.md", "page.html", "settings.toml"]
    assert [file.rel_path for file in scan.files] == fit
    assert reasons == {
        "big.md": "its 2001 bytes are more than the 2000 allowed (kb.max_source_bytes)",
        "long.md": "its 101 characters of text are more than the 100 allowed (kb.max_source_bytes)",
        "binary.md": "it is binary, not text",
        "latin.md": "it is not UTF-8 text; save it as that",
        "picture.png": ".png files are no documents",
        "code.py": ".py files are no documents",
        "id_ed25519": "it is a private key",
        "empty.html": "it is a page without text",
        "broken.ipynb": "it is no notebook of format 4",
        "fake.pdf": "it is no PDF, although its name ends with .pdf",
        ".hidden.md": "it is hidden",
        ".a.md.swp": "it is hidden",
        ".git": "it is hidden",
        "a.md~": "it is temporary",
        "b.md.tmp": "it is temporary",
        "#c.md#": "it is temporary",
        "~$d.md": "it is temporary",
        "forged\\nteam:x.txt.md": "its name holds control characters or is not UTF-8",
        "forged\\u2028.md": "its name holds control characters or is not UTF-8",
        "latin-\\udce9.md": "its name holds control characters or is not UTF-8",
        "pipe.md": "it is no regular file",
    }
    assert scan.unreadable == frozenset()
    for name in (".git/notes.md", *(entry.name for entry in tmp_path.iterdir() if entry.name not in fit)):
        with pytest.raises(SourceError, match="is no source"):
            folder.read(name)


@pytest.mark.parametrize(
    ("name", "why"),
    [
        *((f"spool.md{end}", "it is temporary") for end in ("~", ".~1~", ".tmp", ".swo")),
        *((f"spool.md{end}", "not whole") for end in (".part", ".PARTIAL", ".crdownload")),
        *(
            (f"spool.md{end}", "a copy that a program left behind")
            for end in (".bak", ".BAK", ".bak2", ".bak.1", ".orig", ".rej", ".old", ".old-3", ".save", ".dpkg-old")
        ),
        ("docs.bak/spool.md", "a copy that a program left behind"),
    ],
)
def test_what_a_program_kept_of_a_document_is_left_out_with_the_reason(tmp_path: Path, name: str, why: str) -> None:
    kept = ("spool.md", "Copy of spool.md", "spool (1).md", "old.md", "parts.md", "v1.old.md", "bak", "embargo-2.0")
    for each in (name, *kept):
        (tmp_path / each).parent.mkdir(exist_ok=True)
        (tmp_path / each).write_text("x")
    scan = SourceFolder(tmp_path, 100).scan()
    assert [file.rel_path for file in scan.files] == sorted(kept)
    [skipped] = scan.skipped
    assert name.startswith(skipped.rel_path)
    assert why in skipped.reason


def test_links_may_point_around_inside_but_not_out(tmp_path: Path) -> None:
    root, outside = tmp_path / "sources", tmp_path / "outside"
    (root / ".data").mkdir(parents=True)
    outside.mkdir()
    make(outside, **{"secret.md": b"secret"})
    make(root / ".data", **{"real.md": b"text"})
    (root / "inside.md").symlink_to(".data/real.md")
    (root / "out.md").symlink_to(outside / "secret.md")
    (root / "folder.md").symlink_to(outside)
    (root / "nothing.md").symlink_to("gone.md")
    (root / "loop.md").symlink_to("loop.md")
    (tmp_path / "link").symlink_to(root)
    folder = SourceFolder(tmp_path / "link", 100)

    scan = folder.scan()
    assert [file.rel_path for file in scan.files] == ["inside.md"]
    reasons = dict(scan.skipped)
    assert reasons["out.md"] == reasons["folder.md"] == "it is a link that points outside the folder"
    assert reasons["nothing.md"] == "it is gone, or a link to nothing"
    assert "loop.md" in scan.unreadable
    assert folder.read("inside.md") == "text"
    for name in ("out.md", "folder.md/secret.md", "nothing.md", "loop.md"):
        with pytest.raises(SourceError, match=r"md in .* (is no source|could not be read)"):
            folder.read(name)


@pytest.mark.parametrize(
    "path", ["../secret.md", "a/../../secret.md", "/etc/hosts.md", "", "./a.md", "a//b.md", "a\0.md"]
)
def test_a_path_never_leads_out(tmp_path: Path, path: str) -> None:
    make(tmp_path, **{"secret.md": b"secret"})
    (tmp_path / "sources" / "a").mkdir(parents=True)

    with pytest.raises(SourceError, match="is no source"):
        SourceFolder(tmp_path / "sources", 100).read(path)


def test_a_folder_that_is_not_there_is_an_error_and_not_empty(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for name in ("nothing", "file"):
        folder = SourceFolder(tmp_path / name, 100)
        with pytest.raises(SourceError, match=rf"sources folder .*{name} cannot be read .*kb\.sources_dir"):
            folder.scan()
    (tmp_path / "empty").mkdir()
    assert SourceFolder(tmp_path / "empty", 100).scan().files == ()


def test_a_document_that_is_gone_is_an_error_that_names_it(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"gone\.md in .* could not be read \(No such file"):
        SourceFolder(tmp_path, 100).read("gone.md")


def test_a_file_that_cannot_be_opened_is_told_from_one_that_is_gone(tmp_path: Path) -> None:
    class Closed(SourceFolder):
        def _check_file(self, root: Path, rel_path: str) -> SourceFile:
            raise PermissionError(13, "Permission denied")

    make(tmp_path, **{"a.md": b"x"})
    folder = Closed(tmp_path, 100)
    scan = folder.scan()

    assert scan.skipped == (SkippedFile("a.md", "it cannot be read (Permission denied)"),)
    assert scan.unreadable == {"a.md"}
    with pytest.raises(SourceError, match=r"a\.md in .* could not be read \(Permission denied\)"):
        folder.read("a.md")


@pytest.mark.skipif(os.geteuid() == 0, reason="nothing is unreadable for root")
def test_what_cannot_be_looked_at_is_told_from_what_is_not_there(tmp_path: Path) -> None:
    (tmp_path / "closed").mkdir()
    make(tmp_path, **{"closed/a.md": b"x", "b.md": b"x"})
    (tmp_path / "b.md").chmod(0)
    (tmp_path / "closed").chmod(0)
    try:
        scan = SourceFolder(tmp_path, 100).scan()
    finally:
        (tmp_path / "closed").chmod(0o755)
    assert scan.unreadable == {"b.md", "closed"}
    assert dict(scan.skipped) == dict.fromkeys(("b.md", "closed"), "it cannot be read (Permission denied)")


class Parsing(SourceFolder):
    """It counts what it parses."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, 100)
        self.parsed: list[str] = []

    def _extract_text(self, rel_path: str, data: bytes, included: list[IncludedFile]) -> str:
        self.parsed.append(rel_path)
        return super()._extract_text(rel_path, data, included)


def test_a_document_is_parsed_again_only_where_it_was_changed_or_others_took_its_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source_folder, "_MOST_KEPT", 24)
    make(tmp_path, **{f"{n:02}.html": b"<p>%d" % n for n in range(10, 22)})
    folder = Parsing(tmp_path)
    for _ in range(3):
        looked_into(folder)
    assert len(folder.parsed) == 12
    make(tmp_path, **{"10.html": b"<p>30", "40.html": b"<p>40"})
    folder.parsed.clear()
    looked_into(folder)
    assert folder.parsed == ["10.html", "40.html"]
    looked_into(folder)
    assert folder.parsed[2:] == [*(f"{n}.html" for n in range(10, 22)), "40.html"]


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16"])
def test_what_a_document_includes_is_read_again(tmp_path: Path, encoding: str) -> None:
    make(tmp_path, **{"a.rst": "A\n=\n\n.. include:: b.txt\n".encode(encoding), "b.txt": b"one"})
    folder = SourceFolder(tmp_path, 1000)
    assert "one" in folder.read("a.rst")
    make(tmp_path, **{"b.txt": b"two"})
    assert "two" in folder.read("a.rst")


def test_a_scan_opens_no_file_and_what_was_found_unfit_is_not_read_again(tmp_path: Path) -> None:
    opened: list[str] = []

    class Watched(SourceFolder):
        def _read_bytes(self, root: Path, rel_path: str) -> bytes:
            opened.append(rel_path)
            return super()._read_bytes(root, rel_path)

    make(tmp_path, **{"a.md": b"x", "b.md": b"a\0b", "c.html": b"<p>x"})
    folder = Watched(tmp_path, 100)
    assert folder.scan() == folder.scan()
    assert opened == []

    assert looked_into(folder) == looked_into(folder) == {"b.md": "it is binary, not text"}
    assert sorted(opened) == ["a.md", "a.md", "b.md", "c.html", "c.html"]

    make(tmp_path, **{"b.md": b"text now"})
    assert [file.rel_path for file in folder.scan().files] == ["a.md", "b.md", "c.html"]


class Late(SourceFolder):
    """Something happens between looking at a file and opening it."""

    def __init__(self, folder: Path, happens: Callable[[], object]) -> None:
        super().__init__(folder, 100)
        self._happens = happens

    def _check_file(self, root: Path, rel_path: str) -> SourceFile:
        file = super()._check_file(root, rel_path)
        self._happens()
        return file


def test_a_file_that_grew_or_became_a_link_since_it_was_looked_at_is_not_read(tmp_path: Path) -> None:
    root = tmp_path / "sources"
    root.mkdir()
    make(tmp_path, **{"secret.md": b"secret"})

    def grow() -> None:
        make(root, **{"a.md": b"x" * 101})

    def link() -> None:
        (root / "a.md").unlink()
        (root / "a.md").symlink_to(tmp_path / "secret.md")

    for happens, reason in ((grow, "more than the 100 allowed"), (link, "outside")):
        make(root, **{"a.md": b"x"})
        with pytest.raises(NotASourceError, match=reason):
            Late(root, happens).read("a.md")
