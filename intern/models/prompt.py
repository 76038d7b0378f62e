"""Prompts and models. A prompt is a template, a typed input and a typed output; a model answers it or raises an error.

The offline model answers by rules over the same inputs: deterministic, instant, and without a network.

The JSON schema of a reply is in the form that strict structured output asks for. Every object lists all of its
properties as required and allows no others; references are put in place, so no type may hold itself. Decoding stays the
judge: a schema only helps the model to fit.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from inspect import isawaitable
from typing import Any, Generic, Protocol, TypeVar, cast

import anyio
import msgspec

from intern.core.errors import ModelRefusedError
from intern.core.messages import Image

Choices = Mapping[str, Sequence[str]]
"""The values that a text may take, by the name of its field; for a list of texts, those of its items."""

InT = TypeVar("InT")
OutT = TypeVar("OutT")


@dataclass(frozen=True, slots=True)
class Prompt(Generic[InT, OutT]):
    """One model call. `name` is also the template's: `prompts/<name>.md.j2`."""

    name: str
    takes: type[InT]
    """A msgspec Struct; its fields are the template's variables."""
    gives: type[OutT]
    """A msgspec Struct; the reply's JSON schema is made from it."""
    offers: Callable[[InT], Choices] | None = None
    """The values that fields of the reply may take for this input, such as ids that were shown. The schema may list
    them, but a reply may still hold others."""
    bounded_by: tuple[str, ...] = ()
    """The settings that bound its material, for the error about a prompt that is too long."""


class Model(Protocol):
    """Anything that answers prompts: an endpoint, offline rules, a script in tests."""

    async def ask(self, prompt: Prompt[InT, OutT], given: InT, *, images: Sequence[Image] = ()) -> OutT:
        """Return a reply that fits `prompt.gives`. Raises only the `ModelError` family."""
        ...


Rules = Mapping[str, Callable[[Any], Any]]
"""A rule for each prompt, by the prompt's name: takes the prompt's input, gives its output, or waits for it."""


class OfflineModel:
    """A model that answers each prompt by its rule. It ignores pictures, and refuses a prompt without a rule."""

    def __init__(self, rules: Rules) -> None:
        self._rules = dict(rules)
        self._turns = anyio.Lock()

    async def ask(self, prompt: Prompt[InT, OutT], given: InT, *, images: Sequence[Image] = ()) -> OutT:
        """Answer by the rule. Raises `ModelRefusedError` if there is none."""
        del images
        rule = self._rules.get(prompt.name)
        if rule is None:
            lacks = "cannot be done without a language model; set llm.base_url and llm.model"
            raise ModelRefusedError(f"{prompt.name} {lacks}")
        async with self._turns:  # one in each turn of the loop: a burst of rules must not block the other tasks
            reply = rule(given)
        if isawaitable(reply):
            reply = await reply
        if not isinstance(reply, prompt.gives):
            raise TypeError(f"the rule of {prompt.name} gave a {type(reply).__name__}, not a {prompt.gives.__name__}")
        return reply


_BOUNDS = frozenset(
    {
        *("minLength", "maxLength", "pattern", "format", "contentEncoding"),
        *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
        *("minItems", "maxItems", "minProperties", "maxProperties"),
    }
)
# Titles are Python's names. Defaults are for decoding, since everything is required. Discriminators point to $defs.
_LEFT_OUT = frozenset({"title", "default", "discriminator"})
_PREFIX = "#/$defs/"
_TYPES = {str: "string", int: "integer", bool: "boolean", type(None): "null"}

# A longer enum costs more tokens, or more of a grammar, than it is worth.
_MOST_CHOICES = 64
_MOST_CHOICE_CHARS = 4000

Schema = dict[str, Any]


def reply_schema(gives: type, *, bounds: bool) -> Schema:
    """Return the strict schema of `gives`, a Struct; without `bounds`, only decoding checks lengths and ranges.

    It is shared: do not change it.
    """
    return _make_schema(cast("Hashable", gives), bounds=bounds)  # mypy does not take a class for hashable


@cache
def _make_schema(gives: Hashable, *, bounds: bool) -> Schema:
    made = msgspec.json.schema(gives)
    return _make_strict(made, made.pop("$defs", {}), bounds=bounds)


def narrow_schema(schema: Schema, choices: Choices) -> Schema:
    """Copy `schema` with `choices` as enums for all fields of these names.

    A field for which there is nothing to choose, or more than fits into an enum, is left as it is.
    """
    short = {name: offered for name, values in choices.items() if (offered := _select_short(values))}
    return cast("Schema", _narrow_part(schema, short)) if short else schema


def _select_short(values: Sequence[str]) -> list[str]:
    offered = list(dict.fromkeys(values))
    fits = len(offered) <= _MOST_CHOICES and sum(map(len, offered)) <= _MOST_CHOICE_CHARS
    return offered if fits else []


def _narrow_part(part: Any, choices: dict[str, list[str]]) -> Any:
    if isinstance(part, list):
        return [_narrow_part(inner, choices) for inner in cast("Sequence[Any]", part)]
    if not isinstance(part, dict):
        return part
    copy: Schema = {key: _narrow_part(value, choices) for key, value in cast("Schema", part).items()}
    fields = copy.get("properties")
    if isinstance(fields, dict):
        named = cast("Schema", fields)
        named |= {name: _restrict_values(field, choices[name]) for name, field in named.items() if name in choices}
    return copy


def _restrict_values(field: Schema, values: list[str]) -> Schema:
    """Restrict a text, or the texts of a list, to `values`; leave other fields alone."""
    match field:
        case {"type": "string"}:
            kept = {key: value for key, value in field.items() if key == "description"}
            return {**kept, "type": "string", "enum": values}
        case {"type": "array", "items": {"type": "string"}}:
            narrow: Schema = {**field, "items": {"type": "string", "enum": values}}
            if "maxItems" in narrow:
                narrow["maxItems"] = min(narrow["maxItems"], len(values))
            return narrow
        case _:
            return field


def _make_strict(schema: Schema, defs: dict[str, Schema], *, bounds: bool) -> Schema:
    """Make one schema strict, with the definitions in `defs` put in place of their references."""
    if "$ref" in schema:
        named = defs[str(schema["$ref"]).removeprefix(_PREFIX)]
        schema = {**named, **{key: value for key, value in schema.items() if key != "$ref"}}
    strict: Schema = {}
    for key, value in schema.items():
        if key in _LEFT_OUT or (key in _BOUNDS and not bounds):
            continue
        if key == "properties":
            strict[key] = {name: _make_strict(inner, defs, bounds=bounds) for name, inner in value.items()}
        elif isinstance(value, dict):
            strict[key] = _make_strict(cast("Schema", value), defs, bounds=bounds)
        elif key in {"anyOf", "prefixItems"}:
            strict[key] = [_make_strict(inner, defs, bounds=bounds) for inner in value]
        else:
            strict[key] = value
    if "properties" in strict:
        strict["required"] = list(strict["properties"])
        strict["additionalProperties"] = False
    if "enum" in strict and "type" not in strict:
        # Strict endpoints require the types of the values.
        types = sorted({_TYPES[type(value)] for value in strict["enum"]})
        strict["type"] = types[0] if len(types) == 1 else types
    return strict
