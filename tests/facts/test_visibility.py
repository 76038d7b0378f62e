"""The readers of a fact, by its category, its words, its shapes, and above all the operator's rules."""

from __future__ import annotations

import time

import pytest
from hypothesis import example, given, strategies as st

from intern.core.knowledge import Visibility
from intern.facts.visibility import VisibilityRule, decide_visibility, rate_account_text, strictest_visibility
from tests.facts import personal


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
    assert decide_visibility("The relay is blue.", category) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("The PASSWORD of the relay is hunter2.", "secret"),
        ("The bot token is now Zx81abcQ99.", "secret"),
        ("Log in to staging with kQ8zR2vT5xW9yB3nM7pL.", "secret"),
        ("Her credit card ends in 4605.", "secret"),
        ("Nadia takes antidepressants.", "secret"),
        ("Token deposits arrive within ten minutes.", "shared"),
        ("Passwords are reset under Settings.", "shared"),
        ("The PASSWORD of the relay is in the safe.", "shared"),
        ("The bot token was changed on Monday.", "shared"),
        ("A refresh token lives for 30 days, an access token for 15 minutes.", "shared"),
        ("The API key is read from RELAY_API_KEY at the start.", "shared"),
        ("Credit cards are charged on the 1st of each month, from 2026-02-07 on.", "shared"),
        ("The seed phrase has 12 or 24 words.", "shared"),
        ("Salaries and bank accounts are no topic here.", "shared"),
        ("The health page gives a diagnosis of the network.", "shared"),
        ("The fix is in commit 3f2a9c1b8d7e6f5a4b3c2d1e0f9a8b7c6d5e4f3a.", "shared"),
        ("See https://docs.example/Guide2/InstallOnDebian12AndUbuntu24 or MaxConnectionsPerHost2Override.", "shared"),
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
    assert decide_visibility(text, "technical") == expected


def test_the_strictest_of_all_decides() -> None:
    assert strictest_visibility("shared", "secret", "private") == "secret"
    assert decide_visibility("The relay is blue.", "workflow", proposed="shared") == "private"
    assert decide_visibility("The relay is blue.", "workflow", proposed="secret") == "secret"
    assert decide_visibility("The password is hunter2.", "workflow", proposed="private") == "secret"


_NAMES = st.sampled_from(
    ["password", "Passwort-free passphrase", "admin password", "API key", "bot token", "client secret"]
)
_VALUES = st.from_regex(r"[a-z]{3}[A-Z]{2}[0-9]{3}[a-z]{2}", fullmatch=True)


@pytest.mark.rest
@given(
    name=_NAMES, value=_VALUES, form=st.sampled_from(["The {} is {}.", "{}: {}", "Our {} was `{}` until May.", "{}={}"])
)
@example(name="API key", value="shaAB123cd", form="The {} is {}.")
def test_a_credential_with_its_value_is_secret_however_it_is_put(name: str, value: str, form: str) -> None:
    assert decide_visibility(form.format(name, value), "technical") == "secret"


@given(
    name=st.sampled_from(
        ["Passwords", "Tokens", "API keys", "Access tokens", "Credentials", "Seed phrases", "PIN codes"]
    ),
    rest=st.sampled_from(
        [
            "expire after 24 hours.",
            "are rotated every 90 days.",
            "can be reset under Settings.",
            "must have 12 characters.",
            "are stored in the keyring.",
            "arrive within ten minutes.",
            "are not logged since v2.4.1.",
            "belong into the environment.",
        ]
    ),
)
def test_what_is_said_about_credentials_is_for_everybody(name: str, rest: str) -> None:
    assert decide_visibility(f"{name} {rest}", "technical") == "shared"


def test_the_first_rule_of_the_operator_that_fits_decides_alone() -> None:
    rules = (
        VisibilityRule(category="person", contains="Birthday", visibility="private"),
        VisibilityRule(contains="max_tokens", visibility="shared"),
        VisibilityRule(category="emotional", visibility="secret"),
    )
    assert decide_visibility("Her birthday is in May.", "person", rules=rules) == "private"
    assert decide_visibility("Her birthday is in May.", "technical", rules=rules) == "shared"
    assert decide_visibility("Set max_tokens, or tokens run out.", "emotional", rules=rules) == "shared"
    assert decide_visibility("Nadia is glad.", "EMOTIONAL", rules=rules) == "secret"
    assert decide_visibility("Her cat is old.", "person", rules=rules) == "shared"


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
        "password=swordfish opens it",
        "Log in to the demo with password swordfish and user demo",
        "The password for the demo server: swordfish",
        "The passphrase is purple monkey dishwasher",
        "The passphrase is purple monkey dishwasher.",
        "Our wifi password is correct horse battery staple",
        "Its recovery code is 482913",
        "The one-time code was 991122",
        "The password is swordfish for the demo",
        'The passphrase is "the quick brown fox"',
        "passphrase: tired monkey dishwasher",
        '{"password": "swordfish"}',
        "The door code is 4711.",
        "secret=swordfish",
        "Log in with password hunter2",
        "Das Passwort lautet hunter2x",
        "Passwort: Schwertfisch",
        "Le mot de passe est k3y9zz",
        "The passphrase is abandon ability able about above absent absorb",
        "The API key is shaQW123ab.",
        "The bot token is mdaQW123ab.",
        "password: red",
        "the code is 482913",
        "Password: Winter",
        "password = swordfish",
        "The root password of db-1: swordfish",
        "Enter the password swordfish.",
        "User_2 was diagnosed with diabetes.",
        "The team member is on sick leave after surgery.",
        "She takes antidepressants.",
        "User_1's salary is 4,200 a month.",
        "Pay into the bank account 12345678.",
    ],
)
def test_an_account_with_a_credential_and_its_value_or_with_what_somebody_suffers_from_is_secret(text: str) -> None:
    assert rate_account_text(text) == "secret"


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
        "The password is stored hashed",
        "The password is wrong means that caps lock is on",
        "password=<your password>",
        "the token is optional",
        "The password is not stored",
        "The password is too short",
        "The password is case sensitive",
        "The password is case-sensitive.",
        "The password is correct.",
        "Passwords are stored encrypted at rest.",
        "The error code is 10061.",
        "The exit code is 1234.",
        "The password for the demo server is in the safe.",
        "Use a password manager.",
        "Log in with password authentication.",
        "Enter the password twice.",
        "The password is shown once.",
        "password=$PASSWORD",
        "token=<token>",
        "The API key is base64url and hashed with sha256.",
        "API key: required",
        "Bot token: renewal and storage",
        "Passwords: see the manual",
        "Set password=None",
        "Use the password given in the mail.",
        "The password is sent via HTTPS.",
        "password: `not set`",
        "Type your password again.",
        "With password reset links, click once.",
        "The token is public.",
        "Passwords are hashed with argon2.",
        "The password field is empty.",
        "password=your_password",
        "token=token",
        "Passwords and PINs: see the manual.",
    ],
)
def test_an_account_of_how_such_things_work_is_for_everybody(text: str) -> None:
    assert rate_account_text(text) == "shared"


def test_an_account_of_what_was_said_in_confidence_is_private() -> None:
    assert rate_account_text("The date is confidential. It is the third.") == "private"
    assert rate_account_text("This stays between us.") == "private"


@pytest.mark.rest
@pytest.mark.parametrize(
    "piece",
    ["password is ", "password:", "-", "with a ", "password of a.", "x is the ", "Ann ", "Ann is a ", "cancer a "],
)
def test_a_hostile_text_is_looked_at_in_a_moment(piece: str) -> None:
    started = time.process_time()
    rate_account_text(piece * (100_000 // len(piece)))
    assert time.process_time() - started < 2


# Finding A6.
@pytest.mark.parametrize("proposed", ["shared", "private", "secret"])
def test_the_health_of_a_named_person_is_secret_whatever_a_model_proposes(proposed: Visibility) -> None:
    assert decide_visibility("The diagnosis of Nadia is diabetes.", "technical", proposed=proposed) == "secret"


@pytest.mark.parametrize(
    ("secret", "shared", "missed", "lost"),
    [
        # Sentences that the rules miss, and sentences that they match wrongly.
        pytest.param(personal.FITTED_SECRET, personal.FITTED_SHARED, 4, 0, id="fitted"),
        pytest.param(personal.HELD_OUT_SECRET, personal.HELD_OUT_SHARED, 5, 2, id="held out"),
    ],
)
def test_what_concerns_people_alone_is_secret_and_what_sounds_like_that_is_shared(
    secret: tuple[str, ...], shared: tuple[str, ...], missed: int, lost: int
) -> None:
    assert len([each for each in secret if decide_visibility(each, "technical") != "secret"]) <= missed
    assert len([each for each in shared if decide_visibility(each, "technical") != "shared"]) <= lost
