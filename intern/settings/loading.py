"""intern.toml and the environment, decoded once into frozen `Settings`.

Only the command line and the app see them; each room takes its own option struct.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from functools import cache
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from intern.answering.prompts import AnsweringOptions
from intern.chat.options import ConversationOptions
from intern.core.errors import ConfigError, KnowledgeError
from intern.core.ids import QAId
from intern.core.log import LogFormat, LogLevel
from intern.core.text.masking import Secret, address_secrets, mask_secrets
from intern.core.text.patterns import regex
from intern.facts.segments import ExtractionOptions
from intern.facts.visibility import FactOptions
from intern.learning.prompts import LearningOptions
from intern.models.options import BACKGROUND_SHARE, EmbeddingOptions, LlmOptions
from intern.platforms.discord.options import NO_ACCOUNT, NO_SERVERS, DiscordOptions, HostingOptions
from intern.settings.reading import (
    RawSettings,
    SettingsSchema,
    collect_field_types,
    explain_error,
    is_list,
    is_table,
    merge_tables,
    read_raw_settings,
)
from intern.sources.options import DiscoveryOptions, IndexingOptions, WebOptions
from intern.stores.blocks import qa_id_time
from intern.stores.database import DEFAULT_COMMUNITY
from intern.stores.options import RecorderOptions, SearchOptions

SHORTEST_TOKEN = 16  # characters; from other machines, anyone may try to guess it


class PageOptions(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Address and password of the page."""

    enabled: bool = False
    """Off by default: a visitor can read the bot's knowledge, and decide what it learns."""
    host: str = "127.0.0.1"
    port: Annotated[int, Meta(ge=0, le=65_535)] = 8300
    """0: any free port; the log names it."""
    token: Secret = Secret()
    """The page's password. Empty: everyone on this machine gets in."""

    @property
    def is_local(self) -> bool:
        """Whether only this machine can reach it."""
        return is_loopback(self.host)

    @property
    def problem(self) -> str:
        """The problem with the token; empty if there is none."""
        if not self.enabled:
            return ""
        if not self.is_local and not self.token:
            return (
                "must be set if page.host is reachable from other machines: visitors decide what the bot learns. "
                "Set INTERN__PAGE__TOKEN, for instance to the output of `openssl rand -hex 24`"
            )
        if self.token and len(self.token.reveal()) < SHORTEST_TOKEN:
            return f"must have at least {SHORTEST_TOKEN} characters, so that it cannot be guessed"
        return ""


def is_loopback(host: str) -> bool:
    """Return whether a name or address is this machine."""
    if host.rstrip(".").lower() == "localhost":
        return True
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def is_database_url(place: str) -> bool:
    """Return whether this is the address of a database server, and not the name of a file."""
    return place.startswith(("postgresql://", "postgres://"))


class DataSection(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[data]`: the one folder that a running intern writes to, and the database on a server, if it is on one."""

    dir: Path = Path("data")
    url: Secret = Secret()


class KbSection(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[kb]`: where knowledge lies, and how it is filed and indexed. Empty paths mean folders below `data.dir`."""

    sources_dir: str = ""
    links_path: str = ""
    web_cache_dir: str = ""
    index_path: str = ""
    index_cache_path: str = ""
    team_raw_dir: str = ""
    team_topics_dir: str = ""
    team_index_path: str = ""
    team_index_cache_path: str = ""
    qa_raw_last_processed_id: str = ""
    mask_secrets: bool = True
    mask_emails: bool = False
    review: bool = False
    max_removals: Annotated[int, Meta(ge=0)] = 3
    max_topic_chars: Annotated[int, Meta(ge=1)] = 20_000
    max_source_bytes: Annotated[int, Meta(ge=1)] = 1_000_000
    concurrency: Annotated[int, Meta(ge=1)] = 4
    download_concurrency: Annotated[int, Meta(ge=1)] = 8
    url_refresh_min_interval_hours: Annotated[float, Meta(gt=0, le=10_000)] = 24.0
    links: tuple[str, ...] = ()
    """Addresses of pages, beside those in the file of `links_path`."""
    render_command: tuple[str, ...] = ()
    regenerate_concurrency: Annotated[int, Meta(ge=1)] = 8
    settle_seconds: Annotated[float, Meta(ge=0)] = 2.0
    scan_interval_seconds: Annotated[float, Meta(ge=1)] = 600.0
    """Each scan walks through the whole folder."""

    def mask_text(self, text: str) -> str:
        """Return a text with its secrets and, if so set, its email addresses masked."""
        return mask_secrets(text, secrets=self.mask_secrets, emails=self.mask_emails).text


class PromptsSection(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[prompts]`: your own templates. A file here replaces the shipped one of the same name."""

    dir: str = ""


class LogSection(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[log]`: the log on stderr."""

    format: LogFormat = "auto"
    level: LogLevel = "auto"


class Settings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All settings."""

    data: DataSection = DataSection()
    discord: DiscordOptions = DiscordOptions()
    llm: LlmOptions = LlmOptions()
    llm_kb: LlmOptions | None = None
    """`[llm]` with `[llm.kb]` laid over it: the model for capture and indexing; None where it is the same."""
    ai: AnsweringOptions = AnsweringOptions()
    kb: KbSection = KbSection()
    discovery: DiscoveryOptions = DiscoveryOptions()
    extraction: ExtractionOptions = ExtractionOptions()
    facts: FactOptions = FactOptions()
    embeddings: EmbeddingOptions = EmbeddingOptions()
    search: SearchOptions = SearchOptions()
    recorder: RecorderOptions = RecorderOptions()
    prompts: PromptsSection = PromptsSection()
    log: LogSection = LogSection()
    page: PageOptions = PageOptions()
    hosting: HostingOptions = HostingOptions()

    @property
    def community(self) -> str:
        """The community of these settings, as the database names it."""
        return DEFAULT_COMMUNITY

    @property
    def home(self) -> Path:
        """The data folder of the process, with its database and its lock."""
        return self.data.dir

    @property
    def moves(self) -> bool:
        """Whether a community may move to another process, so that all that must last is in the database."""
        return self.hosting.enabled and bool(self.data.url)

    @property
    def paths(self) -> Paths:
        """Every file and folder on disk."""
        return Paths(self.data.dir, self.kb)

    @property
    def conversations(self) -> ConversationOptions:
        """The options of reading conversations: a part of `[discord]`."""
        return self.discord

    @property
    def learning(self) -> LearningOptions:
        """The options of `learning`."""
        kb = self.kb
        return LearningOptions(review=kb.review, max_removals=kb.max_removals, max_topic_chars=kb.max_topic_chars)

    @property
    def indexing(self) -> IndexingOptions:
        """The options of indexing."""
        return IndexingOptions(concurrency=self.kb.concurrency)

    @property
    def web(self) -> WebOptions:
        """The options of fetching pages."""
        most, command = self.kb.max_source_bytes, self.kb.render_command
        return WebOptions(max_bytes=most, concurrency=self.kb.download_concurrency, render_command=command)

    @property
    def kb_model(self) -> LlmOptions:
        """The model for capture and indexing."""
        return self.llm_kb or self.llm

    @property
    def warnings(self) -> tuple[str, ...]:
        """Settings without the effect that they seem to have, such as prices that name no model in use."""
        found: dict[str, str] = {}
        for key, options in _models_in_use(self).items():
            if options.prices and options.has_unknown_price:
                found.setdefault(options.model, key)
        steps, free = self.ai.steps, "its calls are counted as free"
        return (
            *(f"[[llm.prices]] does not name the model of [{table}]: {free}" for table in found.values()),
            *(f'ai.{name} has no effect with ai.steps = "{steps}"' for name in self.ai.without_effect),
        )

    @property
    def priced(self) -> bool:
        """Whether the models that write have a price."""
        prices = self.llm.prices or self.kb_model.prices
        return bool(prices) and not (self.llm.has_unknown_price or self.kb_model.has_unknown_price)

    @property
    def secrets(self) -> tuple[str, ...]:
        """Tokens and keys that no log may show, also those in addresses."""
        models = (self.llm, self.kb_model, self.embeddings)
        known = [self.discord.token, self.page.token, self.search.api_key, *(each.api_key for each in models)]
        known += [*self.llm.headers.values(), *self.kb_model.headers.values()]
        urls = (self.discord.rest_url, self.data.url.reveal(), self.search.url, *(each.base_url for each in models))
        held = [part for url in urls for part in address_secrets(url)]
        return tuple(dict.fromkeys([*(secret.reveal() for secret in known if secret), *held]))

    def require_for_run(self) -> None:
        """Raise ConfigError unless `intern run` has all settings without a default."""
        if not self.discord.token:
            raise ConfigError(NO_ACCOUNT)
        if not self.discord.guild_ids and not self.hosting.enabled:
            raise ConfigError(NO_SERVERS)
        self.discord.require_shards()
        self.require_model()

    def require_model(self) -> None:
        """Raise ConfigError unless an endpoint or the offline model is chosen."""
        for key, options in (("llm", self.llm), ("llm.kb", self.kb_model)):
            if options.provider == "offline":
                continue
            if not options.base_url:
                raise ConfigError(
                    f"{key}.base_url is not set: name an OpenAI-compatible endpoint, "
                    f'or choose {key}.provider = "offline" to work without a model'
                )
            if not options.model:
                raise ConfigError(f"{key}.model is not set: name the model that the endpoint should use")


class Paths:
    """Every file and folder: below `data.dir`, unless a `[kb]` path names another."""

    def __init__(self, data: Path, kb: KbSection | None = None) -> None:
        kb = kb or KbSection()
        team, base = data / "team-knowledge", data / "knowledge-base"

        def path(chosen: str, default: Path) -> Path:
            return Path(chosen) if chosen else default

        self.data = data
        self.database = data / "intern.db"
        self.search = data / "search.db"
        self.sources = path(kb.sources_dir, base / "sources")
        self.links = path(kb.links_path, base / "links.txt")
        self.web_cache = path(kb.web_cache_dir, base / "web-cache")
        self.index = path(kb.index_path, base / "index.txt")
        self.index_cache = path(kb.index_cache_path, base / "index-cache.json")
        self.raw = path(kb.team_raw_dir, team / "raw")
        self.topics = path(kb.team_topics_dir, team / "topics")
        self.decisions = team / "decisions.jsonl"
        self.state = team / "state.json"
        self.team_index = path(kb.team_index_path, team / "index-team.txt")
        self.team_index_cache = path(kb.team_index_cache_path, team / "index-team-cache.json")

    def is_made(self) -> bool:
        """Return whether intern made the data folder, or it holds knowledge. Raises KnowledgeError."""
        try:
            names = {each.name for each in self.data.iterdir()}
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError as error:
            raise KnowledgeError(f"{self.data} cannot be read ({error.strerror}); check its permissions") from error
        return not names.isdisjoint({self.database.name, "team-knowledge", "knowledge-base", ".lock"})


def load_settings(
    config: Path | None = None, *, environ: Mapping[str, str] | None = None, overrides: Mapping[str, Any] | None = None
) -> Settings:
    """Read settings from `config`, else `INTERN_CONFIG`, else ./intern.toml if it is there, else defaults.

    `overrides` has the shape of the file and wins over everything (command-line options). Raises ConfigError that
    names the key, the place and the expected value, never the value that was set.
    """
    raw = read_raw_settings(config, environ, settings_schema())
    merge_tables(raw.values, overrides or {})
    return _decode(raw)


@cache
def settings_schema() -> SettingsSchema:
    """Return all tables and keys."""
    tables = collect_field_types(Settings)
    del tables["llm_kb"]
    # [llm.kb] is the one table inside a table.
    tables["llm"] = {**tables["llm"], "kb": dict(tables["llm"])}
    return SettingsSchema(tables)


def _decode(raw: RawSettings) -> Settings:
    def make_error(key: str, what: str) -> ConfigError:
        return ConfigError(f"{raw.find_origin(key)}: {key or 'the file'}: {what}")

    values = raw.values
    for key, value in _iterate_values(values):
        if problem := _value_problem(value):
            raise make_error(key, problem)
    llm = dict(values.get("llm", {}))
    if "kb" in llm:
        over = llm.pop("kb")
        values = {**values, "llm": llm, "llm_kb": {**llm, **over}}
    try:
        settings = msgspec.convert(convert_ids_to_text(values), Settings, dec_hook=_decode_special)
    except msgspec.ValidationError as error:
        # From None, here and elsewhere: a chained error may repeat the value.
        raise make_error(*explain_error(error, settings_schema())) from None
    addresses = {
        "llm.base_url": settings.llm.base_url,
        "llm.kb.base_url": settings.kb_model.base_url,
        "embeddings.base_url": settings.embeddings.base_url,
        "search.url": settings.search.url,
    }
    for key, address in addresses.items():
        if _USER.search(address):
            raise make_error(key, "must hold no user and no password; a key belongs into api_key")
    if not _is_id(settings.kb.qa_raw_last_processed_id):
        what = "is no id of the archive; expected one like qa_20260201_031056.228000"
        raise make_error("kb.qa_raw_last_processed_id", what)
    for key, problem in find_problems(settings):
        raise make_error(key, problem)
    # An [llm.kb] that changes nothing is the same model, and shares its limits.
    return msgspec.structs.replace(settings, llm_kb=None) if settings.llm_kb == settings.llm else settings


_LOCAL_MODELS = {"", "english", "multilingual"}


def _models_in_use(settings: Settings) -> dict[str, LlmOptions]:
    """Return every model in use, by its table."""
    models = {"llm": settings.llm, "llm.kb": settings.kb_model}
    if settings.embeddings.provider == "endpoint":
        models["embeddings"] = settings.embeddings.merge_with_llm(settings.llm)
    return models


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
    models = _models_in_use(settings)
    for key, options in models.items():
        if options.is_budget_unpriced:
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


def _iterate_values(raw: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every value with its key; of a list, each item."""
    if is_table(raw):
        for name, below in raw.items():
            yield from _iterate_values(below, f"{key}.{name}" if key else name)
    elif is_list(raw):
        for item in raw:
            yield from _iterate_values(item, key)
    else:
        yield key, raw


def _value_problem(value: Any) -> str:
    """Return why no setting may have this value; empty if one may."""
    if isinstance(value, float) and not math.isfinite(value):
        return "expected a finite number"
    if isinstance(value, str) and ("\0" in value or not _is_unicode(value)):
        return "expected UTF-8 text without null characters"
    return ""


def _is_unicode(text: str) -> bool:
    """Return whether a text has no lone surrogates, as variables that are not UTF-8 have."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def convert_ids_to_text(raw: Any) -> Any:
    """Turn ids that were written as numbers into strings."""
    if is_list(raw):
        return [convert_ids_to_text(item) for item in raw]
    if not is_table(raw):
        return raw
    return {key: _convert_id(key, value) for key, value in raw.items()}


def _convert_id(key: str, value: Any) -> Any:
    if key.endswith("_ids") and is_list(value):
        return [str(each) if type(each) is int else each for each in value]
    if key == "id" or key.endswith("_role_id"):
        return str(value) if type(value) is int else value
    return convert_ids_to_text(value)


def _decode_special(kind: type, value: Any) -> Any:
    if not isinstance(value, str):
        raise TypeError(f"Expected `str`, got `{type(value).__name__}`")
    if kind is Secret:
        # A variable that was filled from a file often ends with a line break.
        if not _VISIBLE.fullmatch(value.strip()):
            raise ValueError("expected visible ASCII characters only, as tokens and keys have")
        return Secret(value.strip())
    if not value:
        raise ValueError("expected the path of a folder, got an empty string")
    return Path(value)


_PORTS = {"qdrant": 6333, "chroma": 8000}
_USER = regex(r"//[^/?#]*@")
_VISIBLE = regex(r"[!-~]*")


def _is_id(qa_id: str) -> bool:
    """Return whether an id is empty or one of the archive."""
    try:
        return not qa_id or bool(qa_id_time(QAId(qa_id)))
    except ValueError:
        return False
