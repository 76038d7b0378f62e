"""Prices of models."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated

from msgspec import Meta, Struct

_MILLION = 1_000_000
_Amount = Annotated[float, Meta(ge=0, le=1_000_000)]


class ModelPrice(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The price of a model for a million tokens, in `llm.currency`."""

    model: str
    input: _Amount
    output: _Amount | None = None
    """None: free, as for models that write nothing (embeddings)."""
    cached: _Amount | None = None
    """For tokens of a prompt that the endpoint says it had in its cache; None: as `input`."""

    def compute_cost(self, prompt_tokens: int, completion_tokens: int, cached_tokens: int = 0) -> float:
        """Return the cost of a call. `cached_tokens` count only up to those of the prompt."""
        cached = min(max(0, cached_tokens), prompt_tokens)
        again = self.input if self.cached is None else self.cached
        prompt = (prompt_tokens - cached) * self.input + cached * again
        return (prompt + completion_tokens * (self.output or 0)) / _MILLION


FREE = ModelPrice(model="", input=0.0, output=0.0)


def find_price(model: str, prices: Iterable[ModelPrice]) -> ModelPrice | None:
    """Return the price of a model; None if none is set."""
    return next((price for price in prices if price.model == model), None)
