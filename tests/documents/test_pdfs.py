"""PDFs as blocks, page by page, read where they can do no harm."""

from __future__ import annotations

import time
import zlib
from io import BytesIO

import pytest

from intern.core.install_hints import format_install_hint
from intern.documents import pdfs, sandboxed
from intern.documents.parsing import NotADocumentError, parse_document
from intern.documents.sandboxed import SandboxTimeoutError


def written_pdf(*lines: str, title: str = "", password: str = "", pages: int = 1) -> bytes:
    from pypdf import PdfWriter  # noqa: PLC0415 an extra
    from pypdf.generic import DecodedStreamObject, DictionaryObject, NameObject  # noqa: PLC0415

    writer = PdfWriter()
    kind = {"/Type": "/Font", "/Subtype": "/Type1", "/BaseFont": "/Helvetica"}
    font = DictionaryObject({NameObject(key): NameObject(value) for key, value in kind.items()})
    fonts = DictionaryObject({NameObject("/F1"): writer._add_object(font)})
    for _ in range(pages):
        page = writer.add_blank_page(300, 300)
        stream = DecodedStreamObject()
        rows = "".join(f"({line}) Tj 0 -{14} Td " for line in lines)
        stream.set_data(f"BT /F1 12 Tf 20 200 Td {rows}ET".encode())
        page[NameObject("/Contents")] = writer._add_object(stream)
        page[NameObject("/Resources")] = DictionaryObject({NameObject("/Font"): fonts})
    writer.add_metadata({"/Title": title})
    if password:
        writer.encrypt(password, algorithm="RC4-128")
    out = BytesIO()
    writer.write(out)
    return out.getvalue()


def refusal(data: bytes, most: int = 100_000) -> str:
    with pytest.raises(NotADocumentError) as refused:
        parse_document(data, "a.pdf", max_chars=most)
    return str(refused.value)


def test_pages_are_paragraphs_and_the_title_is_its_own() -> None:
    pytest.importorskip("pypdf")
    data = written_pdf("The relay listens on port 7480, and forwards", "each message.", title="Relay", pages=2)
    document = parse_document(data, "a.pdf", max_chars=100_000)
    assert document.title == "Relay"
    text = "The relay listens on port 7480, and forwards each message."
    assert [(block.kind, block.text) for block in document.blocks] == [("paragraph", text)] * 2
    assert document.blocks[0].last_line < document.blocks[1].first_line


def test_what_cannot_be_read_says_why() -> None:
    pytest.importorskip("pypdf")
    assert refusal(written_pdf("Secret.", password="long")) == "it is a PDF that wants a password"
    assert refusal(written_pdf("")) == "it is a PDF without text, perhaps of scanned pages"
    assert refusal(b"%PDF-1.7\nnothing") == "it is a PDF that is damaged"


def test_without_the_extra_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pdfs, "find_spec", dict[str, None]().get)
    assert refusal(b"%PDF-1.7") == f"it is a PDF; to have those read, {format_install_hint('pdf')}"


def bomb_pdf(million: int, *, packed: int = 1) -> bytes:
    """Return one page, whose content grows to so many megabytes when it is unpacked."""
    content = b"BT (boom) Tj " + b" " * (million * 1_000_000)
    for _ in range(packed):
        content = zlib.compress(content, 9)
    filters = b"/FlateDecode " * packed
    objects = [
        b"<</Type/Catalog/Pages 2 0 R>>",
        b"<</Type/Pages/Kids[3 0 R]/Count 1>>",
        b"<</Type/Page/Parent 2 0 R/MediaBox[0 0 9 9]/Contents 4 0 R>>",
        b"<</Length %d/Filter[%s]>>stream\n%s\nendstream" % (len(content), filters, content),
    ]
    written, places = b"%PDF-1.7\n", list[int]()
    for n, each in enumerate(objects, 1):
        places.append(len(written))
        written += b"%d 0 obj%s\nendobj\n" % (n, each)
    table = b"".join(b"%010d 00000 n \n" % place for place in places)
    start = len(written)
    return written + b"xref\n0 5\n0000000000 65535 f \n%strailer<</Size 5/Root 1 0 R>>\nstartxref\n%d\n%%%%EOF" % (
        table,
        start,
    )


@pytest.mark.rest
def test_one_that_grows_when_it_is_unpacked_is_given_up() -> None:
    pytest.importorskip("pypdf")
    started = time.monotonic()
    for data in (bomb_pdf(100), bomb_pdf(100, packed=2)):
        assert refusal(data, 10_000_000).startswith("it ")
    assert time.monotonic() - started < 60


@pytest.mark.rest
def test_a_long_one_is_cut_at_the_bound_and_not_after_the_page() -> None:
    pytest.importorskip("pypdf")
    document = parse_document(written_pdf("word " * 3000), "a.pdf", max_chars=7999)
    assert 7900 < sum(len(block.text) for block in document.blocks) <= 7999


def test_encryption_that_needs_more_than_pypdf_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pypdf")
    from pypdf.errors import DependencyError  # noqa: PLC0415 an extra

    def wants_more(max_chars: int, data: bytes) -> None:
        raise DependencyError(f"cryptography, for {max_chars} of {len(data)}")

    def here(_: str, data: bytes, max_chars: str) -> bytes:
        return pdfs._read_pdf(int(max_chars), data)

    monkeypatch.setattr(pdfs, "_extract_text", wants_more)
    monkeypatch.setattr(sandboxed, "run_sandboxed", here)
    assert "encrypted in a way" in refusal(b"%PDF-1.7")


def test_one_that_takes_for_ever_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pypdf")

    def too_slow(*_: object) -> None:
        raise SandboxTimeoutError

    monkeypatch.setattr(sandboxed, "run_sandboxed", too_slow)
    assert "within 20 seconds" in refusal(b"%PDF-1.7")
