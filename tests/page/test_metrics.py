"""/metrics of a bot at work, with Discord's double on real sockets: what it did is counted, and names nobody."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import httpx
import pytest
from anyio import Event, create_task_group, fail_after
from msgspec.structs import replace
from prometheus_client.parser import text_string_to_metric_families

from intern.actors.office import WIRES, office
from intern.app.bot import parts_on_discord
from intern.app.models import PROMPTS
from intern.domain import AIResult, CapturedPair, Filed
from intern.indexing.refresh import Refreshed
from intern.llm.embedding_endpoint import USAGE as EMBEDDINGS
from intern.llm.options import EmbeddingOptions
from intern.page.options import PageOptions
from tests.at_work import Watching, settings_in
from tests.double.discord import DiscordDouble
from tests.endpoint_double import EndpointDouble, endpoint_double
from tests.fakes import HandClock

pytestmark = pytest.mark.anyio


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
        seen, stop = Watching(), Event()
        with fail_after(60):
            async with (
                httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=30) as client,
                parts_on_discord(settings, witness=seen, clock=HandClock(), first_pause=0.1) as parts,
                create_task_group() as tg,
            ):
                tg.start_soon(partial(office, parts, stop=stop))
                await discord.wait_ready()
                await seen.one_of(Refreshed)
                asked = await discord.say(discord.alice, "On which port does the relay listen?")
                await seen.one_of(AIResult)
                other = await discord.say(discord.alice, "How do I reset the zorb?")
                await seen.one_of(AIResult, after=1)
                await discord.say(discord.tess, "Hold the blue key for ten seconds.", reply_to=other)
                pair = await seen.one_of(CapturedPair)
                await seen.one_of(Filed)
                text = (await client.get("/metrics")).text
                ids = {asked.id, other.id, pair.qa_id, discord.alice.id, discord.tess.id, discord.guild.id}
                names_nobody(text, ids)
                stop.set()


def names_nobody(text: str, ids: set[str]) -> None:
    """What was counted, and that none of it names anybody."""
    found = read(text)
    assert found["intern_ai_requests_total", (("result", "answered"),)] >= 1
    assert found["intern_captures_total", ()] == 1
    assert found["intern_decisions_total", (("decision", "filed"),)] == 1
    assert found["intern_archived_captures", ()] == 1
    assert found["intern_parked_pairs", ()] == 0
    assert 10 < found["intern_tasks", ()] < 200
    assert found["intern_discord_reconnects_total", ()] == 0
    assert found["intern_oldest_unfiled_capture_age_seconds", ()] == 0
    assert found["intern_model_calls_total", (("outcome", "ok"), ("prompt", "gate"))] == 2
    assert found["intern_model_calls_total", (("outcome", "ok"), ("prompt", EMBEDDINGS))] > 0
    assert found["intern_model_tokens_total", (("kind", "prompt"), ("prompt", EMBEDDINGS))] > 0
    assert found["intern_discord_requests_total", (("outcome", "ok"),)] > 0
    assert found["intern_last_message_timestamp_seconds", ()] == HandClock().now().timestamp()
    assert {dict(labels)["stream"] for name, labels in found if name == "intern_stream_items"} == {
        wire.name for wire in WIRES
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
