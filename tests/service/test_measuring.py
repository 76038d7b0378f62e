"""The counts of model calls, for Prometheus."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import httpx
import pytest
from anyio import create_task_group, fail_after, sleep_forever, wait_all_tasks_blocked
from prometheus_client.parser import text_string_to_metric_families

from intern.core.errors import ModelUnavailableError
from intern.frontends.http.metrics import Metrics
from intern.frontends.http.server import create_metrics
from intern.models.usage import UsageCounter
from intern.search.embedding_endpoint import EndpointEmbedder
from intern.service.metrics import count_embedding
from intern.settings.loading import load_settings
from tests.worlds.clock import HandClock

pytestmark = pytest.mark.anyio


def told(metrics: Metrics, name: str) -> Mapping[str, float]:
    """Return the counts of embeddings, by the label beside the prompt's."""
    families = text_string_to_metric_families(metrics.text()[0].decode())
    samples = [each for family in families for each in family.samples if each.name == name]
    return {
        (labels.get("outcome") or labels.get("kind") or ""): each.value
        for each in samples
        if (labels := each.labels)["prompt"] == "embeddings" and each.value
    }


async def test_embeddings_are_counted_under_their_own_name_with_calls_seconds_tokens_and_cost() -> None:
    away = hangs = False

    async def answer(request: httpx.Request) -> httpx.Response:
        del request
        if hangs:
            await sleep_forever()
        said: dict[str, Any] = {"data": [{"index": 0, "embedding": [1.0, 2.0]}], "usage": {"prompt_tokens": 9}}
        return httpx.Response(503 if away else 200, json=said)

    llm = {"base_url": "http://model.test/v1", "max_retries": 0, "prices": [{"model": "e", "input": 1_000_000}]}
    embeddings = {"provider": "endpoint", "model": "e"}
    settings = load_settings(environ={}, overrides={"llm": llm, "embeddings": embeddings})
    metrics = create_metrics(settings)
    usage = UsageCounter(clock=HandClock(), counted=metrics.count_usage)
    async with httpx.AsyncClient(transport=httpx.MockTransport(answer)) as client:
        embedder = EndpointEmbedder(
            settings.embeddings.merge_with_llm(settings.llm),
            usage=usage,
            client=client,
            ended=partial(count_embedding, metrics),
        )
        with fail_after(5):
            await embedder.compute_vectors(["which port"])
            assert told(metrics, "intern_model_tokens_total") == {"prompt": 9}
            assert told(metrics, "intern_model_cost_total") == {"": 9}
            away = True
            with pytest.raises(ModelUnavailableError):
                await embedder.compute_vectors(["which spool"])
            hangs = True
            async with create_task_group() as tg:
                tg.start_soon(embedder.compute_vectors, ["nobody waits for this"])
                await wait_all_tasks_blocked()
                tg.cancel_scope.cancel()
    assert told(metrics, "intern_model_calls_total") == {"ok": 1, "unavailable": 1, "given_up": 1}
    assert told(metrics, "intern_model_call_duration_seconds_count") == {"": 3}
