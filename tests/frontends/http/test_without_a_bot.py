"""`intern page`: the page of a folder that no bot holds, or that another process holds."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import httpx
import pytest
from anyio import Event, create_task_group, fail_after, sleep
from anyio.to_thread import run_sync

from intern.actors.job_worker import do_jobs_forever
from intern.core.ids import QAId
from intern.frontends.http.server import serve_pages
from intern.runtime.bot import run_page
from intern.service.hosting_state import HostingState
from intern.service.status_page import StatusPage
from intern.service.writer import Writer
from intern.settings.settings import PageOptions, Settings
from intern.stores.folder_lock import FolderLock
from tests.frontends.http.test_server import form_token
from tests.service.writers import writer_in
from tests.worlds import samples
from tests.worlds.actors import finishing
from tests.worlds.bot import settings_in


@asynccontextmanager
async def browsed(settings: Settings) -> AsyncGenerator[httpx.AsyncClient]:
    """`intern page`, and a browser that shows it."""
    served, stop, address = Event(), Event(), list[str]()

    @asynccontextmanager
    async def serve(running: StatusPage | HostingState) -> AsyncGenerator[None]:
        async with serve_pages(PageOptions(enabled=True, port=0), running) as at:
            address.append(at)
            served.set()
            yield

    with fail_after(60):
        async with finishing(partial(run_page, settings, serve, stop=stop)):
            await served.wait()
            async with httpx.AsyncClient(base_url=address[0], timeout=30) as client:
                yield client
            stop.set()


async def capture(writer: Writer, n: int) -> QAId:
    """Let a team's answer come in that waits for a review."""
    pair = await writer.learning.keep(samples.capture("Which port?", f"Port 748{n}.", n=n))
    await writer.learning.catch_up()
    assert pair is not None
    return pair.qa_id


async def approve(client: httpx.AsyncClient, qa_id: QAId) -> str:
    fields = {"form_token": form_token(await client.get("/review")), "action": "approve", "qa_id": qa_id}
    return (await client.post("/review", data=fields)).headers["Location"]


async def test_it_files_what_is_approved_and_holds_the_folder_no_longer_than_that(tmp_path: Path) -> None:
    settings = settings_in(tmp_path, kb={"review": True})
    async with writer_in(settings) as writer:
        qa_id = await capture(writer, 1)
    async with browsed(settings) as client:
        assert "Port 7481." in (await client.get("/review")).text
        assert await approve(client, qa_id) == "/review?done=approve"
        assert "Port 7481." not in (await client.get("/review")).text
        while await run_sync(FolderLock(settings.data.dir).find_holder):  # noqa: ASYNC110 the lock sends no event
            await sleep(0.01)
        with FolderLock(settings.data.dir):  # so a bot may start
            assert "team:" not in (await client.get("/topics")).text
        assert (await client.get("/readyz")).json()["ready"] is True


@pytest.mark.rest
async def test_a_bot_that_holds_the_folder_does_what_is_approved_and_the_page_sees_its_news(tmp_path: Path) -> None:
    settings = settings_in(tmp_path, kb={"review": True})
    async with browsed(settings) as client, writer_in(settings) as bot, create_task_group() as tg:
        with FolderLock(settings.data.dir):
            await client.get("/review")
            qa_id = await capture(bot, 2)
            assert "Port 7482." in (await client.get("/review")).text
            tg.start_soon(partial(do_jobs_forever, bot.stores.jobs, handlers=bot.handlers))
            assert await approve(client, qa_id) == "/review?done=approve"
            assert bot.stores.knowledge.find_topic(qa_id) is not None
            assert "Port 7482." not in (await client.get("/review")).text
        tg.cancel_scope.cancel()
