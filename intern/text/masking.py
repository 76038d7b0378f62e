"""Take secrets out of a text before it is kept. What was masked is counted by kind, never repeated."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable

from msgspec import Struct

_Match = re.Match[str]


class Masked(Struct, frozen=True):
    """A text without its secrets, and how many of each kind there were."""

    text: str
    kinds: dict[str, int]


def mask_secrets(text: str, *, secrets: bool = True, emails: bool = False) -> Masked:
    """Replace keys, tokens, seed phrases and card numbers by `[masked <kind>]`; all else stays as it is.

    Seed phrases are known only where the text announces them; card numbers by issuer, length and check digit, so that
    Discord's ids are not taken for them. E-mail addresses only go with `emails`, and nothing else without `secrets`.
    Masking a masked text changes nothing.
    """
    kinds: Counter[str] = Counter()
    for kind, pattern, is_secret in (*(_RULES if secrets else ()), *(_EMAILS if emails else ())):

        def mask(match: _Match, kind: str = kind, is_secret: Callable[[str], bool] = is_secret) -> str:
            secret = match["secret"]
            if not is_secret(secret):
                return match[0]
            kinds[kind] += 1
            start, end = match.start("secret") - match.start(), match.end("secret") - match.start()
            return f"{match[0][:start]}[masked {kind}]{match[0][end:]}"

        text = pattern.sub(mask, text)
    return Masked(text, dict(kinds))


def masked_start(text: str, most: int) -> str:
    """What a text begins with, without its secrets: at most `most` characters, the last a `…` where more follow.

    It is masked before it is cut, for half a key looks like none; and no more of it is looked at than that takes.
    """
    seen = text[: 4 * most]
    masked = mask_secrets(seen).text
    # At the end of what was seen, half a secret may stand, and what was masked before may have drawn it near.
    room = most if len(seen) == len(text) else min(most, len(masked) - most)
    return masked if len(masked) <= room else masked[: max(0, room - 1)] + "…"


def _always(_: str) -> bool:
    return True


def _has_letters_and_digits(secret: str) -> bool:
    """Placeholders (`YOUR_API_KEY_HERE`) and plain words have no digits, plain numbers no letters."""
    return any(map(str.isdigit, secret)) and any(map(str.isalpha, secret))


def _is_card(secret: str) -> bool:
    """Luhn's check digit (ISO/IEC 7812-1), over the digits only."""
    digits = [int(sign) for sign in reversed(secret) if sign.isdigit()]
    doubled = (sum(divmod(2 * digit, 10)) for digit in digits[1::2])
    return (sum(digits[::2]) + sum(doubled)) % 10 == 0


# Common English words that are not in BIP39's list: a run of words that holds one is prose, not a seed phrase.
_PROSE = "the|and|not|does|with|for|your|are|was|has|from|but|how|which|its|them|our|out|wallet"
_SEED_WORD = rf"(?!(?:{_PROSE})\b)\b[a-z]{{3,8}}\b"  # BIP39's words have 3 to 8 letters
_BETWEEN_SEED_WORDS = r"(?:[\s,;]|\d{1,2}[.):]?){1,8}+"  # possessive: a hostile text must not make it backtrack
_ANNOUNCED = r"\b(?i:seed|mnemonic|(?:recovery|secret|backup)[ -](?:phrase|words?))\b(?:(?!\[masked)[\s\S]){0,60}?"

_PEM = r"[A-Z0-9 ]{0,30} PRIVATE KEY(?: BLOCK)?-----"
_CUT_OFF_PEM = r"(?:(?:\\[nr]|\s)*+[A-Za-z0-9+/=]{16,})+"  # its end is missing: the lines that are there
_IS = r"[\"']?\s{0,5}[=:]\s{0,5}[\"']?"

# Issuer prefixes and lengths of the big networks. 17 to 20 digits are Discord's ids, so longer cards are let go.
_CARD = (
    r"(?:4\d{3}|5[1-5]\d\d|2[2-7]\d\d|6011|64[4-9]\d|65\d\d|62\d\d|35\d\d)(?:[ -]?\d{4}){3}"
    r"|3[47]\d\d[ -]?\d{6}[ -]?\d{5}|3[068]\d\d[ -]?\d{6}[ -]?\d{4}"
)

_Rules = tuple[tuple[str, re.Pattern[str], Callable[[str], bool]], ...]

# Not `git@github.com:owner/repo`, which names a repository, nor what a package manager writes (`left-pad@1.3.0`).
# A local part is looked for only where one begins, or each of a hundred thousand letters would begin a search.
_EMAILS: _Rules = (
    (
        "email",
        re.compile(r"(?<![\w.+%-])(?!git@)(?P<secret>[\w.+%-]{1,64}@(?:[\w-]{1,63}\.){1,8}[^\W\d_]{2,24})(?![\w-])"),
        _always,
    ),
)

# Earlier rules see the text first: what a name gives away goes before what only looks like a key.
_RULES: _Rules = tuple(
    (kind, re.compile(pattern), is_secret)
    for kind, pattern, is_secret in (
        (
            "private_key",
            rf"(?P<secret>-----BEGIN{_PEM}(?:(?:(?!-----BEGIN)[\s\S])*?-----END{_PEM}|{_CUT_OFF_PEM}))",
            _always,
        ),
        ("private_key", r"(?i:private[ _-]?key)\b\W{0,20}(?P<secret>\b(?:0x)?[0-9a-fA-F]{64}\b)", _always),
        (
            "seed_phrase",
            rf"{_ANNOUNCED}(?P<secret>(?:{_SEED_WORD}{_BETWEEN_SEED_WORDS}){{11,23}}{_SEED_WORD})",
            _always,
        ),
        ("discord_token", r"(?P<secret>\b[MNO][\w-]{22,30}\.[\w-]{6}\.[\w-]{27,})", _always),
        ("discord_token", r"(?P<secret>\bmfa\.[\w-]{80,})", _always),
        ("discord_webhook", r"discord(?:app)?\.com/api/(?:v\d+/)?webhooks/\d+/(?P<secret>[\w-]{50,})", _always),
        ("github_token", r"(?P<secret>\b(?:gh[pousr]_[A-Za-z0-9]{36,}|github_pat_\w{22,}))", _always),
        ("gitlab_token", r"(?P<secret>\bglpat-[\w-]{20,})", _always),
        ("aws_key", r"(?P<secret>\b(?:AKIA|ASIA)[A-Z0-9]{16}\b)", _always),
        (
            "aws_key",
            rf"(?i:aws_?secret_?access_?key){_IS}(?P<secret>[A-Za-z0-9/+]{{40}}(?![A-Za-z0-9/+]))",
            _always,
        ),
        ("slack_token", r"(?P<secret>\b(?:xox[abeoprs]|xapp)-[A-Za-z0-9-]{10,})", _always),
        ("slack_webhook", r"hooks\.slack\.com/services/(?P<secret>[\w/-]{20,})", _always),
        ("api_key", r"(?P<secret>\bsk-[\w-]{20,})", _has_letters_and_digits),
        ("api_key", r"(?P<secret>\b[sr]k_(?:live|test)_[A-Za-z0-9]{16,})", _always),
        (
            "api_key",
            r"(?P<secret>\b(?:AIza[\w-]{35}|hf_[A-Za-z0-9]{30,}|npm_[A-Za-z0-9]{36}|pypi-[\w-]{50,}))",
            _always,
        ),
        ("jwt", r"(?P<secret>\beyJ[\w-]{8,}\.eyJ[\w-]{8,}\.[\w-]*)", _always),
        ("bearer_token", r"\b(?i:bearer)\s{1,5}(?P<secret>[\w.~+/=-]{20,})", _has_letters_and_digits),
        ("password", r"\b[a-z][a-z0-9+.-]{1,20}://[^\s/:@\[]{0,100}:(?P<secret>[^\s/:@\[]{1,200})@", _always),
        (
            "api_key",
            rf"(?i:\b\w{{0,30}}(?:api|access|secret|auth|client)[_-]?(?:key|token|secret)\b){_IS}(?P<secret>[\w.~+/=-]{{16,}})",
            _has_letters_and_digits,
        ),
        ("card_number", rf"(?<![\w/#@.+-])(?P<secret>{_CARD})(?![\w-]|\.\d)", _is_card),
    )
)
