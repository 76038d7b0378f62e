"""intern.toml and the environment, decoded once into frozen `Settings`.

Only the command line and the app see them; each room takes its own option struct. Later sources win: defaults, the
file, `.env` beside the working folder, the environment. A variable `INTERN__DISCORD__TOKEN` sets `discord.token`.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, TypeGuard, get_origin, get_type_hints

import msgspec
import tomli
from dotenv import dotenv_values
from msgspec import Struct

from intern.answering.options import AnsweringOptions
from intern.conversations.options import ConversationOptions
from intern.discord.options import DiscordOptions
from intern.domain import QAId, Secret
from intern.errors import ConfigError
from intern.indexing.options import IndexingOptions
from intern.knowledge.blocks import time_of
from intern.learning.options import LearningOptions
from intern.llm.options import LlmOptions
from intern.observe.log import LogFormat, LogLevel

CONFIG_FILE = "intern.toml"
_PREFIX = "INTERN__"


class DataSection(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[data]`: the one folder that a running intern writes to."""

    dir: Path = Path("data")


class DiscordSection(DiscordOptions, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[discord]`: the connection, and how conversations are read."""

    max_history_messages: int = 50
    max_history_chars: int = 12_000


class KbSection(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[kb]`: where knowledge lies, and how it is filed and indexed. Empty paths stand below `data.dir`."""

    sources_dir: str = ""
    index_path: str = ""
    index_cache_path: str = ""
    team_raw_dir: str = ""
    team_topics_dir: str = ""
    team_index_path: str = ""
    team_index_cache_path: str = ""
    qa_raw_last_processed_id: str = ""
    mask_secrets: bool = True
    max_removals: int = 3
    max_source_bytes: int = 1_000_000
    concurrency: int = 4
    settle_seconds: float = 2.0
    scan_interval_seconds: float = 600.0


class PromptsSection(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[prompts]`: templates of the operator's own; a file of the same name wins over the one that intern brings."""

    dir: str = ""


class LogSection(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[log]`: what is written to stderr."""

    format: LogFormat = "auto"
    level: LogLevel = "info"


class Settings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All that an operator can set."""

    data: DataSection = DataSection()
    discord: DiscordSection = DiscordSection()
    llm: LlmOptions = LlmOptions()
    llm_kb: LlmOptions | None = None
    """`[llm]` with `[llm.kb]` laid over it: the model for capture and indexing; None where it is the same."""
    ai: AnsweringOptions = AnsweringOptions()
    kb: KbSection = KbSection()
    prompts: PromptsSection = PromptsSection()
    log: LogSection = LogSection()

    @property
    def paths(self) -> Paths:
        """Where everything lies on disk."""
        return Paths(self.data.dir, self.kb)

    @property
    def conversations(self) -> ConversationOptions:
        """What the conversations room takes."""
        return ConversationOptions(
            message_batch_wait_seconds=self.discord.message_batch_wait_seconds,
            max_history_messages=self.discord.max_history_messages,
            max_history_chars=self.discord.max_history_chars,
        )

    @property
    def learning(self) -> LearningOptions:
        """What the learning room takes."""
        return LearningOptions(max_removals=self.kb.max_removals)

    @property
    def indexing(self) -> IndexingOptions:
        """What the indexing room takes."""
        return IndexingOptions(concurrency=self.kb.concurrency)

    @property
    def kb_model(self) -> LlmOptions:
        """The model for capture and indexing."""
        return self.llm_kb or self.llm

    @property
    def secrets(self) -> tuple[str, ...]:
        """Whatever no log may show."""
        known = (self.discord.token, self.llm.api_key, self.kb_model.api_key)
        return tuple({secret.reveal() for secret in known if secret})

    def require_for_run(self) -> None:
        """Raise ConfigError unless `intern run` has all that it cannot guess."""
        if not self.discord.token:
            raise ConfigError(
                "discord.token is not set: put the bot's token in INTERN__DISCORD__TOKEN or in intern.toml"
            )
        if not self.discord.guild_ids:
            raise ConfigError('discord.guild_ids is not set: list the ids of your servers, as in guild_ids = ["123…"]')
        self.require_model()

    def require_model(self) -> None:
        """Raise ConfigError where neither an endpoint nor the offline model was chosen."""
        for key, options in (("llm", self.llm), ("llm.kb", self.kb_model)):
            if options.provider == "offline":
                continue
            if not options.base_url:
                raise ConfigError(
                    f"{key}.base_url is not set: name an OpenAI-compatible endpoint, "
                    f'or choose {key}.provider = "offline" to work without a model'
                )
            if not options.model:
                raise ConfigError(f"{key}.model is not set: name the model that {options.base_url} should use")


class Paths:
    """Every file and folder, from `data.dir` and the `[kb]` paths that override it."""

    def __init__(self, data: Path, kb: KbSection) -> None:
        team, base = data / "team-knowledge", data / "knowledge-base"

        def path(chosen: str, default: Path) -> Path:
            return Path(chosen) if chosen else default

        self.data = data
        self.database = data / "intern.db"
        self.sources = path(kb.sources_dir, base / "sources")
        self.index = path(kb.index_path, base / "index.txt")
        self.index_cache = path(kb.index_cache_path, base / "index-cache.json")
        self.raw = path(kb.team_raw_dir, team / "raw")
        self.topics = path(kb.team_topics_dir, team / "topics")
        self.decisions = team / "decisions.jsonl"
        self.state = team / "state.json"
        self.team_index = path(kb.team_index_path, team / "index-team.txt")
        self.team_index_cache = path(kb.team_index_cache_path, team / "index-team-cache.json")


def load_settings(
    config: Path | None = None, *, environ: Mapping[str, str] | None = None, overrides: Mapping[str, Any] | None = None
) -> Settings:
    """Settings from `config`, else `INTERN_CONFIG`, else ./intern.toml if it is there, else defaults.

    `overrides` has the shape of the file and wins over everything (command-line options). Raises ConfigError that
    names the key, the place and what was expected, never a value.
    """
    environment = _environment(environ)
    path = _config_path(config, environment)
    raw = _read(path) if path else {}
    place = str(path) if path else "the defaults"
    _refuse_unknown(raw, place)
    origin = dict.fromkeys(_keys(raw), place)
    for name, value in environment.items():
        if name.startswith(_PREFIX):
            origin[_lay_variable(raw, name, value)] = f"the environment variable {name}"
    _merge(raw, overrides or {})
    return _decode(raw, origin, place)


def _environment(environ: Mapping[str, str] | None) -> dict[str, str]:
    if environ is not None:
        return dict(environ)
    in_file = {name: value for name, value in dotenv_values(".env").items() if value is not None}
    return {**in_file, **os.environ}


def _config_path(config: Path | None, environment: Mapping[str, str]) -> Path | None:
    if config is not None:
        return config
    if named := environment.get("INTERN_CONFIG"):
        return Path(named)
    here = Path(CONFIG_FILE)
    return here if here.is_file() else None


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomli.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"{path}: there is no such file; `intern init` writes one") from None
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror})") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: is not UTF-8 text; save it as UTF-8") from None
    except tomli.TOMLDecodeError as error:
        # tomli's message names line and column, never the text that stands there.
        raise ConfigError(f"{path}: is not valid TOML: {error}") from None


def _is_table(value: Any) -> TypeGuard[dict[str, Any]]:
    """TOML has no other keys than strings."""
    return isinstance(value, dict)


def _is_list(value: Any) -> TypeGuard[list[Any]]:
    return isinstance(value, list)


# What may stand at each level: [llm.kb] is the one table inside a table.
def _shape(kind: type[Struct]) -> dict[str, Any]:
    hints = get_type_hints(kind)
    shape: dict[str, Any] = {}
    for name in kind.__struct_fields__:
        hint = hints[name]
        shape[name] = _shape(hint) if isinstance(hint, type) and issubclass(hint, Struct) else hint
    return shape


def _known() -> dict[str, Any]:
    shape = _shape(Settings)
    del shape["llm_kb"]
    shape["llm"] = {**shape["llm"], "kb": dict(shape["llm"])}
    return shape


def _refuse_unknown(
    raw: Mapping[str, Any], place: str, shape: Mapping[str, Any] | None = None, above: str = ""
) -> None:
    known = _known() if shape is None else shape
    for key, value in raw.items():
        if key not in known:
            raise ConfigError(f"{place}: {_unknown(above + key, [above + name for name in known])}")
        below = known[key]
        if _is_table(below):
            if not _is_table(value):
                raise ConfigError(f"{place}: {above}{key} must be a table: write [{above}{key}]")
            _refuse_unknown(value, place, below, f"{above}{key}.")


def _unknown(key: str, known: list[str]) -> str:
    near = difflib.get_close_matches(key, known, n=1, cutoff=0.5)
    return f"there is no setting {key}" + (f"; did you mean {near[0]}?" if near else f"; there are {', '.join(known)}")


def _keys(raw: Mapping[str, Any], above: str = "") -> Iterator[str]:
    for key, value in raw.items():
        if _is_table(value):
            yield from _keys(value, f"{above}{key}.")
        else:
            yield above + key


def _lay_variable(raw: dict[str, Any], name: str, value: str) -> str:
    """Put a variable's value where its name points; return the key."""
    steps = name.removeprefix(_PREFIX).lower().split("__")
    key, shape = ".".join(steps), _known()
    table = raw
    for step in steps[:-1]:
        below = shape.get(step)
        if not _is_table(below):
            raise ConfigError(f"the environment variable {name}: {_unknown(key, list(_leaves(_known())))}")
        shape, table = below, table.setdefault(step, {})
    if steps[-1] not in shape or _is_table(shape[steps[-1]]):
        raise ConfigError(f"the environment variable {name}: {_unknown(key, list(_leaves(_known())))}")
    table[steps[-1]] = value if _is_text(shape[steps[-1]]) else _toml_value(name, key, value)
    return key


def _leaves(shape: Mapping[str, Any], above: str = "") -> Iterator[str]:
    for name, below in shape.items():
        if _is_table(below):
            yield from _leaves(below, f"{above}{name}.")
        else:
            yield above + name


def _is_text(hint: Any) -> bool:
    return hint in {str, Secret, Path} or get_origin(hint) is Literal


def _toml_value(name: str, key: str, value: str) -> Any:
    try:
        return tomli.loads(f"value = {value}")["value"]
    except tomli.TOMLDecodeError:
        raise ConfigError(
            f"the environment variable {name}: {key} is no string, so write it as in intern.toml: "
            'a number, true or false, or a list like ["1", "2"]'
        ) from None


def _merge(raw: dict[str, Any], over: Mapping[str, Any]) -> None:
    for key, value in over.items():
        if _is_table(value):
            _merge(raw.setdefault(key, {}), value)
        else:
            raw[key] = value


def _decode(raw: dict[str, Any], origin: Mapping[str, str], place: str) -> Settings:
    llm = dict(raw.get("llm", {}))
    if "kb" in llm:
        over = llm.pop("kb")
        raw = {**raw, "llm": llm, "llm_kb": {**llm, **over}}
    try:
        settings = msgspec.convert(_with_ids_as_text(raw), Settings, dec_hook=_decode_special)
    except msgspec.ValidationError as error:
        what, _, where = str(error).partition(" - at `$.")
        key = where.rstrip("`").replace("llm_kb", "llm.kb").replace("[...]", "")
        raise ConfigError(f"{origin.get(key, place)}: {key or 'the file'}: {_plain(what)}") from None
    _check_cursor(settings.kb.qa_raw_last_processed_id, origin.get("kb.qa_raw_last_processed_id", place))
    return settings


def _with_ids_as_text(raw: Any) -> Any:
    """Ids are strings to us; people write them as numbers too."""
    if not _is_table(raw):
        return raw
    return {key: _texts(value) if key.endswith("_ids") else _with_ids_as_text(value) for key, value in raw.items()}


def _texts(items: Any) -> Any:
    return [str(item) if type(item) is int else item for item in items] if _is_list(items) else items


def _decode_special(kind: type, value: Any) -> Any:
    if kind is Secret and isinstance(value, str):
        return Secret(value)
    if kind is Path and isinstance(value, str):
        return Path(value)
    raise TypeError(f"Expected `str`, got `{type(value).__name__}`")


def _plain(what: str) -> str:
    """Msgspec's sentence in the words of TOML."""
    for python, toml in (
        ("`str`", "a string"),
        ("`int`", "a whole number"),
        ("`float`", "a number"),
        ("`bool`", "true or false"),
        ("`array`", "a list"),
        ("`object`", "a table"),
    ):
        what = what.replace(python, toml)
    return what[:1].lower() + what[1:]


def _check_cursor(qa_id: str, place: str) -> None:
    if not qa_id:
        return
    try:
        time_of(QAId(qa_id))
    except ValueError:
        raise ConfigError(
            f"{place}: kb.qa_raw_last_processed_id is no id of the archive; expected one like qa_20260201_031056.228000"
        ) from None
