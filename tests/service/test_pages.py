"""Web pages through the whole writer: listed, fetched, described, searchable, loaded, and gone again."""

from __future__ import annotations

from pathlib import Path

import pytest
from anyio import create_task_group, fail_after
from anyio.lowlevel import checkpoint
from anyio.to_thread import run_sync

from intern.core.ids import SourceId
from intern.models.prompt import OfflineModel
from intern.service.job_kinds import REFRESH
from intern.service.models import collect_offline_rules
from intern.service.sources import open_sources
from intern.service.writer import Writer
from intern.settings.settings import DataSection, KbSection, Settings
from intern.sources.catalogue import Catalogue
from intern.sources.library import MOST_MISSING
from intern.stores.engines.sqlite.database import SqliteDatabase
from tests.service.writers import open_writer
from tests.worlds.clock import HandClock
from tests.worlds.site import Served, SiteDouble, page, site_double

pytestmark = pytest.mark.anyio


async def opened(settings: Settings, db: SqliteDatabase, clock: HandClock, site: SiteDouble) -> Writer:
    writer = await run_sync(open_writer, settings, db, OfflineModel(collect_offline_rules()), clock)
    writer.indexing.open_web, writer.indexing.policy = site.fetcher, site.policy
    return writer


async def test_the_listed_pages_are_indexed_beside_the_files(tmp_path: Path) -> None:
    settings = Settings(data=DataSection(dir=tmp_path))
    settings.paths.sources.mkdir(parents=True)
    (settings.paths.sources / "a.md").write_text("# A file")
    with site_double() as site, fail_after(20):
        site.pages["/spools"] = page("How to wind a spool.", "Spools")
        url = site.url("/spools")
        settings.paths.links.write_text(f"{url}\n")
        async with await SqliteDatabase.open(settings.paths.database) as db:
            writer = await opened(settings, db, HandClock(), site)
            assert (await writer.indexing.refresh()).changed == ("kb:a.md",)
            assert site.requests == []
            assert (await writer.indexing.refresh_pages()).changed == (f"kb:{url}",)
            assert sorted(Catalogue(writer.stores.knowledge, "kb").entries()) == ["kb:a.md", f"kb:{url}"]
            assert SourceId(f"kb:{url}") in await writer.stores.search.stamps("source")
            settings.paths.links.write_text("# none\n")
            assert (await writer.indexing.refresh_pages()).removed == (f"kb:{url}",)
            assert list(await writer.stores.search.stamps("source")) == ["kb:a.md"]
            assert list(settings.paths.web_cache.iterdir()) == []


async def test_a_site_that_stalls_holds_up_neither_files_nor_a_search(tmp_path: Path) -> None:
    settings = Settings(data=DataSection(dir=tmp_path))
    settings.paths.sources.mkdir(parents=True)
    with site_double() as site, fail_after(30):
        site.pages |= {f"/{n}": Served(stalls=True) for n in range(3)}
        settings.paths.links.write_text("".join(f"{site.url(f'/{n}')}\n" for n in range(3)))
        async with await SqliteDatabase.open(settings.paths.database) as db:
            writer = await opened(settings, db, HandClock(), site)
            async with create_task_group() as tg:
                tg.start_soon(writer.indexing.refresh_pages)
                while "/0" not in site.asked:
                    await checkpoint()
                (settings.paths.sources / "a.md").write_text("# A file")
                assert (await writer.indexing.refresh()).changed == ("kb:a.md",)
                assert "kb:a.md" not in (await writer.handlers.run(REFRESH, None)).changed
                assert list(await writer.stores.search.stamps("source")) == ["kb:a.md"]
                assert site.asked == ["/0"]
                tg.cancel_scope.cancel()


async def test_each_page_tells_how_it_stands(tmp_path: Path) -> None:
    settings = Settings(data=DataSection(dir=tmp_path))
    settings.paths.sources.mkdir(parents=True)
    clock = HandClock()
    with site_double() as site, fail_after(30):
        shell = Served(body=b"<title>App</title><div id=root></div><script src=a.js></script>")
        site.pages |= {"/a": page("All about spools."), "/app": shell, "/gone": page("Soon gone."), "/b": page("B.")}
        settings.paths.links.write_text("".join(f"{site.url(path)}\n" for path in ("/a", "/app", "/gone", "/b")))
        async with await SqliteDatabase.open(settings.paths.database) as db:
            writer = await opened(settings, db, clock, site)
            await writer.indexing.refresh_pages()
            clock.turn(hours=25)
            del site.pages["/gone"]
            site.pages["/b"] = Served(status=503)
            for _ in range(MOST_MISSING):
                await writer.indexing.refresh_pages()
                clock.turn(hours=5)
        told = {each.path: each for each in open_sources(settings, clock).list_all()}
        a, app, gone, b = (told[site.url(path)] for path in ("/a", "/app", "/gone", "/b"))
        assert {each.type for each in told.values()} == {"page"}
        assert (a.state, a.note, a.last_error, a.check_every_seconds) == ("ok", "", None, None)
        assert a.next_check is not None
        assert a.next_check > clock.now()
        assert a.age_seconds == 45 * 3600
        assert (app.state, app.note) == ("ok", "needs JavaScript")
        assert (gone.state, b.state) == ("gone", "failed")
        assert "404" in (gone.last_error or "")
        assert "503" in (b.last_error or "")


async def test_addresses_of_the_settings_are_read_beside_those_of_the_list(tmp_path: Path) -> None:
    with site_double() as site, fail_after(20):
        site.pages |= {"/a": page("How to wind a spool.", "Spools"), "/b": page("How to tie a knot.", "Knots")}
        kb = KbSection(links=(site.url("/b"), "http://localhost/private"))
        settings = Settings(data=DataSection(dir=tmp_path), kb=kb)
        settings.paths.sources.mkdir(parents=True)
        settings.paths.links.write_text(f"{site.url('/a')}\n")
        async with await SqliteDatabase.open(settings.paths.database) as db:
            writer = await opened(settings, db, HandClock(), site)
            read = await writer.indexing.refresh_pages()
            assert set(read.changed) == {f"kb:{site.url(each)}" for each in ("/a", "/b")}
            assert [each.rel_path for each in read.skipped] == ["kb.links:2"]
        [left_out] = [each for each in open_sources(settings, HandClock()).list_all() if each.state == "skipped"]
        assert (left_out.path, left_out.type) == ("kb.links:2", "link")
