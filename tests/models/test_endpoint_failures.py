"""The meaning of refusals: in the words of endpoints in use, and in words that no endpoint should use."""

from __future__ import annotations

import json
from typing import Any, get_args

import pytest
from hypothesis import given, strategies as st

from intern.models.endpoint_failures import EndpointFailure, FailureKind, read_failure, read_retry_delay


def refusal(**error: Any) -> bytes:
    return json.dumps({"error": error}).encode()


@pytest.mark.parametrize(
    ("body", "counted"),
    [
        (
            refusal(
                code=400,
                message="request (9018 tokens) exceeds the available context size (4096 tokens), try increasing it",
                type="exceed_context_size_error",
                n_prompt_tokens=9018,
                n_ctx=4096,
            ),
            EndpointFailure("too_long", tokens=9018, room=4096),
        ),
        (
            refusal(code="context_length_exceeded", message="…", type="invalid_request_error"),
            EndpointFailure("too_long"),
        ),
        (
            refusal(message="This model's maximum context length is 8192 tokens. However, you requested 9000 tokens"),
            EndpointFailure("too_long"),
        ),
        (refusal(message="prompt is too long: 210000 tokens > 200000 maximum"), EndpointFailure("too_long")),
        (
            b'[{"error": {"message": "The input token count (9) exceeds the maximum number of tokens allowed (8)."}}]',
            EndpointFailure("too_long"),
        ),
        (b'{"object": "error", "message": "maximum context length is 4096 tokens"}', EndpointFailure("too_long")),
        (b"Input is too long for requested model.", EndpointFailure("too_long")),
        # Kimi, xAI and MiniMax; the words of the named servers are in tests/models/server_words.py.
        (
            refusal(message="Your request exceeded model token limit: 262144 (requested: 300000)"),
            EndpointFailure("too_long"),
        ),
        (
            refusal(message="This model's maximum prompt length is 131072 but the request contains 537812 tokens"),
            EndpointFailure("too_long"),
        ),
        (refusal(message="invalid params, context window exceeds limit"), EndpointFailure("too_long")),
        (
            refusal(type="exceed_context_size_error", n_prompt_tokens=-1, n_ctx=True),
            EndpointFailure("too_long"),
        ),
    ],
)
@pytest.mark.parametrize("status", [400, 413, 422, 500])
def test_a_prompt_that_is_too_long_is_told_by_code_or_by_words(
    status: int, body: bytes, counted: EndpointFailure
) -> None:
    assert read_failure(status, body) == counted


@pytest.mark.parametrize(
    ("body", "parts"),
    [
        (refusal(message="JSON schema error at #: unrecognized type nonsense"), {"schema"}),
        (refusal(message="Invalid schema for response_format 'gate'", param="response_format"), {"schema"}),
        (refusal(message="Invalid schema: 'maxLength' is not permitted", param="response_format"), {"bounds"}),
        (refusal(message="Failed to parse grammar"), {"schema"}),
        (refusal(message="Unknown parameter.", param="tool_choice"), {"output"}),
        (refusal(code="json_schema_unsupported"), {"output"}),
        (b"'response_format.type' must be text", {"output"}),
        (refusal(message="Unsupported parameter: 'max_tokens'. Use 'max_completion_tokens' instead."), {"limit"}),
        (refusal(message="temperature and stream_options are not supported"), {"temperature", "counting"}),
        (refusal(message="Unknown argument: temperature. Supported arguments: model, stream, tools"), {"temperature"}),
        (
            refusal(message={"detail": [{"loc": ["body", "stream_options", "include_usage"], "msg": "no"}]}),
            {"counting"},
        ),
        (b'{"detail": [{"loc": ["body", "messages", 0, "role"], "msg": "Input should be user"}]}', {"system"}),
        (refusal(message="System role not supported"), {"system"}),
        (refusal(message="Developer instruction is not enabled for models/small"), {"system"}),
        (refusal(message="Conversation roles must alternate user/assistant/user/assistant/..."), {"examples"}),
        (refusal(message="Unrecognized request argument supplied: reasoning_effort"), {"effort"}),
        (refusal(message="stream: Field required", param="stream"), {"stream"}),
    ],
)
def test_a_refusal_names_the_parts_that_it_is_about_and_no_others(body: bytes, parts: set[str]) -> None:
    assert read_failure(400, body) == EndpointFailure("form", frozenset(parts))


@pytest.mark.parametrize(
    ("status", "body", "kind"),
    [
        (429, refusal(code="insufficient_quota", message="You exceeded your current quota"), "quota"),
        (402, b"", "quota"),
        (429, refusal(message="You exceeded your current quota. Please retry in 5s. See /billing"), "busy"),
        (400, refusal(message="API key not valid. Please pass a valid API key."), "key"),
        (401, b"", "key"),
        # LiteLLM 1.108 without a database, of any key but its master key.
        (400, refusal(message="No connected db.", type="no_db_connection", param=None, code="400"), "key"),
        (403, refusal(message="no"), "key"),
        (404, refusal(message="The model `x` does not exist"), "model"),
        (400, refusal(code="model_not_found", message="no such model"), "model"),
        (404, b"<html>not found</html>", "model"),
        (404, refusal(message="No endpoints found that can handle the requested parameters."), "form"),
        (400, refusal(code="content_filter", message="filtered by the content management policy"), "content"),
        (400, refusal(code="json_validate_failed", failed_generation="{temperature"), "unfit"),
        (503, refusal(message="Loading model"), "away"),
        (500, refusal(message="internal system error"), "away"),
        (503, refusal(message="the stream broke: temperature"), "away"),
        (500, refusal(message="temperature is not supported"), "form"),
        (429, refusal(message="temperature is not supported"), "busy"),
        (503, refusal(message="overloaded_error"), "busy"),
        (302, b"", "address"),
        (400, b"no", "unknown"),
        (400, refusal(message="bad input", input="the system prompt and its temperature"), "unknown"),
    ],
)
def test_a_failure_is_told_by_its_words_before_its_status(status: int, body: bytes, kind: str) -> None:
    assert read_failure(status, body).kind == kind


@pytest.mark.parametrize("body", [b"", b"no", b"null", b"[]", b"7", b'{"error": null}', b"[" * 99_999, b"\xff\xfe"])
def test_a_refusal_that_tells_nothing_stays_one(body: bytes) -> None:
    assert read_failure(400, body) == EndpointFailure("unknown")


@given(
    st.integers(min_value=201, max_value=599),
    st.binary()
    | st.recursive(
        st.none() | st.integers() | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from(["error", "message", "n_ctx", "loc"]), inner),
    ).map(lambda said: json.dumps(said).encode()),
)
def test_no_refusal_breaks_the_reader(status: int, body: bytes) -> None:
    assert read_failure(status, body).kind in get_args(FailureKind)


@pytest.mark.parametrize(
    ("said", "seconds"),
    [
        ("Rate limit reached. Please try again in 7.66s. Visit our page.", 7.66),
        ("Please try again in 1m20.5s.", 80.5),
        ("Please try again in 174ms.", 0.174),
        ("Please retry after 26 seconds.", 26),
        ('[{"error": {"details": [{"@type": "RetryInfo", "retryDelay": "34.07s"}]}}]', 34.07),
        ("Please try again in 2 hours.", None),
        ("Slow down. You may try again later; 5s is the limit.", None),
    ],
)
def test_a_delay_is_read_from_the_words_of_an_error(said: str, seconds: float | None) -> None:
    delay = read_retry_delay(said.encode())
    assert (delay and float(delay)) == (pytest.approx(seconds) if seconds else None)


@pytest.mark.parametrize(
    ("status", "said", "kind"),
    [
        (429, "Too many tokens, please wait before trying again.", "busy"),
        (429, "You have exceeded the maximum number of tokens per minute", "busy"),
        (429, "Request too large for m in organization o on tokens per min (TPM): Limit 10, Requested 12.", "too_long"),
        (503, "Authentication service temporarily unavailable", "away"),
        (500, "billing service unavailable", "away"),
        (503, "Model is overloaded. Please upgrade your billing plan or try later", "busy"),
        (401, "billing service unavailable", "quota"),
        (500, "the request exceeds the available context size", "too_long"),
    ],
)
def test_a_server_that_fails_or_is_busy_tells_nothing_final(status: int, said: str, kind: FailureKind) -> None:
    assert read_failure(status, refusal(message=said)).kind == kind
