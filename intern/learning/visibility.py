"""Who may read a fact: rules over its category and its words, and the operator's own rules above them. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence

from intern.domain import Visibility
from intern.learning.options import VisibilityRule
from intern.text.masking import mask_secrets

_SHORTEST_PIN = 4
_SHORTEST_KEY = 8

RULES = 1
"""Counts up whenever the rules here become others, so that stored facts are held against them again."""

_STRICTNESS: tuple[Visibility, ...] = ("shared", "private", "secret")

# Categories of the specification, and what models call the same.
_BY_CATEGORY: dict[str, Visibility] = {
    **dict.fromkeys(("medical", "health", "credential", "credentials", "password", "token", "financial"), "secret"),
    **dict.fromkeys(("operational", "operations", "workflow"), "private"),
}

# A word counts where it is about somebody's own secret: talk of how passwords work is a support channel's daily bread,
# but a fact is kept for good, so what could be one is treated as one.
_SECRET_WORDS = re.compile(
    r"""\b(?:
        pass(?:word|phrase|code|wd)s? | pwd | credentials? | api[ _-]?keys? | secret[ _-]?keys? | private[ _-]?keys?
        | access[ _-]?keys? | (?:auth|access|api|bearer|bot|refresh|session|login|security|secret)[ _-]?tokens?
        | tokens? | seed[ ]phrases? | recovery[ ](?:codes?|phrases?) | mnemonic[ ]phrases? | one[- ]time[ ]codes?
        | pin[ ](?:code|number)s? | 2fa[ ]codes? | client[ _-]?secrets?
        | diagnos(?:is|es|ed) | prescri(?:bed|ptions?) | medications? | antidepressants? | chemotherapy | biopsy
        | depression | bipolar | adhd | hiv | cancer | diabet(?:es|ic) | epileps?y | pregnan(?:t|cy) | miscarriage
        | psychiatrists? | therapists? | medical[ ](?:records?|history|leave|conditions?) | sick[ ]leave
        | salar(?:y|ies) | bank[ ]accounts? | account[ ]numbers? | credit[ ]cards? | debit[ ]cards? | iban | cvv
        | social[ ]security | ssn | tax[ ](?:id|number|returns?) | passport[ ]numbers?
    )\b""",
    re.IGNORECASE | re.VERBOSE,
)
# Of accounts: a credential's name with its value, an illness with somebody who has it.
_BY_HEART = r"(?P<password>pass(?:word|phrase|code|wd)s?|pwd|pin(?:[ ]code)?s?)"
_KEY = (
    r"(?:(?:api|secret|access|private)[ _-]?keys?|(?:client[ _-]?)?secrets?|credentials?|[a-z]*[ _-]?tokens?"
    r"|(?:one[- ]time|recovery)[ ]codes?)"
)
_IS_NOW = r"(?:[=:]|\b(?:is|was|are)\b)[ ]*(?:(?:now|still|currently|set[ ]to)\b)?"
_VALUE = r"[ ]*(?:(?:to|by|be)[ ]+)?(?P<value>\S{2,})(?P<rest>[ ]*\w?)"
_BEFORE_NAME = (
    r"(?P<value>\S{2,})(?P<rest>[ ]+(?P<sign>is|was|as)[ ]+)(?:the|a|an|my|our|your|their|his|her|its)"
    rf"[ ](?:[\w-]+[ ])?(?:{_BY_HEART}|{_KEY})\b"
)
_VALUES = tuple(
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        rf"\b(?:{_BY_HEART}|{_KEY})\b[ ]*(?P<sign>{_IS_NOW})?{_VALUE}",
        rf"\b(?:{_BY_HEART}|{_KEY})[ ](?:of|for|to|on)[ ](?:[\w.-]+[ ]){{1,5}}?(?P<sign>{_IS_NOW}){_VALUE}",
        _BEFORE_NAME,
    )
)
_PLACEHOLDER = re.compile(
    r"^[<{\[$%(]|\byour|^[A-Z]+_[A-Z_]+$|^x{3,}$|masked|example|placeholder|://|^User_\d+$|\(\)|^[.*_-]+$"
)
_NO_VALUE = re.compile(  # versions, lengths of time, names of formats and methods
    r"^(?:v?\d+(?:\.\d+)*\+?|\d+[a-z]{1,7}|[a-z]+-?\d{1,3}|\d{1,3}-[a-z-]+|(?:sha|md|rsa|aes|base|utf|oauth)\S*)$",
    re.IGNORECASE,
)
_STATES = re.compile(
    r"the|this|that|not|also|still|there|here|same|correct|wrong|right|incorrect|(?:in)?valid|missing|empty|null"
    r"|optional|mandatory|necessary|(?:un)?known|none|true|false|string|text|integer|number|boolean|secret|(?:un)?safe"
    r"|strong|weak|long|short|hashed|kept|lost|(?:re)?set|sent|held|built|gone|stale|public|private|fine",
    re.IGNORECASE,
)
_STATE = re.compile(r"(?:ed|ing|able|ible|ory|ary|ive|ful|less|ly|-\w+)$", re.IGNORECASE)
_SENTENCE_END = re.compile(r"(?<=[.!?;])\s+|\n+")
_ILLNESS = re.compile(
    r"""\b(?:
        diagnos(?:is|ed) | cancer | tumou?r | depression | bipolar | adhd | autis(?:m|tic) | hiv | diabet(?:es|ic)
        | epileps?y | pregnan(?:t|cy) | miscarriage | chemotherapy | biopsy | antidepressants? | medications?
        | psychiatrist | therapist | burnout | (?:medical|sick)[ ]leave | medical[ ](?:record|history|condition)s?
        | surgery
    )\b""",
    re.IGNORECASE | re.VERBOSE,
)
_SUFFERS = re.compile(r"\b(?:was|were|is|been|got|being)[ ]diagnosed[ ]with\b", re.IGNORECASE)
_SOMEBODY = re.compile(
    r"""\b(?:
        User_\d+ | somebody | someone | he | she | his | her | hers | him | my | i | wife | husband | partner | son
        | daughter | mother | father | brother | sister | child | colleague
        | (?:a|the|one|this|that|another)[ ](?:\w+[ ])?(?:member|moderator|person|user|developer|employee)
    )\b""",
    re.IGNORECASE | re.VERBOSE,
)
_PAY = re.compile(r"\b(?:salar(?:y|ies)|wages?|earns|is[ ]paid|owes|in[ ]debt)\b", re.IGNORECASE)
_ACCOUNT_NUMBER = re.compile(
    r"""\b(?:
        bank[ ]accounts? | account[ ]numbers? | (?:credit|debit)[ ]cards? | iban | cvv | social[ ]security | ssn
        | tax[ ](?:id|number) | passport
    )\b[^.]{0,40}?\b(?:[A-Z]{2}\d{2}[\dA-Z ]{8,} | \d[\d -]{2,})""",
    re.IGNORECASE | re.VERBOSE,
)
_NOT_PUBLIC = re.compile(
    r"""\b(?:
        between[ ]us | off[ ]the[ ]record | not[ ]for[ ]the[ ]public | for[ ]internal[ ]use[ ]only
        | keep[ ](?:this|it)[ ](?:confidential|private|secret)
        | (?:is|are|was|stays?|remains?)[ ](?:strictly[ ]|still[ ])?confidential
        | (?:home[ ]address|phone[ ]number)[^.]{0,30}(?:\bis\b|:)[^.]{0,10}\d
    )""",
    re.IGNORECASE | re.VERBOSE,
)
_PRIVATE_WORDS = re.compile(
    r"""\b(?:
        workflows? | operational(?:ly)? | runbooks? | on[- ]call | internal[ ](?:only|use) | confidential
        | not[ ]public | off[ ]the[ ]record
        | between[ ]us | home[ ]address(?:es)? | phone[ ]numbers?
    )\b""",
    re.IGNORECASE | re.VERBOSE,
)


def strictest(*each: Visibility) -> Visibility:
    """The one that lets the fewest read."""
    return max(each, key=_STRICTNESS.index)


def visibility_of(
    text: str, category: str, *, proposed: Visibility = "shared", rules: Sequence[VisibilityRule] = ()
) -> Visibility:
    """Who may read a fact: the first of the operator's rules that fits decides, else the strictest of all else.

    All else: what was proposed, what its category gives, what its words give, and whether it holds anything in the
    shape of a key or a card number.
    """
    for rule in rules:
        if _fits(rule, text, category):
            return rule.visibility
    return strictest(proposed, _BY_CATEGORY.get(category.strip().casefold(), "shared"), of_words(text))


def of_words(text: str) -> Visibility:
    """Who may read a text, by its words alone."""
    if mask_secrets(text, emails=False).kinds or _SECRET_WORDS.search(text):
        return "secret"
    return "private" if _PRIVATE_WORDS.search(text) else "shared"


def of_account(text: str) -> Visibility:
    """Who may read an account of what was talked about, sentence by sentence.

    Talk of how passwords are reset or diagnoses are logged is a support channel's daily bread, and is for everybody;
    a password with its value, or what somebody suffers from, is for nobody. What was masked counts as taken out.
    """
    return strictest("shared", *map(_of_sentence, _SENTENCE_END.split(text)))


def _of_sentence(sentence: str) -> Visibility:
    if any(_is_value(found) for pattern in _VALUES for found in pattern.finditer(sentence)):
        return "secret"
    if _ACCOUNT_NUMBER.search(sentence) or _SUFFERS.search(sentence):
        return "secret"
    if _SOMEBODY.search(sentence) and (_ILLNESS.search(sentence) or _tells_pay(sentence)):
        return "secret"
    return "private" if _NOT_PUBLIC.search(sentence) else "shared"


def _tells_pay(sentence: str) -> bool:
    return bool(_PAY.search(sentence) and re.search(r"\d", sentence))


def _is_value(found: re.Match[str]) -> bool:
    """Whether what stands with the name of a credential is one, and no placeholder, type or state."""
    written, is_password = found["value"], bool(found["password"])
    value = written.strip("`'\"“”*.,;:!?()")
    if not value or _PLACEHOLDER.search(value) or _STATES.fullmatch(value):
        return False
    if value.isdecimal():
        return is_password and bool(found["sign"]) and len(value) >= _SHORTEST_PIN
    if _NO_VALUE.search(value) and not (is_password and found["sign"]):
        return False
    if re.search(r"\d", value) or re.search(r"\w[!$%^&#@]+\w|[!$^&#@]$", value):
        return is_password or len(value) >= _SHORTEST_KEY
    if not is_password or not found["sign"] or re.search(r"[^\w'-]", value):
        return False
    # A word alone: where the clause ends with it, or it is quoted.
    ends = not found["rest"].strip() or written[-1] in ".,;:!?)"
    return written[0] in "`'\"“" or (ends and not _STATE.search(value))


def _fits(rule: VisibilityRule, text: str, category: str) -> bool:
    return (not rule.category or rule.category.casefold() == category.strip().casefold()) and (
        not rule.contains or rule.contains.casefold() in text.casefold()
    )
