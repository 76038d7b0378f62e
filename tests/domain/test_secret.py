from __future__ import annotations

from intern.domain import Secret


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
