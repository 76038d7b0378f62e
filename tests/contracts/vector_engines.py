"""Vector engines for tests: Qdrant's own engine behind the REST API, and a real `chroma run`."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Collection, Generator, Iterable
from contextlib import AbstractContextManager, contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from pathlib import Path
from tempfile import mkdtemp
from threading import Event, Lock, Thread
from typing import Any, Literal
from weakref import finalize

import httpx
import pytest

from intern.core.text.secret_values import Secret
from intern.stores.options import SearchOptions
from intern.stores.vector_engines.chroma import Chroma
from intern.stores.vector_engines.engine import VectorEngine
from intern.stores.vector_engines.qdrant import Qdrant

COLLECTION = "kloros_knowledge"
KEY = "key-of-the-engine"


_FORMS = {
    ("PUT", ""): "CreateCollection",
    ("PUT", "index"): "CreateFieldIndex",
    ("PUT", "points"): "PointsList",
    ("POST", "points"): "PointRequest",
    ("POST", "points/delete"): "FilterSelector",
    ("POST", "points/count"): "CountRequest",
    ("POST", "points/query"): "QueryRequest",
}


class QdrantDouble:
    """Qdrant's REST API, as far as we use it, over Qdrant's own engine: that filters, compares and keeps the points.

    Each body is checked by the models of Qdrant's client, made from its OpenAPI.
    """

    def __init__(self) -> None:
        self._client: Any = pytest.importorskip("qdrant_client", reason="needs qdrant-client")
        self._edge: Any = pytest.importorskip("qdrant_edge", reason="needs qdrant-edge-py")
        self._shard: Any = None
        self._folder = mkdtemp(prefix="intern-qdrant-")
        finalize(self, shutil.rmtree, self._folder, ignore_errors=True)
        self.indexed: set[str] = set()
        """Fields that a filter may name: more of them may be refused, or slow."""
        self.is_away = False
        self.written = Event()
        self.asked: list[httpx.Request] = []

    def client(self) -> httpx.AsyncClient:
        return httpx.AsyncClient(transport=httpx.MockTransport(self.answer))

    def points(self) -> dict[str, tuple[dict[str, Any], list[float]]]:
        """Payload and vector of each point, by its id; none without a collection."""
        if self._shard is None:
            return {}
        asked = self._edge.ScrollRequest(limit=10_000, with_payload=True, with_vector=True)
        return {str(each.id): (each.payload, each.vector) for each in self._shard.scroll(asked)[0]}

    def put(self, points: Iterable[tuple[str, dict[str, Any], list[float]]]) -> None:
        made = [self._edge.Point(name, vector, payload) for name, payload, vector in points]
        self._shard.update(self._edge.UpdateOperation.upsert_points(made))

    def remove(self, ids: Collection[str]) -> None:
        self._shard.update(self._edge.UpdateOperation.delete_points([*ids]))

    def lose(self) -> None:
        """Lose the collection."""
        self._shard = None

    def answer(self, request: httpx.Request) -> httpx.Response:
        self.asked.append(request)
        if self.is_away:
            raise httpx.ConnectError("connection refused")
        if request.headers.get("api-key") != KEY:
            return httpx.Response(403, text="forbidden")
        _, _, name, *rest = request.url.path.split("/")
        body = json.loads(request.content or b"null")
        if form := _FORMS.get((request.method, "/".join(rest))):
            getattr(self._client.models, form).model_validate_json(request.content)
        if request.method == "PUT" and not rest:
            assert (body["vectors"]["distance"], body["hnsw_config"]) == ("Cosine", {"m": 0})
            one = self._edge.EdgeVectorParams(size=body["vectors"]["size"], distance=self._edge.Distance.Cosine)
            folder = mkdtemp(dir=self._folder)
            self._shard = self._edge.EdgeShard.create(folder, self._edge.EdgeConfig(vectors=one))
            return _said(True)
        if self._shard is None:
            return httpx.Response(404, json={"status": {"error": f"Not found: Collection `{name}` doesn't exist!"}})
        try:
            return _said(self._done(request.method, "/".join(rest), body))
        except AssertionError:
            raise
        except Exception as error:  # noqa: BLE001 the engine raises no other class
            return httpx.Response(400, json={"status": {"error": str(error)}})

    def _done(self, method: str, path: str, body: Any) -> object:  # noqa: PLR0911 one for each
        shard, edge = self._shard, self._edge
        match method, path, body:
            case "GET", "", None:
                return {"points_count": shard.count(edge.CountRequest())}
            case "PUT", "index", {"field_name": str(field), "field_schema": {"type": str(kind), **more}}:
                assert more in ({}, {"is_tenant": True})
                schema = edge.PayloadSchemaType
                kinds = {"keyword": schema.Keyword, "integer": schema.Integer, "float": schema.Float}
                shard.update(edge.UpdateOperation.create_field_index(field, kinds[kind]))
                self.indexed.add(field)
                return {"status": "completed", "operation_id": 1}
            case "PUT", "points", {"points": [*points], **none} if not none:
                self.put((each["id"], each["payload"], each["vector"]) for each in points)
                if any(each["payload"]["model"] for each in points):  # others are marks
                    self.written.set()
                return {"status": "completed", "operation_id": 1}
            case "POST", "points", {"ids": ids, "with_payload": fields, **none} if not none:
                found = shard.retrieve(ids, fields, with_vector=False)
                return [{"id": str(each.id), "payload": each.payload} for each in found]
            case "POST", "points/delete", {"filter": asked, **none} if not none:
                shard.update(edge.UpdateOperation.delete_points_by_filter(self._filter(asked)))
                return {"status": "completed", "operation_id": 1}
            case "POST", "points/count", {"filter": asked, "exact": True, **none} if not none:
                return {"count": shard.count(edge.CountRequest(exact=True, filter=self._filter(asked)))}
            case "POST", "points/query", {"query": {"nearest": near}, "filter": asked, "limit": limit, **more}:
                assert more.get("params", {"exact": True}) == {"exact": True}
                query = edge.QueryRequest(
                    limit=limit,
                    query=edge.Query.Nearest(near),
                    filter=self._filter(asked),
                    params=edge.SearchParams(exact=True),
                    with_payload=more["with_payload"],
                )
                found = shard.query(query)
                told = ("payload", "score", "version")
                return {
                    "points": [{"id": str(each.id), **{name: getattr(each, name) for name in told}} for each in found]
                }
            case _:
                raise AssertionError(f"the double does not know {method} {path} with {body}")

    def _filter(self, asked: dict[str, Any]) -> Any:
        named = {each["key"] for how in ("must", "must_not") for each in asked.get(how, ()) if "key" in each}
        assert named <= self.indexed
        assert "community" in named
        tests = {how: [self._condition(each) for each in asked.get(how, ())] for how in ("must", "must_not")}
        return self._edge.Filter(**tests)

    def _condition(self, asked: dict[str, Any]) -> Any:
        edge = self._edge
        match asked:
            case {"has_id": ids}:
                return edge.HasIdCondition({*ids})
            case {"key": key, "match": {"value": value}}:
                return edge.FieldCondition(key, match=edge.MatchValue(value))
            case {"key": key, "match": {"any": values}}:
                return edge.FieldCondition(key, match=edge.MatchAny(values))
            case {"key": key, "range": bounds}:
                return edge.FieldCondition(key, range=edge.RangeFloat(**bounds))
            case _:
                raise AssertionError(f"the double does not know the condition {asked}")


def _said(result: object) -> httpx.Response:
    return httpx.Response(200, json={"result": result, "status": "ok", "time": 0.001})


@contextmanager
def serving(double: QdrantDouble) -> Generator[str]:
    """Let the double answer on a socket, and yield its address. While it is away, it hangs up."""
    turn = Lock()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _answer(self) -> None:
            content = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            request = httpx.Request(
                self.command, f"http://double{self.path}", headers=dict(self.headers), content=content
            )
            try:
                with turn:
                    response = double.answer(request)
            except httpx.ConnectError:
                self.close_connection = True
                return
            self.send_response(response.status_code)
            self.send_header("Content-Length", str(len(response.content)))
            self.end_headers()
            self.wfile.write(response.content)

        do_GET = do_PUT = do_POST = _answer  # noqa: N815 as http.server calls them

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 as http.server calls it
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        thread = Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


def _free_port() -> int:
    """Find a port that no outgoing connection is given (Linux gives them from 32768 on) while the server is down."""
    for port in range(20_000 + os.getpid() % 200 * 60, 32_768):  # others' servers are down at times, too
        with socket.socket() as free, suppress(OSError):
            free.bind(("127.0.0.1", port))
            return port
    raise AssertionError("no port is free")


class ChromaServer:
    """A real Chroma on a socket, as `chroma run` starts it."""

    def __init__(self, folder: Path) -> None:
        if find_spec("chromadb_rust_bindings") is None:
            pytest.skip("needs Chroma: pip install --no-deps chromadb")
        self.folder = folder
        self._port = _free_port()
        self.url = f"http://127.0.0.1:{self._port}"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        run = "import sys, chromadb_rust_bindings; chromadb_rust_bindings.cli(['chroma', *sys.argv[1:]])"
        where = ["run", "--path", str(self.folder), "--host", "127.0.0.1", "--port", str(self._port)]
        self._process = subprocess.Popen([sys.executable, "-c", run, *where], stdout=subprocess.PIPE)
        said = self._process.stdout
        assert said is not None
        assert any(b"listening" in line for line in said), "chroma run does not start"
        self._until_it_listens()  # which it says before
        # It writes some lines at each request, and blocks if its output is not read.
        self._reading = Thread(target=deque, args=(said, 0))
        self._reading.start()

    def _until_it_listens(self) -> None:
        for _ in range(200):
            with suppress(OSError), socket.create_connection(("127.0.0.1", self._port), 1):
                return
            time.sleep(0.05)
        raise AssertionError("chroma run does not listen")

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._reading.join()
            self._process.communicate()
            self._process = None


class Held(ABC):
    """An engine, and the faults that a test causes in it."""

    kind: Literal["qdrant", "chroma"]
    url = "http://qdrant:6333"

    def options(self, url: str = "") -> SearchOptions:
        return SearchOptions(vectors=self.kind, url=url or self.url, api_key=Secret(KEY), collection=COLLECTION)

    @abstractmethod
    def engine(self) -> VectorEngine:
        """Return a new engine each time, as for a new process."""

    @abstractmethod
    def away(self) -> AbstractContextManager[None]: ...

    @abstractmethod
    def lose(self) -> None:
        """Lose all data."""

    @abstractmethod
    def held(self) -> dict[str, tuple[dict[str, Any], list[float]]]:
        """Return the points as the engine's own users see them: payload and vector of each, by its id."""

    @abstractmethod
    def backup(self) -> Callable[[], None]:
        """Return a function that restores the present state."""


class HeldByQdrant(Held):
    kind = "qdrant"

    def __init__(self) -> None:
        self.double = QdrantDouble()

    def engine(self) -> VectorEngine:
        return Qdrant(self.options(), self.double.client())

    @contextmanager
    def away(self) -> Generator[None]:
        self.double.is_away = True
        yield
        self.double.is_away = False

    def lose(self) -> None:
        self.double.lose()

    def held(self) -> dict[str, tuple[dict[str, Any], list[float]]]:
        return {name: point for name, point in self.double.points().items() if point[0]["model"]}

    def backup(self) -> Callable[[], None]:
        kept = self.double.points()

        def put_back() -> None:
            self.double.remove(self.double.points())
            self.double.put((name, *point) for name, point in kept.items())

        return put_back


class HeldByChroma(Held):
    kind = "chroma"
    _path = "/api/v2/tenants/default_tenant/databases/default_database/collections"

    def __init__(self, server: ChromaServer) -> None:
        self._server = server
        self.url = server.url

    def engine(self) -> VectorEngine:
        return Chroma(self.options())

    @contextmanager
    def away(self) -> Generator[None]:
        self._server.kill()
        yield
        self._server.start()

    def lose(self) -> None:
        httpx.delete(f"{self.url}{self._path}/{COLLECTION}").raise_for_status()

    def held(self) -> dict[str, tuple[dict[str, Any], list[float]]]:
        known = httpx.get(f"{self.url}{self._path}/{COLLECTION}").raise_for_status().json()
        asked = {"include": ["metadatas", "embeddings", "documents"]}
        found = httpx.post(f"{self.url}{self._path}/{known['id']}/get", json=asked).raise_for_status().json()
        points = zip(found["ids"], found["metadatas"], found["embeddings"], found["documents"], strict=True)
        return {
            each: (metadata | {"_text": text}, vector) for each, metadata, vector, text in points if metadata["model"]
        }

    def backup(self) -> Callable[[], None]:
        folder = self._server.folder
        kept = folder.with_name("kept")
        with self.away():
            shutil.copytree(folder, kept)

        def put_back() -> None:
            with self.away():
                shutil.rmtree(folder)
                shutil.copytree(kept, folder)

        return put_back


@contextmanager
def held_by(kind: str, folder: Path) -> Generator[Held]:
    """Start an engine."""
    if kind == "qdrant":
        yield HeldByQdrant()
        return
    server = ChromaServer(folder)
    server.start()
    try:
        yield HeldByChroma(server)
    finally:
        server.kill()
