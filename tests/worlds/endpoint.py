"""A model endpoint on a real socket, for tests: it answers, delays, refuses, cuts off, drops and talks nonsense.

`with endpoint_double() as endpoint:` runs it on a thread of its own, so tests on asyncio, on trio and of whole
processes can use it alike; `endpoint.base_url` is what `llm.base_url` wants. Without a plan it replies sensibly to any
schema, and to intern's own prompts as a plain but honest model would. It is strict: a request with a field outside of
the standard API, or with a schema that strict mode refuses, gets a 400.
"""

from __future__ import annotations

import asyncio
import json
import re
import threading
from collections import Counter, defaultdict, deque
from collections.abc import AsyncGenerator, Callable, Generator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import pytest
from aiohttp import web

_PIECE = 20
"""Characters of a reply that come at once, where it is streamed; a very long one comes in larger pieces."""

Answer = Callable[[dict[str, Any]], Any]
"""Takes the request's body; gives a dict (the reply's JSON), a str (the reply's text) or a `Reply`."""

_STANDARD = frozenset(
    {
        *("model", "messages", "max_tokens", "max_completion_tokens", "temperature", "top_p", "n", "stop", "seed"),
        *("response_format", "tools", "tool_choice", "parallel_tool_calls", "user"),
        *("stream", "stream_options"),
    }
)


@dataclass(frozen=True, kw_only=True)
class Reply:
    """One reply and its faults. `content` None: the double's own reply."""

    content: Any = None
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    finish_reason: str | None = "stop"
    usage: Any = None
    body: bytes | None = None
    """The whole body, instead of a chat completion."""
    delay: float = 0.0
    """Seconds before the reply; infinity: until the double closes."""
    drop: bool = False
    """Break the connection in the middle of the body."""


def refuse(status: int, *, retry_after: str | None = None, says: str = "no") -> Reply:
    body = json.dumps({"error": {"message": says}}).encode()
    return Reply(status=status, body=body, headers={"Retry-After": retry_after} if retry_after else {})


def cut() -> Reply:
    return Reply(content='{"answer": "and then you', finish_reason="length")


def drop() -> Reply:
    return Reply(drop=True)


def never() -> Reply:
    return Reply(delay=float("inf"))


def junk(body: bytes = b"<html>bad gateway</html>") -> Reply:
    return Reply(body=body)


def huge(size: int = 9 * 1024 * 1024) -> Reply:
    return Reply(content="x" * size)


@dataclass(frozen=True)
class Request:
    """A request. `prompt` is intern's name for it; empty in `json_object` mode, which sends no name."""

    prompt: str
    body: dict[str, Any]
    headers: Mapping[str, str]

    @property
    def system(self) -> str:
        return text_of(self.body, "system")

    @property
    def user(self) -> str:
        return text_of(self.body, "user")


class EndpointDouble:
    """The endpoint. Plans may be made, and records read, from any thread."""

    def __init__(self, answer: Answer | None = None, *, api_key: str = "", path: str = "/v1") -> None:
        self._answer = answer or sensible
        self._path = path
        self._api_key = api_key
        self._queued: dict[str | None, deque[Any]] = defaultdict(deque)
        self._closing = asyncio.Event()
        self.base_url = ""
        self.pages: dict[str, Any] = {}
        """The JSON about the endpoint, by path."""
        self.requests: list[Request] = []
        self.connections: set[Any] = set()
        """The far ends of the connections of requests."""
        self.embedded: list[str] = []
        """The embedded texts: each a direction by its length."""
        self.failures: list[Exception] = []
        """The errors in answers that the test wrote."""

    def next(self, *replies: Any, prompt: str | None = None) -> None:
        """Answer the next requests (of one prompt, or of any) with these, one each."""
        self._queued[prompt].extend(replies)

    def asked(self, prompt: str) -> list[Request]:
        return [request for request in self.requests if request.prompt == prompt]

    @asynccontextmanager
    async def serving(self) -> AsyncGenerator[EndpointDouble]:
        """Listen on a free port of 127.0.0.1; asyncio only."""
        app = web.Application(client_max_size=64 * 1024 * 1024)
        app.router.add_post(f"{self._path}/chat/completions", self._completions)
        app.router.add_post(f"{self._path}/embeddings", self._embeddings)
        app.router.add_get("/{path:.*}", self._page)
        runner = web.AppRunner(app, shutdown_timeout=1)
        await runner.setup()
        try:
            site = web.TCPSite(runner, "127.0.0.1", 0)
            await site.start()
            self.base_url = f"http://127.0.0.1:{runner.addresses[0][1]}{self._path}"
            yield self
        finally:
            self._closing.set()
            await runner.cleanup()

    async def _completions(self, http: web.Request) -> web.StreamResponse:
        try:
            body: dict[str, Any] = await http.json()
        except ConnectionResetError:  # the client was killed
            return web.Response()
        request = Request(prompt_of(body), body, dict(http.headers))
        self.requests.append(request)
        assert http.transport is not None
        self.connections.add(http.transport.get_extra_info("peername"))
        authorization = http.headers.get("Authorization", "")
        if self._api_key and authorization != f"Bearer {self._api_key}":
            return await self._send(http, refuse(401, says=f"wrong key: {authorization}"), body)
        if faults := faults_of(body):
            return await self._send(http, refuse(400, says="; ".join(faults)), body)
        try:
            planned = self._planned(request)
        except Exception as error:  # noqa: BLE001 a fault of the test's own; raised again where the double is closed
            self.failures.append(error)
            planned = refuse(400, says=repr(error))
        return await self._send(http, planned, body)

    async def _page(self, http: web.Request) -> web.Response:
        if http.path not in self.pages:
            return web.json_response({"error": "no such page"}, status=404)
        return web.json_response(self.pages[http.path])

    async def _embeddings(self, http: web.Request) -> web.StreamResponse:
        texts: list[str] = (await http.json())["input"]
        self.embedded += texts
        data = [{"index": n, "embedding": [float(len(text)), 1.0]} for n, text in enumerate(texts)]
        return web.json_response({"data": data, "usage": {"prompt_tokens": sum(map(len, texts)) // 4}})

    def _planned(self, request: Request) -> Reply:
        for key in (request.prompt, None):
            if self._queued[key]:
                planned = self._queued[key].popleft()
                break
        else:
            planned = self._answer
        said = planned(request.body) if callable(planned) else planned
        return said if isinstance(said, Reply) else Reply(content=said)

    async def _send(self, http: web.Request, reply: Reply, asked: dict[str, Any]) -> web.StreamResponse:
        if reply.delay:
            timeout = None if reply.delay == float("inf") else reply.delay
            with suppress(TimeoutError):
                await asyncio.wait_for(self._closing.wait(), timeout)
        body = completion(reply, asked) if reply.body is None else reply.body
        kind = "application/json"
        is_stream = bool(asked.get("stream")) and reply.body is None and reply.status == 200
        if is_stream:
            body, kind = streamed(body), "text/event-stream"
        headers = {"Content-Type": kind, **reply.headers}
        if is_stream and not reply.drop:
            return await _in_pieces(http, headers, body)
        if not reply.drop:
            return web.Response(status=reply.status, body=body, headers=headers)
        half = web.StreamResponse(status=reply.status, headers={**headers, "Content-Length": str(len(body))})
        await half.prepare(http)
        await half.write(body[: len(body) // 2])
        assert http.transport is not None
        http.transport.abort()
        return half


async def _in_pieces(http: web.Request, headers: Mapping[str, str], events: bytes) -> web.StreamResponse:
    """Yield a stream as servers send it: the last event, and after it the end of the response."""
    response = web.StreamResponse(headers=headers)
    with suppress(ConnectionResetError):  # the client was killed
        await response.prepare(http)
        await response.write(events)
        await asyncio.sleep(0)
        await response.write_eof()
    return response


@contextmanager
def retried_at_once() -> Generator[None]:
    """Retry a failed call without a pause."""

    def without_pause(_: Exception, __: int) -> float:
        return 0.0

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("intern.models.http.pause_before_retry", without_pause)
        yield


@contextmanager
def endpoint_double(answer: Answer | None = None, *, api_key: str = "") -> Generator[EndpointDouble]:
    """Run the double on a thread of its own, until the block ends."""
    up = threading.Event()
    shared: list[tuple[EndpointDouble, asyncio.AbstractEventLoop, asyncio.Event]] = []

    async def serve() -> None:
        leave = asyncio.Event()
        async with EndpointDouble(answer, api_key=api_key).serving() as double:
            shared.append((double, asyncio.get_running_loop(), leave))
            up.set()
            await leave.wait()

    thread = threading.Thread(target=asyncio.run, args=(serve(),), name="endpoint double", daemon=True)
    thread.start()
    assert up.wait(10), "the endpoint double did not come up"
    double, loop, leave = shared[0]
    try:
        yield double
    finally:
        loop.call_soon_threadsafe(leave.set)
        thread.join(10)
        assert not thread.is_alive(), "the endpoint double did not close"
    if double.failures:
        raise double.failures[0]


def completion(reply: Reply, asked: dict[str, Any]) -> bytes:
    """Return a chat completion as in the standard API."""
    content = sensible(asked) if reply.content is None else reply.content
    text = content if isinstance(content, str) else json.dumps(content)
    message: dict[str, Any] = {"role": "assistant", "content": text}
    if "tools" in asked:
        function = {"name": prompt_of(asked), "arguments": text}
        message = {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "1", "type": "function", "function": function}],
        }
    usage = reply.usage
    if usage is None:
        counted = len(json.dumps(asked["messages"])) // 4, len(text) // 4
        usage = {"prompt_tokens": counted[0], "completion_tokens": counted[1], "total_tokens": sum(counted)}
    choice = {"index": 0, "message": message, "finish_reason": reply.finish_reason}
    body = {"id": "c1", "object": "chat.completion", "model": asked.get("model"), "choices": [choice], "usage": usage}
    return json.dumps(body).encode()


def streamed(completion: bytes) -> bytes:
    """Yield a chat completion as the events of a stream: the reply in pieces, its end, its usage, and the last line."""
    whole: dict[str, Any] = json.loads(completion)
    choice: dict[str, Any] = whole["choices"][0]
    message: dict[str, Any] = choice["message"]
    calls: list[dict[str, Any]] = message.get("tool_calls") or []
    text: str = calls[0]["function"]["arguments"] if calls else message["content"]
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": None if calls else ""}]
    if calls:
        named = {**calls[0], "index": 0, "function": {**calls[0]["function"], "arguments": ""}}
        deltas.append({"tool_calls": [named]})
    size = max(_PIECE, len(text) // 200)
    for start in range(0, len(text), size):
        piece = text[start : start + size]
        call: dict[str, Any] = {"tool_calls": [{"index": 0, "function": {"arguments": piece}}]}
        deltas.append(call if calls else {"content": piece})
    events = [{"choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in deltas]
    events.append({"choices": [{"index": 0, "delta": {}, "finish_reason": choice["finish_reason"]}]})
    events.append({"choices": [], "usage": whole["usage"]})
    lines = [*(json.dumps({"object": "chat.completion.chunk", **event}) for event in events), "[DONE]"]
    return "".join(f"data: {line}\n\n" for line in lines).encode()


def prompt_of(body: Mapping[str, Any]) -> str:
    """Return the prompt's name, which the client sends as the name of the schema or of the function."""
    if body.get("tools"):
        return str(body["tools"][0]["function"]["name"])
    return str(body.get("response_format", {}).get("json_schema", {}).get("name", ""))


def text_of(body: Mapping[str, Any], role: str) -> str:
    """Return the text of a role's last message: those before it are examples."""
    content: Any = next((each["content"] for each in reversed(body["messages"]) if each["role"] == role), "")
    parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
    return "\n".join(part["text"] for part in parts if part["type"] == "text")


def schema_of(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the schema that a reply must fit; in `json_object` mode, read it from the first message."""
    if body.get("tools"):
        return dict(body["tools"][0]["function"]["parameters"])
    schema = body.get("response_format", {}).get("json_schema", {}).get("schema")
    if schema is None:
        first: Any = body["messages"][0]["content"]
        whole = first if isinstance(first, str) else first[0]["text"]
        _, is_there, schema = whole.rpartition("JSON schema:\n")
        return dict(json.JSONDecoder().raw_decode(schema)[0]) if is_there else {}
    return dict(schema)


def faults_of(body: Mapping[str, Any]) -> list[str]:
    """Return the reasons why a strict endpoint would refuse a request."""
    unknown = [f"unknown field {name}" for name in sorted(body.keys() - _STANDARD)]
    asked_strictly = bool(body.get("response_format", {}).get("json_schema", {}).get("strict"))
    return unknown + (_schema_faults(schema_of(body), "schema") if asked_strictly else [])


def _schema_faults(schema: Mapping[str, Any], where: str) -> list[str]:
    faults: list[str] = []
    if not {"type", "anyOf", "$ref"} & schema.keys():
        faults.append(f"{where} has no type")
    properties: dict[str, Any] = schema.get("properties", {})
    if schema.get("type") == "object":
        if schema.get("additionalProperties") is not False:
            faults.append(f"{where} allows additional properties")
        if set(schema.get("required", ())) != properties.keys():
            faults.append(f"{where} does not require all of its properties")
    inner: dict[str, Any] = {**properties, **schema.get("$defs", {})}
    choices: list[Any] = schema.get("anyOf", [])
    inner.update({f"anyOf[{n}]": choice for n, choice in enumerate(choices)})
    if "items" in schema:
        inner["[]"] = schema["items"]
    for name, part in inner.items():
        faults += _schema_faults(part, f"{where}.{name}")
    return faults


# --- The double's own replies ---

_ID = re.compile(r"(?:kb|team|nugget):[^\s\"'`<>|,;)\]]+")
_ALIAS = re.compile(r"S[1-8]: ")
_WORD = re.compile(r"\w{4,}")
_FENCED = re.compile(r"^=== ([^=\n#]+)(?: #\d+)? ===\n(.*?)\n=== end of \1(?: #\d+)? ===$", re.DOTALL | re.MULTILINE)
_EVERYWHERE = frozenset(
    [
        "what",
        "when",
        "where",
        "which",
        "after",
        "about",
        "does",
        "have",
        "with",
        "this",
        "that",
        "from",
        "into",
        "your",
        "there",
        "they",
    ]
)


def sensible(body: dict[str, Any]) -> dict[str, Any]:
    """Return a reply that fits the schema, and that makes sense for the fields of intern's prompts."""
    user = text_of(body, "user")
    made: dict[str, Any] = _sample(schema_of(body))
    for name, meant in _MEANINGS.items():
        if name in made:
            made[name] = meant(user)
    return made


def _sample(schema: Mapping[str, Any]) -> Any:
    if "enum" in schema:
        return schema["enum"][0]
    if "anyOf" in schema:
        return _sample(schema["anyOf"][-1])  # null, where it is allowed
    if schema.get("type") == "object":
        return {name: _sample(inner) for name, inner in schema.get("properties", {}).items()}
    samples: dict[str, Any] = {"array": [], "boolean": True, "integer": schema.get("minimum", 0), "null": None}
    return samples.get(schema.get("type", "string"), "something sensible")


def _words(text: str) -> set[str]:
    return {word[:6].casefold() for word in _WORD.findall(text)} - _EVERYWHERE


def _material(user: str) -> str:
    """Return a prompt's text without the conversation, and without marker lines."""
    asked = {"question", "message", "history", "pair"}
    material = _FENCED.sub(lambda found: "" if found[1] in asked else found[0], user)
    return "\n".join(line for line in material.splitlines() if not line.startswith("==="))


def _asked(user: str) -> str:
    """Return the question, or the pair to file; else the last lines, since the changing part comes last in a prompt."""
    fences = {found[1]: found[2] for found in _FENCED.finditer(user)}
    return fences.get("question") or fences.get("message") or fences.get("pair") or "\n".join(user.splitlines()[-4:])


def _by_fit(user: str) -> list[tuple[str, str]]:
    """Return the ids in a prompt, each with the text that follows it; the best matches of the question first."""
    material, wanted = _material(user), _words(_asked(user))
    marks = list(_ID.finditer(material))
    ends = [*(mark.start() for mark in marks[1:]), len(material)]
    found: dict[str, str] = {}
    for mark, end in zip(marks, ends, strict=False):  # without marks there is one end too many
        source = mark[0].rstrip(".:=")
        found[source] = found.get(source, "") + material[mark.end() : end]
    fit = {source: len(wanted & _words(source + text)) for source, text in found.items()}
    enough = min(2, len(wanted))
    return [(source, found[source]) for source in sorted(found, key=lambda s: -fit[s]) if fit[source] >= enough > 0]


def _answer_text(user: str) -> str | None:
    if _decides(user):
        return next((line for _, line in _shown(user)), None)
    best = next(iter(_by_fit(user)), ("", "I found nothing."))[1]
    return _best_line(best, _words(_asked(user)))


def _topic_name(user: str) -> str:
    known = [source for source, _ in _by_fit(user) if source.startswith("team:")]
    if known:
        return known[0].removeprefix("team:").partition("#")[0].removesuffix(".txt")
    said = next((line for line in _asked(user).splitlines() if line.startswith("User: ")), "").removeprefix("User: ")
    words = Counter(word for word in re.findall(r"[a-z]{5,}", said.casefold()) if word not in _EVERYWHERE)
    return "-".join(word for word, _ in words.most_common(2)) or "general"


def _newer_half(user: str) -> list[str]:
    """Return the newer half of the blocks of a topic that is to be split."""
    questions = next((found[2] for found in _FENCED.finditer(user) if found[1] == "questions"), "")
    ids = [line.partition(" ")[0] for line in questions.splitlines()]
    return ids[len(ids) // 2 :]


def _shown(user: str) -> list[tuple[str, str]]:
    """Return the passages `S1` and so on that match a message, and the best line of each; best first."""
    wanted = _words(_asked(user))
    passages = {found[1][:2]: found[2] for found in _FENCED.finditer(user) if _ALIAS.match(found[1])}
    fit = {alias: len(wanted & _words(text)) for alias, text in passages.items()}
    order = [alias for alias in sorted(fit, key=lambda alias: -fit[alias]) if fit[alias] >= min(2, len(wanted)) > 0]
    return [(alias, _best_line(passages[alias], wanted)) for alias in order]


def _best_line(text: str, wanted: set[str]) -> str:
    team = [line for line in text.splitlines() if line.startswith("Team: ")]
    lines = team or [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    return max(lines, key=lambda line: len(wanted & _words(line)), default="I found nothing.").removeprefix("Team: ")


def _decides(user: str) -> bool:
    return any(found[1] == "message" for found in _FENCED.finditer(user))


def _kind(user: str) -> str:
    if "?" not in _asked(user):
        return "chatter"
    return "question" if not _decides(user) else "answer" if _shown(user) else "not_covered"


_MEANINGS: dict[str, Callable[[str], Any]] = {
    "quotes": lambda user: [{"source": alias, "line": line} for alias, line in _shown(user)[:1]],
    "claims": lambda _: [{"claim": "it says so", "quote": 1}],
    "kind": _kind,
    "selected_source_ids": lambda user: [source for source, _ in _by_fit(user)][:3],
    "answer": _answer_text,
    "citations": lambda user: [source for source, _ in (_shown if _decides(user) else _by_fit)(user)][:1],
    "is_good_enough": lambda _: True,
    "verdict": lambda _: "answered",
    "skip": lambda _: False,
    "topic_name": _topic_name,
    "move_ids": _newer_half,
    "description": lambda user: f"About {' '.join(sorted(set(_WORD.findall(_material(user))))[:80])}.",
}
