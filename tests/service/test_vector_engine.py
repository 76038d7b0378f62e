"""A data folder with a copy of its vectors in an engine: status, search and forgetting."""

from __future__ import annotations

from collections.abc import Generator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from anyio import fail_after
from anyio.to_thread import run_sync

from intern.actors.activity import ActivityReporter
from intern.core.errors import ConfigError, KnowledgeError
from intern.core.ids import GuildId
from intern.learning.forgetting import ForgetRequest
from intern.runtime.bot import open_sandbox
from intern.search.embedding_local import is_english_installed
from intern.service.community_registry import open_registry
from intern.service.databases import open_database
from intern.service.doctor import examine
from intern.service.health import vector_checks
from intern.service.job_kinds import FORGET, REBUILD_SEARCH
from intern.service.metrics import BotGauges
from intern.service.opening import open_intern
from intern.service.status import read_status
from intern.settings.loading import load_settings
from intern.settings.settings import Settings
from intern.stores.tables.communities import CommunityStore
from tests.contracts.vector_engines import KEY, QdrantDouble, serving
from tests.worlds import samples
from tests.worlds.chat import Sandbox
from tests.worlds.clock import HandClock

pytestmark = [pytest.mark.anyio, pytest.mark.skipif(not is_english_installed(), reason="needs the extra: embeddings")]

CLOCK = HandClock()
SECRET = "The xylophone of Mia is in the cellar"


@pytest.fixture
def qdrant() -> QdrantDouble:
    return QdrantDouble()


@pytest.fixture
def settings(tmp_path: Path, qdrant: QdrantDouble) -> Generator[Settings]:
    sources = tmp_path / "knowledge-base" / "sources"
    sources.mkdir(parents=True)
    (sources / "car.md").write_text("# Cars\n\nWhat to do when the car will not start.\n")
    with serving(qdrant) as url:
        overrides = {
            "data": {"dir": str(tmp_path)},
            "embeddings": {"provider": "local"},
            "search": {"vectors": "qdrant", "url": url, "api_key": KEY},
        }
        yield load_settings(environ={}, overrides=overrides)


def texts(qdrant: QdrantDouble) -> str:
    """Return all texts in the engine."""
    return str([payload for payload, _ in qdrant.points().values()])


@pytest.mark.rest
async def test_commands_copy_what_they_change_and_search_finds_it_there(
    settings: Settings, qdrant: QdrantDouble
) -> None:
    with fail_after(60):
        async with open_intern(settings, clock=CLOCK) as intern:
            await intern.index()
            assert "car will not start" in texts(qdrant)
            qdrant.asked.clear()
            [found] = await intern.search("automobile")
            assert found.source_id == "kb:car.md"
            assert any(each.url.path.endswith("/query") for each in qdrant.asked)
            qdrant.lose()
            await intern.run_job(REBUILD_SEARCH, None)
            assert "car will not start" in texts(qdrant)


@pytest.mark.rest
async def test_the_running_bot_copies_what_it_learns_by_itself(settings: Settings, qdrant: QdrantDouble) -> None:
    with fail_after(60):
        async with open_sandbox(settings, Sandbox(CLOCK), events=ActivityReporter(), clock=CLOCK):
            await run_sync(qdrant.written.wait, abandon_on_cancel=True)
        assert "car will not start" in texts(qdrant)


@pytest.mark.rest
async def test_what_is_forgotten_while_the_engine_is_away_is_deleted_once_it_is_back(
    settings: Settings, qdrant: QdrantDouble
) -> None:
    capture = samples.capture("Where is the xylophone of Mia?", SECRET)
    with fail_after(60):
        async with open_intern(settings, clock=CLOCK) as intern:
            await intern.capture(capture)
            await intern.index()
            assert SECRET in texts(qdrant)
            qdrant.is_away = True
            done = await intern.run_job(FORGET, ForgetRequest(message_ids=capture.message_ids))
            assert done.found
            assert "qdrant" in done.owed
            assert KEY not in done.owed
            qdrant.is_away = False
            again = await intern.run_job(FORGET, ForgetRequest(message_ids=capture.message_ids))
            assert again.owed == ""
            assert "xylophone" not in texts(qdrant)


@pytest.mark.rest
async def test_an_engine_that_is_away_is_told_by_health_metrics_status_and_doctor(
    settings: Settings, qdrant: QdrantDouble
) -> None:
    with fail_after(60):
        async with open_intern(settings, clock=CLOCK) as intern:
            await intern.index()
            stores = (await intern.acquire_writer()).stores
            engine: Any = stores.search.engine
            standing: Any = BotGauges.__new__(BotGauges)
            standing.stores = stores

            async def told() -> tuple[list[float], str, str, int, str]:
                gauges = [each[""] for each in (await standing._vector_gauges()).values()]
                [check] = vector_checks(engine)
                assert check.ok, "local vectors do"
                assert "127.0.0.1" not in check.note
                status = await run_sync(lambda: read_status(settings, clock=CLOCK))
                findings = [each for each in (await examine(settings)).findings if "vector engine" in each.what]
                assert len(findings) == 1
                assert "it holds 2 of 2 vectors" in findings[0].what or qdrant.is_away
                return gauges, check.note, status.engine, status.engine_behind, findings[0].level

            assert await told() == ([0, 0, 0], "", "qdrant", 0, "ok")
            qdrant.is_away = True
            await stores.search.delete_sources(["kb:car.md"])  # type: ignore[list-item]
            with pytest.raises(KnowledgeError):
                await engine.catch_up()
            gauges, note, _, behind, level = await told()
            assert gauges[0] == 1
            assert gauges[1] == behind > 0
            assert gauges[2] == 1
            assert note.startswith("the vector engine fails since 20")
            assert level == "todo"


def test_an_engine_needs_an_address_without_a_password_and_its_key_is_a_secret() -> None:
    search = {"vectors": "qdrant", "url": "", "api_key": KEY}
    for url, told in (
        ("", "http://127.0.0.1:6333"),
        ("localhost:6333", "http://"),
        ("http://me:pw@here:1", "password"),
    ):
        with pytest.raises(ConfigError, match=told) as error:
            load_settings(environ={}, overrides={"search": {**search, "url": url}})
        assert "search.url" in str(error.value)
        assert "pw" not in str(error.value).replace("password", "")
    settings = load_settings(environ={"INTERN__SEARCH__API_KEY": KEY})
    assert KEY in settings.secrets
    assert KEY not in repr(settings)


@pytest.mark.rest
async def test_an_erased_community_leaves_no_vector_and_waits_for_an_engine_that_is_away(
    settings: Settings, qdrant: QdrantDouble, tmp_path: Path
) -> None:
    with fail_after(60):
        async with open_registry(settings, clock=CLOCK) as registry:
            async with await open_database(settings) as db:
                for n, name in enumerate(("one", "other")):
                    await CommunityStore(db, clock=CLOCK).add_server(GuildId(str(n)), name)
                    own = await registry.settings(name)
                    await run_sync(partial(own.paths.sources.mkdir, parents=True))
                    await run_sync((own.paths.sources / "a.md").write_text, f"# A\n\nThe planted {name} winds.\n")
                    async with open_intern(own, clock=CLOCK) as intern:
                        await intern.index()
            assert "planted one" in texts(qdrant)
            qdrant.is_away = True
            with pytest.raises(KnowledgeError, match="qdrant"):
                await registry.delete("one")
            assert (await registry.show("one")).community.state == "left"
            qdrant.is_away = False
            await registry.delete("one")
            assert "planted one" not in texts(qdrant)
            assert "planted other" in texts(qdrant)
            assert [each.name for each in await registry.all()] == ["other"]
            assert not (tmp_path / "communities/one").exists()
