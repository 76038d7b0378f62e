"""`intern models` and `intern doctor --find`: what model servers offer, without a token spent."""

from __future__ import annotations

import json

import pytest

from intern.service import model_servers
from tests.frontends.cli.conftest import Intern
from tests.worlds.endpoint import endpoint_double

LIST = {"/v1/models": {"data": [{"id": "m.gguf", "owned_by": "llamacpp", "meta": {"n_ctx": 8192}}, {"id": "other"}]}}


def test_the_models_of_the_endpoint_are_listed(intern: Intern, monkeypatch: pytest.MonkeyPatch) -> None:
    code, out, err = intern("models")
    assert (code, out) == (2, "")
    assert "doctor --find" in err
    with endpoint_double() as endpoint:
        monkeypatch.setenv("INTERN__LLM__BASE_URL", endpoint.base_url)
        assert intern("models").code == 1, "it lists none"
        endpoint.pages = LIST
        code, out, err = intern("models")
        assert (code, out.splitlines()) == (0, ["m.gguf  8,192 tokens of context", "other"])
        assert f"{endpoint.base_url} (llama.cpp): 2 models" in err
        [server] = json.loads(intern("models", "--json").out)
        assert [each["id"] for each in server["models"]] == ["m.gguf", "other"]
        assert endpoint.requests == []
    code, out, err = intern("models")
    assert (code, out) == (3, "")
    assert "cannot be read" in err


def test_a_server_of_this_machine_is_found(intern: Intern, monkeypatch: pytest.MonkeyPatch) -> None:
    with endpoint_double() as endpoint:
        endpoint.pages = LIST
        port = int(endpoint.base_url.removesuffix("/v1").rpartition(":")[2])
        monkeypatch.setattr(model_servers, "LOCAL_PORTS", {"llama.cpp": port})
        code, out, err = intern("doctor", "--find")
        assert code == 0
        assert out.splitlines() == ["[llm]", f'base_url = "http://127.0.0.1:{port}/v1"', 'model = "m.gguf"']
        assert "It also offers other." in err
    assert intern("doctor", "--find").code == 1
