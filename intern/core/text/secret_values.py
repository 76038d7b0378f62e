"""Values that no log and no error shows: a `Secret` prints as stars."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from functools import reduce

from msgspec import Struct

_LEAST_DIFFERENT = 7
_ODD = re.compile(r"(?is)\d.*[^\W\d_]|[^\W\d_].*\d|(?-i:[a-z]+[A-Z].*[A-Z])|\w[^\w.:/= -]+\w|.{16}")
# A password may hold `?` and `#`; figures and one of these are a port with what follows it.
_USER = re.compile(r"(?<=://)(?:[^/?#\s:]*:(?!\d{1,5}[?#])[^/\s]*|[^/?#\s]*)(?=@)")
_QUERY = re.compile(r"(?<=[?#])\S+")


class Secret:
    """Holds a token or key; equal to another by value, empty when nothing was set."""

    __slots__ = ("_value",)

    def __init__(self, value: str = "") -> None:
        self._value = value

    def reveal(self) -> str:
        """Return the value itself: for the one place that sends it."""
        return self._value

    def __bool__(self) -> bool:
        return bool(self._value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and other._value == self._value

    def __hash__(self) -> int:
        return hash(self._value)

    def __repr__(self) -> str:
        return "Secret('***')" if self._value else "Secret('')"

    __str__ = __repr__


def make_hider(secrets: Iterable[str]) -> Callable[[str], str]:
    """Return a function that replaces each of these secrets by `[secret]`, also where JSON spells it otherwise.

    Only what is long and random enough is sought: a user called `intern` or a key `ollama` would hide words of our own.
    """
    known = {each for each in secrets if len(set(each)) >= _LEAST_DIFFERENT and _ODD.search(each)}
    forms = sorted({*known, *(json.dumps(each)[1:-1] for each in known)}, key=len, reverse=True)
    return lambda text: reduce(lambda left, form: left.replace(form, "[secret]"), forms, text)


def address_secrets(url: str) -> tuple[str, ...]:
    """Return the parts of an address that may hold a key: query, fragment, user and password."""
    return tuple(found[0] for pattern in (_USER, _QUERY) for found in pattern.finditer(url))


def settings_repr(options: Struct) -> str:
    """Return the `__repr__` of settings with an address: as msgspec's, without the `address_secrets`."""
    fields = ((name, getattr(options, name)) for name in options.__struct_fields__)
    return f"{type(options).__name__}({', '.join(f'{name}={_hide_address(name, value)!r}' for name, value in fields)})"


def _hide_address(name: str, value: object) -> object:
    if not isinstance(value, str) or not ("://" in value or name.endswith("_url")):
        return value
    return _QUERY.sub("***", _USER.sub("***", value))
