"""How values stand in columns: text that SQLite can hold, times as milliseconds since 1970 (UTC), lists as JSON."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from datetime import UTC, datetime, timedelta

import msgspec

from intern.stores.sqlite.database import Row

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def carried(text: str) -> str:
    """What SQLite can hold: it would end a text at a zero byte here and not there, and UTF-8 has no surrogates."""
    return text.replace("\0", " ").encode("utf-8", "replace").decode("utf-8")


def millis(moment: datetime) -> int:
    """A time as a number; what is finer than a millisecond is cut off."""
    return (moment - _EPOCH) // timedelta(milliseconds=1)


def moment(number: int) -> datetime:
    """The time that a number stands for."""
    return _EPOCH + timedelta(milliseconds=number)


def listed(values: Iterable[str]) -> str:
    """Texts as a JSON array."""
    return msgspec.json.encode([carried(each) for each in values]).decode()


def parts(column: object) -> tuple[str, ...]:
    """The texts of a JSON array."""
    return msgspec.json.decode(str(column), type=tuple[str, ...])


def as_json(values: Collection[object]) -> str:
    """Values as a JSON array, for `json_each`."""
    return msgspec.json.encode(list(values)).decode()


def number(row: Row | None) -> int:
    """The one number of a row."""
    return msgspec.convert(row, tuple[int])[0]
