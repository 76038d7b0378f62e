"""Streamed replies: any pieces join to the completion that would have come whole."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, strategies as st

from intern.core.errors import ModelReplyError
from intern.models.replies import has_ended, is_stream, join_events, read_completion
from tests.worlds.endpoint import streamed


def whole(text: str, finish_reason: str | None = "stop", *, calls: bool = False) -> bytes:
    function = {"id": "1", "type": "function", "function": {"name": "ask", "arguments": text}}
    message = {"role": "assistant", "content": None if calls else text, "tool_calls": [function] if calls else None}
    usage = {"prompt_tokens": 70, "completion_tokens": 7, "prompt_tokens_details": {"cached_tokens": 64}}
    choice = {"index": 0, "message": message, "finish_reason": finish_reason}
    return json.dumps({"choices": [choice], "usage": usage}).encode()


def event(**fields: Any) -> bytes:
    return b"data: " + json.dumps(fields).encode() + b"\n\n"


def piece(text: str, finish_reason: str | None = None) -> bytes:
    return event(choices=[{"index": 0, "delta": {"content": text}, "finish_reason": finish_reason}])


@given(st.text(), st.booleans(), st.sampled_from(["\n", "\r\n", "\r"]))
def test_a_stream_says_what_the_whole_reply_would_have_said(text: str, calls: bool, line_end: str) -> None:  # noqa: FBT001
    sent = whole(text, calls=calls)
    stream = streamed(sent).replace(b"\n", line_end.encode())
    assert is_stream(stream)
    assert not is_stream(sent)

    reply = join_events(stream, what="ask")

    assert (reply.status, reply.is_whole) == (200, True)
    got, wanted = read_completion(reply.body, what="ask"), read_completion(sent, what="ask")
    assert (got.prompt_tokens, got.completion_tokens, got.cached_tokens) == (70, 7, 64)
    assert got.choice.finish_reason == wanted.choice.finish_reason
    if calls:
        assert [(call.name, call.text) for _, call in got.choice.message.calls] == [("ask", text)]
    else:
        assert got.choice.message.text == wanted.choice.message.text == text


def test_comments_and_other_choices_say_nothing() -> None:
    other = event(choices=[{"index": 1, "delta": {"content": "no"}}])
    stream = b": processing\n\n" + piece("ye") + other + b"event: ping\n\n" + piece("s", "stop") + b"data: [DONE]\n\n"
    reply = join_events(stream, what="ask")
    assert read_completion(reply.body, what="ask").choice.message.text == "yes"


PART = {"type": "text", "text": "s"}


@pytest.mark.parametrize(
    "odd",
    [
        event(id=None, choices=None, usage=None, error=None, x_groq={"id": 1}),
        event(choices=[{"index": None, "delta": None, "finish_reason": None, "logprobs": []}]),
        event(choices=[{"delta": {"content": None, "reasoning_content": "hm", "tool_calls": None, "role": 7}}]),
        event(choices=[{"delta": {"content": [{"type": "thinking", "thinking": []}, {"text": None}]}}]),
    ],
)
def test_events_with_nulls_and_strange_fields_are_read(odd: bytes) -> None:
    parts = event(choices=[{"delta": {"content": [PART, ""]}}])
    reply = join_events(odd + piece("ye") + odd + parts + odd + piece("", "stop") + odd, what="ask")
    assert reply.is_whole
    assert read_completion(reply.body, what="ask").choice.message.text == "yes"


def test_a_whole_reply_may_hold_parts_too() -> None:
    body = json.dumps({"choices": [{"message": {"content": ["ye", PART]}}]}).encode()
    assert read_completion(body, what="ask").choice.message.text == "yes"


ARGUMENTS = '{"answer": "because"}'


@pytest.mark.parametrize(
    "functions",
    [
        [{"name": "ask", "arguments": ""}, {"arguments": ARGUMENTS[:5]}, {"name": None, "arguments": ARGUMENTS[5:]}],
        [{"name": "ask", "arguments": ARGUMENTS[:5]}, {"name": "ask", "arguments": ARGUMENTS[5:]}],
        [{"name": "ask", "arguments": ARGUMENTS}, {"arguments": None}, None],
        [{"name": "ask", "arguments": json.loads(ARGUMENTS)}],
    ],
    ids=["in pieces", "name repeated", "at once", "as an object"],
)
@pytest.mark.parametrize("place", [{"index": 0}, {"index": None}, {}], ids=["placed", "null", "missing"])
def test_a_call_of_a_function_is_read_however_it_is_sent(functions: list[Any], place: dict[str, Any]) -> None:
    events = [event(choices=[{"delta": {"tool_calls": [{**place, "function": each}]}}]) for each in functions]
    reply = join_events(b"".join(events) + piece("", "tool_calls"), what="ask")
    ((_, function),) = read_completion(reply.body, what="ask").choice.message.calls
    assert (function.name, json.loads(function.text)) == ("ask", json.loads(ARGUMENTS))


@pytest.mark.parametrize("end", [b"", b"data: [DONE]\n\n", b"data:[DONE]"])
def test_a_stream_is_whole_with_its_last_event_or_a_reason_for_its_end(end: bytes) -> None:
    assert join_events(piece("yes", "stop") + end, what="ask").is_whole
    assert join_events(piece("yes") + end, what="ask").is_whole is bool(end)


@pytest.mark.parametrize(
    ("error", "status"),
    [
        ({"code": 429, "message": "busy"}, 429),
        ({"code": "context_length_exceeded"}, 500),
        ({"code": 7}, 500),
        ("no", 500),
    ],
)
def test_an_error_within_a_stream_is_the_reply(error: Any, status: int) -> None:
    reply = join_events(piece("ye") + event(error=error), what="ask")
    assert reply.status == status
    assert json.loads(reply.body)["error"] == error


@pytest.mark.parametrize("broken", [b"data: {\n\n", b"data: []\n\n", b'data: {"choices": 7}\n\n', b"data: \xff\n\n"])
def test_an_event_that_is_none_is_named_without_its_words(broken: bytes) -> None:
    with pytest.raises(ModelReplyError, match="ask: the streamed reply holds an event that is no JSON object") as error:
        join_events(piece("secret") + broken, what="ask")
    assert error.value.__cause__ is None


def test_the_last_event_is_told_from_a_reply_that_speaks_of_it() -> None:
    ended = piece("yes") + b"data: [DONE]\n\n"
    assert has_ended(ended, len(b"[DONE]\n\n"))
    assert not has_ended(piece("data: [DONE]"), 30)
    assert not has_ended(whole("\ndata: [DONE]\n"), 60)


@given(st.binary())
def test_a_server_may_stream_anything(said: bytes) -> None:
    with suppress(ModelReplyError):
        join_events(b"data: " + said, what="ask")
