"""Secrets as people paste them, and harmless lookalikes.

No secret is here in one piece, so no scanner takes this file for a leak.
"""

from __future__ import annotations

from base64 import b64encode
from typing import NamedTuple

from msgspec import Struct

_MIXED = "aZ3kQ9xV7mB2nL5pR8tW4yC6dF1gH0jS"


class Planted(Struct, frozen=True):
    """A text with a secret, and the parts of it that must not occur anywhere."""

    text: str
    secret: tuple[str, ...]


class _Form(NamedTuple):
    before: str
    secret: str
    after: str = ""


def _seed(words: int) -> str:
    listed = "abandon ability able about above absent absorb abstract absurd abuse access accident".split()
    return " ".join(listed[n % len(listed)] for n in range(words))


_PEM = "\n".join(
    ["-----BEGIN OPENSSH " + "PRIVATE KEY-----", *(_MIXED * 2,) * 3, "-----END OPENSSH " + "PRIVATE KEY-----"]
)
_JWT = ".".join(["eyJ" + "hbGciOiJIUzI1NiJ9", "eyJ" + "zdWIiOiIxMjM0NTY3ODkwIn0", _MIXED + "abcdefghijk"])

_FORMS: dict[str, _Form] = {
    "github_pat": _Form("", "github_" + "pat_11ABCDEFG0" + _MIXED + "_" + _MIXED),
    "ghp": _Form("", "ghp_" + _MIXED + "aB1c"),
    "gho": _Form("", "gho_" + _MIXED + "aB2c"),
    "ghs": _Form("", "ghs_" + _MIXED + "aB3c"),
    "glpat": _Form("", "glpat-" + _MIXED[:20]),
    "xoxb": _Form("", "xoxb-" + "123456789012-1234567890123-" + _MIXED[:24]),
    "xoxp": _Form("", "xoxp-" + "223456789012-2234567890123-" + _MIXED[4:28]),
    "discord_bot": _Form("", "MTE5" + "ODc2NTQzMjEwOTg3NjU0Mw" + ".GaB1c_." + _MIXED + "AbCdEf"),
    "discord_webhook": _Form("https://discord.com/api/webhooks/112233445566778899/", _MIXED * 2 + "aB_-"),
    "sk_live": _Form("", "sk_" + "live_" + _MIXED[:24]),
    "sk_proj": _Form("", "sk-" + "proj-" + _MIXED + _MIXED),
    "sk_ant": _Form("", "sk-" + "ant-api03-" + _MIXED + "-" + _MIXED),
    "google": _Form("", "AI" + "za" + "SyA" + _MIXED),
    "hugging_face": _Form("", "hf_" + "AbCdEfGhIjKlMnOpQrStUvWxYzAbCdEfGh"),
    "npm": _Form("", "npm_" + _MIXED + "aB4c"),
    "aws_id": _Form("", "AKIA" + "QWERTYUIOPASDFGH"),
    "aws_pair": _Form("my keys are AKIA" + "ZXCVBNMQWERTYUIO and ", "wJ4lrXUtnFEMI/K7MDENG+" + "bPxRfiCYzzKEYzz912"),
    "jwt": _Form("", _JWT),
    "pem": _Form("", _PEM),
    "basic": _Form("curl says Basic ", b64encode(b"ann:correct-horse").decode()),
    "basic_header": _Form("Authorization: Basic ", b64encode(b"bob:battery-staple").decode()),
    "bearer": _Form("Authorization: Bearer ", _MIXED[::-1]),
    "url_password": _Form("postgres://ann:", "h0rse-battery", "@db.example/app"),
    "env_password": _Form("DB_PASSWORD=", "correcthorsebattery"),
    "env_quoted": _Form('export MAIL_PASSWORD="', "purple monkey dishwasher", '"'),
    "env_token": _Form("DISCORD_TOKEN=", "abcdefghijklmnop"),
    "env_key": _Form("ENCRYPTION_KEY=", "qwertyuiopasdfgh"),
    "said_password": _Form("my password is ", "hunter2hunter"),
    "yaml_password": _Form("password: ", "tr0ub4dor&3"),
    "json_key": _Form('"api_key": "', "9f8a7b6c5d4e3f2a", '"'),
    "query_token": _Form("https://relay.example/hook?token=", "q1w2e3r4t5y6"),
    "seed_12": _Form("here is my seed phrase: ", _seed(12)),
    "seed_capital": _Form("recovery phrase: ", _seed(12).capitalize()),
    "seed_words": _Form("my 12 words are ", _seed(12)),
    "seed_24": _Form("my mnemonic is\n", _seed(24)),
    "sk_letters": _Form("", "sk-" + "kqwzjxvbnmplrtyhgfdscaKQWZJXVBNM"),
    "send_grid": _Form("", "SG" + "." + _MIXED[:22] + "." + _MIXED + "aB6c-dE_fGh"),
    "telegram": _Form("", "123456789" + ":AA" + _MIXED + "x"),
    "twilio": _Form("", "SK" + "a1b2c3d4" * 4),
    "django_key": _Form("SECRET_KEY='", "f8$k2p#v9!x@q7^w3" + "z5&m1n*r6t0y4b", "'"),
    "card": _Form("card ", "4111 1111" + " 1111 1111"),
    "card_plain": _Form("", "5500005" + "555555559"),
    "iban": _Form("IBAN ", "DE89 3704 0044 " + "0532 0130 00"),
    "iban_plain": _Form("pay to ", "GB82WEST1234" + "5698765432", " please"),
}

SECRETS: dict[str, Planted] = {
    kind: Planted("".join(form), tuple(form.secret.split("\n"))) for kind, form in _FORMS.items()
}

_BASE64_PICTURE = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="

LOOKALIKES: tuple[str, ...] = (
    "commit 3f786850e387550fdab836ed7e6dc881de23001b broke it, 3f78685 too",
    "sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
    "image: relay@sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
    '"integrity": "sha512-z4PhNX7vuL3xVChQ1m2AB9Yg5AULVxXcg/SpIdNs6c5H0NE8XYXysP+DGNKHfuwvY7kxvUdBeoGlODJ6+SfaPg=="',
    "hash = 2c26b46b68ffc68ff99b453c1d30413413422d706483bfa0f98a5e886266e7ae",
    "id 550e8400-e29b-41d4-a716-446655440000, or {6BA7B810-9DAD-11D1-80B4-00C04FD430C8}",
    "see message 1458745245675032709 of <@80351110224678912> in <#112233445566778899>",
    "https://discord.com/channels/112233445566778899/223344556677889900/334455667788990011",
    "https://cdn.discordapp.com/attachments/1/2/a.png?ex=65f0&is=65dd&hm=9f86d081884c7d659a2feaa0c55ad015",
    "data:image/png;base64," + _BASE64_PICTURE,
    "eth0 has 00:1A:2B:3C:4D:5E, wlan0 00-1b-63-84-45-e6",
    "from v2.4.1-rc.3+build.5114f85 to 1.21.0-0.20240102150405-abcdef123456",
    'requires "^1.2.3 || >=2.0.0-beta.1 <3" and python>=3.11,<3.14',
    "order 4539148803436468, invoice INV-2026-0001234, ticket #48151623",
    "call +49 30 901820 or (555) 010-9999, extension 4711",
    "2026-11-28T17:24:58.123456Z, epoch 1700000000000, 1,234,567 rows",
    "fe80::1ff:fe23:4567:890a on 192.168.178.24:8080",
    "0x52908400098527886E0F7030069857D2E4169EE7 sent 0.25 ETH in block 19283746",
    "tx 0x5c504ed432cb51138bcf09aa5e8a410dd4a1e204ef84bfed1be16dfba1b22060",
    "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJ0pPqkdkEFcXkXj4Lq0aRbsCqpX1nGVq2xZpZqkq9pP ann@relay",
    "-----BEGIN CERTIFICATE-----\nMIIDdzCCAl+gAwIBAgIEAgAAuTANBgkqhkiG9w0BAQUF\n-----END CERTIFICATE-----",
    "set API_KEY=<your key>, TOKEN=$TOKEN, DB_PASSWORD=${DB_PASSWORD}, SECRET_KEY=change-me, API_TOKEN=YOUR_API_TOKEN",
    "MAX_TOKENS=4096, PWD=/home/ann, USE_TOKEN=true, SSL_KEY=/etc/relay/key.pem, PRIMARY_KEY=id",
    "the password is required, password: see the manual, the token is optional, passwords are hashed with argon2id",
    "password authentication failed for user intern; token expired 12 minutes ago; secret: not found",
    "the key is `relay.max_tokens`, its value 8192; sort key: created_at, cache key: user_profile",
    "my seed phrase does not work: the wallet says that words four and nine are not in its list of allowed words",
    "the twelve words below must stay: please check which test fails when those words come first, then write back",
    "sk-fading-circle container2, sk-button-primary-outline, hf_transfer, npm_config_registry, glpat",
    "basic authentication works, basic settings are fine, Basic QuestionsAboutTheRelay",
    "postgresql://intern@localhost/intern?sslmode=require, https://relay.example:8080/a@b, git@github.com:a/b.git",
    "Windows key XXXXX-XXXXX-XXXXX-XXXXX-XXXXX goes here, serial SN12 3456 7890 1234",
    "docker run -v /var/lib:/data -p 8080:80 relay:1.4.2-alpine3.19 --name relay-7c9d8b5f6-x2k4q",
    "error 0x80070005 at 0x00007ff6a1b2c3d4, errno 111, HTTP 403, SIGSEGV in libc-2.31.so+0x45f10",
    "app-3f786850e387550f.js, index-DiwrgTda.css, chunk.8d3e9f.min.js",
    "SORT_KEY=created_at, FOREIGN_KEY=order_id, CACHE_KEY=user-profile-v2, REGISTRY_KEY=registry/path",
    "key: 550e8400-e29b-41d4-a716-446655440000, primary key: user_id_2024, cache-key: deps-v1-linux-py311",
    'the key: ctrl+shift+p2, key=KeyCode.F12, data-key="user-42-name", key: KeyboardEventHandler',
    "public key: ssh-ed25519 and ssh-rsa, secret: misconfiguration, token: 2024-01-05T10:20:30Z",
    "the password is case-sensitive2, the password is base64-encoded and at least 8 characters",
    "part BA84 2526 2338 7094 3109, batch AB12 1234 1234 1234 1234 and NO93 8601 1117 9471 2024",
    "--sentinel-fuse NODE_JS_FUSE_fce680ab2cc467b6e072b8b5df1996b2, ata-STM3500418AS_9VM3L3KP-part1",
    "Bearer YOUR_ACCESS_TOKEN, Authorization: Bearer <token>, -H 'X-Api-Key: ...'",
)
