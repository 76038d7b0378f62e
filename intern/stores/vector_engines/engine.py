"""The port of vector engines, and the HTTP that they share.

An engine holds the vectors of all communities in one collection. It is a copy: the database has all of it, too.
"""

from __future__ import annotations

import hashlib
import struct
from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Any, ClassVar, Literal, NamedTuple, TypeAlias, TypeVar
from uuid import UUID

import anyio
import httpx
import msgspec
from anyio.to_thread import run_sync
from msgspec.structs import replace

from intern.core.errors import VectorEngineError
from intern.core.ids import SourceId
from intern.core.search_documents import Scalar, SearchDocument, SearchFilter
from intern.models.clients import open_client
from intern.stores.database import DEFAULT_COMMUNITY
from intern.stores.options import SearchOptions

T = TypeVar("T")

PATIENCE = 2.0
"""Seconds; a question waits."""
_WITHIN = 30.0  # seconds, for work in the background
_AT_ONCE = 256  # points in one request: about 2 MB with 384 numbers each
_LONGEST_IDLE = 2.0  # seconds; Qdrant closes a connection after 5, and a request must not meet that
_MOST_SAID = 200  # characters of an engine's error message


class VectorPoint(NamedTuple):
    """A document with its vector."""

    rid: int
    model: str
    document: SearchDocument
    vector: bytes


MARK = SearchDocument(id="mark", source_id=SourceId(""), kind="source", at=datetime(1970, 1, 1, tzinfo=UTC))
"""The document of the point that holds the mark. Its model has no name."""


class EnginePoint(NamedTuple):
    """A point as an engine takes it."""

    id: str
    numbers: tuple[float, ...]
    payload: dict[str, Scalar | tuple[str, ...]]
    text: str


class NearDocument(NamedTuple):
    """A document that is like a vector."""

    rid: int
    source_id: str


class PointCondition(NamedTuple):
    """A condition on a field of a point."""

    field: str
    how: Literal["is", "not", "in", "holds", "from", "before"]
    value: str | int | float | Sequence[str] | Sequence[int]


Conditions: TypeAlias = Sequence[PointCondition]


class VectorEngine(ABC):
    """One engine, for all communities. Methods raise VectorEngineError; those that begin with `_` differ."""

    header: ClassVar[str]
    """The header that carries the key."""

    def __init__(self, options: SearchOptions, client: httpx.AsyncClient | None = None) -> None:
        self._url = options.url.rstrip("/")
        self.name = options.vectors
        self.where = f"{options.vectors} at {self._url}, collection {options.collection}"
        """Its address, for messages, and for the position of its follower."""
        self.collection = options.collection
        self._key = options.api_key.reveal()
        self._client = client

    async def upsert_points(self, community: str, points: Sequence[VectorPoint]) -> None:
        """Put points, each in place of the one of the same document. Make the collection where there is none."""
        for start in range(0, len(points), _AT_ONCE):
            await self._upsert(await run_sync(_build_engine_points, community, points[start : start + _AT_ONCE]))

    async def delete_points(
        self, community: str, rids: Collection[int] | None = None, keep: Sequence[VectorPoint] = ()
    ) -> None:
        """Delete the points with these numbers, or all of the community, but for `keep`. Harmless when repeated."""
        some = [] if rids is None else [PointCondition("rid", "in", sorted(rids))]
        kept = [_point_id(community, each.document) for each in keep]
        await self._drop([PointCondition("community", "is", community), *some], kept)

    async def find_nearest(
        self, community: str, model: str, vector: bytes, wanted: SearchFilter, limit: int
    ) -> Sequence[NearDocument]:
        """Return the documents that are most like a vector of the model, best first."""
        return await self._find_nearest(_unpack_vector(vector), _build_conditions(community, model, wanted), limit)

    async def count(self, community: str, model: str) -> int:
        """Return how many points with a vector of the model the community has."""
        return await self._count(_build_conditions(community, model, SearchFilter(retired=True)))

    async def read_mark(self, community: str) -> str:
        """Return the last mark; empty if there is none, or it is lost."""
        return await self._read_text(_point_id(community, MARK))

    @abstractmethod
    async def _upsert(self, points: Sequence[EnginePoint]) -> None:
        """Put points, at least one. Make the collection where there is none."""

    @abstractmethod
    async def _drop(self, conditions: Conditions, keep: Sequence[str]) -> None:
        """Delete the points that meet the conditions, but for those with these ids."""

    @abstractmethod
    async def _find_nearest(
        self, numbers: Sequence[float], conditions: Conditions, limit: int
    ) -> Sequence[NearDocument]:
        """Return the points that meet the conditions, the nearest first."""

    @abstractmethod
    async def _count(self, conditions: Conditions) -> int:
        """Count the points that meet the conditions."""

    @abstractmethod
    async def _read_text(self, point_id: str) -> str:
        """Return the text of a point; empty where there is none."""

    async def write_mark(self, community: str, said: str, vector: bytes) -> None:
        """Keep a text for the community, in a point that no search finds."""
        await self.upsert_points(community, [VectorPoint(-1, "", replace(MARK, text=said), vector)])

    async def aclose(self) -> None:
        """Close the connections, also when cancelled."""
        with anyio.move_on_after(2, shield=True):
            if self._client is not None:
                await self._client.aclose()

    async def send_request(
        self, method: str, path: str, body: object, gives: type[T], *, within: float = _WITHIN
    ) -> T | None:
        """Return the answer of the engine; None where there is no such collection."""
        if self._client is None:
            self._client = open_client(self._url, limits=httpx.Limits(keepalive_expiry=_LONGEST_IDLE))
        headers = {"Content-Type": "application/json", **({self.header: self._key} if self._key else {})}
        content = None if body is None else await run_sync(msgspec.json.encode, body)  # many numbers take a while
        url, send = f"{self._url}{path}", self._client.request
        try:
            with anyio.fail_after(within):
                response = await send(method, url, content=content, headers=headers, timeout=within)
            if response.status_code == HTTPStatus.NOT_FOUND and "ollection" in response.text:
                return None
            if not response.is_success:
                raise self.build_error(f"HTTP {response.status_code}: {response.text}")
            return await run_sync(lambda: msgspec.json.decode(response.content or b"null", type=gives))
        except (TimeoutError, httpx.TimeoutException) as error:
            raise self.build_error(f"no answer within {within:g} s") from error
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise self.build_error(f"{type(error).__name__}: {error}") from error
        except msgspec.MsgspecError as error:
            raise self.build_error(f"it is no such engine, or of an unknown version: {error}") from error

    def build_error(self, what: str) -> VectorEngineError:
        """Return an error about the engine, without its key."""
        said = what.replace(self._key, "***") if self._key else what
        return VectorEngineError(f"{self.where}: {' '.join(said[:_MOST_SAID].split())}")

    def missing_collection_error(self) -> VectorEngineError:
        """Return the error where there is no collection."""
        return self.build_error("there is no such collection")


def _unpack_vector(vector: bytes) -> tuple[float, ...]:
    return struct.unpack(f"<{len(vector) // 4}f", vector)


def _build_engine_points(community: str, points: Sequence[VectorPoint]) -> list[EnginePoint]:
    return [
        EnginePoint(
            _point_id(community, each.document),
            _unpack_vector(each.vector),
            _build_payload(community, each),
            each.document.text,
        )
        for each in points
    ]


def _point_id(community: str, document: SearchDocument) -> str:
    """Return the id of a document's point: a UUID made from the SHA-256 of a file's path, or of the document's id."""
    name = document.path if document.kind == "file" else document.id
    if community != DEFAULT_COMMUNITY:
        name = f"{community}\0{name}"
    return str(UUID(bytes=hashlib.sha256(name.encode()).digest()[:16]))


def _build_payload(community: str, point: VectorPoint) -> dict[str, Scalar | tuple[str, ...]]:
    """Return the payload of a vector: the fields that filters need, and the document's data in the index."""
    document = point.document
    # Chroma takes no empty list.
    payload: dict[str, Scalar | tuple[str, ...]] = {
        name: value for name, value in document.meta.items() if value is not None and value != ()
    }
    if document.kind == "nugget":
        payload |= {"topic": document.title, "timestamp": document.at.isoformat()}
    return payload | {
        "community": community,
        "model": point.model,
        "rid": point.rid,
        "document": document.id,
        **{field: getattr(document, field) for field in ("source_id", "kind", *_WORDS)},
        "at": document.at.timestamp(),
    }


_WORDS = ("part", "type", "status", "visibility", "guild_id")

FILTERED: dict[str, dict[str, Any]] = {
    "community": {"type": "keyword", "is_tenant": True},
    **{field: {"type": "keyword"} for field in (*_WORDS, "model", "kind", "file_type", "keywords")},
    "rid": {"type": "integer"},
    "at": {"type": "float"},
}
"""The fields that conditions name, and `file_type`, for other programs."""


def _build_conditions(community: str, model: str, wanted: SearchFilter) -> list[PointCondition]:
    """Return the conditions on the points that a search may find."""
    found = [PointCondition("community", "is", community), PointCondition("model", "is", model)]
    if wanted.kinds:
        found.append(PointCondition("kind", "in", wanted.kinds))
    asked = {field: getattr(wanted, field) for field in _WORDS}
    found += [PointCondition(field, "is", value) for field, value in asked.items() if value is not None]
    if wanted.keyword is not None:
        found.append(PointCondition("keywords", "holds", wanted.keyword))
    if wanted.status is None and not wanted.retired:
        found.append(PointCondition("status", "not", "retired"))
    if wanted.after is not None:
        found.append(PointCondition("at", "from", wanted.after.timestamp()))
    if wanted.before is not None:
        found.append(PointCondition("at", "before", wanted.before.timestamp()))
    return found
