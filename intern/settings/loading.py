"""intern.toml and the environment, decoded once into frozen `Settings`.

Only the command line and the app see them; each room takes its own option struct.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from intern.core.errors import ConfigError
from intern.core.ids import QAId
from intern.core.text.secret_values import Secret
from intern.settings.raw_settings import RawSettings, merge_tables, read_raw_settings
from intern.settings.schema import SettingsSchema, collect_field_types, explain_error, is_list, is_table
from intern.settings.settings import Settings
from intern.settings.validation import find_problems
from intern.stores.qa_ids import qa_id_time


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


_USER = re.compile(r"//[^/?#]*@")
_VISIBLE = re.compile(r"[!-~]*")


def _is_id(qa_id: str) -> bool:
    """Return whether an id is empty or one of the archive."""
    try:
        return not qa_id or bool(qa_id_time(QAId(qa_id)))
    except ValueError:
        return False
