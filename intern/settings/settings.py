"""The settings: sections, defaults and bounds, and the paths that follow from them."""

from __future__ import annotations

from ipaddress import ip_address
from pathlib import Path
from typing import Annotated

from msgspec import Meta, Struct

from intern.answering.prompts import AnsweringOptions
from intern.chat.options import ConversationOptions
from intern.core.errors import ConfigError, KnowledgeError
from intern.core.log import LogFormat, LogLevel
from intern.core.text.masking import mask_secrets
from intern.core.text.secret_values import Secret, address_secrets
from intern.facts.segments import ExtractionOptions
from intern.facts.visibility import FactOptions
from intern.learning.prompts import LearningOptions
from intern.models.options import EmbeddingOptions, LlmOptions
from intern.platforms.discord.options import NO_ACCOUNT, NO_SERVERS, DiscordOptions, HostingOptions
from intern.sources.options import DiscoveryOptions, IndexingOptions, WebOptions
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
    def problem(self) -> str:
        """The problem with the token; empty if there is none."""
        if not self.enabled:
            return ""
        if not is_loopback(self.host) and not self.token:
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
        for key, options in list_models_in_use(self).items():
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


def list_models_in_use(settings: Settings) -> dict[str, LlmOptions]:
    """Return every model in use, by its table."""
    models = {"llm": settings.llm, "llm.kb": settings.kb_model}
    if settings.embeddings.provider == "endpoint":
        models["embeddings"] = settings.embeddings.merge_with_llm(settings.llm)
    return models
