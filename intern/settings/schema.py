"""The names and types of settings, and errors that name them."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, TypeGuard, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Struct

from intern.core.errors import ConfigError

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


_ERROR = re.compile(r"(?P<what>.*?)( - at `\$\.?(?P<where>.*)`)?", re.DOTALL)
_TYPE = re.compile(r"[Ee]xpected `(?P<wanted>\w+)`(?:, got `(?P<got>\w+)`| (?P<bound>>=|<=|>|<) (?P<number>\S+))?")
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


def _list_item_types(hint: Any) -> Mapping[str, Any]:
    """Return the fields of the tables in a list of tables; empty for any other type."""
    kind, *_ = get_args(hint) or (None,)
    return collect_field_types(kind) if get_origin(hint) is tuple and _is_struct(kind) else {}


def _is_struct(kind: Any) -> TypeGuard[type[Struct]]:
    return isinstance(kind, type) and issubclass(kind, Struct)


def _iterate_names(shape: Mapping[str, Any], above: str = "") -> Iterator[str]:
    """Yield every table and key."""
    for name, below in shape.items():
        yield above + name
        inside = below if is_table(below) else _list_item_types(below)
        yield from _iterate_names(inside, f"{above}{name}.")
