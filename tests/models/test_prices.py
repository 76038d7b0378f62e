"""Money for tokens."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from intern.models.pricing import FREE, ModelPrice, find_price

SMALL = ModelPrice(model="small", input=0.4, output=1.6, cached=0.1)
TOKENS = st.integers(0, 10**9)


def test_a_call_costs_what_its_tokens_do() -> None:
    assert SMALL.compute_cost(1_000_000, 500_000) == pytest.approx(0.4 + 0.8)
    assert SMALL.compute_cost(1_000_000, 0, 500_000) == pytest.approx(0.2 + 0.05)
    no_cache = ModelPrice(model="embedder", input=2.0)
    assert no_cache.compute_cost(1_000_000, 1_000_000, 1_000_000) == 2.0, (
        "a cache that is not cheaper, and nothing for output"
    )
    assert FREE.compute_cost(10**9, 10**9) == 0


def test_a_model_has_the_price_that_names_it_or_none() -> None:
    assert find_price("small", (ModelPrice(model="large", input=3.0), SMALL)) is SMALL
    assert find_price("other", (SMALL,)) is None


@given(TOKENS, TOKENS, TOKENS)
def test_what_was_cached_never_makes_a_call_dearer_nor_gives_money_back(asked: int, said: int, cached: int) -> None:
    assert 0 <= SMALL.compute_cost(asked, said, cached) <= SMALL.compute_cost(asked, said) + 1e-9
