"""The profile of a named model server, and the server that behaves so behind the endpoint double."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from tests.models.test_request_forms import contained_in
from tests.worlds.endpoint import Reply, prompt_of, sensible

Message = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Said:
    """A failure in the words of a server."""

    status: int
    body: Any
    """JSON, or a text that is none."""
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    waits: float | None = None
    """The seconds that the body names, within our bounds: they count where no header names any."""
    is_event: bool = False
    """Where a stream was asked for, this failure comes within it, under status 200."""

    def reply(self, asked: Mapping[str, Any]) -> Reply:
        text = self.body if isinstance(self.body, str) else json.dumps(self.body)
        if self.is_event and asked.get("stream"):
            headers = {"Content-Type": "text/event-stream", **self.headers}
            return Reply(body=f"event: error\ndata: {text}\n\n".encode(), headers=headers)
        return Reply(status=self.status, body=text.encode(), headers=self.headers)


def plain(text: str) -> Message:
    return {"role": "assistant", "content": text}


@dataclass(frozen=True, kw_only=True)
class Profile:
    """What is known of a server. What its `sources` do not say is named as `unverified`, and is from memory."""

    name: str
    sources: tuple[str, ...]
    """Pages of documentation and public reports, the status and words of each failure among them."""
    unverified: str = ""
    model: str
    host: str = ""
    """Empty: it runs on one's own machine."""
    path: str = "/v1"
    query: str = ""
    key_header: str = "Authorization"
    """That of the key, after `Bearer ` in this one."""
    refuses: Mapping[str, Said] = field(default_factory=dict[str, Said])
    """Parts of a request (see `contained_in`) that it refuses, and its words for that. It names one at a time."""
    loses: frozenset[str] = frozenset()
    """The parts of `intern.models.request_forms` that it is asked without, or in another way."""
    message: Callable[[str], Message] = plain
    """How it words a reply with this text."""
    finish: str | None = "stop"
    beside: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Fields of its own beside `choices`."""
    in_choice: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Fields of its own in a choice."""
    usage: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Counts of its own beside the usual three."""
    opening: str = ""
    """What its streams begin with."""
    too_long: tuple[Said, ...]
    busy: tuple[Said, ...]
    """By 429 where it has that: tried again, and no sign that it is out of order."""
    away: tuple[Said, ...] = ()
    """Out of order for now: tried again, too."""
    pages: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """What it tells of itself, by path."""
    offers: Mapping[str, int | None] = field(default_factory=dict[str, "int | None"])
    """The models that these pages list, with their tokens of context."""


class NamedServer:
    """A server of a profile: it refuses what this one refuses, and words all else as it does."""

    def __init__(self, profile: Profile) -> None:
        self.profile = profile

    def __call__(self, asked: Mapping[str, Any]) -> Reply:
        """Answer a request."""
        refused = next((part for part in contained_in(dict(asked)) if part in self.profile.refuses), None)
        if refused is not None:
            return self.profile.refuses[refused].reply(asked)
        text = json.dumps(sensible(dict(asked)))
        message = self.profile.message(text)
        finish = self.profile.finish
        if "tools" in asked:
            call = {"id": "1", "type": "function", "function": {"name": prompt_of(asked), "arguments": text}}
            message, finish = {**message, "content": None, "tool_calls": [call]}, "tool_calls"
        count = len(json.dumps(asked["messages"])) // 4
        usage = {"prompt_tokens": count, "completion_tokens": 40, "total_tokens": count + 40, **self.profile.usage}
        if not asked.get("stream"):
            choice = {"index": 0, "message": message, "finish_reason": finish, **self.profile.in_choice}
            whole = {"object": "chat.completion", "choices": [choice], "usage": usage, **self.profile.beside}
            return Reply(body=json.dumps(whole).encode())
        events = [*self._pieces(message, finish)]
        if "stream_options" in asked:
            events.append({"choices": [], "usage": usage})
        events[-1] |= self.profile.beside
        lines = [*map(json.dumps, events), "[DONE]"]
        body = self.profile.opening + "".join(f"data: {line}\n\n" for line in lines)
        return Reply(body=body.encode(), headers={"Content-Type": "text/event-stream; charset=utf-8"})

    def cut(self, asked: Mapping[str, Any]) -> Reply:
        """Break off in the middle of the answer."""
        return replace(self(asked), drop=True)

    def _pieces(self, message: Message, finish: str | None) -> Iterator[dict[str, Any]]:
        content: Any = message.get("content")
        calls: list[dict[str, Any]] = message.get("tool_calls") or []
        deltas: list[dict[str, Any]] = [{**message, "content": "", "tool_calls": None}]
        for call in calls:
            named = {**call, "index": 0, "function": {**call["function"], "arguments": ""}}
            pieces = [{"index": 0, "function": {"arguments": each}} for each in _cut_up(call["function"]["arguments"])]
            deltas += [{"content": None, "tool_calls": [each]} for each in (named, *pieces)]
        said: list[Any] = _cut_up(content) if isinstance(content, str) else [[part] for part in content or ()]
        deltas += [{"content": each} for each in said]
        for n, delta in enumerate([*deltas, {}]):
            ends = n == len(deltas)
            choice = {"index": 0, "delta": delta, "finish_reason": finish if ends else None, **self.profile.in_choice}
            yield {"object": "chat.completion.chunk", "choices": [choice]}


def _cut_up(text: str) -> list[str]:
    return [text[start : start + 40] for start in range(0, len(text), 40)]
