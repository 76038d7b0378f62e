"""Payloads into structs, field by field: an odd value costs its field, and never the fields beside it. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeVar, cast, get_args, get_origin

import msgspec
from msgspec import Struct

from intern.core.errors import ChatError, ChatNotFoundError, ChatUnavailableError

_Kind = TypeVar("_Kind", bound=Struct)
_Any = TypeVar("_Any")


def readable(items: object, kind: type[_Kind]) -> Iterator[_Kind]:
    """Those of a payload's items that can be read: a strange one must not cost the others."""
    for item in cast("Sequence[Any]", items) if isinstance(items, list | tuple) else ():
        try:
            yield fitted(item, kind)
        except msgspec.ValidationError:
            continue


def fitted(payload: object, kind: type[_Kind]) -> _Kind:
    """The payload as `kind`, without the optional fields that cannot be read.

    A number or truth value that is written as another type is read. Raises msgspec.ValidationError where a required
    field is missing or wrong.
    """
    try:
        return msgspec.convert(payload, kind)
    except msgspec.ValidationError:
        if not isinstance(payload, Mapping):
            raise
    told = cast("Mapping[str, Any]", payload)
    kept: dict[str, Any] = {}
    for field in msgspec.structs.fields(kind):
        if field.encode_name not in told:
            continue
        try:
            kept[field.encode_name] = _value(told[field.encode_name], field.type)
        except msgspec.ValidationError:
            if field.required:
                raise
    return msgspec.convert(kept, kind)


def _value(value: object, kind: Any) -> Any:
    try:
        return msgspec.convert(value, kind, strict=False)
    except msgspec.ValidationError:
        nested = next((one for one in (kind, *get_args(kind)) if _is_struct(one)), None)
        if nested is None:
            raise
        return fitted(value, nested)


def _is_struct(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, Struct)


def ids(**snowflakes: str) -> dict[str, str]:
    """Ids for a route. They stand in its path, so they are digits or the call is not made."""
    for name, snowflake in snowflakes.items():
        if not (snowflake.isascii() and snowflake.isdigit()):
            raise ChatNotFoundError(f"{snowflake[:40]!r} is no {name} id of Discord's")
    return snowflakes


def read(what: str, reply: object, kind: type[_Any], otherwise: type[ChatError] = ChatUnavailableError) -> _Any:
    """A reply's JSON as the type that Discord documents; raises `otherwise` where it is something else."""
    try:
        if get_origin(kind) is None and issubclass(kind, msgspec.Struct):
            return fitted(reply, kind)
        return msgspec.convert(reply, kind)
    except msgspec.ValidationError as error:
        raise otherwise(f"could not {what}: the reply is not what Discord documents: {error}") from error
