"""What models cost: money for tokens, and the settings that tell it. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated

from msgspec import Meta, Struct

_MILLION = 1_000_000

_Amount = Annotated[float, Meta(ge=0, le=1_000_000)]


class Price(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a model takes for a million tokens, in `llm.currency`."""

    model: str
    input: _Amount
    output: _Amount | None = None
    """None: none is told, as for models that write nothing (embeddings); counted as free."""
    cached: _Amount | None = None
    """For tokens of a prompt that the endpoint says it had in its cache; None: as `input`."""

    def of(self, prompt_tokens: int, completion_tokens: int, cached_tokens: int = 0) -> float:
        """What a call costs. More tokens from the cache than the prompt has are none of it."""
        cached = min(max(0, cached_tokens), prompt_tokens)
        again = self.input if self.cached is None else self.cached
        return (
            (prompt_tokens - cached) * self.input + cached * again + completion_tokens * (self.output or 0)
        ) / _MILLION


FREE = Price(model="", input=0.0, output=0.0)


def price_of(model: str, prices: Iterable[Price]) -> Price | None:
    """The price of a model; None where none is set."""
    return next((price for price in prices if price.model == model), None)
