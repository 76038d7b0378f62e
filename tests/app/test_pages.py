"""Web pages through the whole workshop: listed, fetched, described, searchable, loaded, and gone again."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
from anyio import fail_after
from anyio.to_thread import run_sync

from intern.app.models import offline_rules
from intern.app.workshop import Workshop
from intern.domain import SourceId
from intern.knowledge.database import Database
from intern.knowledge.indices import read_index
from intern.llm.offline import OfflineModel
from intern.settings import DataSection, Settings
from tests.fakes import HandClock
from tests.site_double import page, site_double

pytestmark = pytest.mark.anyio


async def test_a_refresh_takes_the_listed_pages_along(tmp_path: Path) -> None:
    settings = Settings(data=DataSection(dir=tmp_path))
    settings.paths.sources.mkdir(parents=True)
    (settings.paths.sources / "a.md").write_text("# A file")
    with site_double() as site, fail_after(20):
        site.pages["/spools"] = page("How to wind a spool.", "Spools")
        url = site.url("/spools")
        settings.paths.links.write_text(f"{url}\n")
        async with await Database.open(settings.paths.database) as db:
            make = partial(Workshop, web=site.fetcher, policy=site.policy)
            workshop = await run_sync(make, settings, db, OfflineModel(offline_rules()), HandClock())
            refreshed = await workshop.refresh()
            assert refreshed.changed == ("kb:a.md", f"kb:{url}")
            assert [entry.source_id for entry in read_index(settings.paths.index)] == ["kb:a.md", f"kb:{url}"]
            assert SourceId(f"kb:{url}") in await workshop.search.stamps("source")
            settings.paths.links.write_text("# none\n")
            assert (await workshop.refresh()).removed == (f"kb:{url}",)
            assert list(await workshop.search.stamps("source")) == ["kb:a.md"]
            assert list(settings.paths.web_cache.iterdir()) == []
