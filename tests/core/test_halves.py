"""Half surrogates: replaced where they stand, and nothing beside them."""

from __future__ import annotations

import json

from hypothesis import given, strategies as st
from msgspec import Struct

from intern.core.text.masking import encoded, whole, whole_json

_TEXT = st.text(st.characters() | st.sampled_from("\ud83d\ude00\\u"))


class _Said(Struct):
    text: str
    parts: tuple[str, ...] = ()
    by_name: dict[str, str] = {}


def test_half_surrogates_become_a_sign_that_utf8_can_carry() -> None:
    assert whole("\ud83d\ude00 \ud83d!") == "😀 \ufffd!"
    assert whole("plain 😀") == "plain 😀"


@given(_TEXT)
def test_a_json_text_keeps_its_length_and_says_what_utf8_can_carry(text: str) -> None:
    told = json.dumps(text).encode()
    mended = whole_json(told)
    assert len(mended) == len(told)
    assert json.loads(mended) == whole(text)


@given(_TEXT)
def test_a_value_is_encoded_whatever_its_texts_hold(text: str) -> None:
    said = json.loads(encoded(_Said(text, (text, "x"), {text: text})))
    assert said == {"text": whole(text), "parts": [whole(text), "x"], "by_name": {whole(text): whole(text)}}
