"""The lists of model servers, in the format of each, and servers of this machine."""

from __future__ import annotations

from typing import Any

import pytest
from anyio import fail_after

from intern.core.errors import ModelReplyError, ModelUnavailableError
from intern.service import model_servers
from intern.service.model_servers import find_local_servers, list_configured
from intern.settings.loading import load_settings
from intern.settings.settings import Settings
from tests.worlds.endpoint import EndpointDouble, endpoint_double

pytestmark = pytest.mark.anyio

LISTS: dict[str, tuple[dict[str, Any], str, dict[str, int | None]]] = {
    "llama.cpp": (
        {"/v1/models": {"data": [{"id": "m.gguf", "owned_by": "llamacpp", "meta": {"n_ctx": 8192}}]}},
        "llama.cpp",
        {"m.gguf": 8192},
    ),
    "vLLM": (
        {"/v1/models": {"data": [{"id": "big", "owned_by": "vllm", "max_model_len": 32768}]}},
        "vLLM",
        {"big": 32768},
    ),
    "Ollama, one of two loaded": (
        {
            "/v1/models": {"data": [{"id": each, "owned_by": "library"} for each in ("small:latest", "big:latest")]},
            "/api/ps": {"models": [{"name": "small:latest", "context_length": 4096}]},
        },
        "Ollama",
        {"small:latest": 4096, "big:latest": None},
    ),
    "LM Studio": (
        {
            "/v1/models": {"data": [{"id": "small", "owned_by": "organization_owner"}]},
            "/api/v0/models": {
                "data": [{"id": "small", "max_context_length": 32768, "loaded_context_length": 4096}],
            },
        },
        "LM Studio",
        {"small": 4096},
    ),
    "OpenRouter": (
        {"/v1/models": {"data": [{"id": "a/b", "name": "A: B", "context_length": 128_000}]}},
        "",
        {"a/b": 128_000},
    ),
    "Groq": (
        {"/v1/models": {"data": [{"id": "fast", "owned_by": "x", "context_window": 131_072}]}},
        "",
        {"fast": 131_072},
    ),
    "nothing": ({}, "", {}),
}


def asking(endpoint: EndpointDouble, **more: Any) -> Settings:
    chosen = {"base_url": endpoint.base_url, "provider": "endpoint", **more}
    return load_settings(environ={}, overrides={"llm": chosen})


@pytest.mark.parametrize("server", LISTS)
async def test_the_models_of_a_server_are_listed_with_their_context(server: str) -> None:
    pages, name, models = LISTS[server]
    with fail_after(20), endpoint_double() as endpoint:
        endpoint.pages = pages
        [listed] = await list_configured(asking(endpoint))
    assert (listed.name, listed.base_url) == (name, endpoint.base_url)
    assert {each.id or each.name: each.context for each in listed.models} == models
    assert endpoint.requests == [], "no model was asked"


async def test_two_endpoints_are_listed_and_one_address_once() -> None:
    with fail_after(20), endpoint_double() as endpoint, endpoint_double() as other:
        same = await list_configured(asking(endpoint, kb={"model": "another"}))
        both = await list_configured(asking(endpoint, kb={"base_url": other.base_url}))
    assert [each.base_url for each in same] == [endpoint.base_url]
    assert [each.base_url for each in both] == [endpoint.base_url, other.base_url]


async def test_what_could_not_be_asked_never_reads_as_no_models() -> None:
    with fail_after(20), endpoint_double() as endpoint:
        endpoint.pages = {"/v1/models": {"data": "many"}}
        with pytest.raises(ModelReplyError, match="no list of models"):
            await list_configured(asking(endpoint))
    with fail_after(20), pytest.raises(ModelUnavailableError, match="cannot be read"):
        await list_configured(asking(endpoint))


async def test_a_server_of_this_machine_is_found_with_the_lines_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    with fail_after(20), endpoint_double() as endpoint:
        endpoint.pages = LISTS["llama.cpp"][0]
        port = int(endpoint.base_url.rpartition(":")[2].removesuffix("/v1"))
        monkeypatch.setattr(model_servers, "LOCAL_PORTS", {"llama.cpp": port, "vLLM": 9})
        [found] = await find_local_servers()
    assert found.name == "llama.cpp"
    assert found.settings_for("m.gguf") == f'[llm]\nbase_url = "http://127.0.0.1:{port}/v1"\nmodel = "m.gguf"'
