"""The endpoint client against LiteLLM's proxy, which stands in front of llama.cpp's server."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from intern.answering.prompts import GATE, SELECT, GateIn, SelectIn
from intern.core.errors import ModelAccessError, ModelPromptTooLongError, ModelReplyError
from intern.core.ids import SourceId
from intern.core.knowledge import IndexEntry
from intern.core.text.secret_values import Secret
from intern.models.options import StructuredOutput
from intern.models.prompt import Prompt
from intern.models.templates import PromptTemplates
from intern.service.models import PROMPTS
from intern.service.prompt_examples import build_full_example
from tests.model.proxying import KEY, proxying
from tests.model.serving import serving
from tests.model.wire import open_asking
from tests.worlds.model import calls_of

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.model,
    pytest.mark.timeout(900),
    pytest.mark.parametrize("anyio_backend", ["asyncio"]),
]

PROXIED: dict[str, Any] = {"api_key": Secret(KEY), "max_retries": 0}
GIVEN = GateIn(question="Is it open?", history="", addressed=True)


@pytest.mark.parametrize("structured_output", ["json_schema", "function_calling"])
@pytest.mark.parametrize("prompt", PROMPTS, ids=lambda prompt: prompt.name)
async def test_the_reply_to_every_prompt_has_its_type(
    litellm: str, templates: PromptTemplates, prompt: Prompt[Any, Any], structured_output: StructuredOutput
) -> None:
    async with open_asking(litellm, templates, structured_output=structured_output, **PROXIED) as ask:
        assert isinstance(await ask.model.ask(prompt, build_full_example(prompt)), prompt.gives)
    (reply,) = ask.wire.replies
    called = bool(reply["choices"][0]["message"].get("tool_calls"))
    assert called == (structured_output == "function_calling")
    assert calls_of(ask.usage, prompt.name).tokens == reply["usage"]["total_tokens"] > 0


async def test_a_reply_without_a_schema_is_an_object_even_if_this_model_cannot_fit_it(
    litellm: str, templates: PromptTemplates
) -> None:
    async with open_asking(litellm, templates, structured_output="json_object", **PROXIED) as ask:
        with suppress(ModelReplyError):
            await ask.model.ask(GATE, GIVEN)
    assert ask.model.form.values["output"] == "json_object"
    assert ask.wire.replies[0]["choices"][0]["message"]["content"].lstrip().startswith("{")


@pytest.mark.parametrize("structured_output", ["json_schema", "function_calling", "json_object", "auto"])
async def test_a_better_model_fits_a_real_prompt_by_each_way(
    better_model: Path, tmp_path: Path, structured_output: StructuredOutput
) -> None:
    with (
        serving(better_model, template=None, log=tmp_path / "log.txt", context=8192) as served,
        proxying(served, folder=tmp_path) as proxy,
    ):
        async with open_asking(proxy, PromptTemplates(), None, structured_output=structured_output, **PROXIED) as ask:
            assert await ask.model.ask(GATE, GIVEN)
    assert len(ask.wire.replies) == 1, "the first reply fits"


async def test_a_prompt_that_is_too_long_and_a_wrong_key_are_told_apart(
    litellm: str, templates: PromptTemplates
) -> None:
    entries = tuple(IndexEntry(SourceId(f"kb:handbook/chapter-{n}.md"), "How to do this.") for n in range(900))
    long = SelectIn(entries=entries, max_sources=3, history="", question="How?", query="")
    async with open_asking(litellm, templates, **PROXIED) as ask:
        with pytest.raises(ModelPromptTooLongError, match=r"lower ai\.max_index_chars"):
            await ask.model.ask(SELECT, long)
    assert len(ask.wire.replies) == 1, json.dumps(ask.wire.replies)[:2000]
    async with open_asking(litellm, templates, api_key=Secret("sk-wrong"), max_retries=0) as ask:
        with pytest.raises(ModelAccessError, match=r"check llm\.api_key") as refused:
            await ask.model.ask(GATE, GIVEN)
    assert "sk-wrong" not in str(refused.value)


async def test_a_model_that_the_proxy_does_not_know_is_named_as_the_setting(
    litellm: str, templates: PromptTemplates
) -> None:
    async with open_asking(litellm, templates, **PROXIED, model="nothing") as ask:
        with pytest.raises(ModelAccessError, match=r"check llm\.model"):
            await ask.model.ask(GATE, GIVEN)
