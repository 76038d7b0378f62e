"""An error names the fault of a reply by kind and place: the reply's words may be about people, and errors are kept."""

from __future__ import annotations

import json
import traceback

import msgspec
import pytest

from intern.core.errors import ModelError, ModelReplyError
from intern.facts.prompts import EXTRACT
from intern.models.options import LlmOptions
from intern.models.replies import decode_reply, read_completion

TOLD = "Anna Berg has 'lupus' - at `$.anna`"


def refused(message: dict[str, str]) -> str:
    body = msgspec.json.encode({"choices": [{"message": message, "finish_reason": "stop"}]})
    with pytest.raises(ModelError) as caught:
        decode_reply(read_completion(body, what="extract"), EXTRACT, LlmOptions(), what="extract")
    shown = "".join(traceback.format_exception(caught.value))
    assert not any(word in shown.casefold() for word in ("anna", "berg", "lupus"))
    return str(caught.value)


def test_a_wrong_value_is_told_by_its_place() -> None:
    said = {"nuggets": [], "facts": [{"category": TOLD}]}
    assert refused({"content": msgspec.json.encode(said).decode()}).endswith(
        "Invalid enum value - at `$.facts[0].category`"
    )


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (f'{{"{TOLD}": 1}}', "Object missing required field `nuggets`"),
        ('{"nuggets": "Anna"}', "Expected `array`, got `str` - at `$.nuggets`"),
        (TOLD, "JSON is malformed: invalid character (byte 0)"),
        ('"Anna', "Input data was truncated"),
    ],
)
def test_what_does_not_fit_is_told_without_its_words(content: str, told: str) -> None:
    assert refused({"content": content}).endswith(told)


def test_a_refusal_is_told_without_its_words() -> None:
    assert refused({"refusal": TOLD}) == f"extract: the model refused, in {len(TOLD)} characters of its own"


def test_what_an_error_quotes_of_a_reply_is_masked() -> None:
    key = "sk-live-" + "4f9aK2mQ7xT1vB8nZ3cR6wY5"
    with pytest.raises(ModelReplyError, match="holds no choices") as raised:
        read_completion(json.dumps({"choices": [], "said": f"You wrote {key}"}).encode(), what="a call")
    assert "You wrote [masked" in str(raised.value)
    assert key[8:] not in str(raised.value)
