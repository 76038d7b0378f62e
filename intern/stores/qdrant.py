"""Qdrant over its REST API."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Generic

from msgspec import Struct

from intern.stores.vectors import FILTERED, PATIENCE, Conditions, Near, Stored, T, VectorEngine


class _Payload(Struct):
    rid: int
    source_id: str


class _Scored(Struct):
    payload: _Payload


class _Points(Struct):
    points: list[_Scored]


class _Count(Struct):
    count: int


class _Text(Struct, rename={"text": "_text"}):
    text: str


class _Mark(Struct):
    payload: _Text


class _Result(Struct, Generic[T]):
    result: T


class Qdrant(VectorEngine):
    """Points in a collection without an index of its own: all that a filter lets pass are compared, so it is exact."""

    header = "api-key"
    _is_made = False

    async def _put(self, points: Sequence[Stored]) -> None:
        if not self._is_made:
            await self._make(len(points[0].numbers))
        stored = [
            {"id": each.id, "vector": each.numbers, "payload": each.payload | {"_text": each.text}} for each in points
        ]
        await self._change("/points?wait=true", {"points": stored})

    async def _drop(self, conditions: Conditions, keep: Sequence[str]) -> None:
        doomed = _filter(conditions)
        if keep:
            doomed["must_not"].append({"has_id": keep})
        await self._ask("POST", "/points/delete?wait=true", {"filter": doomed}, object)

    async def _nearest(self, numbers: Sequence[float], conditions: Conditions, limit: int) -> Sequence[Near]:
        body = {
            "query": {"nearest": numbers},
            "filter": _filter(conditions),
            "params": {"exact": True},
            "limit": limit,
            "with_payload": list(_Payload.__struct_fields__),
        }
        found = await self._ask("POST", "/points/query", body, _Result[_Points], within=PATIENCE)
        if found is None:
            raise self.missing()
        return [Near(each.payload.rid, each.payload.source_id) for each in found.result.points]

    async def _count(self, conditions: Conditions) -> int:
        counted = await self._ask(
            "POST", "/points/count", {"filter": _filter(conditions), "exact": True}, _Result[_Count]
        )
        return 0 if counted is None else counted.result.count

    async def _text_of(self, point_id: str) -> str:
        found = await self._ask("POST", "/points", {"ids": [point_id], "with_payload": ["_text"]}, _Result[list[_Mark]])
        return "" if found is None or not found.result else found.result[0].payload.text

    async def _make(self, width: int) -> None:
        """Make the collection, and the indexes that let a filter find its points; both may be there already."""
        if await self._ask("GET", "", None, object) is None:
            vectors = {"size": width, "distance": "Cosine"}
            await self._change("", {"vectors": vectors, "hnsw_config": {"m": 0}})
        for field, schema in FILTERED.items():
            await self._change("/index?wait=true", {"field_name": field, "field_schema": schema})
        self._is_made = True

    async def _change(self, path: str, body: object) -> None:
        if await self._ask("PUT", path, body, object) is None:
            raise self.missing()

    async def _ask(self, method: str, path: str, body: object, gives: type[T], **within: float) -> T | None:
        answer = await self.ask(method, f"/collections/{self.collection}{path}", body, gives, **within)
        self._is_made = self._is_made and answer is not None
        return answer


def _filter(conditions: Conditions) -> dict[str, list[Any]]:
    match = {"is": "value", "not": "value", "in": "any", "holds": "value"}
    bound = {"from": "gte", "before": "lt"}
    found: dict[str, list[Any]] = {"must": [], "must_not": []}
    for field, how, value in conditions:
        test = {"match": {match[how]: value}} if how in match else {"range": {bound[how]: value}}
        found["must_not" if how == "not" else "must"].append({"key": field, **test})
    return found
