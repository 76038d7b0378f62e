from __future__ import annotations

import json

import pytest
from hypothesis import assume, given, strategies as st

from intern.core.text.secret_values import Secret, address_secrets, make_hider


def test_a_secret_prints_as_stars_and_is_given_away_on_purpose_only() -> None:
    secret = Secret("hunter2")
    assert "hunter2" not in f"{secret} {secret!r} {[secret]}"
    assert secret.reveal() == "hunter2"


def test_an_empty_secret_is_false_and_looks_unset() -> None:
    assert not Secret()
    assert repr(Secret()) == "Secret('')"
    assert Secret("a")


def test_secrets_are_equal_by_value() -> None:
    assert Secret("a") == Secret("a") != Secret("b")
    assert len({Secret("a"), Secret("a")}) == 1
    assert Secret("a") != "a"


@pytest.mark.parametrize(
    ("url", "secrets"),
    [
        ("https://bob:p#w0rd?x@relay/v1", ("bob:p#w0rd?x", "w0rd?x@relay/v1")),
        ("https://bob:hunter2@relay/v1?key=k", ("bob:hunter2", "key=k")),
        ("http://relay:8080?mail=a@b", ("mail=a@b",)),
        ("http://relay/v1?mail=a@b", ("mail=a@b",)),
    ],
)
def test_what_may_be_secret_in_an_address_is_found(url: str, secrets: tuple[str, ...]) -> None:
    assert address_secrets(url) == secrets


# Finding A8.
@pytest.mark.parametrize(
    "setting", ["k", "ollama", "EMPTY", "none", "intern", "lm-studio", "postgres", "sslmode=require"]
)
def test_a_setting_that_is_a_plain_word_hides_no_text(setting: str) -> None:
    line = f"intern.answering.answerer: {setting} is EMPTY, so ollama asks postgres of intern about lm-studio"
    assert make_hider([setting])(line) == line


# Finding A8.
@pytest.mark.parametrize("password", ["swordfish-mellon", "correcthorsebattery", "hunter2-", "tr0ub4dor&3"])
def test_a_password_of_words_is_hidden(password: str) -> None:
    assert make_hider([password])(f"the page took {password}, once") == "the page took [secret], once"


@given(st.text("abcXYZ0189_-+%$", min_size=16, max_size=80).filter(lambda text: len(set(text)) > 6 and "0" in text))
def test_a_key_is_hidden_wherever_it_stands_and_however_json_spells_it(key: str) -> None:
    assume(any(map(str.isalpha, key)))
    assert key not in make_hider([key])(f"x {key} y")
    assert make_hider([f'{key}"é'])(f'{json.dumps(key + chr(34) + "é")} {key}"é') == '"[secret]" [secret]'
