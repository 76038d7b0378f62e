"""Embeddings from an endpoint: what it sends, what it takes for a vector, and what is not sent twice."""

from __future__ import annotations

import json
import struct
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any

import httpx
import pytest

from intern.core.errors import (
    ConfigError,
    KnowledgeError,
    ModelAccessError,
    ModelBudgetError,
    ModelBudgetTooSmallError,
    ModelPromptTooLongError,
    ModelRefusedError,
    ModelReplyError,
    ModelUnavailableError,
)
from intern.core.text.secret_values import Secret
from intern.models.options import EmbeddingOptions, LlmOptions
from intern.models.usage import UsageCounter
from intern.search.embedding_endpoint import EndpointEmbedder
from tests.worlds.clock import HandClock
from tests.worlds.model import calls_of

KEY = "sk-very-secret-0123456789"
OPTIONS = LlmOptions(base_url="http://model.test/v1", api_key=Secret(KEY), model="embed-1", max_retries=0)


class Server:
    """Gives each text a vector of its length; keeps what it was sent, and answers by plan before that."""

    def __init__(self) -> None:
        self.sent: list[dict[str, Any]] = []
        self.planned: list[httpx.Response] = []
        self.refusal: Callable[[dict[str, Any]], httpx.Response | None] = lambda _: None

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.sent.append(json.loads(request.content))
        assert request.url == "http://model.test/v1/embeddings"
        assert request.headers["Authorization"] == f"Bearer {KEY}"
        if self.planned:
            return self.planned.pop(0)
        if refused := self.refusal(self.sent[-1]):
            return refused
        return vectors([[float(len(text)), 1.0] for text in self.sent[-1]["input"]])


def vectors(numbers: Sequence[Any], **more: Any) -> httpx.Response:
    data = [{"object": "embedding", "index": n, "embedding": each} for n, each in enumerate(numbers)]
    return httpx.Response(200, json={"data": data[::-1], "usage": {"prompt_tokens": 9}, **more})


class Memory:
    def __init__(self) -> None:
        self.held: dict[str, bytes] = {}
        self.broken = False

    async def recall(self, keys: Sequence[str], /) -> Mapping[str, bytes]:
        if self.broken:
            raise KnowledgeError("the disk is away")
        return {key: self.held[key] for key in keys if key in self.held}

    async def remember(self, vectors: Mapping[str, bytes], /) -> None:
        if self.broken:
            raise KnowledgeError("the disk is away")
        self.held.update(vectors)


Make = Callable[..., EndpointEmbedder]


@pytest.fixture
def server() -> Server:
    return Server()


@pytest.fixture
async def make(server: Server) -> AsyncIterator[Make]:
    async with httpx.AsyncClient(transport=httpx.MockTransport(server)) as client:

        def made(options: LlmOptions = OPTIONS, **more: Any) -> EndpointEmbedder:
            more.setdefault("usage", UsageCounter(clock=HandClock()))
            return EndpointEmbedder(options, client=client, **more)

        yield made


def direction(vector: bytes) -> tuple[float, ...]:
    return struct.unpack(f"<{len(vector) // 4}f", vector)


async def test_each_text_gets_its_own_unit_vector_whatever_the_order_of_the_reply(make: Make, server: Server) -> None:
    usage = UsageCounter(clock=HandClock())
    embedder = make(usage=usage)
    short, long = await embedder.compute_vectors(["abc", "abcd"])
    assert direction(short) == pytest.approx((3 / 10**0.5, 1 / 10**0.5))
    assert direction(long) == pytest.approx((4 / 17**0.5, 1 / 17**0.5))
    assert server.sent == [{"model": "embed-1", "input": ["abc", "abcd"], "encoding_format": "float"}]
    assert embedder.dimensions == 2
    assert (calls_of(usage, "embeddings").calls, calls_of(usage, "embeddings").prompt_tokens) == (1, 9)


async def test_each_call_is_told_with_what_became_of_it_and_what_is_known_is_none(make: Make, server: Server) -> None:
    told = list[tuple[str, bool]]()

    def note(error: BaseException | None, seconds: float) -> None:
        told.append((type(error).__name__, seconds >= 0))

    embedder = make(memory=Memory(), ended=note)
    await embedder.compute_vectors(["abc"])
    await embedder.compute_vectors(["abc"])
    server.planned = [httpx.Response(503)]
    with pytest.raises(ModelUnavailableError):
        await embedder.compute_vectors(["abcd"])
    assert told == [("NoneType", True), ("EndpointUnavailableError", True)]


async def test_a_reply_without_vectors_costs_its_texts_all_the_same(make: Make, server: Server) -> None:
    usage = UsageCounter(clock=HandClock())
    server.planned = [httpx.Response(200, content=b"<html>hello</html>")]
    with pytest.raises(ModelReplyError):
        await make(usage=usage).compute_vectors(["x" * 3600])
    assert calls_of(usage, "embeddings").prompt_tokens == 1000


async def test_many_texts_go_in_several_calls_and_the_same_text_goes_once(make: Make, server: Server) -> None:
    found = await make().compute_vectors([f"text {n % 100}" for n in range(200)])
    assert len(found) == 200
    assert [len(body["input"]) for body in server.sent] == [64, 36]


async def test_what_was_embedded_before_is_not_sent_again(make: Make, server: Server) -> None:
    memory = Memory()
    first = await make(memory=memory).compute_vectors(["abc"])
    assert await make(memory=memory).compute_vectors(["abc"]) == first
    other = LlmOptions(base_url=OPTIONS.base_url, api_key=OPTIONS.api_key, model="embed-2")
    await make(other, memory=memory).compute_vectors(["abc"])
    assert [body["model"] for body in server.sent] == ["embed-1", "embed-2"]


async def test_a_memory_that_fails_costs_a_call_and_no_vector(make: Make, server: Server) -> None:
    memory = Memory()
    memory.broken = True
    embedder = make(memory=memory)
    assert await embedder.compute_vectors(["abc"]) == await embedder.compute_vectors(["abc"])
    assert len(server.sent) == 2


@pytest.mark.parametrize(
    "reply",
    [
        vectors([[1.0, 2.0]]),
        vectors([[1.0, 2.0], [1.0, 2.0], [1.0, 2.0]]),
        vectors([[1.0, 2.0], [1.0, 2.0, 3.0]]),
        vectors([[0.0, 0.0], [1.0, 2.0]]),
        vectors([[], []]),
        vectors([[1.7e308, 1.7e308], [1.0, 2.0]]),
        httpx.Response(200, content=b'{"data": [{"index": 0, "embedding": [NaN]}, {"index": 1, "embedding": [1.0]}]}'),
        httpx.Response(200, json={"data": [{"index": 0, "embedding": [1.0]}, {"index": 0, "embedding": [1.0]}]}),
        httpx.Response(200, json={"data": [{"index": 0, "embedding": "AAAA"}, {"index": 1, "embedding": "AAAA"}]}),
        httpx.Response(200, content=b"<html>"),
        httpx.Response(200, json=[]),
    ],
)
async def test_what_is_no_vector_for_each_text_is_refused(make: Make, server: Server, reply: httpx.Response) -> None:
    memory = Memory()
    server.planned = [reply]
    with pytest.raises(ModelReplyError):
        await make(memory=memory).compute_vectors(["abc", "abcd"])
    assert memory.held == {}


async def test_vectors_of_another_length_than_before_are_refused(make: Make, server: Server) -> None:
    embedder = make()
    await embedder.compute_vectors(["abc"])
    server.planned = [vectors([[1.0, 2.0, 3.0]])]
    with pytest.raises(ModelReplyError, match="3 numbers came where 2 are expected"):
        await embedder.compute_vectors(["abcd"])


@pytest.mark.parametrize(
    ("status", "says", "error"),
    [
        (400, "bad input", ModelRefusedError),
        (400, "maximum context length is 512 tokens", ModelPromptTooLongError),
        (401, "wrong key", ModelAccessError),
        (404, "no such model", ModelAccessError),
        (429, "slow down", ModelUnavailableError),
        (500, "out of order", ModelUnavailableError),
    ],
)
async def test_a_refusal_says_what_it_is_and_never_the_key(
    make: Make, server: Server, status: int, says: str, error: type[Exception]
) -> None:
    server.planned = [httpx.Response(status, json={"error": {"message": f"{says} {KEY}"}})]
    with pytest.raises(error) as caught:
        await make().compute_vectors(["abc"])
    assert KEY not in str(caught.value)
    assert "model.test" in str(caught.value)


async def test_todays_budget_holds_for_embeddings_too(make: Make, server: Server) -> None:
    options = LlmOptions(base_url=OPTIONS.base_url, model="embed-1", daily_token_budget=10, api_key=OPTIONS.api_key)
    with pytest.raises(ModelBudgetTooSmallError, match=r"raise llm\.daily_token_budget"):
        await make(options).compute_vectors(["many words " * 50])
    assert server.sent == []
    embedder = make(options)
    await embedder.compute_vectors(["a few words"])
    with pytest.raises(ModelBudgetError, match="00:00 UTC"):
        await embedder.compute_vectors(["and then a few words more"])
    assert len(server.sent) == 1


async def test_a_model_must_be_named() -> None:
    with pytest.raises(ConfigError, match=r"embeddings\.model is missing"):
        EndpointEmbedder(LlmOptions(base_url="http://model.test/v1"), usage=UsageCounter(clock=HandClock()))


def test_a_key_and_headers_of_the_chat_model_go_to_no_other_address() -> None:
    headers = {"Cf-Access-Client-Secret": Secret("of the gateway")}
    llm = LlmOptions(base_url="https://chat.test/v1", api_key=Secret(KEY), model="chat", headers=headers)
    assert EmbeddingOptions(model="e").merge_with_llm(llm).api_key == Secret(KEY)
    assert EmbeddingOptions(model="e").merge_with_llm(llm).base_url == llm.base_url
    elsewhere = EmbeddingOptions(model="e", base_url="https://vectors.test/v1").merge_with_llm(llm)
    assert (elsewhere.base_url, elsewhere.api_key) == ("https://vectors.test/v1", Secret())
    assert (EmbeddingOptions(model="e").merge_with_llm(llm).headers, elsewhere.headers) == (llm.headers, {})


# --- What servers take ---


async def test_vectors_are_asked_for_in_the_length_that_is_set_and_have_a_name_of_their_own(
    make: Make, server: Server
) -> None:
    memory = Memory()
    whole, short = make(memory=memory), make(memory=memory, dimensions=2)
    await whole.compute_vectors(["abc"])
    await short.compute_vectors(["abc"])
    assert [body.get("dimensions") for body in server.sent] == [None, 2]
    assert len(memory.held) == 2, "a vector of one length is none of the other"
    server.planned = [vectors([[1.0, 2.0, 3.0]])]
    with pytest.raises(ModelReplyError, match="3 numbers came where 2 are expected"):
        await short.compute_vectors(["abcd"])
    assert whole.model != short.model


async def test_a_server_that_does_not_know_the_encoding_is_asked_without_it(make: Make, server: Server) -> None:
    said = "Argument not supported: encoding_format"
    server.planned = [httpx.Response(400, json={"error": {"message": said, "type": "invalid_request_error"}})]
    embedder = make()
    assert len(await embedder.compute_vectors(["abc", "abcd"])) == 2
    await embedder.compute_vectors(["abcde"])
    assert ["encoding_format" in body for body in server.sent] == [True, False, False]


TOO_MANY = {
    # huggingface/text-embeddings-inference, router/src/http/server.rs.
    "TEI": (422, {"error": "batch size 64 > maximum allowed batch size 32", "error_type": "Validation"}, 32),
    # ai.google.dev: BatchEmbedContents takes 100; a face of one's own may take fewer.
    "Gemini": (400, [{"error": {"code": 400, "message": "at most 20 requests can be in one batch"}}], 20),
    # Alibaba Cloud Model Studio, text-embedding-v3.
    "DashScope": (
        400,
        {"error": {"message": "Value error, batch size is invalid, it should not be larger than 10.: input.contents"}},
        10,
    ),
}


@pytest.mark.parametrize("named", TOO_MANY)
async def test_a_server_that_takes_fewer_texts_gets_as_many_as_it_takes(make: Make, server: Server, named: str) -> None:
    status, said, most = TOO_MANY[named]

    def limit(sent: dict[str, Any]) -> httpx.Response | None:
        return httpx.Response(status, json=said) if len(sent["input"]) > most else None

    server.refusal = limit
    texts = [f"text {n}" + "x" * n for n in range(64)]
    embedder = make()
    found = await embedder.compute_vectors(texts)
    refused = [body for body in server.sent if len(body["input"]) > most]
    server.sent.clear()
    await embedder.compute_vectors([f"{text}!" for text in texts])
    assert [round(numbers[0] / numbers[1]) for numbers in map(direction, found)] == [len(text) for text in texts]
    assert 1 <= len(refused) <= 6
    assert max(len(body["input"]) for body in server.sent) <= most, "once is enough"


TOO_LONG = {
    # OpenAI and vLLM.
    "OpenAI": (400, "This model's maximum context length is 512 tokens, however you requested 900 tokens."),
    # ollama/ollama, server/routes.go.
    "Ollama": (400, "the input length exceeds the context length"),
    # llama.cpp, tools/server: an error of its own, not of the request.
    "llama.cpp": (500, "input (900 tokens) is too large to process. increase the physical batch size (current: 512)"),
    # huggingface/text-embeddings-inference.
    "TEI": (413, "Input validation error: `inputs` must have less than 512 tokens. Given: 900"),
}


@pytest.mark.parametrize("named", TOO_LONG)
async def test_a_text_that_is_too_long_is_cut_until_it_is_taken(make: Make, server: Server, named: str) -> None:
    status, said = TOO_LONG[named]

    def limit(sent: dict[str, Any]) -> httpx.Response | None:
        too_long = any(len(text) > 2048 for text in sent["input"])
        return httpx.Response(status, json={"error": {"message": said}}) if too_long else None

    server.refusal = limit
    embedder = make()
    short, long = await embedder.compute_vectors(["abc", "word " * 3000])
    await embedder.compute_vectors(["b", "c", "d"])
    assert len(server.sent[-1]["input"]) == 3, "the number of texts was not the reason"
    assert direction(short) == pytest.approx((3 / 10**0.5, 1 / 10**0.5))
    assert direction(long)[0] > 0.99
    assert len(server.sent) <= 7


async def test_azures_path_query_and_header_are_those_of_the_chat_model(server: Server) -> None:
    address = "https://mine.openai.azure.com/openai/deployments/embed?api-version=2024-10-21"
    seen = list[httpx.Request]()

    def answer(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        return vectors([[3.0, 1.0]])

    options = LlmOptions(base_url=address, api_key=Secret(KEY), model="embed")
    async with httpx.AsyncClient(transport=httpx.MockTransport(answer)) as client:
        embedder = EndpointEmbedder(options, client=client, usage=UsageCounter(clock=HandClock()))
        await embedder.compute_vectors(["abc"])
    path = "https://mine.openai.azure.com/openai/deployments/embed/embeddings?api-version=2024-10-21"
    assert (str(seen[0].url), seen[0].headers.get("api-key"), seen[0].headers.get("Authorization")) == (path, KEY, None)
    assert "api-version" not in embedder.model + embedder.where


@pytest.mark.parametrize("base_url", ["http://127.0.0.1:11434/v1", "http://127.0.0.1:11434/v1/"])
async def test_ollamas_path_is_that_of_its_compatible_face(base_url: str) -> None:
    seen = list[str]()

    def answer(request: httpx.Request) -> httpx.Response:
        seen.append(str(request.url))
        return httpx.Response(200, json={"object": "list", "data": [{"embedding": [3.0, 1.0], "index": 0}]})

    async with httpx.AsyncClient(transport=httpx.MockTransport(answer)) as client:
        options = LlmOptions(base_url=base_url, model="nomic-embed-text")
        await EndpointEmbedder(options, client=client, usage=UsageCounter(clock=HandClock())).compute_vectors(["abc"])
    assert seen == ["http://127.0.0.1:11434/v1/embeddings"]
