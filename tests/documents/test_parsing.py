"""Documents from bytes: what they are decides, what is odd is named once, and nothing in them does harm."""

from __future__ import annotations

import time
from contextlib import suppress

import pytest
from hypothesis import given, strategies as st

from intern.documents import parsing, sandboxed
from intern.documents.blocks import Document
from intern.documents.parsing import NotADocumentError, detect_format, parse_document
from intern.documents.sandboxed import SandboxFailedError, SandboxTimeoutError

MOST = 1_000_000


def texts(document: Document) -> list[str]:
    return [block.text for block in document.blocks]


@pytest.mark.parametrize(
    ("name", "data", "expected"),
    [
        ("a.md", b"# Text", "markdown"),
        ("README", b"Text", "plain"),
        ("a.rst.txt", b"Text", "plain"),
        ("a.RST", b"Text", "restructured"),
        ("a.adoc", b"Text", "asciidoc"),
        ("a.yaml", b"port: 1", "settings"),
        ("a.html", b"<p>Text", "html"),
        ("a.txt", b"\n <!DOCTYPE html><p>Text", "html"),
        ("a.md", b"\xef\xbb\xbf<html><p>Text", "html"),
        ("page", b'<?xml version="1.0"?><html xmlns="x">', "html"),
        ("a.md", b"<h1 align=center>Text</h1>", "markdown"),
        ("a.ipynb", b"{}", "notebook"),
        ("a.pdf", b"%PDF-1.7", "pdf"),
        ("a.txt", b"%PDF-1.7", "pdf"),
    ],
)
def test_a_document_is_what_its_bytes_say(name: str, data: bytes, expected: str) -> None:
    assert detect_format(name, data) == expected


@pytest.mark.parametrize(
    ("name", "data", "reason"),
    [
        ("a.png", b"text", r"\.png files are no documents"),
        ("a.PY", b"text", r"\.py files are no documents"),
        ("a.pdf", b"text", "no PDF"),
        ("id_rsa", b"-----BEGIN OPENSSH PRIVATE KEY-----\n", "private key"),
        ("a.md", b"a\0b", "binary"),
        ("a.md", bytes(range(1, 32)) * 9, "binary"),
        ("a.md", "Ретранслятор слушает порт".encode("cp1251"), "not UTF-8"),
        ("a.md", "中継器はポートで待つ".encode("shift-jis"), "not UTF-8"),
        ("a.html", b"<html><body><script>write()</script></body></html>", "without text"),
        ("a.ipynb", b"{}", "no notebook"),
        ("a.md", b"x" * 101, "101 characters of text are more than the 100 allowed"),
    ],
)
def test_what_is_no_document_says_so(name: str, data: bytes, reason: str) -> None:
    with pytest.raises(NotADocumentError, match=reason):
        parse_document(data, name, max_chars=100)


@pytest.mark.parametrize(
    ("data", "oddity"),
    [
        ("Für Gäste".encode(), ""),
        ("Für Gäste".encode("utf-8-sig"), ""),
        ("Für Gäste".encode("cp1252"), "Windows-1252"),
        ("Für Gäste".encode("utf-16"), "UTF-16"),
        (b"\xfe\xff" + "Für Gäste".encode("utf-16-be"), "UTF-16"),
    ],
)
def test_encodings_are_recognised_and_named(data: bytes, oddity: str) -> None:
    document = parse_document(data, "a.txt", max_chars=MOST)
    assert texts(document) == ["Für Gäste"]
    assert len(document.oddities) == bool(oddity)
    assert oddity in "".join(document.oddities)


def test_a_few_broken_bytes_do_not_make_another_encoding() -> None:
    document = parse_document("Für Gäste, für Möwen, für Käfer. ".encode() + b"\xc3", "a.txt", max_chars=MOST)
    assert texts(document) == ["Für Gäste, für Möwen, für Käfer. \ufffd"]
    assert len(document.oddities) == 1


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_each_line_end_is_one(end: str) -> None:
    document = parse_document(f"# Modem{end}{end}Reset it.{end}{end}- so{end}".encode(), "a.md", max_chars=MOST)
    assert [(block.text, block.first_line) for block in document.blocks] == [("Modem", 1), ("Reset it.", 3), ("so", 5)]


def test_what_no_text_holds_is_replaced_and_named_once() -> None:
    data = b"One\0 two\0 of the many words that stand here, \x07bell and \x1b[31mred\x1b[0m.\n"
    document = parse_document(data, "a.txt", max_chars=MOST)
    assert texts(document) == ["One\ufffd two\ufffd of the many words that stand here, bell and red."]
    assert document.oddities == ("it holds NUL characters",)
    halves = parse_document("a\ud800 b\u202e".encode("utf-16", "surrogatepass"), "a.txt", max_chars=MOST)
    assert texts(halves) == ["a\ufffd b"]
    assert texts(parse_document(b"a&#7;b&#x202e;", "a.md", max_chars=MOST)) in (["ab"], ["a\ufffdb"])


@given(st.sampled_from(["a.md", "a.rst", "a.adoc", "a.txt", "a.html"]), st.text(max_size=80) | st.binary(max_size=80))
def test_blocks_hold_no_control_characters_and_can_be_written(name: str, data: str | bytes) -> None:
    try:
        data = data if isinstance(data, bytes) else data.encode()
        document = parse_document(data, name, max_chars=MOST)
    except NotADocumentError:
        return
    for block in document.blocks:
        for text in (block.text, block.term, block.label, *block.columns):
            assert text.encode().decode() == text
            assert all(char in "\n\t" or ord(char) >= 32 for char in text)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.md", "\n".join("  " * n + "* a" for n in range(300))),
        ("a.md", ">" * 300 + " a"),
        ("a.md", "<div>" * 1000),
        ("a.rst", "\n\n".join(" " * n + "a" for n in range(300))),
        ("a.adoc", "\n".join("=" * (n + 4) for n in range(300))),
        ("a.html", "<div>" * 1000),
        ("a.html", "<svg></div></svg><div>" * 30_000),
        ("a.html", "<div><table></div></table>" * 30_000),
        ("a.html", "<ul><li>" * 30_000),
    ],
)
def test_what_is_nested_deeply_is_refused_with_one_reason(name: str, text: str) -> None:
    with pytest.raises(NotADocumentError, match="nested"):
        parse_document(text.encode(), name, max_chars=MOST)


def test_a_page_expands_no_entities_of_its_own() -> None:
    bomb = "".join(f'<!ENTITY e{n} "{f"&e{n - 1};" * 10}">' for n in range(1, 20))
    page = (
        f'<!DOCTYPE html [<!ENTITY e0 "boom"><!ENTITY x SYSTEM "file:///etc/passwd">{bomb}]><p>&e19; &x; &amp; text</p>'
    )
    text = "\n".join(texts(parse_document(page.encode(), "a.html", max_chars=MOST)))
    assert len(text) <= len(page)
    assert "root:" not in text
    assert "& text" in text


@pytest.mark.parametrize("name", ["a.md", "a.rst", "a.txt"])
def test_long_texts_are_read_in_a_process_of_their_own(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def here(module: str, data: bytes) -> bytes:
        asked.append(module)
        return parsing._parse_encoded(data)

    monkeypatch.setattr(sandboxed, "run_sandboxed", here)
    parse_document(b"Words.\n\n" * 10, name, max_chars=MOST)
    assert asked == []
    assert len(parse_document(b"Words.\n\n" * 2000, name, max_chars=MOST).blocks) == 2000
    assert asked == ["intern.documents.parsing"]


@pytest.mark.parametrize(
    ("failure", "reason"), [(SandboxTimeoutError, "within 20 seconds"), (SandboxFailedError, "cannot be parsed")]
)
def test_a_text_that_keeps_its_parser_busy_is_given_up(
    failure: type[Exception], reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> bytes:
        raise failure

    monkeypatch.setattr(sandboxed, "run_sandboxed", fails)
    with pytest.raises(NotADocumentError, match=reason):
        parse_document(b"Words.\n\n" * 2000, "a.md", max_chars=MOST)


@pytest.mark.rest
@pytest.mark.parametrize("name", ["a.md", "a.rst"])
def test_that_process_gives_the_same_blocks(name: str) -> None:
    document = parse_document(b"Title\n=====\n\nWords `a`.\n\n" + b"* one\n" * 2000, name, max_chars=MOST)
    assert texts(document)[0] == "Title"
    assert len(document.blocks) == 2002
    with pytest.raises(NotADocumentError, match="nested"):
        parse_document(
            b"Words.\n\n" * 2000 + b">" * 300 + b" a\n\n" + b"\n\n".join(b" " * n + b"a" for n in range(300)),
            name,
            max_chars=MOST,
        )


def test_asciidoc_includes_files_by_their_paths_in_the_folder() -> None:
    asked: list[str] = []

    def read(path: str) -> str | None:
        asked.append(path)
        return "Port 7411."

    data = b"include::../shared/ports.adoc[]\n\ninclude::../../outside.adoc[]\n\ninclude::/etc/passwd[]\n"
    assert texts(parse_document(data, "guide/a.adoc", max_chars=MOST, read=read)) == ["Port 7411."]
    assert asked == ["shared/ports.adoc"]


def test_rest_includes_files_by_their_paths_in_the_folder() -> None:
    files = {
        "shared/ports.rst": "The port\n--------\n\nIt is 7411.\n\n.. include:: deep.txt\n",
        "shared/deep.txt": "Open it.",
        "guide/code.py": "print(1)",
    }
    asked: list[str] = []

    def read(path: str) -> str | None:
        asked.append(path)
        return files.get(path)

    text = (
        "Guide\n=====\n\n::\n\n  .. include:: ../shared/deep.txt\n\n.. include:: ../shared/ports.rst\n\n"
        ".. include:: /etc/passwd\n\n.. include:: ../../outside.rst\n\n.. include:: gone.rst\n\n"
        ".. include:: code.py\n   :code: python\n\n.. include:: <isonum.txt>\n\nThe end.\n"
    )
    document = parse_document(text.encode(), "guide/a.rst", max_chars=MOST, read=read)
    assert [each.text for each in document.blocks] == [
        *("Guide", ".. include:: ../shared/deep.txt", "The port", "It is 7411.", "Open it.", "The end."),
    ]
    assert asked == ["shared/ports.rst", "shared/deep.txt", "guide/gone.rst"]
    names = ["/etc/passwd", "../../outside.rst", "gone.rst", "code.py", "<isonum.txt>"]
    assert len(document.left_out) == len(names)
    assert all(name in left.text for name, left in zip(names, document.left_out, strict=True))


def test_rest_files_that_include_each_other_come_to_an_end() -> None:
    again = "Text.\n\n.. include:: a.rst\n\n.. include:: a.rst\n"
    document = parse_document(again.encode(), "a.rst", max_chars=10**7, read=lambda _: again)
    assert 100 < len(document.blocks) <= 2001


@pytest.mark.parametrize("name", ["a.md", "a.rst", "a.txt"])
@pytest.mark.parametrize(
    "sign", ["[", "*a ", "`a ", "|", "> ", "- ", "<!--", "{%", "<div>", ":a:`b ", "a_ ", "\\", "=\n", "|a", "!["]
)
def test_a_short_text_keeps_no_parser_busy(name: str, sign: str) -> None:
    begun = time.process_time()
    with suppress(NotADocumentError):
        parse_document((sign * 8000)[:8000].encode(), name, max_chars=MOST)
    assert time.process_time() - begun < 2
