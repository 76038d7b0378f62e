"""The base of every store: methods that are transactions, structs as rows, and statements that many stores need."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from datetime import UTC, datetime
from functools import wraps
from types import CoroutineType
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar, cast

import msgspec
from msgspec import Struct

from intern.core.clock import Clock, SystemClock, from_microseconds, to_microseconds
from intern.core.errors import InternError
from intern.core.ids import MessageId
from intern.core.log import failure_level, get_logger
from intern.stores.database import Database, Row, Transaction, Value
from intern.stores.qa_ids import bare_message_id

P = ParamSpec("P")
R = TypeVar("R")
S = TypeVar("S", bound=Struct)
StoreT = TypeVar("StoreT", bound="Store")

_log = get_logger(__name__)


def json_items(array: str) -> str:
    """Return the subquery of the values in a JSON array: a column, or `?`."""
    return f"(select value from json_each({array}))"


IN = f"in {json_items('?')}"
"""The condition for one of the values of a JSON array, from `text_array`, `json_array` or `bare_id_array`."""

OURS = "where community = :community"
"""The condition for rows of the community, which the database binds."""

GIVEN = "posts.state = 'finished' and posts.notice = 0"
"""The condition for the posts of answers: whole, and no notices."""

BEGINS = "substr(id, 1, ?) = ?"
"""The condition for an id that begins with a prefix, with values from `prefix_values`."""

NUMBER_IN = "in (select cast(value as bigint) from json_each(?))"
"""The condition for one of the numbers of a JSON array, from `text_array` or `json_array`."""

NO_LIMIT = 1 << 62
"""The value of `limit ?` for all rows."""


async def save_record(save: Callable[[], Awaitable[object]], **ids: str) -> None:
    """Save a record that is kept beside the work, such as a trace. A failure costs the record, never the work.

    It tries twice, and repeating `save` must be harmless: a server that was killed may not know whether it saved.
    """
    for is_last in (False, True):
        try:
            await save()
            return
        except InternError as error:
            if is_last:
                _log.log(failure_level(error), "record_not_saved", reason=str(error), **ids)


class Store:
    """The base of the stores in the database. Their methods raise KnowledgeError."""

    def __init__(self, db: Database, *, clock: Clock | None = None) -> None:
        self.db = db
        self.clock = clock or SystemClock()

    def now(self) -> str:
        """Return the time as text."""
        return self.clock.now().isoformat()


def writes(
    method: Callable[Concatenate[StoreT, Transaction, P], R],
) -> Callable[Concatenate[StoreT, P], CoroutineType[Any, Any, R]]:
    """Run a method of a store as one transaction, on the writer thread. Once it returns, its changes are on disk."""

    @wraps(method)
    async def run_write(self: StoreT, *args: P.args, **kwargs: P.kwargs) -> R:
        return await self.db.write(lambda db: method(self, db, *args, **kwargs))

    return cast("Callable[Concatenate[StoreT, P], CoroutineType[Any, Any, R]]", run_write)


def reads(
    method: Callable[Concatenate[StoreT, Transaction, P], R],
) -> Callable[Concatenate[StoreT, P], CoroutineType[Any, Any, R]]:
    """Run a method of a store on a worker thread, against one unchanging view of the database."""

    @wraps(method)
    async def read(self: StoreT, *args: P.args, **kwargs: P.kwargs) -> R:
        return await self.db.read(lambda db: method(self, db, *args, **kwargs))

    return cast("Callable[Concatenate[StoreT, P], CoroutineType[Any, Any, R]]", read)


class Table(Generic[S]):
    """The rows of a table as structs: each field is a column of the same name.

    Times are milliseconds in the columns `millis`, and texts of `sortable_time` in others. Columns in `json` hold JSON.
    """

    def __init__(self, name: str, kind: type[S], *, millis: Collection[str] = (), json: Collection[str] = ()) -> None:
        self.names: tuple[str, ...] = kind.__struct_fields__
        self.columns = ", ".join(self.names)
        self.select = f"select {self.columns} from {name}"
        places = ", ".join("?" * len(self.names))
        self.insert = f"insert into {name} (community, {self.columns}) values (:community, {places})"
        self._kind = kind
        self._millis = frozenset(millis)
        self._json = frozenset(json)

    def upsert(self, *key: str) -> str:
        """Return the statement that inserts a row, or replaces the community's row with the same key."""
        return f"{self.insert} on conflict ({', '.join(('community', *key))}) do update set {self.assignments(*key)}"

    def assignments(self, *key: str) -> str:
        """Return the assignments of such a statement."""
        return ", ".join(f"{each} = excluded.{each}" for each in self.names if each not in key)

    def all(self, db: Transaction, rest: str = "", values: Sequence[Value] = ()) -> tuple[S, ...]:
        """Select structs; `rest` is the statement from `where community = :community` on."""
        return tuple(map(self.from_row, db.rows(f"{self.select} {rest}", values)))

    def first(self, db: Transaction, rest: str, values: Sequence[Value] = ()) -> S | None:
        """Select the first struct; None where there is none."""
        return next(iter(self.all(db, rest, values)), None)

    def to_row(self, value: S) -> Row:
        """Return a struct as a row."""
        return tuple(
            self._to_column(name, each) for name, each in zip(self.names, msgspec.structs.astuple(value), strict=True)
        )

    def from_row(self, row: Iterable[Value]) -> S:
        """Return a row as a struct."""
        fields: dict[str, object] = dict(zip(self.names, row, strict=False))
        for name in self._json:
            fields[name] = None if fields[name] is None else msgspec.json.decode(str(fields[name]))
        for name in self._millis:
            value = fields[name]
            fields[name] = from_millis(value) if isinstance(value, int) else None
        return msgspec.convert(fields, self._kind, strict=False)  # SQLite's booleans are numbers

    def _to_column(self, name: str, value: object) -> Value:
        match value:
            case str():
                return sanitize_text(value)
            case datetime():
                return to_millis(value) if name in self._millis else sortable_time(value)
            case bool():
                return int(value)
            case None | int() | float() | bytes():
                return value
            case tuple():
                return json_array(sanitize_text(each) if isinstance(each, str) else each for each in cast("Row", value))
            case _:
                return msgspec.json.encode(value).decode()


def sanitize_text(text: str) -> str:
    """Replace what SQLite cannot hold: some functions end a text at a zero byte, and UTF-8 has no surrogates."""
    return text.replace("\0", " ").encode("utf-8", "replace").decode("utf-8")


def to_millis(moment: datetime) -> int:
    """Return a time as a number, cut to whole milliseconds."""
    return to_microseconds(moment) // 1000


def from_millis(number: int) -> datetime:
    """Return the time of such a number."""
    return from_microseconds(number * 1000)


def sortable_time(moment: datetime) -> str:
    """Return a time as text that sorts like the time."""
    return moment.astimezone(UTC).isoformat(timespec="microseconds")


def text_array(values: Iterable[str]) -> str:
    """Return texts as a JSON array."""
    return json_array(map(sanitize_text, values))


def bare_id_array(message_ids: Iterable[MessageId]) -> str:
    """Return ids of messages as a JSON array, each as Discord writes it."""
    return text_array(map(bare_message_id, message_ids))


def prefix_values(prefix: str) -> tuple[int, str]:
    """Return the values for `BEGINS`."""
    start = sanitize_text(prefix).lower()
    return len(start), start


def json_array(values: Iterable[object]) -> str:
    """Return values as a JSON array, for `json_each`."""
    return msgspec.json.encode(list(values)).decode()


def join_conditions(*wanted: tuple[str, Value]) -> tuple[str, tuple[Value, ...]]:
    """Return the conditions whose value is not None, joined by `and`, and their values."""
    given = [(condition, value) for condition, value in wanted if value is not None]
    return " and ".join(["true", *(condition for condition, _ in given)]), tuple(value for _, value in given)


def keep_first(db: Transaction, table: str, key: str, order: str, most: int) -> None:
    """Delete all rows of the community but the first `most` in this order.

    An index by community and order makes this a walk over `most` entries where nothing is to be deleted.
    """
    doomed = f"select {key} from {table} {OURS} order by {order} limit ? offset ?"
    db.run(f"delete from {table} {OURS} and ({key}) in ({doomed})", (NO_LIMIT, most))
