"""Who may read a fact: rules over its category and its words, and the operator's own rules above them. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence

from intern.domain import Visibility
from intern.learning.options import VisibilityRule
from intern.text.masking import mask_secrets

_SHORTEST_PIN = 4
_SHORTEST_KEY = 8

RULES = 2
"""Counts up whenever the rules here become others, so that stored facts are held against them again."""

_STRICTNESS: tuple[Visibility, ...] = ("shared", "private", "secret")

# Categories of the specification, and what models call the same.
_BY_CATEGORY: dict[str, Visibility] = {
    **dict.fromkeys(("medical", "health", "credential", "credentials", "password", "token", "financial"), "secret"),
    **dict.fromkeys(("operational", "operations", "workflow"), "private"),
}

# Talk of how passwords are reset is a support channel's daily bread: a credential's name counts with its value, an
# illness with somebody who has it, and money with whose it is.
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
# By name: `Nadia got a diagnosis`, `Nadia's salary`.
_ILLNESSES = (
    r"diagnosis|cancer|tumou?r|depression|adhd|hiv|diabetes|epilepsy|medication|antidepressants|burnout|surgery"
)
_HAS = re.compile(
    r"\b(?P<name>[A-Z]\w+)[ ](?:got|has|had|takes?|took|needs?|needed|suffers[ ]from|suffered[ ]from|is[ ]on|was[ ]on"
    r"|is[ ]taking|was[ ]given)[ ](?:(?:an?|the|his|her|their|with|from)[ ])?(?:\w+[ ])?"
    rf"(?:{_ILLNESSES})\b(?![ ](?:\w+[ ])?(?:scans?|data|command|mode|file|log|report|page|field|tool|model)\b)"
)
_OWN_MONEY = re.compile(
    r"\b(?P<name>[A-Z]\w+)(?:['’]s|s['’])[ ](?:\w+[ ])?(?:salary|wages?|debts?|bank[ ]account|pension|income)\b"
)
_NO_NAMES = frozenset({"The", "This", "That", "It", "A", "An", "Our", "Your", "Its", "Each", "Every", "Which", "What"})
_ACCOUNT_NUMBER = re.compile(
    r"""\b(?:
        bank[ ]accounts? | account[ ]numbers? | (?:credit|debit)[ ]cards? | iban | cvv | social[ ]security | ssn
        | tax[ ](?:id|number) | passport
    )\b (?:[ ](?:numbers?|no|id))? (?:[^.\w]{1,4}(?:is|was|are|ends?|ending|in|with)\b){0,3}
    [^.\w]{0,6} (?: [A-Z]{2}\d{2}[\dA-Z ]{8,} | [A-Z]{0,2}\d[\d -]{2,})""",
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


_STRING = re.compile(r"(?<![\w/.:+=-])[A-Za-z0-9+/_-]{20,200}={0,2}(?![\w/-]|\.\w)")
_CHANGE = re.compile(r"[a-z](?=[A-Z0-9])|[A-Z](?=[0-9])|[0-9](?=[A-Za-z])")
_MOST_ALIKE = 12  # different characters, of 20


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
    """Who may read a fact, by its words alone: as an account, but what only looks like a key counts as one."""
    if mask_secrets(text, emails=False).kinds or any(map(_is_random, _STRING.findall(text))):
        return "secret"
    return strictest(of_account(text), "private" if _PRIVATE_WORDS.search(text) else "shared")


def _is_random(string: str) -> bool:
    """Letters of both cases and digits, mixed as no name of anything is."""
    kinds = re.search(r"[a-z]", string) and re.search(r"[A-Z]", string) and re.search(r"\d", string)
    return bool(kinds) and len(_CHANGE.findall(string)) >= len(string) // 4 and len(set(string)) >= _MOST_ALIKE


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
    if any(found["name"] not in _NO_NAMES for found in (*_HAS.finditer(sentence), *_OWN_MONEY.finditer(sentence))):
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
