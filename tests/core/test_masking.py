from __future__ import annotations

import time
from base64 import b64encode
from collections.abc import Sequence

import pytest
from hypothesis import given, settings, strategies as st

from intern.core.text.masking import _RULES, mask_file, mask_secrets, mask_start
from tests.timing import cpu_seconds
from tests.worlds.secrets import LOOKALIKES, SECRETS

# Put together here, so that no scanner takes the tests for a leak.
_DISCORD = "MTE5" + "x8" * 11 + ".Gab1_c." + "Zz9-" * 8
_JWT = "eyJ" + "hbGciOiJIUzI1" + ".eyJ" + "zdWIiOiIxMjM0" + "." + "sIg-nature_1"
_PEM = "-----BEGIN RSA " + "PRIVATE KEY-----\nMIIEow" + "IBAAKCAQEA7\nq1w2e3\n" + "-----END RSA " + "PRIVATE KEY-----"
_SEED = "abandon ability able about above absent absorb abstract absurd abuse access accident"

_SECRETS = {
    "discord_token": _DISCORD,
    "github_token": "ghp_" + "a1B2" * 9,
    "aws_key": "AKIA" + "IOSFODNN7EXAMPLE",
    "slack_token": "xoxb-" + "1234567890-abcdef",
    "api_key": "sk-" + "proj-abcdEFGH1234ijkl5678",
    "jwt": _JWT,
    "private_key": _PEM,
    "card_number": "4111 1111 1111 1111",
}


@pytest.mark.parametrize(("kind", "secret"), _SECRETS.items())
def test_a_secret_is_masked_and_what_stands_around_it_stays(kind: str, secret: str) -> None:
    masked = mask_secrets(f"before {secret} after\n({secret})")
    assert masked.text == f"before [masked {kind}] after\n([masked {kind}])"
    assert masked.kinds == {kind: 2}


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("Authorization: Bearer abcdefghij0123456789xyz", "Authorization: Bearer [masked bearer_token]"),
        ("API_KEY = 'abcd1234efgh5678'", "API_KEY = '[masked api_key]'"),
        ('"client_secret": "abcd1234efgh5678",', '"client_secret": "[masked api_key]",'),
        ("postgres://bob:hunter2@db/x", "postgres://bob:[masked password]@db/x"),
        ("redis://:p#w0rd@cache:6379", "redis://:[masked password]@cache:6379"),
        ("amqp://guest:My#Secret1@mq", "amqp://guest:[masked password]@mq"),
        ("wss://admin:Pa?ss1@host", "wss://admin:[masked password]@host"),
        (r"mysql://root:a\b9@db", "mysql://root:[masked password]@db"),
        ("REDIS://root:12#ab@db", "REDIS://root:[masked password]@db"),
        ("Authorization: Bearer abcd-efgh1-ijkl", "Authorization: Bearer [masked bearer_token]"),
        ("Send Bearer abcd-efgh1-ijkl, please", "Send Bearer [masked bearer_token], please"),
        ('{"authorization": "Basic Zm9vOmJhcg=="}', '{"authorization": "Basic [masked bearer_token]"}'),
        ("Authorization: a1b2c3d4.", "Authorization: [masked bearer_token]"),
        (f"aws_secret_access_key={'aB3/' * 10}", "aws_secret_access_key=[masked aws_key]"),
        (f"my private key: 0x{'ab12' * 16}", "my private key: [masked private_key]"),
        (
            f"https://discord.com/api/webhooks/123/{'aB_-' * 16}",
            "https://discord.com/api/webhooks/123/[masked discord_webhook]",
        ),
        (f"-----BEGIN PRIVATE {'KEY'}-----\n{'MIIE' * 10}", "[masked private_key]"),
        (f"-----BEGIN PRIVATE {'KEY'}-----\n{'MIIE' * 10} and so on", "[masked private_key] and so on"),
    ],
)
def test_only_the_secret_part_goes(text: str, kept: str) -> None:
    assert mask_secrets(text).text == kept


@pytest.mark.parametrize("between", [" ", ", ", "\n"])
def test_a_seed_phrase_is_masked_where_it_is_announced(between: str) -> None:
    masked = mask_secrets(f"My Seed Phrase is: {_SEED.replace(' ', between)}. Help!")
    assert masked.text == "My Seed Phrase is: [masked seed_phrase]. Help!"


@pytest.mark.parametrize(
    "phrase",
    [
        _SEED,
        "\n".join(_SEED.split()),
        "\n".join(_SEED.split() * 2),
        f"{_SEED}\n{_SEED}",
        "\n".join(" ".join(_SEED.split()[n : n + 4]) for n in (0, 4, 8)),
        ", ".join(_SEED.split()),
    ],
)
@pytest.mark.parametrize("after", ["please help restore", "thanks", "please", "thanks everyone please help"])
def test_what_is_written_on_the_line_below_a_seed_phrase_stays(phrase: str, after: str) -> None:
    masked = mask_secrets(f"My seed phrase:\n{phrase}\n{after}\nI lost it.")
    assert masked.text == f"My seed phrase:\n[masked seed_phrase]\n{after}\nI lost it."


def test_a_numbered_seed_phrase_is_masked() -> None:
    numbered = " ".join(f"{n}. {word}" for n, word in enumerate(_SEED.split() * 2, 1))
    assert "accident" not in mask_secrets(f"mnemonic {numbered}").text


@pytest.mark.parametrize(
    "text",
    [
        _SEED,  # the text does not announce a seed
        "my seed phrase does not work when entering the twelve words into some other wallet please help",
        "see https://discord.com/channels/112233445566778899/223344556677889900/334455667788990011 <@4111111111111111>",
        "order 1234567890123456, at 1700000000000, 4111 1111 1111 1112",
        "Bearer YOUR_ACCESS_TOKEN_GOES_HERE and api_key = YOUR_API_KEY_GOES_HERE",
        "sk-this-is-only-a-long-class-name",
        "put -----BEGIN PUBLIC KEY----- at the top",
        "token: see the docs; https://example.org:8080/a@b",
        "It starts with -----BEGIN PRIVATE KEY----- and ends with -----END PRIVATE KEY-----, doesn't it?",
        "-----BEGIN PRIVATE KEY-----\ninternationalization of this is missing",
        "http://127.1.1.1:80#\\@127.2.2.2:80/ and http://127.0.0.1:80?x@y",
        'https://example.org/a?b=c@d, see http://host:8080/path#x@y, git@github.com:a/b, ["http://h:80","b@c.de"]',
        *(
            f"Authorization: Bearer {each}"
            for each in ("<token>", "$TOKEN", "${TOKEN}", "YOUR_TOKEN", "...", "your-token")
        ),
        "authorization: token expired yesterday; Authorization: required",
        "postgres://user:password@localhost/db and https://name:<your-token>@example.org and redis://:${PASS}@h",
        "We use bearer token-based-authentication-2 here, see class sk-fading-circle-container2-child.",
        "Use 4242 4242 4242 4242 in tests, or 4000000000000341.",
    ],
)
def test_what_only_looks_like_a_secret_stays(text: str) -> None:
    masked = mask_secrets(text)
    assert masked.text == text
    assert masked.kinds == {}


@given(
    st.lists(st.sampled_from([*_SECRETS.values(), _SEED, "seed phrase", "Bearer", "api_key=", ":", " ", "\n", "a1"]))
)
def test_masking_twice_is_masking_once(pieces: list[str]) -> None:
    once = mask_secrets(" ".join(pieces)).text
    assert mask_secrets(once).text == once


@given(
    st.lists(
        st.sampled_from(
            [
                "the",
                "your",
                "my",
                "a",
                "is",
                "was",
                "=",
                ":",
                "-",
                "\n",
                ".",
                ",",
                "?",
                "password",
                "token",
                "api_key",
                "secret",
                "key",
                "seed",
                "phrase",
                "bearer",
                "private",
                "key",
                "card",
                "number",
                "reset",
                "expires",
                "docs",
                "settings",
                "YOUR_API_KEY",
                "<token>",
                "2FA",
                "v1.2.3",
                "10",
                "minutes",
                "112233445566778899",
                "https://example.org/reset?token=TOKEN",
                "postgres://user:password@host",
                "-----BEGIN",
                "PRIVATE",
                "KEY-----",
                "-----END",
                "PRIVATE",
                "KEY-----",
                "environment",
                "variable",
                "authentication",
            ]
        ),
        max_size=40,
    )
)
def test_words_about_secrets_are_no_secrets(pieces: list[str]) -> None:
    text = " ".join(pieces)
    assert mask_secrets(text).text == text


@given(st.text())
def test_any_text_is_taken(text: str) -> None:
    masked = mask_secrets(text)
    assert bool(masked.kinds) == (masked.text != text)


# For each rule, a piece that its pattern finds, or begins to find, again and again.
_HOSTILE: Sequence[tuple[str, str]] = (
    ("private_key", "-----BEGIN PRIVATE KEY-----\\nAAAAAAAAAAAAAAAA "),
    ("private_key", "private key: 0x"),
    ("seed_phrase", "seed 1234 12 34 abc "),
    ("discord_token", "M" * 22 + "-.aaaaaa."),
    ("discord_token", "mfa.a"),
    ("discord_webhook", "discord.com/api/webhooks/1/a"),
    ("github_token", "ghp_a"),
    ("gitlab_token", "glpat-a"),
    ("aws_key", "AKIA" + "A" * 16 + " "),
    ("aws_key", "AKIA" + "A" * 17),
    ("slack_token", "xoxb-"),
    ("slack_webhook", "hooks.slack.com/services/"),
    ("api_key", "sk-"),
    ("api_key", "sk_live_a"),
    ("api_key", "AIza-"),
    ("api_key", "SG.aaaaaaaaaaaaaaaaaa."),
    ("api_key", "12345678:AA"),
    ("api_key", "npm_a"),
    ("jwt", "eyJaaaaaaaa."),
    ("bearer_token", "authorization:bearer a "),
    ("bearer_token", "authorization: "),
    ("bearer_token", "bearer a-"),
    ("bearer_token", "basic aaaaaaaa"),
    ("password", "a://b:"),
    ("password", 'A_PASSWORD="'),
    ("password", "password is "),
    ("api_key", "key=a-"),
    ("iban", "DE12 AAAA "),
    ("card_number", "4111 "),
)


@pytest.mark.parametrize(("number", "kind", "piece"), [(n, *hostile) for n, hostile in enumerate(_HOSTILE)])
def test_a_hostile_text_takes_time_in_proportion_to_its_length(number: int, kind: str, piece: str) -> None:
    assert [rule[0] for rule in _RULES][number] == kind

    def seconds(size: int) -> float:
        hostile = piece * (size // len(piece))
        return cpu_seconds(lambda: mask_secrets(hostile))

    assert seconds(100_000) < 3 * seconds(50_000) + 0.2


def test_each_rule_has_a_hostile_text() -> None:
    assert [kind for kind, *_ in _RULES] == [kind for kind, _ in _HOSTILE]


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("Write to ann.b+tag@mail.example.com.", "Write to [masked email]."),
        ("<ann@example.org>, bob@example.co.uk:hunter2", "<[masked email]>, [masked email]:hunter2"),
        ("jürgen@bücher.example", "[masked email]"),
        ("git clone git@github.com:owner/repo.git", "git clone git@github.com:owner/repo.git"),
        ("npm i left-pad@1.3.0 @scope/pkg@2.0.0", "npm i left-pad@1.3.0 @scope/pkg@2.0.0"),
        ("@everyone <@123456789012345678> a@b", "@everyone <@123456789012345678> a@b"),
    ],
)
def test_e_mail_addresses_are_masked_if_asked_for(text: str, kept: str) -> None:
    masked = mask_secrets(text, emails=True)
    assert masked.text == kept
    assert masked.kinds == ({"email": kept.count("[masked email]")} if "[masked" in kept else {})
    assert mask_secrets(kept, emails=True).text == kept
    assert mask_secrets(text).text == text


def test_addresses_can_be_masked_without_anything_else() -> None:
    token = _SECRETS["github_token"]
    assert mask_secrets(f"a@b.example {token}", secrets=False, emails=True).text == f"[masked email] {token}"


@pytest.mark.parametrize(
    "hostile", ["a" * 100_000, "a@" * 50_000, "a." * 50_000, "a@" + "b." * 50_000, "a@b-" * 25_000]
)
def test_looking_for_addresses_takes_no_more_than_a_moment_whatever_the_text(hostile: str) -> None:
    began = time.process_time()
    mask_secrets(hostile, secrets=False, emails=True)
    assert time.process_time() - began < 2


@given(
    kind=st.sampled_from(["github_token", "aws_key", "slack_token", "api_key", "jwt", "card_number"]),
    before=st.text(" .x", max_size=300),
    most=st.integers(1, 100),
)
def test_the_start_of_a_text_holds_no_part_of_a_secret_wherever_it_is_cut(kind: str, before: str, most: int) -> None:
    start = mask_start(f"{before} {_SECRETS[kind]} and so on", most)
    assert len(start) <= most
    assert _SECRETS[kind][:8] not in start


@given(
    most=st.integers(60, 100),
    seen=st.integers(8, 30),
    between=st.text(" .x", max_size=20),
)
def test_nor_does_it_where_what_was_masked_before_draws_half_a_secret_near(most: int, seen: int, between: str) -> None:
    secret = _SECRETS["github_token"]
    head, tail = "eyJ" + "hbGciOiJIUzI1" + ".eyJ", "." + "sIg-nature_1"
    room = 4 * most - seen - len(f" {between} ") - len(head + tail)
    start = mask_start(f"{head}{'zdW'[: room % 3] + 'zdW' * (room // 3)}{tail} {between} {secret} and so on", most)
    assert secret[:8] not in start


def test_the_start_of_a_text_says_that_more_follows_and_a_short_text_is_whole() -> None:
    assert mask_start("a word", 6) == "a word"
    assert mask_start("a word", 5) == "a wo…"
    assert mask_start(f"{_SECRETS['api_key']} leaked", 24) == "[masked api_key] leaked"


# Finding A3.
@pytest.mark.parametrize("kind", SECRETS)
def test_each_secret_that_people_paste_is_masked(kind: str) -> None:
    planted = SECRETS[kind]
    masked = mask_secrets(f"It says no. {planted.text}\nWhy?").text
    assert not [part for part in planted.secret if part in masked]
    assert masked.startswith("It says no. ")
    assert masked.endswith("\nWhy?")


@pytest.mark.parametrize("text", LOOKALIKES)
def test_what_people_paste_every_day_stays(text: str) -> None:
    assert mask_secrets(text).text == text
    assert mask_secrets(f"Why does it say\n{text}.\nIs it bad?").text == f"Why does it say\n{text}.\nIs it bad?"


_NAMES = (
    "password requirepass passwd DB_PASSWORD dbPass smtp-pass wpa-psk client_secret secret secret_key_base auth_token"
    " token refreshToken auth _auth erlang.cookie client-key-data"
).split()
_FORMS = (
    "{name} = {value}\nport = 1",
    "{name}: {value}",
    '"{name}":"{value}","port":1',
    "  '{name}' => '{value}',",
    "<{name}>{value}</{name}>",
    '<{name} encrypted="false">{value}</{name}>',
    '<add key="{name}" value="{value}"/>',
    "define('{name}', '{value}');",
    "- name: {name}\n  value: {value}",
    '{{\\"{name}\\":\\"{value}\\"}}',
    "relay --{name} {value} --port 1",
    "relay --{name}={value}",
)


# All of them each time: drawn, a form met a name by chance, and one with an underscore was long unseen.
@pytest.mark.parametrize("form", _FORMS)
@settings(max_examples=10)
@given(value=st.from_regex(r"[a-zA-Z]{3,9}[0-9]{1,4}[!#%+/_-]{0,2}[a-zA-Z]{2,30}", fullmatch=True))
def test_values_of_settings_that_hold_passwords_are_masked_in_files(form: str, value: str) -> None:
    for name in _NAMES:
        masked = mask_file(form.format(name=name, value=value))
        assert masked.count("[masked ") == 1, masked
        assert value[:3] not in masked.replace(name, "")
        assert mask_file(masked) == masked


@pytest.mark.parametrize(
    ("before", "secret"),
    [
        ("password = ", "swordfish"),
        ("requirepass ", "swordfish"),
        ("machine a.example login ann password ", "swordfish"),
        ("machine a.example\n  login ann\n  password ", "hunter2xyz"),
        ('{"auths": {"a.example": {"auth": "', "YW5uOnBhc3M="),
        ("root:$6$", "saltsalt$Dshf.kjsdf/jsdhfkjsdhf"),
        ("Cookie: ", "session=abcdef; csrf=defabc"),
        ("data: ", b64encode(b"-----BEGIN EC PRIVATE " + b"KEY-----\n" + b"x9" * 100).decode()),
    ],
)
def test_passwords_of_files_are_masked_whatever_they_look_like(before: str, secret: str) -> None:
    masked = mask_file(before + secret)
    assert masked.startswith(before)
    assert not [part for part in (secret[:6], secret[-6:]) if part in masked]


@pytest.mark.parametrize(
    "line",
    [
        *LOOKALIKES,
        "password authentication failed for user",
        "token expired 5 minutes ago",
        "auth: ok",
        "auth=digest",
        "password: incorrect",
        "password: does not match",
        "secret: misconfiguration",
        'secret "regcred2" not found',
        "PASS src/app1.test.js",
        "compass: north1",
        "token::parse2 failed",
        "Unexpected token x in JSON",
        "passwd: files systemd",
        "--password-file /run/x1",
        "pam_unix(sshd:auth): authentication failure; user=root1",
        "password:\n  file: x1",
    ],
)
def test_lines_of_logs_about_passwords_keep_their_words(line: str) -> None:
    assert "[masked password]" not in mask_file(line)


@pytest.mark.parametrize(
    "piece",
    [
        "LS0tLS1CRUdJT" + "a" * 40 + "\n",
        "$1$a",
        "cookie: a=b",
        "cookie:a=b;a=b;",
        "password=",
        'password a="',
        "--pass",
        "login a ",
        "token:",
        'token: "',
        "password',\"",
        "password \n\n\n\n",
        "token b c ",
    ],
)
def test_a_hostile_file_takes_time_in_proportion_to_its_length(piece: str) -> None:
    def seconds(size: int) -> float:
        return cpu_seconds(lambda: mask_file(piece * (size // len(piece))))

    assert seconds(20_000) < 3 * seconds(10_000) + 0.05


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("/Users/Ann Smith/x", "/Users/[masked user_name]/x"),
        (r"gone: C:\Users\Ann Smith", r"gone: C:\Users\[masked user_name]"),
        ('"C:\\Users\\Ann Smith" is gone', '"C:\\Users\\[masked user_name]" is gone'),
        ("/Users/ann in folder a/b", "/Users/[masked user_name] in folder a/b"),
        ("/home/ann failed to open", "/home/[masked user_name] failed to open"),
        ("10:00:03:: Chrome/120.0.0.0, Version=1.2.3.4", "10:00:03:: Chrome/120.0.0.0, Version=1.2.3.4"),
        ("a/10.1.2.3:80 and [2001:db8::7]", "a/[masked ip_address]:80 and [[masked ip_address]]"),
    ],
)
def test_users_and_machines_of_files_are_masked_and_nothing_beside_them(text: str, kept: str) -> None:
    assert mask_file(text) == kept
