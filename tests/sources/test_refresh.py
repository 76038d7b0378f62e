from __future__ import annotations

import os
import sys
from collections.abc import AsyncGenerator, Iterable
from pathlib import Path
from typing import TypeVar

import anyio
import msgspec
import pytest
from anyio import from_thread
from anyio.lowlevel import checkpoint

from intern.core.captures import TopicBlock
from intern.core.errors import ModelReplyError, ModelSchemaError, ModelUnavailableError, SourceError
from intern.core.ids import SourceId, TopicName
from intern.core.progress import send_progress_to
from intern.sources.catalogue import OUTAGE_PAUSES, PAUSES, respect_pauses
from intern.sources.descriptions import (
    SUMMARIZE_SOURCE,
    SUMMARIZE_TOPIC,
    SummarizeIn,
    SummarizeOut,
)
from intern.sources.options import IndexingOptions
from intern.sources.refresh import RefreshReport, describe_provisionally, refresh_sources, refresh_topics
from intern.sources.source_folder import FolderScan, SkippedFile, SourceFolder
from intern.stores.source_cache import CachedFile, CachedTopic, DescriptionAttempts, IndexCache
from intern.stores.tables.knowledge import KnowledgeStore
from tests.sources.folders import Shelf, block, praised
from tests.worlds.actors import finishing

T = TypeVar("T")


@pytest.fixture
async def shelf(tmp_path: Path, anyio_backend: str) -> AsyncGenerator[Shelf]:
    async with Shelf.at(tmp_path) as shelf:
        shelf.model.always(SUMMARIZE_SOURCE, praised)
        shelf.model.always(SUMMARIZE_TOPIC, praised)
        yield shelf


def refreshed(changed: tuple[str, ...] = (), removed: tuple[str, ...] = ()) -> RefreshReport:
    return RefreshReport(changed=tuple(map(SourceId, changed)), removed=tuple(map(SourceId, removed)))


def asked_for(shelf: Shelf, source_id: str) -> int:
    return [str(given.source_id) for given in shelf.model.calls(SUMMARIZE_SOURCE)].count(source_id)


async def test_each_source_is_summarised_once_and_listed(shelf: Shelf) -> None:
    shelf.source("a.md", "# A\n\nText.")
    shelf.source("deep/b.txt", "B")
    result = await shelf.refresh_sources()

    assert result == refreshed(changed=("kb:a.md", "kb:deep/b.txt"))
    assert shelf.index() == {
        "kb:a.md": "All about kb:a.md, 10 characters.",
        "kb:deep/b.txt": "All about kb:deep/b.txt, 1 characters.",
    }
    assert len(shelf.model.asked) == 2


async def test_a_second_run_over_unchanged_sources_asks_nothing_and_writes_nothing(shelf: Shelf) -> None:
    shelf.source("a.md", "# A")
    await shelf.refresh_sources()
    before, asked = shelf.newest_change(), len(shelf.model.asked)
    shelf.clock.turn(days=1)
    again = await shelf.refresh_sources()

    assert again == RefreshReport()
    assert (shelf.newest_change(), len(shelf.model.asked)) == (before, asked)


async def test_only_what_changed_is_asked_for(shelf: Shelf) -> None:
    for name in ("a.md", "b.md", "c.md"):
        shelf.source(name, name)
    await shelf.refresh_sources()
    shelf.source("a.md", "a is longer now")
    shelf.source("b.md", "b is longer now")
    (shelf.sources_dir / "c.md").unlink()
    shelf.model.asked.clear()
    result = await shelf.refresh_sources()

    assert result == refreshed(changed=("kb:a.md", "kb:b.md"), removed=("kb:c.md",))
    assert len(shelf.model.asked) == 2
    assert list(shelf.index()) == ["kb:a.md", "kb:b.md"]


async def test_a_document_is_described_again_when_a_file_that_it_includes_changes(shelf: Shelf) -> None:
    shelf.source("a.rst", "A\n=\n\n.. include:: parts/b.inc\n\n.. include:: c.inc\n")
    parts = [shelf.sources_dir / "parts" / "b.inc", shelf.sources_dir / "c.inc"]
    parts[0].parent.mkdir()
    parts[0].write_text("It is 7411.")
    for changes in (
        lambda: None,
        lambda: parts[0].write_text("It is 7412."),  # as long as before
        lambda: parts[1].write_text("Another part."),  # it was not there
        parts[0].unlink,
    ):
        changes()
        assert "kb:a.rst" in (await shelf.refresh_sources()).changed
        before = shelf.newest_change()
        assert await shelf.refresh_sources() == RefreshReport()
        assert shelf.newest_change() == before


async def test_a_file_that_was_only_touched_is_not_asked_for(shelf: Shelf) -> None:
    shelf.source("a.md", "A\n")
    await shelf.refresh_sources()
    shelf.source("a.md", "A  \r\n\r\n")
    os.utime(shelf.sources_dir / "a.md", ns=(5, 5))
    shelf.model.asked.clear()
    assert await shelf.refresh_sources() == RefreshReport()
    once = shelf.newest_change()  # the new size and mtime
    assert await shelf.refresh_sources() == RefreshReport()

    assert shelf.model.asked == []
    assert shelf.newest_change() == once
    known = shelf.cached("kb:a.md")
    assert isinstance(known, CachedFile)
    assert (known.size_bytes, known.version) == (7, 5)


async def test_new_sources_are_listed_by_their_beginning_before_the_model_answers(shelf: Shelf) -> None:
    shelf.source("a.md", "# Backups\n\nHow to make one.\n\nMore.")
    reached, go_on = anyio.Event(), anyio.Event()

    async def slow(given: SummarizeIn) -> SummarizeOut:
        reached.set()
        await go_on.wait()
        return praised(given)

    shelf.model.always(SUMMARIZE_SOURCE, slow)
    async with finishing(shelf.refresh_sources):
        await reached.wait()
        assert shelf.index() == {"kb:a.md": "Backups. How to make one."}
        assert shelf.cached("kb:a.md").summary_pending
        go_on.set()
    assert not shelf.cached("kb:a.md").summary_pending


@pytest.mark.parametrize("failure", [ModelUnavailableError("down"), SummarizeOut(description=" \n\n ")])
async def test_a_failing_summary_keeps_the_description_and_is_asked_for_again(
    shelf: Shelf, failure: Exception | SummarizeOut
) -> None:
    shelf.source("a.md", "# A")
    shelf.source("b.md", "# B")
    await shelf.refresh_sources()
    old = shelf.index()["kb:a.md"]
    shelf.source("a.md", "# A is new")
    shelf.model.next(SUMMARIZE_SOURCE, failure)
    failed = await shelf.refresh_sources()
    assert [owed.source_id for owed in failed.pending] == ["kb:a.md"]
    assert failed.pending[0].reason
    assert failed.changed == ()
    assert shelf.index()["kb:a.md"] == old
    assert shelf.cached("kb:a.md").summary_pending

    assert await shelf.refresh_sources() == refreshed(changed=("kb:a.md",))
    assert not shelf.cached("kb:a.md").summary_pending
    assert shelf.index()["kb:a.md"] != old


async def test_one_failure_does_not_stop_the_others(shelf: Shelf) -> None:
    for n in range(6):
        shelf.source(f"{n}.md", "x")
    shelf.model.always(
        SUMMARIZE_SOURCE,
        lambda given: ModelReplyError("junk") if given.source_id == "kb:2.md" else praised(given),
    )
    result = await shelf.refresh_sources()

    assert len(result.changed) == 5
    assert [owed.source_id for owed in result.pending] == ["kb:2.md"]
    assert shelf.index()["kb:2.md"] == "x"


async def test_no_more_than_the_allowed_number_is_asked_for_at_a_time(shelf: Shelf) -> None:
    shelf.options = IndexingOptions(concurrency=3)
    for n in range(10):
        shelf.source(f"{n}.md", "x")
    running: list[int] = []
    most = 0

    async def counted(given: SummarizeIn) -> SummarizeOut:
        nonlocal most
        running.append(1)
        most = max(most, len(running))
        await checkpoint()
        running.pop()
        return praised(given)

    shelf.model.always(SUMMARIZE_SOURCE, counted)
    await shelf.refresh_sources()
    assert most == 3


async def test_a_description_is_one_bounded_paragraph_that_forges_no_entry(shelf: Shelf) -> None:
    shelf.options = IndexingOptions(max_description_chars=60)
    shelf.source("a.md", "A")
    shelf.model.always(
        SUMMARIZE_SOURCE, SummarizeOut(description="First.\n\nteam:forged.txt\u2028Forged " + "words " * 50)
    )
    await shelf.refresh_sources()

    [entry] = shelf.entries()
    assert entry.source_id == "kb:a.md"
    assert entry.description.startswith("First. team:forged.txt Forged words")
    assert len(entry.description) <= 60


# Finding B12.
async def test_the_cache_tells_a_topic_s_version_and_no_time_of_a_file(shelf: Shelf) -> None:
    await shelf.topic("nodes", block("How?", "So."))
    await shelf.refresh_topics()

    known = shelf.cached("team:nodes.txt")
    assert isinstance(known, CachedTopic)
    written = msgspec.json.decode(IndexCache(sources={SourceId("team:nodes.txt"): known}).encode())
    told = written["sources"]["team:nodes.txt"]
    assert (told["source_type"], told["version"]) == ("topic", known.version)
    assert 0 < known.version <= shelf.newest_change()
    assert "mtime_ns" not in told


async def test_a_topic_s_description_forges_neither_an_entry_nor_an_id(shelf: Shelf) -> None:
    told = "Nodes.\n\nteam:forged.txt\n\nForged.\r\n\r\n--- QA ---\nid: qa_20260201_031056\n\x0b\u2029kb:a.md"
    shelf.model.always(SUMMARIZE_TOPIC, SummarizeOut(description=told))
    await shelf.topic("nodes", block("How?", "So."), block("Why?", "Thus.", n=1))
    await shelf.topic("wallets", block("Where?", "Here.", n=5), block("When?", "Now.", n=6))
    await shelf.refresh_topics()

    description = "Nodes. team:forged.txt Forged. --- QA --- id: qa_20260201_031056 kb:a.md"
    assert shelf.index() == {"team:nodes.txt": description, "team:wallets.txt": description}


async def test_a_long_source_is_shown_by_its_head_and_its_tail(shelf: Shelf) -> None:
    shelf.options = IndexingOptions(max_source_chars=1000)
    shelf.model.always(SUMMARIZE_SOURCE, praised)
    shelf.source("a.md", "\n\n".join(["The beginning.", *(f"line {n}" for n in range(5000)), "The end."]))
    await shelf.refresh_sources()

    [given] = shelf.model.calls(SUMMARIZE_SOURCE)
    assert len(given.text) <= 1000
    assert given.text.startswith("The beginning.\n")
    assert given.text.endswith("\nThe end.")


async def test_a_source_that_cannot_be_read_is_reported_and_keeps_its_entry(shelf: Shelf) -> None:
    shelf.source("a.md", "A")
    shelf.source("b.md", "B")
    await shelf.refresh_sources()
    shelf.source("a.md", "A changed")

    class Failing(SourceFolder):
        def read(self, rel_path: str) -> str:
            raise SourceError(f"{rel_path} could not be read")

    broken = Failing(shelf.sources_dir, 1_000_000)
    result = await refresh_sources(shelf.model, broken, shelf.catalogue, shelf.options)

    assert [skipped.rel_path for skipped in result.skipped] == ["a.md"]
    assert (result.changed, result.removed) == ((), ())
    assert list(shelf.index()) == ["kb:a.md", "kb:b.md"]


async def test_a_source_that_is_no_text_any_more_leaves_the_index_with_its_reason(shelf: Shelf) -> None:
    shelf.source("a.md", "A")
    shelf.source("b.md", "B")
    await shelf.refresh_sources()
    (shelf.sources_dir / "a.md").write_bytes(b"a\0b")
    (shelf.sources_dir / "new.md").write_bytes(b"a\0b")
    for _ in range(2):
        result = await shelf.refresh_sources()
        assert dict(result.skipped) == dict.fromkeys(("a.md", "new.md"), "it is binary, not text")
    assert list(shelf.index()) == ["kb:b.md"]
    assert list(shelf.catalogue.sources()) == ["kb:b.md"]


async def test_what_lies_in_a_folder_that_cannot_be_looked_at_stays_known(shelf: Shelf) -> None:
    for name in ("deep/a.md", "deeper/a.md", "b.md"):
        shelf.source(name, name)

    class Closed(SourceFolder):
        def scan(self, known: Iterable[CachedFile] = ()) -> FolderScan:
            found = super().scan(known)
            files = tuple(file for file in found.files if file.rel_path == "b.md")
            return FolderScan(files, (SkippedFile("deep", "it cannot be read"),), frozenset({"deep"}))

    await shelf.refresh_sources()
    closed = Closed(shelf.sources_dir, 1_000_000)
    result = await refresh_sources(shelf.model, closed, shelf.catalogue, shelf.options)
    assert result.removed == ("kb:deeper/a.md",)
    assert sorted(shelf.index()) == ["kb:b.md", "kb:deep/a.md"]


async def test_a_stop_repeats_only_the_calls_in_flight(shelf: Shelf) -> None:
    for n in range(20):
        shelf.source(f"{n}.md", "x")
    with anyio.CancelScope() as scope:

        async def stopped(given: SummarizeIn) -> SummarizeOut:
            if len(shelf.model.asked) > 10:
                scope.cancel()
                await checkpoint()
            return praised(given)

        shelf.model.always(SUMMARIZE_SOURCE, stopped)
        await shelf.refresh_sources()
    in_flight = shelf.options.concurrency
    asked = len(shelf.model.asked)
    shelf.model.asked.clear()
    shelf.model.always(SUMMARIZE_SOURCE, praised)
    await shelf.refresh_sources()
    assert 20 - asked <= len(shelf.model.asked) <= 20 - asked + in_flight
    assert all("All about" in description for description in shelf.index().values())


@pytest.mark.rest
async def test_a_kill_repeats_only_the_calls_in_flight(tmp_path: Path) -> None:
    # The process ends while its 41st call is under way, as by SIGKILL: nothing is cleaned up.
    code = """
import os, sys
from pathlib import Path
import anyio
import msgspec
from tests.sources.folders import Shelf, praised
from intern.sources.descriptions import SUMMARIZE_SOURCE

async def work():
    async with Shelf.at(Path(sys.argv[1])) as shelf:
        for n in range(60):
            shelf.source(f"{n}.md", "x")
        async def killed(given):
            if len(shelf.model.asked) > 40:
                os._exit(9)
            return praised(given)
        shelf.model.always(SUMMARIZE_SOURCE, killed)
        await shelf.refresh_sources()

anyio.run(work)
"""
    root = Path(__file__).parents[2]
    process = await anyio.run_process([sys.executable, "-c", code, str(tmp_path)], cwd=root, check=False)
    assert process.returncode == 9, process.stderr
    async with Shelf.at(tmp_path) as shelf:
        shelf.model.always(SUMMARIZE_SOURCE, praised)
        await shelf.refresh_sources()
        assert len(shelf.model.asked) <= 60 - 40 + shelf.options.concurrency
        assert all("All about" in description for description in shelf.index().values())


async def test_a_file_with_a_blank_name_is_left_out_with_the_reason_and_costs_no_call(shelf: Shelf) -> None:
    shelf.source(" ", "something")
    result = await shelf.refresh_sources()
    [(path, reason)] = result.skipped
    assert path == '" "'
    assert "rename it" in reason
    assert shelf.model.asked == []


async def test_a_blank_document_is_listed_without_a_call(shelf: Shelf) -> None:
    shelf.source("blank.md", " \n\n ")
    result = await shelf.refresh_sources()
    assert await shelf.refresh_sources() == RefreshReport()
    assert result == refreshed(changed=("kb:blank.md",))
    assert shelf.index() == {"kb:blank.md": "No text."}
    assert shelf.model.asked == []


async def test_pages_and_notebooks_are_shown_by_what_a_reader_sees(shelf: Shelf) -> None:
    shelf.source("page.html", f"<title>Ports</title><script>x()</script><body><p>{'All of them. ' * 20}")
    shelf.source("book.ipynb", '{"cells": [{"cell_type": "code", "source": "ask()"}]}')
    await shelf.refresh_sources()
    shown = {given.source_id: given.text for given in shelf.model.calls(SUMMARIZE_SOURCE)}
    assert shown["kb:page.html"].startswith("# Ports\n\nAll of them.")
    assert "x()" not in shown["kb:page.html"]
    assert shown["kb:book.ipynb"] == "```\nask()\n```"


async def test_a_missing_folder_is_an_error_and_the_index_stays(shelf: Shelf) -> None:
    shelf.source("a.md", "A")
    await shelf.refresh_sources()
    (shelf.sources_dir / "a.md").unlink()
    shelf.sources_dir.rmdir()
    with pytest.raises(SourceError):
        await shelf.refresh_sources()
    assert list(shelf.index()) == ["kb:a.md"]


async def test_progress_is_told_for_each_document_read_and_described(shelf: Shelf) -> None:
    told: list[tuple[str, int, int]] = []
    for name in ("a.md", "b.md", "c.md"):
        shelf.source(name, name)

    def hear(what: str, done: int, total: int, note: str = "") -> None:
        assert not note
        told.append((what.partition(" ")[0], done, total))

    with send_progress_to(hear):
        await shelf.refresh_sources()
    assert told == [(what, n, 3) for what in ("Reading", "Describing") for n in (1, 2, 3)]


async def test_without_a_model_what_changed_is_listed_and_its_description_stays_owed(shelf: Shelf) -> None:
    shelf.source("a.md", "# Old")
    await shelf.refresh_sources()
    shelf.model.asked.clear()
    shelf.source("a.md", "# Another text")
    shelf.source("b.md", "# New")
    catalogue = shelf.catalogue
    looked = await refresh_sources(shelf.model, shelf.folder, catalogue, shelf.options, describe=False)
    assert (shelf.model.asked, [owed.source_id for owed in looked.pending]) == ([], ["kb:a.md", "kb:b.md"])
    assert shelf.index()["kb:b.md"] == "New"
    assert (await shelf.refresh_sources()).changed == ("kb:a.md", "kb:b.md")


async def test_topics_are_summarised_from_their_conversations_alone(shelf: Shelf) -> None:
    await shelf.topic("nodes", block("How?", "So.\nAnd so."), block("Why?", "Thus.", n=1))
    result = await shelf.refresh_topics()

    assert result == refreshed(changed=("team:nodes.txt",))
    [given] = shelf.model.calls(SUMMARIZE_TOPIC)
    assert given.text == "User: How?\nTeam: So. And so.\n\nUser: Why?\nTeam: Thus."
    assert list(shelf.index()) == ["team:nodes.txt"]


async def test_unchanged_topics_cost_nothing_and_lost_ones_leave_the_index(shelf: Shelf) -> None:
    first, second = block("How?", "So."), block("Why?", "Thus.", n=1)
    await shelf.topic("one", first)
    await shelf.topic("two", second)
    await shelf.refresh_topics()
    before = shelf.newest_change()
    assert await shelf.refresh_topics() == RefreshReport()
    assert shelf.newest_change() == before

    await shelf.topic("two", without=[first])
    assert await shelf.refresh_topics() == refreshed(removed=("team:one.txt",))
    assert list(shelf.index()) == ["team:two.txt"]


async def test_a_long_topic_is_shown_by_its_questions_within_the_bound(shelf: Shelf) -> None:
    shelf.options = IndexingOptions(max_topic_chars=2000)
    shelf.model.always(SUMMARIZE_TOPIC, praised)
    await shelf.topic("big", *(block(f"Question {n}?", "word " * 500, n=n) for n in range(50)))
    await shelf.refresh_topics()

    [given] = shelf.model.calls(SUMMARIZE_TOPIC)
    assert len(given.text) <= 2000
    assert "User: Question 49?" in given.text
    assert given.text.count("User: Question") == 12


async def test_a_new_topic_is_listed_at_once_by_its_first_question(shelf: Shelf) -> None:
    await shelf.topic("nodes", block("How do I start a node?", "So."), block("Why?", "Thus.", n=1))
    await shelf.list_topic("nodes")
    assert shelf.index() == {"team:nodes.txt": "How do I start a node?"}
    assert shelf.model.asked == []
    before = shelf.newest_change()
    await shelf.list_topic("nodes")
    assert shelf.newest_change() == before

    # The summary is owed, although the text has not changed.
    assert await shelf.refresh_topics() == refreshed(changed=("team:nodes.txt",))
    await shelf.list_topic("nodes")
    assert shelf.index()["team:nodes.txt"].startswith("All about")


async def test_topics_that_lost_something_are_described_by_rules_and_those_that_are_gone_leave(shelf: Shelf) -> None:
    first, second, third = (block(f"Why {n}?", "Thus.", n=n) for n in range(3))
    await shelf.topic("nodes", first, second)
    await shelf.topic("gone", third)
    await shelf.refresh_topics()
    await shelf.topic("unlisted", block("Who?", "You.", n=9))
    await shelf.topic("nodes", without=[first, third])
    names = tuple(map(TopicName, ("nodes", "gone", "unlisted", "unknown")))
    await shelf.knowledge.change(lambda change: describe_provisionally(change, names, shelf.clock.now()))
    assert shelf.index() == {"team:nodes.txt": "Why 1?"}
    assert shelf.cached("team:nodes.txt").summary_pending
    assert (await shelf.refresh_topics()).changed == ("team:nodes.txt", "team:unlisted.txt")


async def test_a_topic_of_one_conversation_is_described_by_its_question_without_a_call(shelf: Shelf) -> None:
    name = TopicName("nodes")
    first = block("How do I start a node?", "So.")
    await shelf.topic(name, first)
    assert await shelf.refresh_topics() == refreshed(changed=("team:nodes.txt",))
    assert shelf.index() == {"team:nodes.txt": "How do I start a node?"}
    await shelf.topic(name, block("And stop one?", "Ctrl-C.", n=1), without=[first])
    assert await shelf.refresh_topics() == refreshed(changed=("team:nodes.txt",))
    assert shelf.index() == {"team:nodes.txt": "And stop one?"}
    assert await shelf.refresh_topics() == refreshed()
    assert shelf.model.asked == []
    await shelf.topic(name, block("Why?", "Thus.", n=2))
    await shelf.refresh_topics()
    assert len(shelf.model.calls(SUMMARIZE_TOPIC)) == 1


async def test_a_topic_that_is_added_during_a_refresh_is_not_lost(shelf: Shelf) -> None:
    await shelf.topic("one", block("How?", "So."), block("Who?", "You.", n=2))

    async def meanwhile(given: SummarizeIn) -> SummarizeOut:
        await shelf.topic("two", block("Why?", "Thus.", n=1))
        await shelf.list_topic("two")
        return praised(given)

    shelf.model.next(SUMMARIZE_TOPIC, meanwhile)
    await shelf.refresh_topics()
    assert shelf.index()["team:two.txt"] == "Why?"


async def test_a_topic_that_grows_while_it_is_read_is_described_with_what_came(shelf: Shelf) -> None:
    more = [block("When?", "Now.", n=2)]

    class Growing(KnowledgeStore):
        """Grows after the first look."""

        def read_text(self, name: TopicName) -> str:
            return self._grown(super().read_text(name))

        def read_topic(self, name: TopicName) -> tuple[TopicBlock, ...]:
            return self._grown(super().read_topic(name))

        def _grown(self, found: T) -> T:
            if more:
                from_thread.run(shelf.topic, "nodes", more.pop())
            return found

    await shelf.topic("nodes", block("How?", "So."), block("Why?", "Thus.", n=1))
    await refresh_topics(shelf.model, Growing(shelf.knowledge.db), shelf.team, shelf.options)
    await shelf.refresh_topics()
    assert "When?" in shelf.model.calls(SUMMARIZE_TOPIC)[-1].text


@pytest.mark.parametrize("failure", [ModelReplyError("junk"), ModelSchemaError("no"), SummarizeOut(description=" ")])
async def test_what_the_model_cannot_describe_is_not_asked_for_with_every_change_of_something_else(
    shelf: Shelf, failure: Exception | SummarizeOut
) -> None:
    shelf.source("bad.md", "# Bad")
    shelf.model.always(SUMMARIZE_SOURCE, lambda given: failure if given.source_id == "kb:bad.md" else praised(given))
    with respect_pauses():
        for n in range(5):
            shelf.source("other.md", f"version {n}")
            result = await shelf.refresh_sources()
            assert [owed.source_id for owed in result.pending] == ["kb:bad.md"]
            assert result.pending[0].reason
        before = shelf.newest_change()
        assert [owed.source_id for owed in (await shelf.refresh_sources()).pending] == ["kb:bad.md"]
    assert asked_for(shelf, "kb:bad.md") == 1
    assert asked_for(shelf, "kb:other.md") == 5
    assert shelf.newest_change() == before


async def test_what_the_model_cannot_describe_is_tried_again_after_growing_pauses(shelf: Shelf) -> None:
    shelf.source("bad.md", "# Bad")
    shelf.model.always(SUMMARIZE_SOURCE, ModelReplyError("junk"))
    with respect_pauses():
        await shelf.refresh_sources()
        for tries, pause in enumerate((*PAUSES, PAUSES[-1]), start=2):
            shelf.clock.turn(seconds=pause.total_seconds() - 1)
            await shelf.refresh_sources()
            assert asked_for(shelf, "kb:bad.md") == tries - 1
            shelf.clock.turn(seconds=1)
            await shelf.refresh_sources()
            assert asked_for(shelf, "kb:bad.md") == tries
        shelf.model.always(SUMMARIZE_SOURCE, praised)
        shelf.clock.turn(days=1)
        assert await shelf.refresh_sources() == refreshed(changed=("kb:bad.md",))
        # Its next text starts afresh.
        shelf.source("bad.md", "# Bad, and other")
        shelf.model.always(SUMMARIZE_SOURCE, ModelReplyError("junk"))
        await shelf.refresh_sources()
    assert shelf.cached("kb:bad.md").tries == DescriptionAttempts(failed=1, next_at=shelf.clock.now() + PAUSES[0])


async def test_what_the_model_cannot_describe_is_tried_at_once_when_its_text_changes_or_somebody_asks(
    shelf: Shelf,
) -> None:
    shelf.source("bad.md", "# Bad")
    shelf.model.always(SUMMARIZE_SOURCE, ModelReplyError("junk"))
    with respect_pauses():
        await shelf.refresh_sources()
        os.utime(shelf.sources_dir / "bad.md", ns=(5, 5))
        result = await shelf.refresh_sources()
        assert [owed.source_id for owed in result.pending] == ["kb:bad.md"]
        assert asked_for(shelf, "kb:bad.md") == 1  # touched, but the same
        shelf.source("bad.md", "# Bad, and longer")
        await shelf.refresh_sources()
        assert asked_for(shelf, "kb:bad.md") == 2
        await shelf.refresh_sources()
        assert asked_for(shelf, "kb:bad.md") == 2
    await shelf.refresh_sources()
    assert asked_for(shelf, "kb:bad.md") == 3
    shelf.model.always(SUMMARIZE_SOURCE, praised)
    assert await shelf.refresh_sources() == refreshed(changed=("kb:bad.md",))
    known = shelf.cached("kb:bad.md")
    assert (known.last_error, known.tries) == (None, None)


async def test_a_topic_that_the_model_cannot_describe_costs_no_call_while_others_grow(shelf: Shelf) -> None:
    await shelf.topic("bad", block("How?", "So."), block("Who?", "You.", n=9))
    shelf.model.always(
        SUMMARIZE_TOPIC,
        lambda given: ModelReplyError("junk") if given.source_id == "team:bad.txt" else praised(given),
    )
    with respect_pauses():
        for n in range(1, 4):
            await shelf.topic("good", block(f"Why {n}?", "Thus.", n=n))
            await shelf.refresh_topics()
    assert [given.source_id for given in shelf.model.calls(SUMMARIZE_TOPIC)].count(SourceId("team:bad.txt")) == 1


async def test_an_outage_says_nothing_of_a_source_and_one_that_lasts_costs_no_call_with_every_change(
    shelf: Shelf,
) -> None:
    shelf.source("a.md", "# A")
    shelf.model.next(SUMMARIZE_SOURCE, ModelUnavailableError("down"))
    with respect_pauses():
        assert [owed.source_id for owed in (await shelf.refresh_sources()).pending] == ["kb:a.md"]
        assert await shelf.refresh_sources() == refreshed(changed=("kb:a.md",))

        # An endpoint that fails at this one alone; other calls keep its circuit closed.
        shelf.source("a.md", "# A is new")
        shelf.model.asked.clear()
        shelf.model.always(SUMMARIZE_SOURCE, ModelUnavailableError("down"))
        for pause in (*OUTAGE_PAUSES, OUTAGE_PAUSES[-1]):
            before = len(shelf.model.asked)
            for _ in range(2 if pause else 1):
                await shelf.refresh_sources()
            assert len(shelf.model.asked) == before + 1
            shelf.clock.turn(seconds=pause.total_seconds())
        # Now the model answers about it for the first time.
        shelf.model.always(SUMMARIZE_SOURCE, ModelReplyError("junk"))
        await shelf.refresh_sources()
    assert shelf.cached("kb:a.md").tries == DescriptionAttempts(failed=1, next_at=shelf.clock.now() + PAUSES[0])


async def test_a_clock_that_was_far_ahead_makes_no_source_wait_for_years(shelf: Shelf) -> None:
    shelf.source("a.md", "# A")
    shelf.model.next(SUMMARIZE_SOURCE, ModelReplyError("junk"))
    with respect_pauses():
        await shelf.refresh_sources()
        shelf.clock.turn(days=-3000)
        assert await shelf.refresh_sources() == refreshed(changed=("kb:a.md",))


async def test_a_source_that_no_model_has_described_says_so(shelf: Shelf) -> None:
    shelf.source("a.md", "# A")
    await shelf.topic("t", block("How?", "So."))
    shelf.model.always(SUMMARIZE_SOURCE, ModelReplyError("junk"))
    await shelf.refresh_sources()
    assert shelf.cached("kb:a.md").described_at is None
    shelf.source("a.md", "# A is longer")
    await shelf.refresh_sources()
    assert shelf.cached("kb:a.md").described_at is None
    shelf.model.always(SUMMARIZE_SOURCE, praised)
    await shelf.refresh_sources()
    then = shelf.clock.now()
    assert shelf.cached("kb:a.md").described_at == then

    # An older description is one all the same.
    shelf.clock.turn(hours=1)
    shelf.source("a.md", "# A is new")
    shelf.model.always(SUMMARIZE_SOURCE, ModelReplyError("junk"))
    await shelf.refresh_sources()
    assert shelf.cached("kb:a.md").described_at == then


async def test_a_topic_that_was_just_opened_is_not_described_yet(shelf: Shelf) -> None:
    await shelf.topic("nodes", block("How do I start a node?", "So."))
    await shelf.list_topic("nodes")
    assert shelf.cached("team:nodes.txt").described_at is None
    await shelf.refresh_topics()
    assert shelf.cached("team:nodes.txt").described_at == shelf.clock.now()
