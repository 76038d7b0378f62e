"""Embeddings from any OpenAI-compatible endpoint: many texts a call, retried and limited like every other call.

With a memory, a text is embedded only once. All vectors are checked: one wrong vector would put its document in front
of all others, or nowhere.
"""

from __future__ import annotations

import hashlib
import math
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Annotated

import msgspec
import structlog
from anyio import current_time
from httpx import AsyncClient as Client
from msgspec import Meta, Struct

from intern.core.errors import KnowledgeError, ModelPromptTooLongError, ModelRefusedError, ModelReplyError
from intern.core.log import get_logger
from intern.models.http import Endpoint, EndpointCall, FormRefusedError, SharedEndpoint
from intern.models.limits import EndpointLimits
from intern.models.options import MOST_DIMENSIONS, LlmOptions, make_vectors_name
from intern.models.usage import UsageCounter, estimate_tokens
from intern.stores.tables.vector_cache import VectorMemory

_log = get_logger(__name__)

USAGE = "embeddings"
"""The name under which calls and tokens are counted."""

_MOST_TEXTS = 64  # a call; the API's own bound is 2,048, local servers take fewer
_MOST_TOKENS = 8000  # a call, estimated
_MOST_CHARS = 8000  # a text; most models look at 512 to 8,192 tokens, and refuse longer texts
_LEAST_CHARS = 500  # a text is cut to, where the model takes less


class _EmbeddingItem(Struct):
    embedding: list[float]
    index: Annotated[int, Meta(ge=0)]


class _EmbeddingUsage(Struct):
    prompt_tokens: Annotated[int, Meta(ge=0)] = 0


class _EmbeddingResponse(Struct):
    data: list[_EmbeddingItem]
    usage: _EmbeddingUsage | None = None


CallEnded = Callable[[BaseException | None, float], object]
"""Takes the error of a call, if any, and its seconds."""


class EndpointEmbedder(Endpoint):
    """An embedder at an endpoint. `options` are those of `[llm]`, overridden by `[embeddings]`."""

    def __init__(
        self,
        options: LlmOptions,
        *,
        usage: UsageCounter,
        dimensions: int = 0,
        memory: VectorMemory | None = None,
        client: Client | None = None,
        line: SharedEndpoint | None = None,
        party: str = "",
        ended: CallEnded = lambda _error, _seconds: None,
    ) -> None:
        """Call `ended` after each call; it must neither wait nor raise."""
        path = "/embeddings"
        super().__init__(options, path=path, usage=usage, client=client, section=USAGE, line=line, party=party)
        self.model = make_vectors_name(options, dimensions)
        self.dimensions = dimensions
        """The length of vectors: the requested one, or that of the first vector received; 0 before."""
        self._memory = memory
        self._fields: dict[str, int | str] = {"dimensions": dimensions} if dimensions else {}
        self._format = {"encoding_format": "float"}
        self._most_texts, self._most_chars = _MOST_TEXTS, _MOST_CHARS
        """The most texts in a call and characters of a text that the server takes, as far as its refusals show."""
        self._behind = self._limits.background()
        self._ended = ended

    async def compute_vectors(self, texts: Sequence[str], /, *, asked: bool = False) -> Sequence[bytes]:  # noqa: ARG002
        """Return a unit vector for each text, float32, little-endian. Raises the `ModelError` family.

        Calls with several texts have the limits of background work, so that they never starve answers.
        """
        # Many models refuse an empty text.
        sent = [text[:_MOST_CHARS].strip() or "-" for text in texts]
        keys = [_vector_key(self.model, text) for text in sent]
        known = dict(await self._recall(keys))
        missing = {key: text for key, text in zip(keys, sent, strict=True) if key not in known}
        limits = self._limits if len(texts) == 1 else self._behind
        for batch in _split_batches(missing, self._most_texts):
            made = dict(zip(batch, await self._request_adapted(limits, list(batch.values())), strict=True))
            await self._remember(made)
            known |= made
        return [known[key] for key in keys]

    async def _request_adapted(self, limits: EndpointLimits, texts: Sequence[str]) -> Sequence[bytes]:
        """Ask in a form that the server takes: it may refuse a field, too many texts, or too long ones."""
        if len(texts) > (most := self._most_texts):
            return [
                *await self._request_adapted(limits, texts[:most]),
                *await self._request_adapted(limits, texts[most:]),
            ]
        try:
            return await self._request_and_report(limits, [text[: self._most_chars] for text in texts])
        except ModelRefusedError as error:
            if self._format and isinstance(error, FormRefusedError) and "encoding" in error.parts:
                self._format = {}
            elif len(texts) > 1:
                self._most_texts = min(self._most_texts, (len(texts) + 1) // 2)
            else:
                self._most_texts = _MOST_TEXTS  # their number was not the reason
                chars = min(self._most_chars, len(texts[0]))
                if chars <= _LEAST_CHARS or not isinstance(error, ModelPromptTooLongError):
                    raise
                self._most_chars = chars // 2
        return await self._request_adapted(limits, texts)

    async def _request_and_report(self, limits: EndpointLimits, texts: Sequence[str]) -> Sequence[bytes]:
        """Ask, then report how the call ended."""
        began = current_time()
        try:
            vectors = await self._request_vectors(limits, texts)
        except BaseException as error:
            self._ended(error, current_time() - began)
            raise
        self._ended(None, current_time() - began)
        return vectors

    async def _request_vectors(self, limits: EndpointLimits, texts: Sequence[str]) -> Sequence[bytes]:
        tokens = sum(map(estimate_tokens, texts))
        what = f"{USAGE}: {self.where}"
        body = msgspec.json.encode({"model": self._options.model, "input": texts, **self._fields, **self._format})
        call = EndpointCall(USAGE, what, body, tokens, ())
        with structlog.contextvars.bound_contextvars(prompt=USAGE):
            async with limits.reserve(tokens, what=USAGE) as still_fits:
                answer = await self.send(limits, call, still_fits)
                try:
                    read = msgspec.json.decode(answer, type=_EmbeddingResponse)
                except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
                    self.count_lost(call)
                    raise ModelReplyError(f"{what}: the reply holds no embeddings: {error}") from error
                spent = read.usage.prompt_tokens if read.usage else tokens
                await self._usage.add(USAGE, spent, 0, self._options.price.compute_cost(spent, 0))
        return self._check_vectors(read, len(texts), what)

    def _check_vectors(self, read: _EmbeddingResponse, asked: int, what: str) -> Sequence[bytes]:
        by_place = {item.index: item.embedding for item in read.data}
        if len(read.data) != asked or by_place.keys() != set(range(asked)):
            raise ModelReplyError(f"{what}: {len(read.data)} vectors came for {asked} texts")
        vectors = [_normalise_vector(by_place[n], what) for n in range(asked)]
        dimensions = self.dimensions or len(vectors[0]) // 4
        for size in (len(vector) // 4 for vector in vectors):
            if size != dimensions:
                raise ModelReplyError(f"{what}: a vector of {size} numbers came where {dimensions} are expected")
        self.dimensions = dimensions
        return vectors

    async def _recall(self, keys: Sequence[str]) -> Mapping[str, bytes]:
        if self._memory is None:
            return {}
        try:
            return await self._memory.recall(keys)
        except KnowledgeError as error:
            _log.warning("vectors_not_recalled", reason=str(error))
            return {}

    async def _remember(self, vectors: Mapping[str, bytes]) -> None:
        if self._memory is None:
            return
        try:
            await self._memory.remember(vectors)
        except KnowledgeError as error:
            _log.warning("vectors_not_remembered", reason=str(error))


def _normalise_vector(numbers: Sequence[float], what: str) -> bytes:
    if not 1 <= len(numbers) <= MOST_DIMENSIONS:
        raise ModelReplyError(f"{what}: a vector of {len(numbers)} numbers came")
    length = math.hypot(*numbers)
    # NaN and infinity cannot be JSON; zeros have no direction.
    if not math.isfinite(length) or length < 1e-9:
        raise ModelReplyError(f"{what}: a vector came that has no direction")
    return struct.pack(f"<{len(numbers)}f", *(number / length for number in numbers))


def _vector_key(model: str, text: str) -> str:
    return hashlib.sha256(f"{model}\0{text}".encode("utf-8", "replace")).hexdigest()


def _split_batches(texts: Mapping[str, str], most: int) -> Iterator[Mapping[str, str]]:
    """Divide texts into batches that fit into a call, in order."""
    batch: dict[str, str] = {}
    tokens = 0
    for key, text in texts.items():
        more = estimate_tokens(text)
        if batch and (len(batch) == most or tokens + more > _MOST_TOKENS):
            yield batch
            batch, tokens = {}, 0
        batch[key] = text
        tokens += more
    if batch:
        yield batch
