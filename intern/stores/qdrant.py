"""Qdrant over its REST API."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from anyio.to_thread import run_sync
from msgspec import Struct

from intern.core.records import SearchFilter
from intern.stores.vectors import (
    FILTERED,
    MARK,
    PATIENCE,
    Conditions,
    Near,
    Point,
    T,
    VectorEngine,
    batches,
    conditions_of,
    conditions_on,
    numbers_of,
    payload_of,
    point_id,
)


class _Payload(Struct):
    rid: int
    source_id: str


class _Scored(Struct):
    payload: _Payload


class _Points(Struct):
    points: list[_Scored]


class _Found(Struct):
    result: _Points


class _Count(Struct):
    count: int


class _Counted(Struct):
    result: _Count


class _Text(Struct, rename={"text": "_text"}):
    text: str


class _Mark(Struct):
    payload: _Text


class _Marked(Struct):
    result: list[_Mark]


class Qdrant(VectorEngine):
    """Points in a collection without an index of its own: all that a filter lets pass are compared, so it is exact."""

    header = "api-key"
    _is_made = False

    async def put(self, community: str, points: Sequence[Point]) -> None:
        """Put points."""
        for some in batches(points):
            if not self._is_made:
                await self._make(len(some[0].vector) // 4)
            body = await run_sync(_points, community, some)
            await self._change("/points?wait=true", body)

    async def drop(self, community: str, rids: Collection[int] | None = None, keep: Sequence[Point] = ()) -> None:
        """Delete points."""
        doomed = _filter(conditions_on(community, rids))
        if keep:
            doomed["must_not"].append({"has_id": [point_id(community, each.document) for each in keep]})
        await self._ask("POST", "/points/delete?wait=true", {"filter": doomed}, object)

    async def nearest(
        self, community: str, model: str, vector: bytes, wanted: SearchFilter, limit: int
    ) -> Sequence[Near]:
        """Compare all points that the filter lets pass."""
        body = {
            "query": {"nearest": numbers_of(vector)},
            "filter": _filter(conditions_of(community, model, wanted)),
            "params": {"exact": True},
            "limit": limit,
            "with_payload": list(_Payload.__struct_fields__),
        }
        found = await self._ask("POST", "/points/query", body, _Found, within=PATIENCE)
        if found is None:
            raise self.missing()
        return [Near(each.payload.rid, each.payload.source_id) for each in found.result.points]

    async def count(self, community: str, model: str) -> int:
        """Count points."""
        body = {"filter": _filter(conditions_of(community, model, SearchFilter(retired=True))), "exact": True}
        counted = await self._ask("POST", "/points/count", body, _Counted)
        return 0 if counted is None else counted.result.count

    async def marked(self, community: str) -> str:
        """Read the point with the mark."""
        body = {"ids": [point_id(community, MARK)], "with_payload": ["_text"]}
        found = await self._ask("POST", "/points", body, _Marked)
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


def _points(community: str, points: Sequence[Point]) -> dict[str, Any]:
    return {
        "points": [
            {
                "id": point_id(community, each.document),
                "vector": each.numbers(),
                "payload": payload_of(community, each) | {"_text": each.document.text},
            }
            for each in points
        ]
    }


def _filter(conditions: Conditions) -> dict[str, list[Any]]:
    match = {"is": "value", "not": "value", "in": "any"}
    bound = {"from": "gte", "before": "lt"}
    found: dict[str, list[Any]] = {"must": [], "must_not": []}
    for field, how, value in conditions:
        test = {"match": {match[how]: value}} if how in match else {"range": {bound[how]: value}}
        found["must_not" if how == "not" else "must"].append({"key": field, **test})
    return found
