"""Secrets in texts, masked and counted by kind, before a text is kept, printed or shown to a model."""

from __future__ import annotations

import re
from base64 import b64decode
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from ipaddress import ip_address
from typing import cast

from msgspec import Struct

from intern.core.text.patterns import regex

_Match = re.Match[str]


class MaskedText(Struct, frozen=True):
    """A text without its secrets, and how many of each kind there were."""

    text: str
    kinds: dict[str, int]


def mask_secrets(text: str, *, secrets: bool = True, emails: bool = False) -> MaskedText:
    """Replace keys, tokens, seed phrases and card numbers by `[masked <kind>]`; all else stays as it is.

    Seed phrases are known only where the text announces them; card numbers by issuer, length and check digit, so that
    Discord's ids are not taken for them. E-mail addresses only go with `emails`, and nothing else without `secrets`.
    Masking a masked text changes nothing.
    """
    return _mask(text, (*(_RULES if secrets else ()), *(_EMAILS if emails else ())))


def mask_file(text: str) -> str:
    """Replace secrets, e-mail addresses, IP addresses of other machines, and the names of users in paths."""
    return _mask(text, (*_RULES, *_EMAILS, *_OF_FILES)).text


def mask_nested(value: object, mask: Callable[[str], str]) -> object:
    """Mask every text in a value, however deep; what is no number, list or mapping counts as its text."""
    match value:
        case None | bool() | int() | float():
            return value
        case Mapping():
            fields = cast("Mapping[object, object]", value)
            return {str(name): mask_nested(each, mask) for name, each in fields.items()}
        case list() | tuple():
            return [mask_nested(each, mask) for each in cast("Sequence[object]", value)]
        case _:
            return mask(str(value))


def _mask(text: str, rules: _Rules) -> MaskedText:
    kinds: Counter[str] = Counter()
    plain = _fold_case(text)
    for kind, clues, pattern, secret_of in rules:
        if clues and not any(clue in plain for clue in clues):
            continue  # a look for a clue takes a tenth of the pattern's time

        def mask(match: _Match, kind: str = kind, secret_of: Callable[[str], str] = secret_of) -> str:
            secret = secret_of(match["secret"])
            if not secret:
                return match[0]
            kinds[kind] += 1
            start = match.start("secret") - match.start()
            return f"{match[0][:start]}[masked {kind}]{match[0][start + len(secret) :]}"

        text = pattern.sub(mask, text)
    return MaskedText(text, dict(kinds))


def count_masks(text: str) -> Counter[str]:
    """Count the masks in a text, by the kinds of what they hide."""
    return Counter(_MASK.findall(text))


def remove_masks(text: str) -> str:
    """Remove masks: they say nothing about a text's subject."""
    return _MASK.sub(" ", text)


def mask_start(text: str, most: int) -> str:
    """Return the beginning of a text, without its secrets: at most `most` characters, the last a `…` where more follow.

    It is masked before it is cut, since half a key looks like none; it reads no more of the text than that takes.
    """
    seen = text[: 4 * most]
    masked = mask_secrets(seen).text
    # The part that was seen may end with half a secret, and earlier masks may have drawn it near.
    room = most if len(seen) == len(text) else min(most, len(masked) - most)
    return masked if len(masked) <= room else masked[: max(0, room - 1)] + "…"


# The part of a pattern's match that is a secret: all of it, its beginning, or nothing.
def _find_whole(found: str) -> str:
    return found


def _find_value(found: str) -> str:
    """Return a value without the sentence's end, unless it is a switch, a small number, a path or a placeholder."""
    value = found.rstrip(".,;:!?)")
    return "" if any(each.fullmatch(value) for each in (_SWITCH, _PLACEHOLDER, _NAMED)) else value


def _find_password(found: str) -> str:
    """Return a password: it is mixed as no word is, and is no version, size or name of a method."""
    value = _find_value(found)
    return value if _MIXED.search(value) and not _NO_VALUE.fullmatch(value) else ""


def _find_setting(found: str) -> str:
    """Return the value of a setting that holds a password, unless it is a log's report about one."""
    value = _find_value(found.rstrip("\\"))
    return "" if _OUTCOME.fullmatch(value) else value


def _find_odd(found: str) -> str:
    """Return a value that is no word and no number."""
    value = found.rstrip("\\")
    is_odd = _find_basic_credentials(value) or (_NO_WORD.match(value) and _find_password(value[:_SEEN]))
    return value if is_odd else ""


def _find_key(found: str) -> str:
    """Return a key; ids, and words and numbers in a row (`step2`, `ctrl+shift+p2`, `created_at`, `2024`) are none."""
    value = _find_value(found)
    odd = [run for run in _RUN.findall(value) if not _COUNTED.fullmatch(run) or _is_random(run)]
    return value if sum(map(len, odd)) >= _SHORTEST_KEY and not _UUID.fullmatch(value) else ""


def _is_random(run: str) -> bool:
    """Return whether letters and figures are in no words: their kind changes too often, or a word has too many."""
    pieces = _PIECE.findall(run)
    is_short = len(run) > _MOST_DIFFERENT and 3 * len(pieces) > len(run)
    return is_short or any(len({*piece.casefold()}) > _MOST_DIFFERENT for piece in pieces)


def _find_basic_credentials(found: str) -> str:
    """Return the credentials of HTTP's basic scheme: a user and a password in base64."""
    try:
        return found if ":" in b64decode(found, validate=True).decode() else ""
    except ValueError:
        return ""


def _find_iban(found: str) -> str:
    """Return an IBAN without the words behind it, by its country's length and its check digits (ISO 7064)."""
    iban = re.match(rf"(?:\S ?){{{_IBAN_LENGTHS.get(found[:2], 99)}}}(?!\S)", found)
    return iban[0] if iban and _has_valid_check_digits(iban[0].replace(" ", "")) else ""


def _has_valid_check_digits(iban: str) -> bool:
    return int("".join(str(int(sign, 36)) for sign in iban[4:] + iban[:4])) % 97 == 1


def _find_key_block(found: str) -> str:
    """Return a key block if it contains a key, and not prose that explains the marks."""
    return found if _KEY_LINE.search(found) else ""


def _find_address(found: str) -> str:
    """Return an IP address, unless it means this machine, any, or a network (or is a version)."""
    for value in (found, found.rstrip(":.")):
        with suppress(ValueError):
            address = ip_address(value)
            return "" if address.is_loopback or address.is_unspecified or value.endswith(".0.0") else value
    return ""


def _find_card_number(found: str) -> str:
    """Return a card number if its check digit is right: Luhn's (ISO/IEC 7812-1), over the digits only."""
    digits = [int(sign) for sign in reversed(found) if sign.isdigit()]
    doubled = (sum(divmod(2 * digit, 10)) for digit in digits[1::2])
    return found if (sum(digits[::2]) + sum(doubled)) % 10 == 0 else ""


def _find_seed_phrase(found: str) -> str:
    """Return as many words as a phrase has, so that the text behind it stays.

    It ends with a line where its lines have the same number of words, else with any line, else after the most words.
    """
    words = list(_WORD.finditer(found))
    lines = [found.count("\n", 0, word.start()) for word in words]
    fitting = [count for count in _SEED_LENGTHS if count <= len(words)]
    at_line_end = [count for count in fitting if count == len(words) or lines[count] > lines[count - 1]]
    regular = [count for count in at_line_end if len({*Counter(lines[:count]).values()}) == 1]
    best = max(regular or at_line_end or fitting)
    return found[: words[best - 1].end()]


_NAMED = regex(r"[A-Z]+(?:_[A-Z]+)*_?|(?i:(?:your|my|the)(?:[_-][a-z]+)+)|\w*token|auth|credentials|required")
_PLACEHOLDER = regex(
    r"[\[<{$%*(].*|[x.*]+|(?:your|my|the)?[_-]?(?:pass(?:word|wd|phrase)?|pwd|secret|token|key)(?:[_-]?here)?"
    r"|change[_-]?me|(?:.*[_-])?(?:example|placeholder)(?:[_-].*)?|.*(?:masked|://|\().*",
    re.IGNORECASE,
)
_SWITCH = regex(r"(?i)true|false|yes|no|on|off|none|null|auto|\d{1,3}|[~./]+[\w./~-]*")
_OUTCOME = regex(
    r"(?i)ok|\w+ed|in(?:correct|valid)|missing|wrong|bad|fail\w*|error|success\w*|(?:un)?known|(?:un|re)?set|empty|not\b.*|plain"
    r"|default|basic|digest|bearer|prompt|string|text|scram\S*|md5|sha\d*|bcrypt|ident|peer|trust|\w+ method"
)
_SEEN = 200  # characters of a long value
_NO_WORD = regex(r"(?!\d{4}-\d\d-\d\d|[a-z_.]+[=(]\w).*[^\W\d_]")  # nor a time
_MIXED = regex(r"(?i)\d.*[^\W\d_]|[^\W\d_].*\d|\w[!$%^&#@]+\w|[!$^&#@]\Z|\A\d{4,12}\Z")
_RUN = regex(r"[A-Za-z0-9]+")
_COUNTED = regex(r"[A-Za-z]*\d{0,5}|\d+")
_PIECE = regex(r"[A-Z]?[a-z]+|[A-Z]+|\d+")  # as names in code are made of
_UUID = regex(r"(?i)[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_SHORTEST_KEY = 8
_MOST_DIFFERENT = 12  # letters; hardly a word has more ("misconfiguration" has 12)
_NO_VALUE = regex(
    r"(?i)v\d+|v?\d+(?:\.\w+)+\+?|\d+[a-z]{1,7}|\d{1,3}-[a-z-]+"
    r"|(?:sha|md|rsa|aes|base|utf|oauth|argon|bcrypt|ed)[-_]?\d{1,5}(?:url|id|[-_][a-z0-9-]+)*"
)
_KEY_LINE = regex(
    r"(?<![^\s\\-])(?:\\[nr])?(?:[A-Za-z0-9+/=]{40,}"
    r"|(?=\S{0,200}?(?:\d|[a-z][A-Z]))[A-Za-z0-9+/=]{16,}(?=\Z|[\s\\-]))"
)
_WORD = regex(r"[A-Za-z]{3,8}\b")
_SEED_LENGTHS = (12, 15, 18, 21, 24)  # BIP39

# Common English words that are not in BIP39's list: a run of words that holds one is prose, not a seed phrase.
_PROSE = "the|and|not|does|with|for|your|are|was|has|from|but|how|which|its|them|our|out|wallet"
_SEED_WORD = rf"(?!(?i:{_PROSE})\b)\b[A-Za-z]{{3,8}}\b"  # BIP39's words have 3 to 8 letters
_BETWEEN_SEED_WORDS = r"(?:[\s,;]|\d{1,2}[.):]?){1,8}+"  # possessive: a hostile text must not make it backtrack
_WORDS = r"(?:recovery|secret|backup)[ -](?:phrase|words?)|(?:12|24|twelve|twenty[ -]?four)[ -]words?"
_ANNOUNCED = rf"\b(?i:seed|mnemonic|{_WORDS})\b(?:(?!\[masked)[\s\S]){{0,60}}?"

_PEM = r"[A-Z0-9 ]{0,30} PRIVATE KEY(?: BLOCK)?-----"
# Its end is missing: the lines that are there.
_CUT_OFF_PEM = r"(?:(?:\\[nr]|\s)*+(?:[A-Za-z0-9+/=]{40,}+|[A-Za-z0-9+/=]{16,}+(?=\s*(?:\n|\Z)|\\|[\"'`])))+"
_IS = r"[\"']?\s{0,5}[=:]\s{0,5}[\"']?"

# Words joined by hyphens (`token-based-authentication-2`) have their digits apart.
_MIX = r"[\w.~+/=-]{0,400}?(?:[A-Za-z]\d|\d[A-Za-z]|[a-z]{2}[A-Z]{2})"
_HEADER_VALUE = r"[^\s\"'`,;<>\[\]{}\\]{3,}"
# A word that others follow is prose: "authorization: token expired yesterday".
_AUTHORIZATION = rf"(?i:\bauthorization){_IS}"
_SCHEME = rf"{_AUTHORIZATION}(?i:(?:bearer|basic|token|bot|apikey)\s{{1,5}})(?![A-Za-z]?[a-z]{{0,30}}[ ]+[a-z])"
# On the web, figures behind a host are its port, also where `@` follows in a path or a query; databases' clients write
# a password there only.
_USERINFO = (
    r"\b(?!(?i:https?|wss?)://[^\s/:@\[]{1,100}:\d{1,5}[^\w@.-])(?i:[a-z][a-z0-9+.-]{1,20})://[^\s/:@\[]{0,100}:"
)

# Issuer prefixes and lengths of the big networks; 424242 and 400000 are Stripe's test numbers, and no bank's. 17 to 20
# digits are Discord's ids, so longer cards are let go.
_CARD = (
    r"(?!4242[ -]?42|4000[ -]?00)(?:4\d{3}|5[1-5]\d\d|2[2-7]\d\d|6011|64[4-9]\d|65\d\d|62\d\d|35\d\d)(?:[ -]?\d{4}){3}"
    r"|3[47]\d\d[ -]?\d{6}[ -]?\d{5}|3[068]\d\d[ -]?\d{6}[ -]?\d{4}"
)

# Beside its name, or beside the other half of the pair.
_BESIDE_AWS = rf"(?:(?i:aws_?secret_?access_?key){_IS}|\b(?:AKIA|ASIA)[A-Z0-9]{{16}}\b[\s\S]{{1,80}}?(?<![\w/+-]))"
# A line of a `.env`.
_VARIABLE = r"(?<![\w${])(?:[A-Z0-9]{1,40}_){0,8}(?:PASS(?:WORD|WD|PHRASE)?|SECRET|TOKEN|CREDENTIALS?|(?<=_)PWD)=[\"']?"
_KEYS, _PASSWORDS = ("key", "token", "secret"), ("pass", "pwd", "kennwort", "contrase", "senha", "пароль")
_KEY = r"(?<=[\"'])[^\"'\s]{8,200}|[^\s\"'`,;:<>&|()\[\]{}\\]{8,200}"
# A compound (`case-sensitive`, with the figure of a note, too) is what a sentence says of it.
_PASSWORD_IS = (
    r"(?i:pass(?:word|phrase|code|wd)s?|pwd|passwort|kennwort|mot de passe|contraseña|senha|пароль)\b"
    rf"(?:{_IS}|[ ]{{1,3}}(?i:is|was|ist|lautet|est|es|é)[ ]{{1,3}}[\"'`*]{{0,3}}(?![a-z]+(?:-[a-z]+)+\d?(?![\w-])))"
)
_IBAN_LENGTHS = {
    country[:2]: int(country[2:])
    for country in (
        "NO15 BE16 DK18 FI18 FK18 FO18 GL18 NL18 SD18 MK19 SI19 AT20 BA20 EE20 KZ20 LT20 LU20 MN20 XK20 CH21 HR21 LI21"
        " LV21 BG22 BH22 CR22 DE22 GB22 GE22 IE22 ME22 RS22 VA22 AE23 GI23 IL23 IQ23 OM23 SO23 TL23 AD24 CZ24 ES24 MD24"
        " PK24 RO24 SA24 SE24 SK24 TN24 VG24 LY25 PT25 ST25 IS26 TR26 BI27 DJ27 FR27 GR27 IT27 MC27 MR27 SM27 AL28 AZ28"
        " BY28 CY28 DO28 GT28 HU28 LB28 NI28 PL28 SV28 BR29 EG29 PS29 QA29 UA29 JO30 KW30 MU30 YE30 MT31 SC31 LC32 RU33"
    ).split()
}
_IBAN = r"(?<![\w-])(?=(?:[ ]?[A-Z0-9]){15})[A-Z]{2}\d{2}(?:[ ]?[A-Z0-9]{4}){2,7}(?:[ ]?[A-Z0-9]{1,3})?(?![\w-])"

_Rules = tuple[tuple[str, tuple[str, ...], re.Pattern[str], Callable[[str], str]], ...]
"""The kind; clues, in small letters: each text that the pattern matches has one; the pattern; the secret.

No clues: the pattern is always searched for. A mask holds no clue of a later rule that the text did not hold before.
"""


def _fold_case(text: str) -> str:
    """Return the text in small letters, with the letters that a pattern takes for `i`, `k` and `s`, too."""
    if not text.isascii():
        for odd, plain in ("İi", "ıi", "\u212ak", "ſs"):
            text = text.replace(odd, plain)
    return text.lower()


# Not `git@github.com:owner/repo`, which names a repository, nor what a package manager writes (`left-pad@1.3.0`).
# A local part is sought only at its beginning, or each of a hundred thousand letters would begin a search.
_EMAIL = regex(r"(?<![\w.+%-])(?!git@)(?P<secret>[\w.+%-]{1,64}@(?:[\w-]{1,63}\.){1,8}[^\W\d_]{2,24})(?![\w-])")
_EMAILS: _Rules = (("email", ("@",), _EMAIL, _find_whole),)

# A name with blanks is recognised by the text behind it.
_NAME = r"[^\s/\\:\"'<>|*?,;()\[\]{}]{1,64}"
_USER_NAME = regex(
    r"(?:/home/|[\\/]Users[\\/]{1,4}|(?i:\b[a-z]:[\\/]{1,4}(?:users|documents and settings)[\\/]{1,4}))"
    rf"(?P<secret>{_NAME}(?:[ ]{_NAME}){{0,3}}(?=\\)|{_NAME}(?:[ ][A-Z]{_NAME}){{1,2}}(?=[/\"']|[ ]*(?m:$))|{_NAME})"
)
_IP_ADDRESS = regex(
    r"(?<![\w.])(?<!(?i:version)[=: ])(?P<secret>(?:\d{1,3}\.){3}\d{1,3}(?!\w|\.\d)"
    r"|(?<!\d\d:)(?!\d\d:\d\d:\d\d\b)(?=[a-fA-F:]{0,40}\d)(?=[\da-fA-F:]{0,40}::|(?:[\da-fA-F]{1,4}:){7})[\da-fA-F:.]{3,46}(?!\w))"
)
_USERS = ("home", "users", "documents and settings")
# Ends of names of settings, which hold a password for sure, or else may hold a word; and what joins them to a value in
# INI, YAML, JSON, XML, code and environments.
_SURE = (
    r"(?:passw(?:or)?ds?|passphrase|requirepass|masterauth|(?<![a-z])(?:my|db|user)?(?:pass|pwd|psk)|key_base"
    r"|(?-i:(?<=[a-z])P(?:ass|wd)))"
)
_VAGUE = r"(?:token|secret|(?<![a-z])auth|cookie|credentials?|key[-_]?data)"
_JOINED = (
    r"(?:(?:\\?[\"']\]?)?[ \t]{0,9}(?:=>|:=|(?<!=)=(?!=)|(?<!:):(?!:))[ \t]{0,9}"
    r"|[\"']?(?:[ ]\w+=[\"'][^<>\n]{0,99})?>\s{0,9}|[\"']?[,\s]\s{0,40}[\"']?value[\"']?[=:][ ]?"
    r"|[\"'],[ ]{0,9}(?=[\"'][^\n]{1,400}[\"'][ ]?\)))(?:\\?[\"'])?"
)
_BEFORE_A_BLANK = rf"requirepass|masterauth|login[ ]\S{{1,99}}\s+password|(?<!\S)--[\w.-]{{0,40}}(?:{_SURE}|{_VAGUE})"
# A word that others follow is prose.
_SETTING = (
    r"(?P<secret>(?<=\")[^\"\n]{1,4000}|(?<=')[^'\n]{1,4000}"
    r"|(?<![\"'])(?![a-z]+[.,:;)]?[ ]+[a-z])[^\s\"'<>]{1,4000})"
)
_OF_FILES: _Rules = (
    ("user_name", _USERS, _USER_NAME, _find_whole),
    *(
        ("password", clues, regex(f"(?i){pattern}"), secret_of)
        for clues, pattern, secret_of in (
            # `-----BEGIN` in base64, and what `crypt` makes of a password.
            (("ls0tls1crudjt",), r"(?P<secret>LS0tLS1CRUdJT[\w+/=]*+(?:\s{1,40}[\w+/=]{40,}+)*)", _find_whole),
            (("$",), r"\$(?:\d|2[abxy]|g?y|apr1|argon2\w{1,2}|scrypt)\$(?P<secret>[^\s:\"',]{8,4000})", _find_whole),
            (("cookie",), r"cookie:\s{0,5}(?P<secret>(?:[\w.-]{1,99}=[^\s;\"']*+;?[ ]?)+)", _find_whole),
            (
                ("pass", "pwd", "psk", "auth", "key", "--"),
                rf"(?:{_SURE}{_JOINED}|(?:{_BEFORE_A_BLANK})[ \t]{{1,9}}[\"']?){_SETTING}",
                _find_setting,
            ),
            (("token", "secret", "auth", "cookie", "cred", "key"), rf"{_VAGUE}{_JOINED}{_SETTING}", _find_odd),
            (("pass", "psk", "token"), rf"(?:passw(?:or)?d|psk|token)[ \t]{{1,9}}[\"']?{_SETTING}", _find_odd),
        )
    ),
    ("ip_address", (), _IP_ADDRESS, _find_address),
)

# Earlier rules see the text first: what a name gives away goes before what only looks like a key.
_RULES: _Rules = tuple(
    (kind, clues, regex(pattern), secret_of)
    for kind, clues, pattern, secret_of in (
        (
            "private_key",
            ("private key",),
            rf"(?P<secret>-----BEGIN{_PEM}(?:(?:(?!-----BEGIN)[\s\S])*?-----END{_PEM}|{_CUT_OFF_PEM}))",
            _find_key_block,
        ),
        (
            "private_key",
            ("private",),
            r"(?i:private[ _-]?key)\b\W{0,20}(?P<secret>\b(?:0x)?[0-9a-fA-F]{64}\b)",
            _find_whole,
        ),
        (
            "seed_phrase",
            ("seed", "mnemonic", "phrase", "word"),
            rf"{_ANNOUNCED}(?P<secret>(?:{_SEED_WORD}{_BETWEEN_SEED_WORDS}){{11,23}}{_SEED_WORD})",
            _find_seed_phrase,
        ),
        ("discord_token", (), r"(?P<secret>\b[MNO][\w-]{22,30}\.[\w-]{6}\.[\w-]{27,})", _find_whole),
        ("discord_token", ("mfa.",), r"(?P<secret>\bmfa\.[\w-]{80,})", _find_whole),
        (
            "discord_webhook",
            ("webhooks",),
            r"discord(?:app)?\.com/api/(?:v\d+/)?webhooks/\d+/(?P<secret>[\w-]{50,})",
            _find_whole,
        ),
        ("github_token", ("gh",), r"(?P<secret>\b(?:gh[pousr]_[A-Za-z0-9]{36,}|github_pat_\w{22,}))", _find_whole),
        ("gitlab_token", ("glpat-",), r"(?P<secret>\bglpat-[\w-]{20,})", _find_whole),
        ("aws_key", ("aws", "akia", "asia"), rf"{_BESIDE_AWS}(?P<secret>[A-Za-z0-9/+]{{40}})(?![\w/+=-])", _find_whole),
        ("aws_key", ("akia", "asia"), r"(?P<secret>\b(?:AKIA|ASIA)[A-Z0-9]{16}\b)", _find_whole),
        ("slack_token", ("xox", "xapp-"), r"(?P<secret>\b(?:xox[abeoprs]|xapp)-[A-Za-z0-9-]{10,})", _find_whole),
        ("slack_webhook", ("hooks.slack",), r"hooks\.slack\.com/services/(?P<secret>[\w/-]{20,})", _find_whole),
        ("api_key", ("sk-",), r"(?P<secret>\bsk-[\w-]{20,})", _find_key),
        ("api_key", ("k_live_", "k_test_"), r"(?P<secret>\b[sr]k_(?:live|test)_[A-Za-z0-9]{16,})", _find_whole),
        ("api_key", ("aiza", "hf_"), r"(?P<secret>\b(?:AIza[\w-]{35}|hf_[A-Za-z0-9]{30,}))", _find_whole),
        # Of Twilio, SendGrid and Telegram.
        ("api_key", ("sk", "sg."), r"(?P<secret>\b(?:SK[0-9a-f]{32}|SG\.[\w-]{16,32}\.[\w-]{32,64})\b)", _find_whole),
        ("api_key", (":aa",), r"(?P<secret>\b\d{8,12}:AA[\w-]{32,})", _find_whole),
        ("api_key", ("npm_", "pypi-"), r"(?P<secret>\b(?:npm_[A-Za-z0-9]{36}|pypi-[\w-]{50,}))", _find_whole),
        ("jwt", ("eyj",), r"(?P<secret>\beyJ[\w-]{8,}\.eyJ[\w-]{8,}\.[\w-]*)", _find_whole),
        ("bearer_token", ("authorization",), rf"{_SCHEME}(?P<secret>{_HEADER_VALUE})", _find_value),
        ("bearer_token", ("authorization",), rf"{_AUTHORIZATION}(?={_MIX})(?P<secret>{_HEADER_VALUE})", _find_whole),
        ("bearer_token", ("bearer",), rf"\b(?i:bearer)\s{{1,5}}(?={_MIX})(?P<secret>[\w.~+/=-]{{12,}})", _find_whole),
        (
            "bearer_token",
            ("basic",),
            r"\b(?i:basic)\s{1,5}(?P<secret>[A-Za-z0-9+/]{8,2000}={0,2})",
            _find_basic_credentials,
        ),
        ("password", ("@",), rf"{_USERINFO}(?P<secret>[^\s/:@\[\"`]{{1,200}})@", _find_value),
        ("password", ("=",), rf"{_VARIABLE}(?P<secret>(?<=[\"'])[^\"'\n]{{4,200}}|[^\s\"'`,;]{{4,200}})", _find_value),
        ("password", _PASSWORDS, rf"{_PASSWORD_IS}(?P<secret>[^\s\"'`<>{{}}\[\],;*]{{4,200}})", _find_password),
        ("api_key", _KEYS, rf"(?i:key|token|secret)\b{_IS}(?P<secret>{_KEY})", _find_key),
        ("iban", (), rf"(?P<secret>{_IBAN})", _find_iban),
        ("card_number", (), rf"(?<![\w/#@.+-])(?P<secret>{_CARD})(?![\w-]|\.\d)", _find_card_number),
    )
)
_MASK = regex(rf"\[masked ({'|'.join(sorted({kind for kind, *_ in (*_RULES, *_EMAILS, *_OF_FILES)}))})\]")
