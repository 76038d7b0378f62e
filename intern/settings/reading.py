"""intern.toml, `.env` and the environment as one raw table, with the place where each key was set.

Later sources win: the file, `.env` beside the working folder, the environment. A variable `INTERN__DISCORD__TOKEN`
sets `discord.token`. Keys that no setting has are refused here; values are judged when they are decoded.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Collection, Iterator, Mapping
from functools import partial
from io import StringIO
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeGuard, get_args, get_origin, get_type_hints

import msgspec
import tomli
from dotenv import dotenv_values
from dotenv.parser import Binding, parse_stream
from msgspec import Struct

from intern.core.errors import ConfigError
from intern.core.text.masking import Secret
from intern.core.text.patterns import regex

CONFIG_FILE = "intern.toml"
_DOTENV = ".env"
PREFIX = "INTERN__"


_Table = Mapping[str, Any]

_CALLED_HERE = {
    "kb.llm": "llm.kb",
    "discovery.scan_interval_seconds": "discovery.interval_seconds",
    "extraction.minturnsforextraction": "extraction.min_turns",
    "extraction.maxextractionsperminute": "extraction.max_per_minute",
    "extraction.includeexistingfactscount": "extraction.existing_facts",
    "extraction.autoextract": "extraction.auto",
    "extraction.extractionmodel": "llm.kb.model",
}
"""The specifications' names of settings, in lower case as variables of the environment are."""


class RawSettings(NamedTuple):
    """All keys that were set."""

    values: dict[str, Any]
    origin: Mapping[str, str]
    """The place where each key was set."""
    place: str
    """The place to name for keys that were not set."""

    def find_origin(self, key: str) -> str:
        """Return where a key, or the list that contains it, was set; else `place`."""
        while key and key not in self.origin:
            key = key.rpartition(".")[0]
        return self.origin.get(key, self.place)


def read_raw_settings(config: Path | None, environ: Mapping[str, str] | None, shape: SettingsSchema) -> RawSettings:
    """Read the file and the environment. Raises ConfigError, which names key and place but never a value."""
    environment = _read_environment(environ)
    path = _config_path(config, environment.values)
    raw = _read_toml(path) if path else {}
    place = str(path) if path else "the defaults"
    shape.refuse_unknown(raw, place)
    origin = dict.fromkeys(_iterate_keys(raw), place)
    for name, value in environment.values.items():
        if name.startswith(PREFIX):
            there = environment.describe_origin(name)
            origin[apply_variable(raw, name, value, there, shape)] = there
    return RawSettings(raw, origin, place)


class SettingsSchema:
    """All tables and keys."""

    def __init__(self, tables: Mapping[str, Any]) -> None:
        """Create a schema from the type of each key, or a table of its own."""
        self._tables = tables

    def find_type(self, steps: list[str]) -> Any:
        """Return the type of a key, or its table; None if there is no such key."""
        hint: Any = self._tables
        for step in steps:
            hint = hint.get(step) if is_table(hint) else None
        return hint

    def list_choices(self, key: str) -> tuple[str, ...]:
        """Return the words that a key allows; the key may be in a list's tables."""
        *above, last = key.split(".")
        hint = self.find_type([*above, last])
        return get_args(_list_item_types(self.find_type(above)).get(last) if hint is None else hint)

    def refuse_unknown(self, raw: _Table, place: str, known: _Table | None = None, above: str = "") -> None:
        """Raise ConfigError for the first key that no setting has."""
        known = self._tables if known is None else known
        for key, value in raw.items():
            if key not in known:
                raise ConfigError(f"{place}: {self.explain_unknown(above + key)}")
            below = known[key]
            if is_table(below):
                if not is_table(value):
                    raise ConfigError(f"{place}: {above}{key} must be a table: write [{above}{key}]")
                self.refuse_unknown(value, place, below, f"{above}{key}.")
            elif (inside := _list_item_types(below)) and is_list(value):
                for item in filter(is_table, value):
                    self.refuse_unknown(item, place, inside, f"{above}{key}.")

    def explain_unknown(self, key: str) -> str:
        """Return an error text for an unknown key, with the most similar one."""
        if ours := _CALLED_HERE.get(key.lower()):
            return f"there is no setting {key}; here it is {ours}"
        if re.fullmatch(r"(kb|ai)\.[a-z_]+_prompt", key):
            return (
                f"there is no setting {key}; prompts are templates here: `intern prompts` lists them, "
                "and prompts.dir names the folder of yours"
            )
        names = list(_iterate_names(self._tables))
        # The right word in the wrong table is the likeliest mistake.
        elsewhere = [name for name in names if name.rpartition(".")[2] == key.rpartition(".")[2]]
        if "." not in key:
            del elsewhere[1:]  # of several tables the first: the further down, the rarer
        near_to = partial(difflib.get_close_matches, key, n=1)
        near = near_to(elsewhere, cutoff=0) or near_to(names, cutoff=0.7)
        shown = key if key.isprintable() else ascii(key)
        if near:
            return f"there is no setting {shown}; did you mean {near[0]}?"
        above = key.rpartition(".")[0]
        beside = [name for name in names if name.rpartition(".")[0] == above]
        return f"there is no setting {shown}; there are {', '.join(beside or self._tables)}"


_ERROR = regex(r"(?P<what>.*?)( - at `\$\.?(?P<where>.*)`)?", re.DOTALL)
_TYPE = regex(r"[Ee]xpected `(?P<wanted>\w+)`(?:, got `(?P<got>\w+)`| (?P<bound>>=|<=|>|<) (?P<number>\S+))?")
_PLAIN = {"str": "a string", "int": "a whole number", "float": "a number", "bool": "true or false"}
_TYPES = {**_PLAIN, "array": 'a list like ["1", "2"]', "object": "a table"}
_TIMES = dict.fromkeys(("datetime", "date", "time"), "a date or time")
_GOT = {**_TYPES, "array": "a list", "list": "a list", "dict": "a table", **_TIMES}
_BOUNDS = {">=": "of at least", "<=": "of at most", ">": "greater than", "<": "less than"}


def explain_error(error: msgspec.ValidationError, shape: SettingsSchema) -> tuple[str, str]:
    """Return the key and the expected value, in TOML's words and without the value that was set."""
    parts = _ERROR.fullmatch(str(error))
    assert parts is not None, "anything matches"
    what = parts["what"]
    key = re.sub(r"\[\d+\]", "", parts["where"] or "").replace("llm_kb", "llm.kb")
    first, _, rest = what.partition(" ")
    if shape.find_type([*key.split("."), first]) is not None:  # a struct's own check begins with the name of the field
        return f"{key}.{first}", rest
    if what.startswith("Invalid enum value"):  # it goes on with the value
        return key, "expected one of " + ", ".join(f'"{choice}"' for choice in shape.list_choices(key))
    found = _TYPE.fullmatch(what)
    if found is None:
        return key, what[:1].lower() + what[1:]
    expected = f"expected {_TYPES.get(found['wanted'], found['wanted'])}"
    if found["bound"]:
        number = found["number"].removesuffix(".0")
        return key, f"{expected} {_BOUNDS[found['bound']]} {number}"
    return key, expected + (f", got {_GOT.get(found['got'], found['got'])}" if found["got"] else "")


def collect_field_types(kind: type[Struct]) -> dict[str, Any]:
    """Return for each field its type, or a table of its own."""
    hints = get_type_hints(kind)
    # Its own before those that it inherits: the first one is named as an example.
    fields = {name: hints[name] for name in (*kind.__annotations__, *kind.__struct_fields__)}
    return {name: collect_field_types(hint) if _is_struct(hint) else hint for name, hint in fields.items()}


def is_table(value: Any) -> TypeGuard[dict[str, Any]]:
    """Return whether a value is a table. TOML has only strings as keys."""
    return isinstance(value, dict)


def is_list(value: Any) -> TypeGuard[list[Any]]:
    """Return whether a value is a list."""
    return isinstance(value, list)


def merge_tables(raw: dict[str, Any], over: Mapping[str, Any]) -> None:
    """Lay one tree of tables over another."""
    for key, value in over.items():
        if is_table(value):
            merge_tables(raw.setdefault(key, {}), value)
        else:
            raw[key] = value


class _Environment(NamedTuple):
    values: Mapping[str, str]
    from_file: Collection[str]
    """Names that only `.env` sets."""

    def describe_origin(self, name: str) -> str:
        return f"{name} in {_DOTENV}" if name in self.from_file else f"the environment variable {name}"


def _read_environment(environ: Mapping[str, str] | None) -> _Environment:
    if environ is not None:
        return _Environment(environ, ())
    text = _read_dotenv()
    for binding in parse_stream(StringIO(text)):
        _refuse_broken(binding)
    in_file = {name: value for name, value in dotenv_values(stream=StringIO(text)).items() if value is not None}
    return _Environment({**in_file, **os.environ}, in_file.keys() - os.environ.keys())


def _read_dotenv() -> str:
    """Return the text of `.env`, a file or a pipe; empty if it is missing or anything else."""
    path = Path(_DOTENV)
    try:
        return path.read_text(encoding="utf-8") if path.is_file() or path.is_fifo() else ""
    except OSError as error:
        raise ConfigError(f"{_DOTENV}: cannot be read ({error.strerror})") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{_DOTENV}: is not UTF-8 text; save it as UTF-8") from None


def _refuse_broken(binding: Binding) -> None:
    """Raise ConfigError for a line that should set a variable but does not.

    It names the line, never its text: that may be a secret.
    """
    text = binding.original.string
    # The blank lines before it belong to it, too.
    line = binding.original.line + text[: len(text) - len(text.lstrip())].count("\n")
    if binding.error:
        raise ConfigError(
            f"{_DOTENV}: line {line}: expected NAME=value, a comment (#) or nothing; close each quote that is opened"
        )
    # A bare name means the value in the environment, as in Docker's env files.
    if binding.key and binding.key.startswith(PREFIX) and binding.value is None and binding.key not in os.environ:
        raise ConfigError(f"{_DOTENV}: line {line}: has no `=` after the name; write NAME=value")


def _config_path(config: Path | None, environment: Mapping[str, str]) -> Path | None:
    if config is not None:
        return config
    if named := environment.get("INTERN_CONFIG"):
        return Path(named)
    # Also for a folder of that name or a broken link: an error is better than ignoring it.
    return Path(CONFIG_FILE) if os.path.lexists(CONFIG_FILE) else None


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        return tomli.loads(path.read_text(encoding="utf-8-sig"))  # some editors begin a file with a mark
    except FileNotFoundError:
        raise ConfigError(f"{path}: there is no such file; `intern init` writes one") from None
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror})") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: is not UTF-8 text; save it as UTF-8") from None
    except tomli.TOMLDecodeError as error:
        # tomli's message names line and column, never the text there.
        raise ConfigError(f"{path}: is not valid TOML: {error}") from None


def _list_item_types(hint: Any) -> Mapping[str, Any]:
    """Return the fields of the tables in a list of tables; empty for any other type."""
    kind, *_ = get_args(hint) or (None,)
    return collect_field_types(kind) if get_origin(hint) is tuple and _is_struct(kind) else {}


def _is_struct(kind: Any) -> TypeGuard[type[Struct]]:
    return isinstance(kind, type) and issubclass(kind, Struct)


def _iterate_keys(raw: Mapping[str, Any], above: str = "") -> Iterator[str]:
    for key, value in raw.items():
        if is_table(value):
            yield from _iterate_keys(value, f"{above}{key}.")
        else:
            yield above + key


def _iterate_names(shape: Mapping[str, Any], above: str = "") -> Iterator[str]:
    """Yield every table and key."""
    for name, below in shape.items():
        yield above + name
        inside = below if is_table(below) else _list_item_types(below)
        yield from _iterate_names(inside, f"{above}{name}.")


def apply_variable(raw: dict[str, Any], name: str, value: str, place: str, shape: SettingsSchema) -> str:
    """Set the key that a variable names; return the key."""
    steps = name.removeprefix(PREFIX).lower().split("__")
    key, hint = ".".join(steps), shape.find_type(steps)
    if hint is None:
        raise ConfigError(f"{place}: {shape.explain_unknown(key)}")
    if is_table(hint):
        raise ConfigError(f"{place}: {key} is a table; name one key of it, as in {name}__{next(iter(hint)).upper()}")
    table = raw
    for step in steps[:-1]:
        table = table.setdefault(step, {})
    table[steps[-1]] = value if _is_text(hint) else _parse_toml_value(key, value, place)
    return key


def _is_text(hint: Any) -> bool:
    # An id is a string under a name of its own.
    return getattr(hint, "__supertype__", hint) in {str, Secret, Path} or get_origin(hint) is Literal


def _parse_toml_value(key: str, value: str, place: str) -> Any:
    try:
        parsed = tomli.loads(f"value = {value}")
    except tomli.TOMLDecodeError:
        parsed = {}
    if parsed.keys() != {"value"}:
        raise ConfigError(
            f"{place}: {key} is no string, so write it as in intern.toml: "
            'a number, true or false, a list like ["1", "2"], or a table like { ids = [0], of = 2 }'
        )
    return parsed["value"]
