"""A folder to be discovered, and the store behind it."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Callable, Collection, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from intern.core.search_documents import SearchDocument
from intern.sources.descriptions import SUMMARIZE_FILE, SummarizeFileIn, SummarizeFileOut
from intern.sources.discovery import Discovery, DiscoveryQuestion
from intern.sources.options import DiscoveryOptions
from intern.sources.scanning import FileText, Scanner, read_file
from intern.stores.search_file.search_index import SqliteSearchStore
from tests.search.documents import opened
from tests.worlds.clock import HandClock
from tests.worlds.model import ScriptedModel


def summed_up(given: SummarizeFileIn) -> SummarizeFileOut:
    """Return a summary that names its file."""
    return SummarizeFileOut(summary=f"All about {given.file_path.rpartition('/')[2]}.")


class Desk:
    """Discovery over `<folder>/files`."""

    def __init__(self, folder: Path, store: SqliteSearchStore, **options: Any) -> None:
        self.root = folder / "files"
        self.root.mkdir(exist_ok=True)
        self.store = store
        self.model = ScriptedModel()
        self.model.always(SUMMARIZE_FILE, summed_up)
        self.clock = HandClock()
        self.options = replace(DiscoveryOptions(scan_paths=(str(self.root),)), **options)
        self.scanner = Scanner(self.options, never=[folder / "data"])
        self.discovery = self.made()

    def made(self, read: Callable[[str, Collection[str]], FileText] = read_file) -> Discovery:
        """Discovery over all this."""
        return Discovery(
            self.options,
            store=self.store,
            scanner=self.scanner,
            model=self.model,
            clock=self.clock,
            secrets=["hunter2-of-the-config"],
            read=read,
        )

    def write(self, name: str, text: str | bytes, *, mtime: int = 1_700_000_000) -> str:
        """A file below the scan path; returns its path."""
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.encode() if isinstance(text, str) else text)
        os.utime(path, (mtime, mtime))
        return str(path)

    async def known(self) -> dict[str, SearchDocument]:
        """Return the remembered files, by name."""
        return {each.title: each for each in await self.store.list_documents("file")}

    async def look(self) -> Sequence[DiscoveryQuestion]:
        """The feed."""
        return (await self.discovery.find_questions()).questions

    async def why(self) -> Sequence[tuple[str, str]]:
        """The feed: name and reason."""
        return [(question.path.rpartition("/")[2], question.why) for question in await self.look()]


@asynccontextmanager
async def desk(folder: Path, **options: Any) -> AsyncGenerator[Desk]:
    """Everything, in a folder."""
    async with opened(folder) as (store, _):
        yield Desk(folder, store, **options)
