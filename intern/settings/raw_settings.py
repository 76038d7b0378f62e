"""intern.toml, `.env` and the environment as one raw table, with the place where each key was set.

Later sources win: the file, `.env` beside the working folder, the environment. A variable `INTERN__DISCORD__TOKEN`
sets `discord.token`. Keys that no setting has are refused here; values are judged when they are decoded.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping
from io import StringIO
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_origin

import tomli
from dotenv import dotenv_values
from dotenv.parser import Binding, parse_stream

from intern.core.errors import ConfigError
from intern.core.text.secret_values import Secret
from intern.settings.schema import SettingsSchema, is_table

CONFIG_FILE = "intern.toml"
_DOTENV = ".env"
PREFIX = "INTERN__"


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


def _iterate_keys(raw: Mapping[str, Any], above: str = "") -> Iterator[str]:
    for key, value in raw.items():
        if is_table(value):
            yield from _iterate_keys(value, f"{above}{key}.")
        else:
            yield above + key


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
