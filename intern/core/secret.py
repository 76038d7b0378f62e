"""A value that must never be seen: it prints as stars, and only `reveal` gives it away. So do secrets in addresses."""

from __future__ import annotations

import re

from msgspec import Struct

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


def address_secrets(url: str) -> tuple[str, ...]:
    """Return the parts of an address that may hold a key: query, fragment, user and password."""
    return tuple(found[0] for pattern in (_USER, _QUERY) for found in pattern.finditer(url))


def settings_repr(options: Struct) -> str:
    """Return the `__repr__` of settings with an address: as msgspec's, without the `address_secrets`."""
    fields = ((name, getattr(options, name)) for name in options.__struct_fields__)
    return f"{type(options).__name__}({', '.join(f'{name}={_shown(name, value)!r}' for name, value in fields)})"


def _shown(name: str, value: object) -> object:
    if not isinstance(value, str) or not ("://" in value or name.endswith("_url")):
        return value
    return _QUERY.sub("***", _USER.sub("***", value))
