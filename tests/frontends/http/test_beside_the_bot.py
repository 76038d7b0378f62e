"""The page in the bot's own process, with Discord's double on real sockets: there from the start to the end."""

from __future__ import annotations

import re
import socket
from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
from anyio import Event, create_task_group, fail_after
from anyio.lowlevel import checkpoint
from msgspec.structs import replace

from intern.actors.pipeline import STREAMS, PipelineParts, run_pipeline
from intern.core.captures import CapturedPair
from intern.core.decisions import MessagesWithdrawn, PairFiled
from intern.core.errors import ConfigError
from intern.core.flow import Reply
from intern.core.messages import AnswerResult
from intern.core.text.secret_values import Secret
from intern.frontends.http.server import create_page_service
from intern.models.circuit_breaker import FAILURES
from intern.models.usage import UsageMeter
from intern.runtime.bot import open_discord_parts
from intern.service.status import read_status
from intern.settings.settings import PageOptions, Settings
from intern.sources.refresh import RefreshReport
from intern.stores.engines.sqlite.database import ReadOnlySqliteDatabase, SqliteDatabase
from intern.stores.tables.knowledge import KnowledgeStore
from intern.stores.tables.usage import UsageLog
from tests.double.discord import DiscordDouble
from tests.worlds.actors import finishing
from tests.worlds.bot import Watching, settings_in
from tests.worlds.clock import HandClock
from tests.worlds.endpoint import endpoint_double, refuse

UNKNOWN = "Why is my tenant blocked?"


@pytest.fixture
async def discord() -> AsyncGenerator[DiscordDouble]:
    async with DiscordDouble(now=HandClock().now) as double:
        yield double


def settings_of(folder: Path, discord: DiscordDouble, **llm: Any) -> Settings:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    door: dict[str, Any] = {
        "token": discord.token,
        "rest_url": discord.rest_url,
        "guild_ids": [discord.guild.id],
        "team_role_ids": [discord.team_role.id],
    }
    return replace(settings_in(folder, llm=llm or None, **door), page=PageOptions(enabled=True, port=port))


def serving_bot(settings: Settings, seen: Watching) -> AbstractAsyncContextManager[PipelineParts]:
    """The bot with its page beside it."""
    return open_discord_parts(
        settings, events=seen, clock=HandClock(), first_pause=0.1, beside=create_page_service(settings)
    )


@asynccontextmanager
async def at_work(settings: Settings, discord: DiscordDouble) -> AsyncGenerator[tuple[httpx.AsyncClient, Watching]]:
    """A bot that has begun its work, as a browser and its events show it."""
    seen, stop = Watching(), Event()
    address = f"http://127.0.0.1:{settings.page.port}"
    with fail_after(60):
        async with (
            httpx.AsyncClient(base_url=address, timeout=30) as client,
            serving_bot(settings, seen) as parts,
            create_task_group() as tg,
        ):
            tg.start_soon(partial(run_pipeline, parts, stop=stop))
            await discord.wait_ready()
            await seen.one_of(RefreshReport)
            yield client, seen
            stop.set()


@pytest.mark.rest
async def test_it_tells_of_the_bot_s_work_and_leaves_with_it(discord: DiscordDouble, tmp_path: Path) -> None:
    settings, seen, stop = settings_of(tmp_path, discord), Watching(), Event()
    address = f"http://127.0.0.1:{settings.page.port}"
    async with httpx.AsyncClient(base_url=address, timeout=30) as client:
        async with serving_bot(settings, seen) as parts:
            before = (await client.get("/readyz")).json()["checks"]
            assert (before["discord"], before["folder"], before["database"]) == (False, True, True)
            async with finishing(partial(run_pipeline, parts, stop=stop)):
                await discord.wait_ready()
                await seen.one_of(RefreshReport)
                assert (await client.get("/readyz")).json()["ready"] is True
                await discord.say(discord.alice, UNKNOWN)
                await seen.one_of(AnswerResult)
                while UNKNOWN not in (await client.get("/gaps")).text:
                    pass  # it is written down with the marks, once a second
                text = (await client.get("/system")).text
                assert all(stream.name in text for stream in STREAMS)
                assert "none since the start" not in text
                stop.set()
        with pytest.raises(httpx.ConnectError):
            await client.get("/healthz")


TITLES = tuple(f"Error 471{n} when rotating the tenant certificate" for n in range(2))
VAGUE = "What am I doing wrong?"


async def shown(client: httpx.AsyncClient, path: str, text: str) -> None:
    """Wait until a page holds a text: questions are written down with the marks, once a second."""
    while text not in (await client.get(path)).text:
        pass


# Finding B1.
@pytest.mark.rest
async def test_the_title_of_a_post_is_asked_archived_and_filed_and_a_new_one_takes_its_place(
    discord: DiscordDouble, tmp_path: Path
) -> None:
    settings = settings_of(tmp_path, discord)
    topics = KnowledgeStore(ReadOnlySqliteDatabase(settings.paths.database))
    async with at_work(settings, discord) as (client, seen):
        post = await discord.create_thread(TITLES[0], author=discord.alice, text=VAGUE)
        assert not (await seen.one_of(AnswerResult)).should_reply
        await shown(client, "/gaps", TITLES[0])
        await shown(client, "/questions", TITLES[0])

        await discord.say(discord.tess, "Renew the root certificate first.", channel=post)
        assert (await seen.one_of(CapturedPair)).question == f"{TITLES[0]}\n{VAGUE}"
        topic = (await seen.one_of(PairFiled)).topic
        await shown(client, f"/topics/{topic}", TITLES[0])
        await discord.rename(post, TITLES[1])
        assert (await seen.one_of(PairFiled, after=1)).topic == topic
        await shown(client, f"/topics/{topic}", TITLES[1])
        assert [block.turns[0].text for block in topics.read_topic(topic)] == [f"{TITLES[1]}\n{VAGUE}"]
        await discord.delete(discord.messages(post)[0])
        await seen.one_of(MessagesWithdrawn)
        assert topics.topic_names() == ()


# Finding B1.
@pytest.mark.rest
async def test_a_question_without_an_answer_is_asked_again_with_its_new_title(
    discord: DiscordDouble, tmp_path: Path
) -> None:
    async with at_work(settings_of(tmp_path, discord), discord) as (client, seen):
        question = await discord.say(discord.alice, VAGUE)
        assert not (await seen.one_of(AnswerResult)).should_reply
        thread = await discord.create_thread("hm", author=discord.bob, message=question)
        await discord.rename(thread, TITLES[0])
        await seen.one_of(AnswerResult, after=1)
        await shown(client, "/gaps", TITLES[0])


@pytest.mark.rest
async def test_its_figures_agree_with_those_of_status_and_metrics(discord: DiscordDouble, tmp_path: Path) -> None:
    settings = settings_of(tmp_path, discord)
    async with at_work(settings, discord) as (client, seen):
        # By two members: an addition by the same one to a question in work would be answered with it.
        asked = [(discord.alice, "Which port does the relay listen on?"), (discord.bob, UNKNOWN)]
        for n, (author, said) in enumerate([*asked, (discord.alice, "thank you!")]):
            await discord.say(author, said)
            await seen.one_of(AnswerResult, after=n)
        while (status := read_status(settings, clock=HandClock())).counts_today.get("messages_without_question") != 1:
            await checkpoint()  # counts are stored with the marks, once a second
        text, metrics = (await client.get("/")).text, (await client.get("/metrics")).text
        counted = {
            name: float(value)
            for name, _, value in (each.rpartition(" ") for each in metrics.splitlines() if each[0] != "#")
        }
        answered, silent = status.counts_today["questions_answered"], status.counts_today["questions_silent"]
        assert (answered, silent) == (1, 1)
        assert f'aria-label="Questions. 19 Jan to 1 Feb: {answered} answered, {silent} left open."' in text
        assert re.search(r'Questions answered</dt>\s*<dd class="value">50%</dd>\s*<dd [^>]*>2 questions</dd>', text)
        assert counted['intern_ai_requests_total{result="answered"}'] == answered
        asked_nothing = counted['intern_silences_total{reason="not_a_question"}']
        assert asked_nothing == status.counts_today["messages_without_question"] == 1
        assert counted['intern_ai_requests_total{result="skipped"}'] - asked_nothing == silent
        assert counted['intern_model_spent_today_cost{currency="USD"}'] == status.cost_today == 0
        assert "All tokens. 19 Jan to 1 Feb: 0 tokens." in text


@pytest.mark.rest
async def test_while_discord_takes_no_reply_it_is_not_ready_and_the_page_says_how_many_wait(
    discord: DiscordDouble, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("intern.service.health.STUCK_AFTER", 0.1, raising=False)
    async with at_work(settings_of(tmp_path, discord), discord) as (client, seen):
        stuck = discord.hold_next("POST", "/channels/*/messages", when="before")
        await discord.say(discord.alice, "Which port does the relay listen on?")
        await stuck.arrived.wait()
        assert (await client.get("/healthz")).status_code == 200
        while (told := await client.get("/readyz")).status_code == 200:
            pass
        assert told.json()["checks"]["posting"] is False
        assert "1 reply waits for Discord, which has taken none since 2026-02-01" in told.json()["notes"]["posting"]
        assert "1 reply waits for Discord" in (await client.get("/")).text
        stuck.release()
        await seen.one_of(Reply)
        well = await client.get("/readyz")
        assert (well.status_code, well.json()["checks"]["posting"]) == (200, True)


@asynccontextmanager
async def refused(settings: Settings, discord: DiscordDouble, *, times: int = 1) -> AsyncGenerator[httpx.AsyncClient]:
    """The page of a bot that had to refuse a member's questions."""
    async with at_work(settings, discord) as (client, seen):
        for n in range(times):
            await discord.say(discord.alice, f"{UNKNOWN} ({n})")
            assert (await seen.one_of(AnswerResult, after=n)).reason in {"over_budget", "model_unavailable"}
        yield client


@pytest.mark.rest
async def test_while_the_budget_is_spent_it_is_ready_and_says_what_waits(
    discord: DiscordDouble, tmp_path: Path
) -> None:
    with endpoint_double() as endpoint:
        settings = settings_of(
            tmp_path, discord, base_url=endpoint.base_url, model="m", max_tokens=7, daily_token_budget=10_000
        )
        async with await SqliteDatabase.open(settings.paths.database) as db:
            await UsageLog(db).add(HandClock().now().date(), "answer", UsageMeter(1, 9_990))
        async with refused(settings, discord) as client:
            ready, front = await client.get("/readyz"), (await client.get("/")).text
        assert endpoint.requests == []
    assert (ready.status_code, ready.json()["ready"], ready.json()["checks"]["model"]) == (200, True, True)
    assert ready.json()["notes"]["model"] == (
        "the daily budget leaves no room for answers and learning; a new day begins at 00:00 UTC"
    )
    assert "daily_token_budget = 10000" in front


@pytest.mark.rest
async def test_while_the_circuit_is_open_it_is_not_ready_and_says_since_when_and_when_it_is_tried(
    discord: DiscordDouble, tmp_path: Path
) -> None:
    with endpoint_double(lambda _: refuse(503)) as endpoint:
        settings = settings_of(tmp_path, discord, base_url=endpoint.base_url, model="m", max_retries=0)
        async with refused(settings, discord, times=FAILURES) as client:
            ready, front = await client.get("/readyz"), (await client.get("/")).text
    assert (ready.status_code, ready.json()["checks"]["model"]) == (503, False)
    note = ready.json()["notes"]["model"]
    assert re.fullmatch(
        r"llm failed too often and is left alone since 2026-02-01 \d\d:\d\d:\d\d UTC;"
        r" (it is tried next at 2026-02-01 \d\d:\d\d:\d\d UTC|the next call tries it)",
        note,
    )
    assert endpoint.base_url not in ready.text
    assert "The last failure: " in front
    assert "answered 503" in front


async def test_a_port_that_is_taken_ends_the_start_and_lets_the_folder_go(
    discord: DiscordDouble, tmp_path: Path
) -> None:
    settings = settings_of(tmp_path, discord)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", settings.page.port))
        taken.listen()
        with pytest.raises(ConfigError, match=r"page\.port: .*in use.*choose another"):
            async with serving_bot(settings, Watching()):
                pass
    on = replace(settings, page=PageOptions(enabled=True, port=0, token=Secret("a-token-of-the-operator")))
    async with serving_bot(on, Watching()):
        pass
