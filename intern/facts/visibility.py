"""Decide who may read a fact, by its category, its words and the operator's rules. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated

from msgspec import Meta, Struct

from intern.core.knowledge import Visibility
from intern.core.text.masking import mask_secrets
from intern.core.text.patterns import regex


class VisibilityRule(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Decides who may read the matching facts. It overrides all other rules."""

    category: str = ""
    """Match facts of this category; empty: of any category."""
    contains: str = ""
    """Match facts with this text, in upper or lower case; empty: any text."""
    visibility: Visibility


class FactOptions(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which facts are kept, and who may read them."""

    keep_secret: bool = False
    """Store secret facts, for `intern facts --secret` only. Otherwise they are not stored at all."""
    min_confidence: Annotated[float, Meta(ge=0, le=1)] = 0.5
    """Answers use no fact below this. `intern facts` and the search still show such facts."""
    overrides: tuple[VisibilityRule, ...] = ()
    """The first matching rule decides."""


_SHORTEST_PIN = 4
_SHORTEST_KEY = 8
_LONGEST_PHRASE = 300
_FEW = 3  # words; fewer that end in a state are a state ("case sensitive", but not "correct horse battery fine")
_VERBS = frozenset({"is", "was", "are"})
# In other languages, only digits count as a value.
_READ_ALONE = _VERBS | {"=", ":", "with", "using", "use", "enter", "try", "type"}

RULES = 4
"""The version of these rules. Raise it with each change, so that they are applied to stored facts again."""

_STRICTNESS: tuple[Visibility, ...] = ("shared", "private", "secret")

# Categories of the specification, and what models call the same.
_BY_CATEGORY: dict[str, Visibility] = {
    **dict.fromkeys(("medical", "health", "credential", "credentials", "password", "token", "financial"), "secret"),
    **dict.fromkeys(("operational", "operations", "workflow"), "private"),
}

# Support channels talk about resetting passwords every day. So the name of a credential counts only with its value, an
# illness only with a person, and money only with its owner.
_BY_HEART = (
    r"(?P<password>pass(?:word|phrase|code|wd)s?|pwd|pin(?:[ ]code)?s?"
    r"|passw[oö]rt(?:er)?|kennwort|mots?[ ]de[ ]passe|contraseñas?|senhas?|пароль)"
)
_KEY = (
    r"(?:(?:api|secret|access|private)[ _-]?keys?|(?:client[ _-]?)?secrets?|credentials?|[a-z]*[ _-]?tokens?"
    # Not of errors, countries or programs.
    r"|(?P<code>(?:one[- ]time|recovery|backup|access|security|verification|confirmation|login|unlock|door|gate|alarm"
    r"|the|this|that|its|his|her|their|our|my|your)[ ]codes?))"
)
_NAME = rf"\b(?:{_BY_HEART}|{_KEY})\b"
_IS_NOW = r"(?:[=:]|\b(?:is|was|are|ist|war|lautet|est|es|é)\b)[ ]*(?:(?:now|still|currently|set[ ]to)\b)?"
_VALUE = r"[ ]*(?:(?:to|by|be)[ ]+)?(?P<value>\S{2,})"
_BEFORE_NAME = (
    r"(?<!\S)(?P<value>\S{2,}+)[ ]+(?P<sign>is|was|as)[ ]+(?P<before>the|a|an|my|our|your|their|his|her|its)"
    rf"[ ](?:[\w-]+[ ])?{_NAME}"
)
_VALUES = tuple(
    regex(pattern, re.IGNORECASE)
    for pattern in (
        rf"{_NAME}[\"'`*]{{0,2}}[ ]*(?P<sign>{_IS_NOW})?{_VALUE}",
        rf"{_NAME}(?=[ ](?:of|for|to|on)[ ])(?:[ ][\w.-]++){{2,6}}?[ ]?(?P<sign>{_IS_NOW}){_VALUE}",
        rf"\b(?P<sign>with|using|use|enter|try|type)[ ](?:[\w-]++[ ]){{0,3}}?{_BY_HEART}[ ](?P<value>\S{{2,}})",
        _BEFORE_NAME,
    )
)
_PLACEHOLDER = regex(
    r"^[<{\[$%(]|\byour|^[A-Z]+_[A-Z_]+$|^x{3,}$|masked|example|placeholder|://|^User_\d+$|\(\)|^[.*_-]+$"
)
_NO_VALUE = regex(  # versions, lengths of time, names of formats and methods
    r"(?i)^(?:v?\d+(?:\.\d+)*\+?|\d+[a-z]{1,7}|[a-z]+-?\d{1,3}|\d{1,3}-[a-z-]+"
    r"|(?:sha|md|rsa|aes|base|utf|oauth)[-_]?\d{1,4}(?:url)?(?:-(?:[a-z]+|\d{1,4}))*)$",
)
_QUOTES = "`'\"“"
_CLAUSE = regex(r"[^.,;:!?()\n]+")


def _compile_alternatives(words: str) -> re.Pattern[str]:
    return regex("|".join(words.split()), re.IGNORECASE)


# Plain words may be a password, too. These words show that they are not.
_GOES_ON = _compile_alternatives(  # The value ends before such a word; a sentence begins with one.
    """the this that these those a an it its he she they we you i who what when where which why how there here
    not never no always only also too very just again once twice every each both all any another same above below then
    and or but if so because than as of for from to in into on onto at by via with without within under until since
    after before during per about is are was were be been has have had must should can could may might will would
    does do did means opens works expires fails stops lets gives arrives belongs lives depends changes
    see ask use read check go look click contact please create make keep try enter type choose pick don't two three"""
)
_STATES = _compile_alternatives(
    """correct wrong right incorrect (?:in)?valid missing empty null optional mandatory necessary (?:un)?known none true
    false strings? text integers? numbers? boolean secrets? (?:un)?safe strong weak long short stale public private
    fine new old different case-sensitive"""
)
_DONE = _compile_alternatives(  # After "is", a sentence in the passive begins.
    """kept lost (?:re)?set sent held built gone hashed shown hidden given taken written chosen read put stolen found
    made told \\w{3,}(?:ed|ing)"""
)
_KIND_OF = regex(  # "password manager", "token: renewal": a use of the credential, or its container
    r"\w{3,}(?:tion|sion|ment|ing|ed|able|ible|ory|ary|ive|ful|less|ly|-\w+|wal)|auth|managers?|fields?|forms?|prompts?"
    r"|dialogs?|logins?|resets?|polic(?:y|ies)|hash(?:es)?|files?|hints?|recovery|changes?|page|box|inputs?|strength"
    r"|rules?|length|storage|setup|format|types?|values?|limits?|errors?|and|or|\w*(?:pass(?:word|wd)?|pwd|token|key)s?",
    re.IGNORECASE,
)
_SENTENCE_END = regex(r"(?<=[.!?;])\s+|\n+")
# Illnesses, and words of care that are also used of machines.
_AILMENTS = (
    r"diabet(?:es|ic)|cancer|leuk[ae]+mia|lymphoma|melanoma|tumou?rs?|hiv|epilep(?:sy|tic)|asthma(?:tic)?|autis(?:m|tic)"
    r"|adhd|bipolar|schizophreni[ac]|dementia|alzheimer\w*|parkinson\w*|sclerosis|hepatitis|pneumonia|tuberculosis"
    r"|arthritis|chemotherapy|dialysis|miscarriage|pregnan(?:t|cy)|abortion|infertil\w+|migraines?|anorexi[ac]|bulimi[ac]"
    r"|ptsd|psychosis|panic[ ]attacks?|eating[ ]disorder|addict(?:ed|ion)|alcoholi(?:c|sm)|suicid\w+|antidepressants?"
    r"|insulin|penicillin|allerg(?:y|ies|ic)|transplant|rehab|burnout|depress(?:ion|ed)|stroke|hospitali[sz]ed|psychiatrist"
    r"|heart[ ](?:attack|disease)|(?:medical|sick)[ ]leave|medical[ ](?:record|history|condition)s?|in[ ]hospital"
)
_CARE = r"diagnos(?:is|ed)|surgery|biopsy|medications?|therapist"
_AILMENT = regex(rf"(?i)\b(?:{_AILMENTS}|{_CARE})\b")
_ILL = rf"(?i:{_AILMENTS}|{_CARE}|treat(?:ed|ment)|therapy|ill(?:ness)?|sick|disab(?:led|ility)|clinic)"
_SOMEBODY = regex(
    r"""(?ix)\b(?: User_\d+ | some(?:body|one) | he | she | his | her | hers | him | my | i | wife | husband | partner
    | son | daughter | mother | father | brother | sister | child | colleague
    | (?:a|the|one|this|that|another)[ ](?:\w+[ ])?(?:member|moderator|person|user|developer|employee) )\b"""
)
_MONEY = r"salary|wages?|debts?|bank[ ]account|pension|income"
_PAY = regex(r"\b(?:salar(?:y|ies)|wages?|earns|is[ ]paid|owes|in[ ]debt)\b", re.IGNORECASE)
# By name: a capital letter alone does not tell people from products, so the rest of the sentence must.
_NO_PERSON = (
    "The|This|That|These|Those|It|Its|A|An|Our|Your|My|Their|His|Her|Each|Every|Some|Any|No|Which|What|When|Where|While"
    "|If|In|On|At|By|For|From|With|After|Before|Because|Since|There|They|We|You|Mon|Tues|Wednes|Thurs|Fri|Satur|Sun"
    "|Docker|Kubernetes|Linux|Windows|Ubuntu|Debian|Postgres|Redis|Kafka|Grafana|Prometheus|Python|Discord|Kaggle|Sentry"
)
_PERSON = rf"\b(?!(?:{_NO_PERSON})(?:day)?\b)[A-Z][a-zà-ÿ]+(?![\w-])"
_LIVES = r"(?:is|was|has|had|gets?|got|takes?|took|needs?|needed|suffer(?:s|ed)|underwent|survived|lives|spent|sees)"
_NO_DATA = (
    r"(?![ ](?:\w+[ ])?(?:scans?|data\w*|commands?|modes?|files?|logs?|reports?|pages?|fields?|tools?|models?|sets?"
    r"|images?|panels?|alerts?|apps?|tests?|tables?|modules?|codes?|plans?|bots?|widths?|registry|transistors?)\b)"
)
_PERSONAL = regex(
    rf"{_PERSON}(?:[ ]{_LIVES}|['’]s?)[ ](?:[\w'’-]+[ ]){{0,6}}?{_ILL}\b{_NO_DATA}"
    rf"|\b{_ILL}[ ](?:of|for)[ ]{_PERSON}(?=[ ](?:{_LIVES}|went|will|came|may)\b|['’]s|[.,;]|$)"
    rf"|\b(?:(?i:\w+ologist|doctor|therapist|psychiatrist|surgeon)|{_MONEY})[ ]of[ ]{_PERSON}"
    rf"|\b(?i:{_AILMENTS})(?:,|[ ](?:[a-z]+[ ]){{0,3}}?[a-z]+)[ ]{_PERSON}"
    rf"|{_PERSON}(?:['’]s?[ ](?:\w+[ ])?(?:{_MONEY})\b|[ ](?:earns|owes|is[ ]paid)\b.*\d)"
)
_ACCOUNT_NUMBER = regex(
    r"""(?ix)\b(?: bank[ ]accounts? | account[ ]numbers? | (?:credit|debit)[ ]cards? | iban | cvv | social[ ]security
    | ssn | tax[ ](?:id|number) | passport )\b
    (?:[ ](?:numbers?|no|id))? (?:[^.\w]{1,4}(?:is|was|are|ends?|ending|in|with)\b){0,3}
    [^.\w]{0,6} (?: [A-Z]{2}\d{2}[\dA-Z ]{8,} | [A-Z]{0,2}\d[\d -]{2,})"""
)
_NOT_PUBLIC = regex(
    r"""(?ix)\b(?: between[ ]us | off[ ]the[ ]record | not[ ]for[ ]the[ ]public | for[ ]internal[ ]use[ ]only
    | keep[ ](?:this|it)[ ](?:confidential|private|secret)
    | (?:is|are|was|stays?|remains?)[ ](?:strictly[ ]|still[ ])?confidential
    | (?:home[ ]address|phone[ ]number)[^.]{0,30}(?:\bis\b|:)[^.]{0,10}\d )"""
)
_PRIVATE_WORDS = regex(
    r"""(?ix)\b(?: workflows? | operational(?:ly)? | runbooks? | on[- ]call | internal[ ](?:only|use) | confidential
    | not[ ]public | off[ ]the[ ]record | between[ ]us | home[ ]address(?:es)? | phone[ ]numbers? )\b"""
)


_STRING = regex(r"(?<![\w/.:+=-])[A-Za-z0-9+/_-]{20,200}={0,2}(?![\w/-]|\.\w)")
_CHANGE = regex(r"[a-z](?=[A-Z0-9])|[A-Z](?=[0-9])|[0-9](?=[A-Za-z])")
_MOST_ALIKE = 12  # different characters, of 20


def strictest_visibility(*each: Visibility) -> Visibility:
    """Return the visibility with the fewest readers."""
    return max(each, key=_STRICTNESS.index)


def decide_visibility(
    text: str, category: str, *, proposed: Visibility = "shared", rules: Sequence[VisibilityRule] = ()
) -> Visibility:
    """Return the visibility of a fact: that of the operator's first matching rule, else the strictest of all others.

    The others are the proposal, the category, the words, and whether it holds anything like a key or a card number.
    """
    for rule in rules:
        is_of_category = not rule.category or rule.category.casefold() == category.strip().casefold()
        if is_of_category and rule.contains.casefold() in text.casefold():
            return rule.visibility
    return strictest_visibility(proposed, _BY_CATEGORY.get(category.strip().casefold(), "shared"), rate_fact_text(text))


def rate_fact_text(text: str) -> Visibility:
    """Return the visibility of a fact by its words alone. Unlike in an account, anything like a key counts as one."""
    if mask_secrets(text, emails=False).kinds or any(map(_is_random, _STRING.findall(text))):
        return "secret"
    return strictest_visibility(rate_account_text(text), "private" if _PRIVATE_WORDS.search(text) else "shared")


def _is_random(string: str) -> bool:
    """Whether upper case, lower case and digits mix as in no name."""
    kinds = re.search(r"[a-z]", string) and re.search(r"[A-Z]", string) and re.search(r"\d", string)
    return bool(kinds) and len(_CHANGE.findall(string)) >= len(string) // 4 and len(set(string)) >= _MOST_ALIKE


def rate_account_text(text: str) -> Visibility:
    """Return the visibility of an account of a conversation, sentence by sentence.

    Resetting passwords or logging diagnoses is everyday talk of a support channel, and is shared. A password with its
    value, or a person's illness, is secret. A masked text counts as removed.
    """
    return strictest_visibility("shared", *map(_rate_sentence, _SENTENCE_END.split(text)))


def _rate_sentence(sentence: str) -> Visibility:
    if any(_is_credential_value(found) for pattern in _VALUES for found in pattern.finditer(sentence)):
        return "secret"
    pays = _PAY.search(sentence) and re.search(r"\d", sentence)
    of_somebody = (_AILMENT.search(sentence) or pays) and _SOMEBODY.search(sentence)
    if of_somebody or _PERSONAL.search(sentence) or _ACCOUNT_NUMBER.search(sentence):
        return "secret"
    return "private" if _NOT_PUBLIC.search(sentence) else "shared"


def _is_credential_value(found: re.Match[str]) -> bool:
    """Whether the word beside a credential's name is its value, and not a placeholder, type or state."""
    groups = found.groupdict()
    written, sign = found["value"], (found["sign"] or "").split()[:1]
    learned = bool(groups["password"] or groups.get("code"))  # by heart: short, and digits alone will do
    value = written.strip("`'\"“”*.,;:!?()")
    if value.isdecimal():
        return bool(sign) and len(value) >= (_SHORTEST_PIN if learned else _SHORTEST_KEY)
    placeholder = _PLACEHOLDER.search(written.strip("`'\"“”*.,;:!?")) or _PLACEHOLDER.search(value)
    if not value or placeholder or (_NO_VALUE.search(value) and not (learned and sign)):
        return False
    if re.search(r"\d", value) or re.search(r"\w[!$%^&#@]+\w|[!$^&#@]$", value):
        return learned or len(value) >= _SHORTEST_KEY
    if groups.get("before"):
        return bool(groups["password"]) and written[0] in _QUOTES
    start = found.start("value")
    phrase = found.string[start : start + _LONGEST_PHRASE]
    return bool(sign and (groups["password"] or sign[0] in "=:")) and _is_password_phrase(phrase, sign[0].casefold())


def _is_password_phrase(text: str, sign: str) -> bool:
    """Whether plain words after a credential's name and `sign` are its value, because they are no sentence."""
    if text[0] in _QUOTES:
        words = text[1:].split(text[0].replace("“", "”"), maxsplit=1)[0].split()
        return not all(_GOES_ON.fullmatch(word) or _is_state_word(word) for word in words)
    clause = _CLAUSE.match(text.lstrip("*( "))
    words = [word.strip("`'\"“”*") for word in clause[0].split()] if clause else []
    end = next((n for n, word in enumerate(words) if _GOES_ON.fullmatch(word)), len(words))
    words = words[:end]
    if not words or sign not in _READ_ALONE:
        return False
    if sign == "=":
        return not _is_state_word(words[0])
    if len(words) < _FEW and _is_state_word(words[-1]):
        return False
    if sign == ":":
        return True
    return not (_DONE if sign in _VERBS else _KIND_OF).fullmatch(words[0])


def _is_state_word(word: str) -> bool:
    return any(reason.fullmatch(word) for reason in (_STATES, _DONE, _KIND_OF))
