"""Qdrant over its REST API."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Generic

from msgspec import Struct

from intern.stores.vector_engines.engine import (
    FILTERED,
    PATIENCE,
    Conditions,
    EnginePoint,
    NearDocument,
    T,
    VectorEngine,
)


class _QdrantPayload(Struct):
    rid: int
    source_id: str


class _QdrantHit(Struct):
    payload: _QdrantPayload


class _QdrantHits(Struct):
    points: list[_QdrantHit]


class _QdrantCount(Struct):
    count: int


class _QdrantText(Struct, rename={"text": "_text"}):
    text: str


class _QdrantTextPoint(Struct):
    payload: _QdrantText


class _QdrantResult(Struct, Generic[T]):
    result: T


class Qdrant(VectorEngine):
    """Points in a collection without an index of its own: all that a filter lets pass are compared, so it is exact."""

    header = "api-key"
    _is_made = False

    async def _upsert(self, points: Sequence[EnginePoint]) -> None:
        if not self._is_made:
            await self._make_collection(len(points[0].numbers))
        payloads = ((each, each.payload | {"_text": each.text}) for each in points)
        stored = [{"id": each.id, "vector": each.numbers, "payload": payload} for each, payload in payloads]
        await self._send_change("/points?wait=true", {"points": stored})

    async def _drop(self, conditions: Conditions, keep: Sequence[str]) -> None:
        doomed = _build_filter(conditions)
        if keep:
            doomed["must_not"].append({"has_id": keep})
        await self._ask("POST", "/points/delete?wait=true", {"filter": doomed}, object)

    async def _find_nearest(
        self, numbers: Sequence[float], conditions: Conditions, limit: int
    ) -> Sequence[NearDocument]:
        body = {
            "query": {"nearest": numbers},
            "filter": _build_filter(conditions),
            "params": {"exact": True},
            "limit": limit,
            "with_payload": list(_QdrantPayload.__struct_fields__),
        }
        found = await self._ask("POST", "/points/query", body, _QdrantResult[_QdrantHits], within=PATIENCE)
        if found is None:
            raise self.missing_collection_error()
        return [NearDocument(each.payload.rid, each.payload.source_id) for each in found.result.points]

    async def _count(self, conditions: Conditions) -> int:
        body = {"filter": _build_filter(conditions), "exact": True}
        counted = await self._ask("POST", "/points/count", body, _QdrantResult[_QdrantCount])
        return 0 if counted is None else counted.result.count

    async def _read_text(self, point_id: str) -> str:
        body = {"ids": [point_id], "with_payload": ["_text"]}
        found = await self._ask("POST", "/points", body, _QdrantResult[list[_QdrantTextPoint]])
        return "" if found is None or not found.result else found.result[0].payload.text

    async def _make_collection(self, width: int) -> None:
        """Make the collection, and the indexes that let a filter find its points; both may be there already."""
        if await self._ask("GET", "", None, object) is None:
            vectors = {"size": width, "distance": "Cosine"}
            await self._send_change("", {"vectors": vectors, "hnsw_config": {"m": 0}})
        for field, schema in FILTERED.items():
            await self._send_change("/index?wait=true", {"field_name": field, "field_schema": schema})
        self._is_made = True

    async def _send_change(self, path: str, body: object) -> None:
        if await self._ask("PUT", path, body, object) is None:
            raise self.missing_collection_error()

    async def _ask(self, method: str, path: str, body: object, gives: type[T], **within: float) -> T | None:
        answer = await self.send_request(method, f"/collections/{self.collection}{path}", body, gives, **within)
        self._is_made = self._is_made and answer is not None
        return answer


def _build_filter(conditions: Conditions) -> dict[str, list[Any]]:
    match = {"is": "value", "not": "value", "in": "any", "holds": "value"}
    bound = {"from": "gte", "before": "lt"}
    found: dict[str, list[Any]] = {"must": [], "must_not": []}
    for field, how, value in conditions:
        test = {"match": {match[how]: value}} if how in match else {"range": {bound[how]: value}}
        found["must_not" if how == "not" else "must"].append({"key": field, **test})
    return found
