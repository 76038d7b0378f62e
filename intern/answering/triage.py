"""Which messages are worth a call of the model."""

from __future__ import annotations

import re
from collections.abc import Sequence

from intern.answering.question_text import is_english
from intern.core.search_documents import PassageHit
from intern.core.text.words import WordRarity, stem_set
from intern.search.hybrid_search import split_question

# Thanks in the languages whose questions `_ASKS` knows; they may follow "ah brilliant,".
_THANKED = re.compile(
    r"\b(?:thanks|thank you|thank u|thx|tysm|ty|cheers|never ?mind|danke|dankeschön|merci|gracias|obrigad[oa]|grazie"
    r"|bedankt|dank je|спасибо|благодарю)\b",
    re.IGNORECASE,
)
# By itself, it asks nothing.
_ALONE = re.compile(
    r"\W*(?:hi|hello|hey|hallo|moin|salut|bonjour|hola|ciao|olá|good (?:morning|evening|night)|gm|gn|morning|evening"
    r"|lol|lmao|rofl|haha\w*|xd|\+1|same|this|nice|cool|wow|great|perfect|awesome|congrats|congratulations|welcome|gg|brb|ok(?:ay)?"
    r"|yes|yep|yeah|no|nope|np|yw|fixed|solved|works now|it works(?: now)?|that (?:worked|did it)|got it"
    r"|tack|takk|kiitos|dzięki|dziękuję|díky|děkuji|mulțumesc|köszönöm|teşekkürler|дякую"
    r"|谢谢|謝謝|感谢|ありがとう(?:ございま(?:す|した))?|감사합니다|고마워요?)"
    r"(?:\W+(?:all|everyone|everybody|guys|folks|there|team|again|now|man|mate))*\W*",
    re.IGNORECASE,
)
_SAID = re.compile(r"\w")
_MARK = re.compile(r"[?？؟]")
_ASKS = re.compile(
    r"\b(?:how|what|why|where|when|which|who|but|however|still|error|fail\w*|crash\w*|broken|stuck|problem\w*|issue\w*"
    r"|can(?:'|’)?t|cannot|doesn(?:'|’)?t|don(?:'|’)?t|won(?:'|’)?t|isn(?:'|’)?t|not|unable|need|help|advance|tried|trying"
    r"|(?:can|could|do|should) (?:i|you|we|it|they|this|that)|does|would|is (?:there|it|this)"
    r"|are there|any(?:one|body)?|possible"
    r"|aber|fehler|nicht|wie|warum|wo|hilfe|kann|könnte\w*|gibt es|geht das|wann|welche\w*|möglich"
    r"|mais|erreur|pas|comment|pourquoi|peu[txv]\w*|est-ce|quand|quel\w*|où"
    r"|pero|no funciona|cómo|por qué|ayuda|pued[eo]\w*|se puede|hay|cuándo|cuál\w*|dónde"
    r"|mas|erro|como|não|posso|pode\w*|dá|quando|qual|onde|ma|errore|non|come|perché|può|posso|dove|quale"
    r"|maar|fout|niet|hoe|kan|kunnen|waar|wanneer|welke|но|не|как|ошиб\w*|можно|где|когда|почему|а|если)\b",
    re.IGNORECASE,
)
_MOST_WORDS = 20  # of thanks that ask nothing; longer messages may also ask something


def is_chatter(question: str) -> bool:
    """Whether a message is thanks, a greeting or the like; False means unknown."""
    if not question or _MARK.search(question):
        return False
    if not _SAID.search(question) or _ALONE.fullmatch(question):
        return True
    return len(question.split()) <= _MOST_WORDS and bool(_THANKED.search(question)) and not _ASKS.search(question)


WORTH_A_CALL = 0.49
"""The least `score_message` of a message about which a model is asked.

Fitted on half of the logs of real chats (IRC and Gitter) and of the labelled questions, and measured on the other half
(`benchmarks.triage`), with vectors. There, a batch costs .54 first calls with 603 factoids about the subject of most
chats, .54 with 596 sections of a FAQ, and .04 with the sample; none of 89 labelled questions is ignored. On the
fitted half: .54, .52 and .03, and 2 of 106. By words alone: .47, .59 and .22, and 7 of 89; the search found the answer
to one of these 7.
"""

# Weights, against 1 for likeness: by logistic regression, rounded. .2 to .4 and .05 to .15 did about as well.
_COVERED = 0.3
_ASKED = 0.12
# The mean lead of one of several parts of a question over the whole, in nearness to a document, on the first half.
_BY_CHANCE = 0.04
# The likeness of a passage without a vector. So without an embedder, words and signs must add up to .165.
_UNKNOWN = 0.325
_BEST = 3  # passages whose words count
# The least number of texts for counting rarity: among one or two, each word looks common.
_AMONG = 4

_URL = re.compile(r"\w+://\S+")
_TO_A_MEMBER = re.compile(r"^\s*<@!?\d+>.*$", re.MULTILINE)


def score_message(question: str, query: str, hits: Sequence[PassageHit]) -> float | None:
    """Score an unaddressed message, comparable between messages; None where a score would say nothing.

    It is the largest likeness of a hit, plus two weights: for the share of the query's rare words in the best hits,
    and for a sign of a question. A word is rare if few of the hits contain it. `query` is the search text; `hits`
    (best first) must not be empty. None for a question in another language, which English sources may answer, and for
    an embedder whose cosines were not measured.
    """
    has_sign = has_question_sign(question)
    if (has_sign and not is_english(question)) or not all(hit.is_measured for hit in hits):
        return None
    alike = max(_UNKNOWN if hit.likeness is None else hit.likeness for hit in hits)
    return (
        alike
        - _BY_CHANCE * (len(split_question(query)) > 1)
        + _COVERED * _compute_coverage(query, hits)
        + _ASKED * has_sign
    )


def has_question_sign(question: str) -> bool:
    """Whether a line has a sign of a question. Lines that begin with the mention of a member do not count."""
    said = _URL.sub(" ", _TO_A_MEMBER.sub("", question))
    return bool(_MARK.search(said) or _ASKS.search(said))


def _compute_coverage(query: str, hits: Sequence[PassageHit]) -> float:
    texts = [stem_set(f"{hit.title}\n{hit.text}") for hit in hits]
    best = {word for text in texts[:_BEST] for word in text}
    return WordRarity([*texts, *[frozenset[str]()] * (_AMONG - len(texts))]).compute_coverage(stem_set(query), best)
