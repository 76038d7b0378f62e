"""An index in the database."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from cProfile import Profile
from pathlib import Path

import pytest
from anyio import fail_after
from structlog.testing import capture_logs

from intern.core.ids import SourceId
from intern.sources.catalogue import Catalogue
from intern.stores.source_cache import CachedFile, CachedPage
from intern.stores.tables.knowledge import KnowledgeStore
from tests.worlds.clock import HandClock
from tests.worlds.knowledge import knowledge_in

A, B, PAGE = SourceId("kb:a.md"), SourceId("kb:b.md"), SourceId("kb:https://x.example/")


@pytest.fixture
async def knowledge(tmp_path: Path, anyio_backend: str) -> AsyncGenerator[KnowledgeStore]:
    with fail_after(10):
        async with knowledge_in(tmp_path) as opened:
            yield opened


def file(summary: str = "Ports.") -> CachedFile:
    now = HandClock().now()
    return CachedFile(
        content_hash="1", summary_text=summary, last_indexed_at=now, rel_path="a.md", size_bytes=1, version=1
    )


def page(summary: str = "") -> CachedPage:
    now = HandClock().now()
    return CachedPage(content_hash="1", summary_text=summary, last_indexed_at=now, url="https://x.example/")


async def test_files_come_before_pages_and_what_has_no_description_is_known_but_not_listed(
    knowledge: KnowledgeStore,
) -> None:
    catalogue = Catalogue(knowledge, "kb")
    await catalogue.change({PAGE: page("A page."), B: file(), A: file(" Two\n\nlines. ")})
    assert [(each.source_id, each.description) for each in catalogue.entries().values()] == [
        (A, "Two lines."),
        (B, "Ports."),
        (PAGE, "A page."),
    ]
    await catalogue.change({PAGE: page()})
    assert (list(catalogue.sources()), list(catalogue.entries())) == ([A, B, PAGE], [A, B])


async def test_each_reader_sees_what_another_one_changed_and_keeps_the_rest(knowledge: KnowledgeStore) -> None:
    writer, reader = Catalogue(knowledge, "kb"), Catalogue(knowledge, "kb")
    await writer.change({A: file(), B: file()})
    before, entry = reader.sources(), reader.entries()[B]
    assert reader.sources() is before
    await writer.change({A: file("Disks.")})
    assert reader.entries()[A].description == "Disks."
    assert reader.entries()[B] is entry
    await writer.change({}, [A])
    assert list(reader.sources()) == list(writer.sources()) == list(Catalogue(knowledge, "kb").sources()) == [B]


async def test_an_index_has_none_of_the_other_one_s_entries(knowledge: KnowledgeStore) -> None:
    kb, team = Catalogue(knowledge, "kb"), Catalogue(knowledge, "team")
    await kb.change({A: file()})
    await team.change({}, [A])
    assert (list(kb.sources()), list(team.sources())) == ([A], [])


async def test_what_stays_the_same_is_not_written(knowledge: KnowledgeStore) -> None:
    catalogue = Catalogue(knowledge, "kb")
    await catalogue.change({A: file()})
    before = knowledge.read_source_changes("kb", 0)
    await catalogue.change({A: file()}, [B])
    assert knowledge.read_source_changes("kb", 0) == before


async def test_an_id_that_no_index_can_hold_is_left_out_with_a_warning(knowledge: KnowledgeStore) -> None:
    catalogue = Catalogue(knowledge, "kb")
    with capture_logs() as logs:
        await catalogue.change({SourceId("kb:a\nteam:forged.txt"): file(), A: file()})
    assert list(catalogue.sources()) == [A]
    assert [each["event"] for each in logs] == ["index_entry_refused"]


# Finding G6.
async def test_a_changed_source_costs_the_same_in_a_long_index(knowledge: KnowledgeStore) -> None:
    catalogue, calls = Catalogue(knowledge, "kb"), list[int]()
    for number in (20, 1000):
        await catalogue.change({SourceId(f"kb:{n}.md"): file() for n in range(number)})
        assert len(catalogue.entries()) == number
        await catalogue.change({SourceId("kb:7.md"): file(f"One of {number}.")})
        profile = Profile()
        assert len(profile.runcall(catalogue.entries)) == number
        calls.append(sum(each.callcount for each in profile.getstats()))
    assert calls[1] <= calls[0]
