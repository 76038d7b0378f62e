"""/metrics of a bot at work, with Discord's double on real sockets: its work is counted, and no one is named."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import apsw
import httpx
import pytest
from anyio import Event, create_task_group, current_time
from msgspec.structs import replace
from prometheus_client.parser import text_string_to_metric_families

from intern.actors.pipeline import BATCHES, STREAMS, StreamMonitor, run_pipeline
from intern.core.captures import CapturedPair
from intern.core.decisions import PairFiled
from intern.core.messages import AnswerResult
from intern.frontends.http.server import create_metrics, create_page_service
from intern.models.circuit_breaker import AttemptPermit, CircuitBreaker
from intern.models.options import EmbeddingOptions
from intern.models.usage import UsageCounter
from intern.runtime.bot import open_discord_parts
from intern.search.embedding_endpoint import USAGE as EMBEDDINGS
from intern.service.metrics import BotGauges
from intern.service.models import PROMPTS
from intern.settings.settings import PageOptions
from intern.sources.refresh import RefreshReport
from intern.stores.tables.usage import UsageLog
from tests.double import interactions as double
from tests.double.discord import DiscordDouble
from tests.frontends.http.site import site
from tests.worlds import samples
from tests.worlds.bot import Watching, settings_in
from tests.worlds.clock import HandClock
from tests.worlds.endpoint import EndpointDouble, endpoint_double


def read(text: str) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    families = list(text_string_to_metric_families(text))
    assert all(family.name.startswith("intern_") for family in families)
    return {
        (each.name, tuple(sorted(each.labels.items()))): each.value for family in families for each in family.samples
    }


@pytest.fixture
def embeds() -> Iterator[EndpointDouble]:
    with endpoint_double() as endpoint:
        yield endpoint


async def test_what_the_bot_did_is_counted_and_names_nobody(tmp_path: Path, embeds: EndpointDouble) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    async with DiscordDouble(now=HandClock().now) as discord:
        settings = replace(
            settings_in(
                tmp_path,
                token=discord.token,
                rest_url=discord.rest_url,
                guild_ids=[discord.guild.id],
                team_member_ids=[discord.tess.id],
                message_batch_wait_seconds=0.05,
            ),
            page=PageOptions(enabled=True, port=port),
            embeddings=EmbeddingOptions(provider="endpoint", base_url=embeds.base_url, model="e"),
        )
        seen, stop, clock = Watching(), Event(), HandClock()
        async with (
            httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=30) as client,
            open_discord_parts(
                settings, events=seen, clock=clock, first_pause=0.1, beside=create_page_service(settings)
            ) as parts,
            create_task_group() as tg,
        ):
            tg.start_soon(partial(run_pipeline, parts, stop=stop))
            await discord.wait_ready()
            await seen.one_of(RefreshReport)
            asked = await discord.say(discord.alice, "On which port does the relay listen?")
            await seen.one_of(AnswerResult)
            other = await discord.say(discord.alice, "How do I reset the zorb?")
            await seen.one_of(AnswerResult, after=1)
            used = await double.ask(discord, discord.bob, "On which port does the relay listen?")
            await discord.until(lambda: double.shown(used))
            await discord.say(discord.tess, "Hold the blue key for ten seconds.", reply_to=other)
            pair = await seen.one_of(CapturedPair)
            await seen.one_of(PairFiled)
            text = (await client.get("/metrics")).text
            people = {discord.alice.id, discord.bob.id, discord.tess.id}
            ids = {asked.id, other.id, used.id, pair.qa_id, discord.guild.id, *people}
            names_nobody(text, ids)
            stop.set()


def names_nobody(text: str, ids: set[str]) -> None:
    """Check the counts, and that none of them names anyone."""
    found = read(text)
    assert found["intern_ai_requests_total", (("result", "answered"),)] >= 1
    assert sum(count for (name, _), count in found.items() if name == "intern_ai_requests_total") == 3
    assert sum(count for (name, _), count in found.items() if name == "intern_ai_gate_total") == 3
    assert found["intern_captures_total", ()] == 1
    assert found["intern_decisions_total", (("decision", "filed"),)] == 1
    assert found["intern_archived_captures", ()] == 1
    assert found["intern_parked_pairs", ()] == 0
    assert 10 < found["intern_tasks", ()] < 200
    assert found["intern_discord_reconnects_total", ()] == 0
    assert found["intern_oldest_unfiled_capture_age_seconds", ()] == 0
    assert found["intern_model_calls_total", (("outcome", "ok"), ("prompt", "decide"))] == 3
    assert found["intern_model_calls_total", (("outcome", "ok"), ("prompt", EMBEDDINGS))] > 0
    assert found["intern_model_tokens_total", (("kind", "prompt"), ("prompt", EMBEDDINGS))] > 0
    assert found["intern_discord_requests_total", (("outcome", "ok"),)] > 0
    assert found["intern_last_message_timestamp_seconds", ()] == HandClock().now().timestamp()
    assert {dict(labels)["stream"] for name, labels in found if name == "intern_stream_items"} == {
        stream.name for stream in STREAMS
    }
    assert {dict(labels)["prompt"] for name, labels in found if name == "intern_model_calls_total"} == {
        EMBEDDINGS,
        *(prompt.name for prompt in PROMPTS),
    }
    assert len(found) < 800
    labels = {value for _, pairs in found for _, value in pairs}
    assert not labels & ids
    assert not [each for each in labels if re.search(r"\d{15,}", each)]
    assert "alice" not in text
    assert "zorb" not in text


# Finding G2.
async def test_a_scrape_opens_no_database(tmp_path: Path) -> None:
    """Which would read every decision ever taken."""
    opened: list[object] = []
    async with site(tmp_path) as made:
        standing = BotGauges(
            stores=made.writer.stores, fill=StreamMonitor(), overheard=made.overheard, usage=None, breakers={}
        )
        await standing.gauges()  # the first look opens the reader that all others use
        apsw.connection_hooks.append(opened.append)
        try:
            assert await standing.gauges()
        finally:
            apsw.connection_hooks.remove(opened.append)
    assert opened == []


async def test_how_things_stand_is_told_of_streams_circuits_budgets_sources_and_captures(tmp_path: Path) -> None:
    async with site(tmp_path) as made:
        llm = replace(made.settings.llm, daily_token_budget=10_000, daily_cost_budget=0.5, currency="EUR")
        settings, fill = replace(made.settings, llm=llm), StreamMonitor()
        usage, broken = UsageCounter(UsageLog(made.db), clock=made.clock), CircuitBreaker(failures=1)
        permit = broken.request_attempt(current_time(), background=False)
        assert isinstance(permit, AttemptPermit)
        broken.record_failure(permit, current_time(), "down")
        broken.request_attempt(current_time(), background=False)
        made.writer.stores.settings = settings
        standing = BotGauges(
            stores=made.writer.stores,
            fill=fill,
            overheard=made.overheard,
            usage=usage,
            breakers={"llm": broken, "llm.kb": CircuitBreaker()},
        )
        usage.count("answer", 40, 10, 0.125)
        (settings.paths.sources / "ports.md").unlink()
        await made.writer.learning.keep(samples.capture("Is there a dark mode?", "Not yet.", n=3_000))
        made.clock.turn(minutes=90)
        batches, routed = BATCHES.open(fill)
        with batches, routed:
            for n in range(3):
                batches.send_nowait(samples.batch(samples.message(n=n)))
            metrics = create_metrics(settings)
            found = read(metrics.text(await standing.gauges())[0].decode())
    told = {(name, *(value for _, value in labels)): count for (name, labels), count in found.items()}
    expected = {
        ("intern_stream_items", BATCHES.name): 3,
        ("intern_stream_capacity_items", BATCHES.name): BATCHES.size,
        ("intern_model_circuit_open", "llm"): 1,
        ("intern_model_circuit_open", "llm.kb"): 0,
        ("intern_model_circuit_openings_total", "llm"): 1,
        ("intern_model_circuit_openings_total", "llm.kb"): 0,
        ("intern_model_circuit_refusals_total", "llm"): 1,
        ("intern_model_circuit_refusals_total", "llm.kb"): 0,
        ("intern_model_budget_tokens",): 10_000,
        ("intern_model_spent_today_tokens",): 3_450 + 50,
        ("intern_model_budget_cost", "EUR"): 0.5,
        ("intern_model_spent_today_cost", "EUR"): 0.0375 + 0.125,
        ("intern_stale_sources", "failed"): 1,
        ("intern_stale_sources", "gone"): 1,
        ("intern_stale_sources", "pending"): 0,
        ("intern_archived_captures",): 7,
        ("intern_parked_pairs",): 1,
        ("intern_awaiting_review_pairs",): 2,
        ("intern_oldest_unfiled_capture_age_seconds",): 5_400,
    }
    assert {key: told.get(key) for key in expected} == expected
