"""Problems of settings that decode, but do not fit together."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from intern.models.options import BACKGROUND_SHARE, LlmOptions
from intern.settings.settings import Settings, is_database_url, list_models_in_use

_LOCAL_MODELS = {"", "english", "multilingual"}


def find_problems(settings: Settings) -> Iterator[tuple[str, str]]:
    """Yield settings that contradict each other, each with its key."""
    if problem := settings.page.problem:
        yield "page.token", problem
    yield from _check_hosting(settings)
    if settings.data.url and not is_database_url(settings.data.url.reveal()):
        yield "data.url", "expected an address of PostgreSQL, as in postgresql://USER:PASSWORD@HOST:5432/DATABASE"
    embeddings = settings.embeddings
    if embeddings.provider in {"", "local"} and not (embeddings.model in _LOCAL_MODELS or embeddings.is_own):
        what = 'on this machine must be "english", "multilingual" or the path of an .onnx file'
        yield "embeddings.model", f'{what}; for the model of an endpoint set embeddings.provider = "endpoint"'
    search = settings.search
    if search.vectors != "local" and not search.url.startswith(("http://", "https://")):
        yield "search.url", f"must be the address of {search.vectors}, as in http://127.0.0.1:{_PORTS[search.vectors]}"
    models = list_models_in_use(settings)
    for key, options in models.items():
        if options.has_unknown_price and options.daily_cost_budget > 0:
            amounts = "input" if key == "embeddings" else "input and output"
            what = f"counts only what has a price: set [[llm.prices]] for the model of [{key}], with {amounts}"
            yield f"{key}.daily_cost_budget", what
    for key in ("llm", "llm.kb"):
        if models[key].kind == "endpoint":
            yield from _check_output_price(key, models[key], inherited=models[key].prices == settings.llm.prices)
            yield from _check_budgets(key, models[key])


OF_ONE_SERVER: Mapping[str, Any] = {
    **dict.fromkeys(("guild_ids", "team_role_ids", "team_member_ids", "listed_channel_ids", "channels"), ()),
    "handoff_role_id": "",
}
"""The settings of `[discord]` that mean something on one server only, or give rights there; each is empty."""


def _check_hosting(settings: Settings) -> Iterator[tuple[str, str]]:
    for name in OF_ONE_SERVER if settings.hosting.enabled else ():
        if getattr(settings.discord, name):
            what = "must be empty with hosting.enabled: each server that invites the bot has its own settings"
            yield f"discord.{name}", f"{what} (`intern community set`, or `/intern setup` on the server)"
    if settings.hosting.cost_per_day and not settings.priced:
        yield "hosting.cost_per_day", "counts only what has a price: set [[llm.prices]] for each model that writes"


def _check_output_price(key: str, options: LlmOptions, *, inherited: bool) -> Iterator[tuple[str, str]]:
    """Refuse a price without `output` for a model that writes: costs would look too small, and budgets too large."""
    if options.price.output is None:
        prices = "llm.prices" if inherited else f"{key}.prices"
        yield prices, f"has no output for the model of [{key}]: set it, to 0 where replies are free"


def _check_budgets(key: str, options: LlmOptions) -> Iterator[tuple[str, str]]:
    """Refuse budgets that are too small even for a day's first call: waiting for tomorrow would not help."""
    why = (
        f"a call is let in only if its prompt and the longest reply ({key}.max_tokens) fit, and capture and indexing "
        f"may use {BACKGROUND_SHARE:.0%} of a day's budget; raise it, or lower {key}.max_tokens"
    )
    tokens, cost = options.daily_token_budget, options.daily_cost_budget
    # No prompt is empty.
    if tokens and int(tokens * BACKGROUND_SHARE) <= options.max_tokens:
        least = math.ceil((options.max_tokens + 1) / BACKGROUND_SHARE)
        yield f"{key}.daily_token_budget", f"expected 0 (no limit), or at least {least}: {why}"
    if cost and cost * BACKGROUND_SHARE < (reply := options.price.compute_cost(0, options.max_tokens)):
        least_cost = reply / BACKGROUND_SHARE
        yield f"{key}.daily_cost_budget", f"expected 0 (no limit), or more than {least_cost:.4g}: {why}"


_PORTS = {"qdrant": 6333, "chroma": 8000}
