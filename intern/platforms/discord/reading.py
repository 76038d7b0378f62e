"""Messages by age. Pure.

Payloads into structs, field by field: an odd value costs its field, and never what stands beside it. Pure.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeVar, cast, get_args

import msgspec
from msgspec import Struct

from intern.core.ids import MessageId, position_of
from intern.core.messages import ChatMessage


def position(messages: Sequence[ChatMessage], message_id: MessageId) -> int:
    """Where a message stands, or would stand, among messages that are sorted from the oldest to the newest."""
    return bisect_left(messages, position_of(message_id), key=lambda message: position_of(message.id))


_Kind = TypeVar("_Kind", bound=Struct)


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
