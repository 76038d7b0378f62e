"""Settings of language models: the table `[llm]`, with `[llm.kb]` over it. Pure."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct
from msgspec.structs import replace

from intern.core.text.secret_values import Secret, settings_repr
from intern.models.pricing import FREE, ModelPrice, find_price

MOST_DIMENSIONS = 16_384
"""The most numbers in a vector."""

StructuredOutput = Literal["auto", "json_schema", "function_calling", "json_object"]
"""The way to hold a reply to its type: by the response format, by a forced function call, or by the prompt alone.
"auto" is the first of them that the server takes."""
BACKGROUND_SHARE = 0.8
"""The share of calls a minute and of a day's budget for capture and indexing; the rest is for answers."""


class LlmOptions(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One model. An empty `provider` means the endpoint where `base_url` is set, and the offline rules elsewhere."""

    provider: Literal["", "endpoint", "offline"] = ""
    base_url: str = ""
    """Up to, not including, `/chat/completions`."""
    api_key: Secret = Secret()
    """Empty: no Authorization header is sent, as local servers like it."""
    model: str = ""
    timeout_seconds: Annotated[float, Meta(gt=0)] = 60.0
    """The longest silence in an attempt, in seconds; the whole attempt may take ten times as long. A reply is streamed,
    so a slow model is not cut off while it writes. Waiting for a free slot is not counted."""
    max_retries: Annotated[int, Meta(ge=0, le=10)] = 3
    max_tokens: Annotated[int, Meta(ge=1)] = 4096
    """The longest reply."""
    reasoning_tokens: Annotated[int, Meta(ge=0)] = 0
    """Room for the thoughts of a model that reasons, beside `max_tokens`."""
    reasoning_effort: str = ""
    """Sent unless it is empty or the endpoint refuses it; "low", "medium" or "high" at most providers."""
    structured_output: StructuredOutput = "auto"
    temperature: Annotated[float, Meta(ge=0, le=2)] = 0.0
    """Sent unless the endpoint refuses it."""
    images: bool = False
    """The model can look at pictures; otherwise they are left out."""
    headers: dict[str, Secret] = {}
    """Sent with each request, over our own of the same name."""
    max_in_flight: Annotated[int, Meta(ge=1)] = 8
    calls_per_minute: Annotated[int, Meta(ge=0)] = 0
    """0: no limit. Retries count."""
    daily_token_budget: Annotated[int, Meta(ge=0)] = 0
    """Prompt and reply tokens of one UTC day; 0: no limit."""
    daily_cost_budget: Annotated[float, Meta(ge=0)] = 0.0
    """Money of one UTC day, in `currency`, by `prices`; 0: no limit."""
    currency: Annotated[str, Meta(pattern="^[A-Za-z]{1,8}$")] = "USD"
    """The currency of the prices; for display only."""
    prices: tuple[ModelPrice, ...] = ()
    """Prices for a million tokens; calls of a model without a price count as free."""

    def __repr__(self) -> str:
        return settings_repr(self)

    def __post_init__(self) -> None:
        if not all(price.model for price in self.prices):
            raise ValueError("prices must name a model each; `model` is empty in one of them")
        if len({price.model for price in self.prices}) < len(self.prices):
            raise ValueError("prices must name each model once")

    @property
    def kind(self) -> Literal["endpoint", "offline"]:
        """The provider; an empty one is resolved."""
        return self.provider or ("endpoint" if self.base_url else "offline")

    @property
    def reply_tokens(self) -> int:
        """The most that a reply may take, with the thoughts before it."""
        return self.max_tokens + self.reasoning_tokens

    @property
    def display_name(self) -> str:
        """The name of the model, for reports."""
        return "offline" if self.kind == "offline" else self.model

    @property
    def price(self) -> ModelPrice:
        """The price of the model; free if none is set."""
        return find_price(self.model, self.prices) or FREE

    @property
    def has_unknown_price(self) -> bool:
        """Whether the model is an endpoint's and has no price."""
        return self.kind == "endpoint" and find_price(self.model, self.prices) is None


class EmbeddingOptions(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The model that finds paraphrases."""

    provider: Literal["", "local", "endpoint", "none"] = ""
    """Empty: `local` where its extra is installed, else `none`."""
    base_url: str = ""
    """Up to, not including, `/embeddings`; empty: that of `[llm]`, with its key."""
    api_key: Secret = Secret()
    model: str = ""
    """A model of an endpoint, or on this machine: "english", "multilingual", or a path that ends in ".onnx"."""
    pooling: Literal["mean", "cls"] = "mean"
    """The way a custom model combines the vectors of tokens: their mean, or the first one."""
    query_prefix: str = ""
    """The text before a question, for a custom model."""
    document_prefix: str = ""
    """The text before any other text, for a custom model."""
    dimensions: Annotated[int, Meta(ge=0, le=MOST_DIMENSIONS)] = 0
    """The length of an endpoint's vectors, for models that can shorten them; 0: the model's own."""

    @property
    def is_own(self) -> bool:
        """Whether the model is a file."""
        return self.model.endswith(".onnx")

    def __repr__(self) -> str:
        return settings_repr(self)

    def merge_with_llm(self, llm: LlmOptions) -> LlmOptions:
        """Lay these options over `[llm]`, whose limits apply. Its key and headers go to its own address only."""
        if not self.base_url or self.base_url == llm.base_url:
            return replace(llm, api_key=self.api_key or llm.api_key, model=self.model)
        return replace(llm, base_url=self.base_url, api_key=self.api_key, model=self.model, headers={})


def make_vectors_name(options: LlmOptions, dimensions: int = 0) -> str:
    """Return the name of an endpoint's vectors: elsewhere, a model of the same name may differ."""
    name = f"{options.model} at {options.base_url.strip().partition('?')[0].rstrip('/')}"
    return f"{name}, {dimensions} dimensions" if dimensions else name
