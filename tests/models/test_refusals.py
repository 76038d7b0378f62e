"""What refusals are about: as the endpoints that people use word them, and as nobody should."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, strategies as st

from intern.models.replies import TooLong, refusal_of


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
            TooLong(9018, 4096),
        ),
        (refusal(code="context_length_exceeded", message="…", type="invalid_request_error"), TooLong(None, None)),
        (
            refusal(message="This model's maximum context length is 8192 tokens. However, you requested 9000 tokens"),
            TooLong(None, None),
        ),
        (refusal(message="prompt is too long: 210000 tokens > 200000 maximum"), TooLong(None, None)),
        (
            b'[{"error": {"message": "The input token count (9) exceeds the maximum number of tokens allowed (8)."}}]',
            TooLong(None, None),
        ),
        (b'{"object": "error", "message": "maximum context length is 4096 tokens"}', TooLong(None, None)),
        (b"Input is too long for requested model.", TooLong(None, None)),
        (
            refusal(type="exceed_context_size_error", n_prompt_tokens=-1, n_ctx=True),
            TooLong(None, None),
        ),
    ],
)
def test_a_prompt_that_is_too_long_is_told_by_code_or_by_words(body: bytes, counted: TooLong) -> None:
    assert refusal_of(body) == counted


@pytest.mark.parametrize(
    "body",
    [
        refusal(message="Automatic parser generation failed: JSON schema error at #: unrecognized type nonsense"),
        refusal(message="Invalid schema for response_format 'gate'", param="response_format"),
        refusal(message="Failed to parse grammar"),
        refusal(message="Unknown parameter.", param="tool_choice"),
        refusal(code="json_schema_unsupported"),
        b"'response_format.type' must be text",
    ],
)
def test_a_form_that_cannot_be_held_is_told_by_its_words(body: bytes) -> None:
    assert refusal_of(body) == "form"


@pytest.mark.parametrize("body", [b"", b"no", b"null", b"[]", b"7", b'{"error": null}', b"[" * 99_999, b"\xff\xfe"])
def test_a_refusal_that_tells_nothing_stays_one(body: bytes) -> None:
    assert refusal_of(body) is None


@given(
    st.binary()
    | st.recursive(
        st.none() | st.integers() | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from(["error", "message", "n_ctx", "type"]), inner),
    ).map(lambda said: json.dumps(said).encode())
)
def test_no_refusal_breaks_the_reader(body: bytes) -> None:
    found = refusal_of(body)

    assert found is None or isinstance(found, TooLong) or found in {"form", "temperature"}
