"""What goes over the wire to a real server: watched, and changed on the way where a test wants it."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import anyio
import httpx
from msgspec import structs

from intern.models.endpoint import EndpointModel
from intern.models.options import LlmOptions
from intern.models.replies import is_stream, join_events
from intern.models.templates import PromptTemplates
from intern.models.usage import UsageCounter

LONGEST = 240
"""Seconds that a busy machine may take for one test."""
OPTIONS = LlmOptions(model="small", max_retries=2, max_tokens=400, timeout_seconds=LONGEST)

SHORT = 8
"""Characters of a text that a model which knows no end may write."""
FEW = 1
"""Items of a list."""

Change = Callable[[dict[str, Any]], None]
"""Changes the schema of a reply in place."""


class Wire(httpx.AsyncBaseTransport):
    """Passes requests on. Keeps the schemas as intern sent them, the server's replies, and the most at one time."""

    def __init__(self, change: Change | None = None) -> None:
        self._inner = httpx.AsyncHTTPTransport()
        self._change = change
        self._under_way = 0
        self.most_under_way = 0
        self.schemas: list[bytes] = []
        self.replies: list[dict[str, Any]] = []

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        body = json.loads(await request.aread())
        schema = _schema(body)
        self.schemas.append(json.dumps(schema).encode())
        if self._change is not None:
            self._change(schema)
        self._under_way += 1
        self.most_under_way = max(self.most_under_way, self._under_way)
        try:
            headers = {name: value for name, value in request.headers.items() if name != "content-length"}
            more: Any = {"headers": headers, "extensions": request.extensions}
            changed = httpx.Request(request.method, request.url, json=body, **more)
            response = await self._inner.handle_async_request(changed)
            content = await response.aread()
            await response.aclose()
        finally:
            self._under_way -= 1
        whole = join_events(content, what="wire").body if is_stream(content) else content
        self.replies.append(json.loads(whole))
        return httpx.Response(response.status_code, headers=response.headers, content=content)

    async def aclose(self) -> None:
        await self._inner.aclose()


def tighten(schema: dict[str, Any]) -> None:
    """Make every text short and every list small: this model would fill any bound."""
    if "maxLength" in schema:
        schema["maxLength"] = min(SHORT, schema["maxLength"])
    if "maxItems" in schema:
        schema["maxItems"] = min(FEW, schema["maxItems"])
    items = [schema["items"]] if "items" in schema else []
    for inner in [*schema.get("properties", {}).values(), *items, *schema.get("anyOf", [])]:
        tighten(inner)


def ruin(schema: dict[str, Any]) -> None:
    """Make it one that no server takes."""
    schema["type"] = "nonsense"


def _schema(body: dict[str, Any]) -> Any:
    """The schema in a request; changing it changes the request."""
    if "tools" in body:
        return body["tools"][0]["function"]["parameters"]
    return body.get("response_format", {}).get("json_schema", {}).get("schema", {})


@dataclass(frozen=True)
class Asking:
    """A client, and what it sends and gets."""

    model: EndpointModel
    wire: Wire
    usage: UsageCounter


@asynccontextmanager
async def open_asking(
    base_url: str, templates: PromptTemplates, change: Change | None = tighten, **options: Any
) -> AsyncGenerator[Asking]:
    """A client of a real server."""
    wire, usage = Wire(change), UsageCounter()
    with anyio.fail_after(LONGEST):
        async with httpx.AsyncClient(transport=wire) as client:
            chosen = structs.replace(OPTIONS, base_url=base_url, **options)
            yield Asking(EndpointModel(chosen, templates=templates, usage=usage, client=client), wire, usage)
