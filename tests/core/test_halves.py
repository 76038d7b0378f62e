"""Half surrogates are replaced, and no character beside them."""

from __future__ import annotations

import json

from hypothesis import given, strategies as st
from msgspec import Struct

from intern.core.text.encoding import encode_json, replace_json_surrogates, replace_surrogates

_TEXT = st.text(st.characters() | st.sampled_from("\ud83d\ude00\\u"))


class _Said(Struct):
    text: str
    parts: tuple[str, ...] = ()
    by_name: dict[str, str] = {}


def test_half_surrogates_become_a_sign_that_utf8_can_carry() -> None:
    assert replace_surrogates("\ud83d\ude00 \ud83d!") == "😀 \ufffd!"
    assert replace_surrogates("plain 😀") == "plain 😀"


@given(_TEXT)
def test_a_json_text_keeps_its_length_and_says_what_utf8_can_carry(text: str) -> None:
    told = json.dumps(text).encode()
    mended = replace_json_surrogates(told)
    assert len(mended) == len(told)
    assert json.loads(mended) == replace_surrogates(text)


@given(_TEXT)
def test_a_value_is_encoded_whatever_its_texts_hold(text: str) -> None:
    said = json.loads(encode_json(_Said(text, (text, "x"), {text: text})))
    assert said == {
        "text": replace_surrogates(text),
        "parts": [replace_surrogates(text), "x"],
        "by_name": {replace_surrogates(text): replace_surrogates(text)},
    }
