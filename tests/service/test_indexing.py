"""Search through the whole of intern: indices and discovered files, kept up to date, and checked when read."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from anyio import create_task_group, fail_after
from anyio.to_thread import run_sync

from intern.actors.job_worker import do_jobs_forever
from intern.core.errors import KnowledgeError, ModelReplyError
from intern.core.flow import FilingDecision, TopicChoice
from intern.core.ids import MessageId, SourceId, TopicName
from intern.core.messages import Conversation, Message
from intern.core.search_documents import SearchFilter
from intern.learning.forgetting import ForgetRequest
from intern.models.prompt import OfflineModel
from intern.search.embedder import LEAST_LIKENESS
from intern.search.hybrid_search import HybridSearch
from intern.service.indexing import PassageRanking
from intern.service.job_kinds import DISCOVER, INDEX, REFRESH
from intern.service.knowledge_search import SearchResult
from intern.service.models import collect_offline_rules
from intern.service.opening import open_intern
from intern.service.sources import open_sources
from intern.settings.loading import load_settings
from intern.settings.settings import Settings
from intern.sources import catalogue
from intern.sources.descriptions import SUMMARIZE_SOURCE, SummarizeOut
from intern.stores.engines.sqlite.database import SqliteDatabase
from intern.stores.folder_lock import FolderLock
from tests.search.documents import Directions, document, opened, vector
from tests.service.writers import open_writer
from tests.worlds import samples
from tests.worlds.clock import HandClock
from tests.worlds.model import ScriptedModel

pytestmark = pytest.mark.anyio


def settings_in(folder: Path, **discovery: Any) -> Settings:
    """Return the settings of a folder with one document; files beside it can be discovered."""
    settings = load_settings(environ={}, overrides={"data": {"dir": str(folder / "data")}, "discovery": {**discovery}})
    put(settings.paths.sources / "ports.md", "# Ports\n\nThe relay listens on port 7480.\n")
    return settings


def put(path: Path, text: str, *, later: int = 0) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    os.utime(path, (1_700_000_000 + later, 1_700_000_000 + later))
    return path


def ids(found: tuple[SearchResult, ...]) -> list[str]:
    return [str(each.source_id) for each in found]


def discovering(folder: Path, **more: Any) -> dict[str, Any]:
    return {"scan_paths": [str(folder / "docs")], **more}


async def test_what_is_indexed_is_found_and_what_is_removed_is_not(tmp_path: Path) -> None:
    settings = settings_in(tmp_path)
    put(settings.paths.sources / "logs.md", "# Logs\n\nLogs are written to /var/log/lumen.\n")
    with fail_after(20):
        async with open_intern(settings) as intern:
            assert await intern.search("ports") == ()
            await intern.index()
            [found] = await intern.search("Which port does the relay use?")
            assert (found.source_id, found.type, found.stale) == ("kb:ports.md", "document", False)
            assert found.matched == ("port", "relay")
            assert "7480" in found.summary
            (settings.paths.sources / "logs.md").unlink()
            await intern.index()
            assert await intern.search("lumen") == ()
            assert [source.source_id for source in open_sources(settings, HandClock()).list_all()] == ["kb:ports.md"]


async def test_a_refresh_that_finds_nothing_changed_writes_nothing_to_the_search(tmp_path: Path) -> None:
    settings = settings_in(tmp_path)
    with fail_after(20):
        async with await SqliteDatabase.open(settings.paths.database) as db:
            writer = await run_sync(open_writer, settings, db, OfflineModel(collect_offline_rules()), HandClock())
            await writer.indexing.refresh()
            before = await db.read(lambda tx: tx.rows("select rid, id, stamp from documents"))
            changes = await db.read(lambda tx: tx.row("pragma data_version"))
            await writer.indexing.refresh()
            assert await db.read(lambda tx: tx.rows("select rid, id, stamp from documents")) == before
            assert await db.read(lambda tx: tx.row("pragma data_version")) == changes


async def test_vectors_wait_while_words_are_indexed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalogue, "_CHUNK", 1)
    settings = settings_in(tmp_path)
    for n in range(3):
        put(settings.paths.sources / f"{n}.md", f"# Number {n}\n\nThe relay has port {n}.\n")
    with fail_after(20):
        async with await SqliteDatabase.open(settings.paths.database) as db:
            searchable: list[int] = []

            class Watching(Directions):
                async def compute_vectors(self, texts: Sequence[str], /, *, asked: bool = False) -> Sequence[bytes]:
                    searchable.append(await db.read(lambda tx: tx.number("select count(*) from documents")))
                    return await super().compute_vectors(texts, asked=asked)

            offline = OfflineModel(collect_offline_rules())
            writer = await run_sync(partial(open_writer, settings, db, offline, HandClock(), embedder=Watching()))

            async def embed() -> None:
                while not searchable:
                    await writer.indexing.make_vectors_after_words()
                    await anyio.lowlevel.checkpoint()

            async with create_task_group() as tg:
                tg.start_soon(embed)
                await writer.indexing.refresh()
            assert searchable == [await db.read(lambda tx: tx.number("select count(*) from documents"))]


async def test_a_document_that_changed_since_is_indexed_when_it_is_found(tmp_path: Path) -> None:
    settings = settings_in(tmp_path)
    with fail_after(20):
        async with open_intern(settings) as intern:
            await intern.index()
            put(settings.paths.sources / "ports.md", "# Ports\n\nThe relay listens on port 9000 now.\n", later=5)
            [found] = await intern.search("port")
            assert "9000" in found.summary
            put(settings.paths.sources / "ports.md", "# Ports\n\nThe relay listens on port 9000 now.\n", later=9)
            assert not (await intern.search("port"))[0].stale  # only touched
            (settings.paths.sources / "ports.md").unlink()
            assert await intern.search("port") == ()


async def test_answers_may_draw_on_what_is_too_little_like_the_question_to_be_found(tmp_path: Path) -> None:
    class Local(Directions):
        model = next(iter(LEAST_LIKENESS))

    embedder, car = Local({"xylophone": 80}), document("kb:car", "what to do when the car will not start")
    with fail_after(20):
        async with opened(tmp_path) as (store, _):
            await store.replace_documents([car])
            await store.store_vectors(embedder.model, [(car, vector(0))])
            finder = HybridSearch(store, embedder)
            assert await finder.find("xylophone") == ()
            [hit] = await PassageRanking(settings_in(tmp_path), finder).find_hits("xylophone", 5)
            assert hit.source_id == "kb:car"


async def test_discovered_files_are_found_fresh_and_do_not_serve_answers(tmp_path: Path) -> None:
    settings = settings_in(tmp_path, **discovering(tmp_path))
    code = put(tmp_path / "docs" / "relay.py", "class Relay:\n    '''Keeps the spool.'''\n")
    notes = put(tmp_path / "docs" / "notes.md", "# Notes\n\nOn the spool and its limits.\n")
    with fail_after(20):
        async with open_intern(settings) as intern:
            assert [question.why for question in (await intern.preview_discovery()).questions] == ["new", "new"]
            assert await intern.search("spool") == ()
            done = await intern.run_job(DISCOVER, None)
            assert done.indexed == (str(notes), str(code))
            assert (await intern.preview_discovery()).questions == ()
            found = await intern.search("spool", SearchFilter(type="source_code"))
            assert [each.path for each in found] == [str(code)]
            assert "Lists classes: Relay" in found[0].summary
            assert await intern.entries() == ()
            put(code, "class Valve:\n    '''Shuts the spool.'''\n", later=5)
            notes.unlink()
            [fresh] = await intern.search("spool")
            assert "Valve" in fresh.summary


async def test_discovered_files_serve_answers_where_the_operator_wants_that(tmp_path: Path) -> None:
    settings = settings_in(tmp_path, **discovering(tmp_path, answer=True))
    token = "ghp_" + "a1B2" * 10
    put(tmp_path / "docs" / "spool.md", f"# Spool\n\nThe spool holds 4 GB. Its key is {token}.\n")
    with fail_after(20):
        async with open_intern(settings) as intern:
            await intern.run_job(DISCOVER, None)
            [entry] = await intern.entries()
            assert entry.source_id.startswith("file:")
            assert token not in entry.description
            loaded = await intern._library.load(entry.source_id)
            assert "4 GB" in loaded.text
            assert token not in loaded.text
            (tmp_path / "docs" / "spool.md").unlink()
            with pytest.raises(KnowledgeError):
                await intern._library.load(entry.source_id)


async def test_discovered_files_go_by_their_paths_below_their_scan_paths_in_prompts_and_answers(
    tmp_path: Path,
) -> None:
    settings = settings_in(
        tmp_path,
        scan_paths=[str(tmp_path / "docs"), str(tmp_path / "more" / "*.md"), str(tmp_path / "one.md")],
        answer=True,
    )
    put(tmp_path / "docs" / "ops" / "spool.md", "# Spool\n\nThe spool holds 4 GB. To empty it, run `spool purge`.\n")
    for folder in ("docs", "more"):
        put(tmp_path / folder / "limits.md", f"# Limits of {folder}\n\nThe limit of {folder} is seven.\n")
    put(tmp_path / "one.md", "# One\n\nAbout keys.\n")
    with fail_after(20):
        async with open_intern(settings) as intern:
            await intern.run_job(DISCOVER, None)
            ids = ["file:docs/limits.md", "file:more/limits.md", "file:one.md", "file:ops/spool.md"]
            entries = await intern.entries()
            assert sorted(each.source_id for each in entries) == ids
            assert str(tmp_path) not in str(entries)
            for each in ids:
                loaded = await intern._library.load(SourceId(each))
                assert (loaded.source_id, loaded.title) == (each, each.rpartition("/")[2].removeprefix("file:"))
            result = await intern.answer(Conversation((Message(role="user", text="How do I empty the spool?"),)))
            assert [(each.source_id, each.title) for each in result.citations] == [("file:ops/spool.md", "spool.md")]
            hits = await intern._library.find_hits("empty the spool", 1)
            assert [hit.source_id for hit in hits or ()] == ["file:ops/spool.md"]
            with pytest.raises(KnowledgeError, match="was not discovered"):
                await intern._library.load(SourceId("file:../secret.md"))


async def test_beside_a_running_bot_the_bot_does_the_work(tmp_path: Path) -> None:
    settings = settings_in(tmp_path, **discovering(tmp_path))
    path = put(tmp_path / "docs" / "notes.md", "# Notes\n\nOn the spool.\n")
    with fail_after(30), FolderLock(settings.data.dir):
        async with (
            await SqliteDatabase.open(settings.paths.database) as db,
            open_intern(settings) as intern,
            create_task_group() as tg,
        ):
            writer = await run_sync(open_writer, settings, db, OfflineModel(collect_offline_rules()), HandClock())

            async def work() -> None:
                await do_jobs_forever(writer.stores.jobs, writer.handlers)

            tg.start_soon(work)
            assert (await intern.run_job(DISCOVER, None)).indexed == (str(path),)
            put(path, "# Notes\n\nOn the spool and its valve.\n", later=5)
            [found] = await intern.search("spool")
            assert "valve" in found.summary
            tg.cancel_scope.cancel()


async def test_a_search_that_cannot_look_is_an_error_not_an_empty_result(tmp_path: Path) -> None:
    settings = settings_in(tmp_path)
    settings.data.dir.mkdir(exist_ok=True)
    settings.paths.database.write_bytes(b"no database at all, but long enough to be taken for one" * 50)
    with fail_after(20):
        with pytest.raises(KnowledgeError, match=r"intern\.db is damaged \(file is not a database\)"):
            async with open_intern(settings):
                pass


async def test_what_is_forgotten_is_not_found_from_that_moment_on(tmp_path: Path) -> None:
    settings = settings_in(tmp_path)
    with fail_after(30):
        async with await SqliteDatabase.open(settings.paths.database) as db:
            writer = await run_sync(open_writer, settings, db, OfflineModel(collect_offline_rules()), HandClock())
            first = samples.capture("How do I purge the xylophone spool?", "Purge it with the mallet.", n=1)
            pair = await writer.learning.keep(first)
            assert pair is not None
            await writer.learning.file(FilingDecision(pair=pair, choice=TopicChoice(name=TopicName("spool"))))
            await writer.indexing.refresh()
            finder = HybridSearch(writer.stores.search)
            assert await finder.find("xylophone") != ()

            forgotten: list[bool] = []
            drop = writer.stores.search.delete_sources

            async def looked(source_ids: Any) -> None:
                await drop(source_ids)
                forgotten.append(await finder.find("xylophone") == ())

            writer.stores.search.delete_sources = looked  # type: ignore[method-assign]
            await writer.forget(ForgetRequest(message_ids=tuple(map(MessageId, first.message_ids)), erase=True))
            assert forgotten[0]
            assert await finder.find("xylophone") == ()
        assert b"xylophone" not in await anyio.Path(settings.paths.database).read_bytes()


async def test_each_source_tells_how_it_stands(tmp_path: Path) -> None:
    settings = settings_in(tmp_path, **discovering(tmp_path))
    put(tmp_path / "docs" / "a.md", "A")
    put(tmp_path / "docs" / "b.md", "B\0")
    clock = HandClock()
    with fail_after(20):
        async with open_intern(settings, clock=clock) as intern:
            await intern.index()
            await intern.run_job(DISCOVER, None)
        clock.turn(hours=2)
        document, a, b = open_sources(settings, clock).list_all()
        assert (document.source_id, document.state, document.age_seconds) == ("kb:ports.md", "ok", 7200)
        assert (document.next_check, document.check_every_seconds) == (None, 600)
        assert (a.path, a.state, a.last_error) == (str(tmp_path / "docs" / "a.md"), "ok", None)
        assert (b.state, b.last_error) == ("failed", "it is binary, not text")
        (tmp_path / "docs" / "a.md").unlink()
        (settings.paths.sources / "ports.md").unlink()
        assert [each.state for each in open_sources(settings, clock).list_all()] == ["gone", "gone", "failed"]


async def test_what_the_model_cannot_describe_is_tried_by_who_asks_for_that_and_by_no_search(tmp_path: Path) -> None:
    settings = settings_in(tmp_path)
    model = ScriptedModel()
    model.always(SUMMARIZE_SOURCE, ModelReplyError("it made no sense"))
    with fail_after(20):
        async with await SqliteDatabase.open(settings.paths.database) as db:
            writer = await run_sync(open_writer, settings, db, model, HandClock())
            for kind, calls in ((INDEX, 1), (REFRESH, 1), (INDEX, 2)):
                await writer.handlers.run(kind, None)
                assert len(model.calls(SUMMARIZE_SOURCE)) == calls


async def test_a_source_that_could_not_be_described_tells_why(tmp_path: Path) -> None:
    settings = settings_in(tmp_path)
    model = ScriptedModel()
    model.next(SUMMARIZE_SOURCE, ModelReplyError("it made no sense"))
    clock = HandClock()
    with fail_after(20):
        async with await SqliteDatabase.open(settings.paths.database) as db:
            writer = await run_sync(open_writer, settings, db, model, clock)
            await writer.indexing.refresh()
            [source] = open_sources(settings, clock).list_all()
            assert (source.state, source.last_error, source.is_described) == ("failed", "it made no sense", False)
            # It is found all the same, by its beginning and by its text.
            assert [hit.source_id for hit in await HybridSearch(writer.stores.search).find_passages("port", 5)] == [
                "kb:ports.md"
            ]
            model.next(SUMMARIZE_SOURCE, SummarizeOut(description="All about ports."))
            await writer.indexing.refresh()
            [source] = open_sources(settings, clock).list_all()
            assert (source.state, source.last_error, source.is_described) == ("ok", None, True)
