"""Who may read a fact: categories, words, shapes, and the operator's word above all."""

from __future__ import annotations

import pytest

from intern.domain import Visibility
from intern.learning.options import VisibilityRule
from intern.learning.visibility import of_account, strictest, visibility_of


@pytest.mark.parametrize(
    ("category", "expected"),
    [
        ("medical", "secret"),
        ("Credentials", "secret"),
        ("operational", "private"),
        ("workflow", "private"),
        ("technical", "shared"),
        ("preference", "shared"),
        ("anything else", "shared"),
    ],
)
def test_a_category_has_its_visibility(category: str, expected: Visibility) -> None:
    assert visibility_of("The relay is blue.", category) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("The PASSWORD of the relay is in the safe.", "secret"),
        ("The bot token was changed on Monday.", "secret"),
        ("Nadia got a diagnosis last week.", "secret"),
        ("Nadia's salary is paid on Fridays.", "secret"),
        ("Her card is 4111 1111 1111 1111.", "secret"),
        ("The key is AKIAIOSFODNN7EXAMPLE.", "secret"),
        ("Our release workflow begins on Mondays.", "private"),
        ("The runbook says to restart it.", "private"),
        ("A passenger tokenised the passage.", "shared"),
        ("The relay answers 500 internal server error.", "shared"),
        ("Ask about message 123456789012345678.", "shared"),
    ],
)
def test_words_and_shapes_say_what_is_secret_or_private(text: str, expected: Visibility) -> None:
    assert visibility_of(text, "technical") == expected


def test_the_strictest_of_all_decides() -> None:
    assert strictest("shared", "secret", "private") == "secret"
    assert visibility_of("The relay is blue.", "workflow", proposed="shared") == "private"
    assert visibility_of("The relay is blue.", "workflow", proposed="secret") == "secret"
    assert visibility_of("The password is in the safe.", "workflow", proposed="private") == "secret"


def test_the_first_rule_of_the_operator_that_fits_decides_alone() -> None:
    rules = (
        VisibilityRule(category="person", contains="Birthday", visibility="private"),
        VisibilityRule(contains="max_tokens", visibility="shared"),
        VisibilityRule(category="emotional", visibility="secret"),
    )
    assert visibility_of("Her birthday is in May.", "person", rules=rules) == "private"
    assert visibility_of("Her birthday is in May.", "technical", rules=rules) == "shared"
    assert visibility_of("Set max_tokens, or tokens run out.", "emotional", rules=rules) == "shared"
    assert visibility_of("Nadia is glad.", "EMOTIONAL", rules=rules) == "secret"
    assert visibility_of("Her cat is old.", "person", rules=rules) == "shared"


@pytest.mark.parametrize(
    "text",
    [
        "The password of the router is hunter2 and the member was diagnosed with cancer.",
        "The password of the router is hunter2.",
        "Restart it. Then log in with the password Tr0ub4dor&3 as before.",
        "password: swordfish",
        "The admin password is swordfish.",
        "Use hunter2 as the password.",
        "Their PIN is 4711.",
        "The bot token is now Zx81abcQ99.",
        "API key = 9f8a7b6c5d4e",
        "User_2 was diagnosed with diabetes.",
        "The team member is on sick leave after surgery.",
        "She takes antidepressants.",
        "User_1's salary is 4,200 a month.",
        "Pay into the bank account 12345678.",
    ],
)
def test_an_account_with_a_credential_and_its_value_or_with_what_somebody_suffers_from_is_secret(text: str) -> None:
    assert of_account(text) == "secret"


@pytest.mark.parametrize(
    "text",
    [
        "How to reset a password",
        "User_1 asked how to reset a password. The password is reset with `relayctl passwd`.",
        "The password is required, and the token is missing.",
        "The token is sent to the server. The password is wrong.",
        "Set `password: <your password>` or `token: ${TOKEN}` in the file.",
        "The API key is stored in `relay.toml`; the token was [masked api_key].",
        "Set max_tokens to 4096; the context has 8192 tokens: 4096 are left.",
        "A token v2 expires after 30s, and passwords of at least 12 characters are strong.",
        "The access token is base64-encoded and signed with RSA256.",
        "The watchdog prints a diagnosis of the network.",
        "The data set holds cancer scans.",
        "Passwords and PINs: see the manual.",
    ],
)
def test_an_account_of_how_such_things_work_is_for_everybody(text: str) -> None:
    assert of_account(text) == "shared"


def test_an_account_of_what_was_said_in_confidence_is_private() -> None:
    assert of_account("The date is confidential. It is the third.") == "private"
    assert of_account("This stays between us.") == "private"
