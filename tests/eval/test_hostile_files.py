"""Strings that mean harm as files of every kind, as their names and as ids: nothing outside the folder is opened.

What is opened, Python itself tells (its audit events), so nothing that our code or a library opens is missed.
"""

from __future__ import annotations

import html
import json
import os
import sys
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from anyio import fail_after

from intern.core.errors import SourceError
from intern.core.ids import SourceId
from intern.documents.parsing import parse_document
from intern.models.templates import PromptTemplates
from intern.sources.catalogue import Catalogue
from intern.sources.descriptions import SUMMARIZE_SOURCE, SummarizeIn, SummarizeOut
from intern.sources.library import Library
from intern.sources.options import IndexingOptions
from intern.sources.refresh import RefreshReport, refresh_sources
from intern.sources.source_folder import SourceFolder
from intern.stores.archive import Archive
from intern.stores.engines.sqlite.database import SCHEMA, ReadOnlySqliteDatabase
from intern.stores.source_cache import CachedFile
from intern.stores.tables.knowledge import KnowledgeStore
from tests.eval.hostile import STRINGS, strings
from tests.worlds.clock import HandClock
from tests.worlds.knowledge import knowledge_in
from tests.worlds.model import ScriptedModel

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.rest,
    pytest.mark.skipif(not STRINGS.is_file(), reason="needs the hostile strings, which are not part of the project"),
]

_LOOKS = {"open", "os.scandir", "os.listdir", "os.chdir", "os.readlink", "subprocess.Popen", "socket.connect"}


class _Recorder:
    """The files that this process opened while it was on. An audit hook stays for ever, so there is one."""

    def __init__(self) -> None:
        self.on = False
        self.seen: list[tuple[str, str]] = []
        sys.addaudithook(self._hear)

    def _hear(self, event: str, args: tuple[object, ...]) -> None:
        if self.on and event in _LOOKS and not isinstance(args[0], int):
            self.seen.append(
                (event, os.fsdecode(args[0]) if isinstance(args[0], str | bytes | Path) else repr(args[0]))
            )


_RECORDER: list[_Recorder] = []


@contextmanager
def recording() -> Generator[list[tuple[str, str]]]:
    if not _RECORDER:
        _RECORDER.append(_Recorder())
    recorder = _RECORDER[0]
    # What is imported with the first text and the first page is imported now.
    for name in ("a.md", "a.rst", "a.adoc", "a.html", "a.ipynb"):
        parse_document(b'{"cells": []}' if name == "a.ipynb" else b"<p>A page.", name, max_chars=100)
    recorder.seen = []
    recorder.on = True
    try:
        yield recorder.seen
    finally:
        recorder.on = False


def outside(seen: list[tuple[str, str]], root: Path) -> list[tuple[str, str]]:
    """Return opened files outside of the root, but for the process that reads long pages, and the tables."""
    ours = {("subprocess.Popen", sys.executable), ("open", str(SCHEMA))}
    # A process for long texts is started with nothing on its stdin.
    ours = {*ours, ("open", "/dev/null")}
    return [(event, path) for event, path in seen if not Path(path).is_relative_to(root) and (event, path) not in ours]


def documents() -> Iterator[tuple[str, str]]:
    """Every string as text, as a page, escaped in a page, and in both kinds of a notebook's cells."""
    for n, string in enumerate(strings()):
        yield f"{n}.md", f"# Part {n}\n\n{string}\n"
        yield f"{n}.html", f"<title>{string}</title><body><p>{string}</p><p>Part {n}"
        yield f"{n}-escaped.html", f"<title>Part</title><p>{html.escape(string)}</p><p>Part {n}"
        cells = [
            {"cell_type": kind, "source": [string], "outputs": [{"text": string}]} for kind in ("markdown", "code")
        ]
        yield f"{n}.ipynb", json.dumps({"cells": cells, "metadata": {"language_info": {"name": string}}})


class Room:
    """A folder with sources beside a secret."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.sources = folder / "data" / "sources"
        self.sources.mkdir(parents=True)
        (folder / "secret.md").write_text("The secret.")
        self.root = folder / "data"
        self.model = ScriptedModel()
        self.model.always(SUMMARIZE_SOURCE, lambda given: SummarizeOut(description=given.text[:300]))

    async def refresh(self) -> RefreshReport:
        async with knowledge_in(self.root) as knowledge:
            catalogue = Catalogue(knowledge, "kb")
            return await refresh_sources(self.model, SourceFolder(self.sources, 100_000), catalogue, IndexingOptions())

    def listed(self) -> list[SourceId]:
        return list(Catalogue(KnowledgeStore(ReadOnlySqliteDatabase(self.root / "intern.db")), "kb").entries())

    def shown(self) -> list[SummarizeIn]:
        return self.model.calls(SUMMARIZE_SOURCE)

    def library(self) -> Library:
        knowledge = KnowledgeStore(ReadOnlySqliteDatabase(self.root / "intern.db"))
        return Library(
            indices=[Catalogue(knowledge, "kb"), Catalogue(knowledge, "team")],
            sources=SourceFolder(self.sources, 100_000),
            topics=knowledge,
            archive=Archive(self.root / "raw"),
        )


async def test_as_text_of_files_they_open_nothing_and_break_neither_index_nor_prompt(tmp_path: Path) -> None:
    room = Room(tmp_path)
    named: set[str] = set()
    for name, text in documents():
        (room.sources / name).write_text(text, encoding="utf-8", newline="")
        named.add(f"kb:{name}")
    with recording() as seen, fail_after(60):
        result = await room.refresh()
    assert outside(seen, room.root) == []
    assert len(seen) > len(named)

    listed = room.listed()
    assert len(listed) == len(set(listed))
    # A page or two of nothing but scripts may have no text at all.
    assert set(listed) <= named
    assert len(listed) + len(result.skipped) == len(named)
    assert len(result.skipped) < 0.05 * len(named)
    assert not result.pending

    templates = PromptTemplates()
    for given in room.shown():
        assert not [each for each in given.text if ord(each) < 32 and each not in "\n\t\r"] or given.source_id.endswith(
            ".md"
        )
        prompt = templates.render(SUMMARIZE_SOURCE, given)
        marks = [line for line in prompt.user.splitlines() if line.startswith("===") and line.endswith("===")]
        assert len(marks) >= 2
        # The fence that closes is one that the text does not hold.
        assert given.text.count(marks[-1]) == 0, given.source_id


async def test_as_names_of_files_they_open_nothing_outside(tmp_path: Path) -> None:
    room = Room(tmp_path)
    made = 0
    for n, string in enumerate(strings()):
        for name in (string, f"{string}.html", f"{string}.ipynb"):
            encoded = name.encode()
            if b"/" in encoded or b"\0" in encoded or len(encoded) > 255 or name in {".", ".."}:
                continue
            (room.sources / os.fsdecode(encoded)).write_text(f"<p>{n}</p>")
            made += 1
    with recording() as seen, fail_after(60):
        result = await room.refresh()
    assert outside(seen, room.root) == []
    listed = set(room.listed())
    assert made > 500
    assert len(listed) + len(result.skipped) == made
    assert {str(given.source_id) for given in room.shown()} == listed


async def test_as_ids_and_links_they_open_nothing_outside(tmp_path: Path) -> None:
    room = Room(tmp_path)
    (room.sources / "a.md").write_text("Honest.")
    for n, string in enumerate(strings()):
        target = string.replace("\0", "")
        if 0 < len(target.encode()) < 1000:
            (room.sources / f"link{n}.md").symlink_to(target)
    for n, target in enumerate(("../../secret.md", str(tmp_path / "secret.md"), "/etc/passwd", "..", "/")):
        (room.sources / f"out{n}.md").symlink_to(target)
    ids = [SourceId(f"{kind}:{string}") for string in strings() for kind in ("kb", "team")]
    ids += [SourceId(f"kb:{path}") for path in ("../../secret.md", "/etc/passwd", "out0.md", "..", "")]
    forged = {
        each: CachedFile(
            content_hash="0",
            summary_text="Forged.",
            last_indexed_at=HandClock().now(),
            rel_path=each,
            size_bytes=1,
            version=1,
        )
        for each in ids
    }

    with recording() as seen, fail_after(60):
        await room.refresh()
        assert room.listed() == ["kb:a.md"]
        loaded: list[SourceId] = []
        for index in ("honest", "forged"):
            if index == "forged":
                async with knowledge_in(room.root) as knowledge:
                    await knowledge.change(lambda change: change.update_sources("kb", forged))
            library = room.library()
            for source_id in ids:
                try:
                    await library.load(source_id)
                except SourceError:
                    continue
                loaded.append(source_id)
    assert loaded == []
    assert outside(seen, room.root) == []
