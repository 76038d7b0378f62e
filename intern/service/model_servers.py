"""The models that model servers offer, with the context of each.

Nothing here costs a token, except `ping_model`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import httpx
import msgspec
from anyio.lowlevel import checkpoint
from msgspec import Struct
from msgspec.structs import replace

from intern.core import errors
from intern.models.http import Endpoint, EndpointCall, FormRefusedError
from intern.models.limits import EndpointLimits, make_call_queue
from intern.models.options import LlmOptions
from intern.models.replies import read_completion
from intern.models.usage import UsageCounter
from intern.service.local_checks import Finding, good, note
from intern.settings.settings import Settings

_CHAT: Final = "/chat/completions"
_GREETING: Final = 10  # tokens
_PROMPT: Final = 2_000
"""Tokens of a typical prompt, as measured in docs/local-models.md."""
_PATIENT: Final = 600
"""Seconds of silence while a processor reads a long prompt, as in docs/local-models.md."""
_OWNERS: Final = {"llamacpp": "llama.cpp", "vllm": "vLLM", "library": "Ollama", "organization_owner": "LM Studio"}
"""The names that servers give as owner of their models."""
_LARGER: Final = {
    "llama.cpp": "start it with a larger -c, which all places (-np) share",
    "vLLM": "start it with a larger --max-model-len",
    "Ollama": "set OLLAMA_CONTEXT_LENGTH for `ollama serve`, as it cuts longer prompts off without an error",
    "LM Studio": "load the model with a larger context length",
}
_OWN_LIST: Final = {"Ollama": "/api/ps", "LM Studio": "/api/v0/models"}
"""Paths of lists that contain the context, where `/models` does not."""
LOCAL_PORTS: Final = {"Ollama": 11434, "LM Studio": 1234, "llama.cpp": 8080, "vLLM": 8000}
"""The default ports of servers on one's own machine."""


class OfferedModel(Struct):
    """A model, as `/models` of any server lists it, Ollama's `/api/ps` or LM Studio's `/api/v0/models`."""

    id: str = ""
    name: str = ""
    owned_by: str | None = None
    max_model_len: int | None = None
    meta: _Meta | None = None
    context_length: int | None = None
    context_window: int | None = None
    max_context_length: int | None = None
    loaded_context_length: int | None = None

    @property
    def context(self) -> int | None:
        """The tokens of context, under the server's name for them."""
        told = (self.loaded_context_length, self.max_model_len, self.meta and self.meta.n_ctx, self.context_length)
        return next((each for each in (*told, self.context_window, self.max_context_length) if each), None)


class _Meta(Struct):
    n_ctx: int | None = None


class _ModelList(Struct):
    data: list[OfferedModel] | None = None
    models: list[OfferedModel] | None = None

    @property
    def all(self) -> list[OfferedModel]:
        return self.data or self.models or []


class ModelServer(Struct, frozen=True):
    """A server that answered, with the models that it offers."""

    name: str
    """The name of a known program; empty for others."""
    base_url: str
    models: tuple[OfferedModel, ...]

    def settings_for(self, model: str) -> str:
        """Return the lines of intern.toml that choose a model of this server."""
        return f'[llm]\nbase_url = "{self.base_url}"\nmodel = "{model}"'


async def list_models(endpoint: Endpoint) -> ModelServer:
    """List the models of an endpoint. Raises ModelUnavailableError, and ModelReplyError for anything but a list."""
    url = httpx.URL(endpoint.where)
    base = url.path.partition("/deployments/")[0].rstrip("/")  # Azure lists models beside its deployments
    models = await _read_list(endpoint, f"{base}/models")
    server = next((_OWNERS[each.owned_by] for each in models if each.owned_by in _OWNERS), "")
    if path := _OWN_LIST.get(server):
        told = {each.id or each.name: each for each in await _read_list(endpoint, base.removesuffix("/v1") + path)}
        models = [told.get(each.id, each) for each in models]
    return ModelServer(server, endpoint.where, tuple(models))


async def ping_model(options: LlmOptions, section: str) -> str:
    """Ask a model for one word, in the smallest request; return its name and address.

    Raises ConfigError, and ModelError with both and the reason.
    """
    body = msgspec.json.encode({"model": options.model, "messages": [{"role": "user", "content": "Say OK."}]})
    options = replace(options, max_retries=0)
    async with Endpoint(options, path=_CHAT, usage=UsageCounter(), section=section) as endpoint:
        call = EndpointCall("greet", f"{options.model} at {endpoint.where}", body, _GREETING, ())
        try:
            limits = EndpointLimits(options, UsageCounter(), make_call_queue(options))
            answer = await endpoint.send(limits, call, checkpoint)
        except FormRefusedError as error:
            if not error.parts:  # otherwise it requires more than the smallest request, but it answers
                raise
        else:
            read_completion(answer, what=call.what)
        return call.what


async def _read_list(endpoint: Endpoint, path: str) -> list[OfferedModel]:
    page = await endpoint.fetch_page(path)
    try:
        told: _ModelList | list[OfferedModel] = msgspec.json.decode(page or b"[]", type=_ModelList | list[OfferedModel])
    except (msgspec.DecodeError, RecursionError):
        where = httpx.URL(endpoint.where).copy_with(path=path)
        raise errors.ModelReplyError(f"what {where} says is no list of models") from None
    return told if isinstance(told, list) else told.all


async def list_configured(settings: Settings) -> list[ModelServer]:
    """List the models that each endpoint of the settings offers. Raises ConfigError and ModelError."""
    chosen = {"llm": settings.llm, "llm.kb": settings.kb_model}
    asked = {options.base_url: (section, options) for section, options in reversed(chosen.items())}
    servers: list[ModelServer] = []
    for section, options in reversed(asked.values()):
        if options.kind == "endpoint":
            named = replace(options, model=options.model or "any")
            async with Endpoint(named, path=_CHAT, usage=UsageCounter(), section=section) as endpoint:
                servers.append(await list_models(endpoint))
    return servers


async def find_local_servers() -> list[ModelServer]:
    """Ask the default ports of servers on this machine."""
    found: list[ModelServer] = []
    for name, port in LOCAL_PORTS.items():
        options = LlmOptions(base_url=f"http://127.0.0.1:{port}/v1", model="any")
        try:
            async with Endpoint(options, path=_CHAT, usage=UsageCounter(), section="llm") as endpoint:
                server = await list_models(endpoint)
        except errors.ModelError:
            continue
        if server.models:
            found.append(replace(server, name=server.name or f"a server on the port of {name}"))
    return found


async def inspect_server(endpoint: Endpoint, options: LlmOptions, section: str) -> list[Finding]:
    """Name the server, if it is a known one, and the settings that it needs."""
    if httpx.URL(endpoint.where).host == "api.openai.com":
        return list(_find_needed_settings("OpenAI", None, options, section))
    try:
        server = await list_models(endpoint)
    except errors.ModelError as error:
        return [note(f"the server of [{section}] is not known: {error}")]
    asked = {options.model, f"{options.model}:latest"}
    mine = next((each for each in server.models if asked & {each.id, each.name}), None)
    if mine is None and len(server.models) == 1 and server.name == "llama.cpp":
        [mine] = server.models  # it serves one model, by any name
    return (
        list(_find_needed_settings(server.name, mine.context if mine else None, options, section))
        if server.name
        else []
    )


def _find_needed_settings(server: str, room: int | None, options: LlmOptions, section: str) -> Iterator[Finding]:
    wanted = _PROMPT + options.reply_tokens
    said = f"{server} serves the model of [{section}]" + (f", with {room:,} tokens of context" if room else "")
    needs: list[str] = []
    if options.structured_output not in {"auto", "json_schema"}:
        needs.append(f'set {section}.structured_output = "auto": it enforces schemas')
    if server in _LARGER and (room or 0) < wanted:
        lower = f"{_LARGER[server]}, or lower {section}.max_tokens"
        needs.append(f"prompt and reply need about {wanted:,} tokens of context: {lower}")
    if server in _LARGER and options.timeout_seconds < _PATIENT:
        needs.append(f"without a graphics card, set {section}.timeout_seconds = {_PATIENT}")
    yield note(f"{said}; {'; '.join(needs)}") if needs else good(said)
