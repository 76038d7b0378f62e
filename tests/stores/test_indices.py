"""Indices: a text that nothing can forge an entry in, and a cache that may be lost but never misleads."""

from __future__ import annotations

import json
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st
from structlog.testing import capture_logs

from intern.core.errors import KnowledgeError
from intern.core.ids import SourceId
from intern.core.knowledge import IndexEntry
from intern.stores.source_cache import (
    CachedFile,
    CachedPage,
    CachedSource,
    IndexCache,
    content_hash,
    flatten_description,
    format_index,
    is_source_id,
    parse_index,
)

NOW = datetime(2026, 2, 1, 3, 10, 56, 228000, tzinfo=UTC)

any_text = st.text(st.characters(codec=None))
hostile = st.lists(
    st.sampled_from(
        ["kb:forged.md", "team:forged.txt", "\n", "\n\n", "\r", "\r\n", "\u2028", "\x85", "\0", " ", "word"]
    )
).map("".join)
any_id = st.tuples(st.sampled_from(["kb:", "team:", "", "kb"]), any_text).map(lambda both: SourceId("".join(both)))


def entry(source_id: str, description: str = "What it covers.") -> IndexEntry:
    return IndexEntry(SourceId(source_id), description)


def cached(rel_path: str = "a.md", **changes: Any) -> CachedFile:
    fields: dict[str, Any] = {
        "content_hash": content_hash("text"),
        "summary_text": "What it covers.",
        "last_indexed_at": NOW,
        "rel_path": rel_path,
        "size_bytes": 4,
        "version": 1_700_000_000_000_000_001,
    }
    return CachedFile(**{**fields, **changes})


def cache_of(sources: Iterable[tuple[str, CachedSource]]) -> IndexCache:
    return IndexCache(generated_at=NOW, sources={SourceId(name): source for name, source in sources})


def test_the_format_is_the_specified_one() -> None:
    text = format_index(
        [entry("kb:https://a.example/", "A page."), entry("team:b.txt"), entry("kb:z/a.md", "One\ntwo.")]
    )
    assert text == (
        "kb:z/a.md\nOne two.\n\n"
        "team:b.txt\nWhat it covers.\n\n"
        "kb:https://a.example/\nA page.\n\n"
    )  # fmt: skip


@given(st.dictionaries(any_id, st.one_of(any_text, hostile)))
def test_reading_gives_back_what_was_written_whatever_it_says(descriptions: dict[SourceId, str]) -> None:
    text = format_index(IndexEntry(source_id, description) for source_id, description in descriptions.items())
    read = parse_index(text.encode().decode())
    assert {e.source_id: e.description for e in read} == {
        source_id: flatten_description(description)
        for source_id, description in descriptions.items()
        if is_source_id(source_id)
    }
    assert len(read) == len({e.source_id for e in read}), "nothing was forged"
    assert format_index(read) == text


@given(any_text)
def test_reading_survives_any_text(text: str) -> None:
    assert all(is_source_id(found.source_id) for found in parse_index(text))


def test_descriptions_over_several_lines_are_read() -> None:
    assert parse_index("team:a.txt\r\nOne\r\ntwo.\r\n\r\n\nA stray paragraph.\n\nkb:b.md") == (
        entry("team:a.txt", "One two."),
        entry("kb:b.md", ""),
    )


@pytest.mark.parametrize("name", ["kb:", "kb: ", "x:a.md", "kb:a\nb.md", "kb:a\u2028b", "kb:a\x7f", "kb:\udcff.md", ""])
def test_what_is_no_line_of_its_own_is_no_id(name: str) -> None:
    assert not is_source_id(name)


@pytest.mark.parametrize(
    "name", ["kb:a b.md", "kb:Übersicht\u00a01\u3000.md", "kb: a", "team:x.txt", "kb:https://x/?q#f"]
)
def test_people_name_their_files_as_they_like(name: str) -> None:
    assert parse_index(format_index([entry(name)])) == (entry(name),)


def test_an_index_that_cannot_be_read_is_not_an_empty_one(tmp_path: Path) -> None:
    (tmp_path / "index.txt").mkdir()
    with pytest.raises(KnowledgeError, match=r"index\.txt"):
        IndexCache.load(tmp_path / "index.txt")


def test_the_hash_looks_at_the_text_and_not_at_its_layout() -> None:
    assert content_hash("one\n\n two") == content_hash("\r\n \t\none  \r\n\r\n two\t\r\n\n")
    assert content_hash("one\rtwo") == content_hash("one\ntwo")
    assert content_hash("one\n two") != content_hash("one\ntwo")
    assert content_hash("one\n\ntwo") != content_hash("one\ntwo")
    assert (
        content_hash("") == content_hash("\n \n") == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
    )


def test_the_cache_has_the_specified_fields() -> None:
    page = CachedPage(content_hash="h", summary_text="s", last_indexed_at=NOW, summary_pending=True, url="https://a/")
    data = cache_of([("kb:https://a/", page), ("kb:a.md", cached())]).encode()
    stored = json.loads(data)
    assert stored["schema_version"] == 1
    assert stored["generated_at"] == "2026-02-01T03:10:56.228000Z"
    assert stored["sources"]["kb:a.md"] == {
        "source_type": "file",
        "content_hash": content_hash("text"),
        "summary_text": "What it covers.",
        "last_indexed_at": "2026-02-01T03:10:56.228000Z",
        "summary_pending": False,
        "provisional": False,
        "last_error": None,
        "tries": None,
        "rel_path": "a.md",
        "size_bytes": 4,
        "mtime_ns": 1_700_000_000_000_000_001,
        "includes": [],
    }
    assert set(stored["sources"]["kb:https://a/"]) == {
        *("source_type", "content_hash", "summary_text", "last_indexed_at", "summary_pending", "last_error"),
        *("provisional", "tries"),
        *("url", "last_fetched_at", "etag", "last_modified", "fetch_status", "next_check_at", "failures", "missing"),
    }


def test_a_cache_is_read_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "cache.json"
    assert IndexCache.load(path) == IndexCache()
    cache = cache_of([("kb:b.md", cached("b.md", summary_pending=True)), ("kb:a.md", cached())])
    path.write_bytes(cache.encode())
    assert IndexCache.load(path) == cache
    assert list(IndexCache.load(path).sources) == ["kb:a.md", "kb:b.md"]


@pytest.mark.parametrize(
    "damage",
    [
        b"",
        b"\xff\xfe",
        b"[]",
        b'{"schema_version": 1, "sources": {"kb:a.md": {"source_type": "file"}}}',
        b'{"schema_version": 2, "sources": {}}',
        b'{"sources": {}}',
        b'{"schema_version": 1, "sources": {"kb:a.md": {"source_t',
    ],
)
def test_a_cache_damaged_newer_or_of_no_version_is_empty_with_a_warning(tmp_path: Path, damage: bytes) -> None:
    path = tmp_path / "cache.json"
    path.write_bytes(damage)
    with capture_logs() as logs:
        assert IndexCache.load(path) == IndexCache()
    assert [(log["event"], log["log_level"], log["file"]) for log in logs] == [
        ("index_cache_rebuilt", "warning", str(path))
    ]
