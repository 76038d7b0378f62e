"""Tell thanks and greetings without a model, among messages that are not addressed to the bot. Pure."""

from __future__ import annotations

import re

# Thanks, in the languages that are written most; they may stand behind "ah brilliant,".
_THANKS = re.compile(
    r"\b(?:thanks|thank you|thank u|thx|tysm|ty|cheers|never ?mind|danke|dankeschön|merci|gracias|obrigad[oa]|grazie"
    r"|bedankt|dank je|tack|takk|kiitos|dzięki|dziękuję|díky|děkuji|mulțumesc|köszönöm|teşekkürler"
    r"|спасибо|дякую|благодарю)\b"
    r"|谢谢|謝謝|感谢|ありがとう|감사합니다|고마워",
    re.IGNORECASE,
)
# Said by itself it asks nothing.
_ALONE = re.compile(
    r"\W*(?:hi|hello|hey|hallo|moin|salut|bonjour|hola|ciao|olá|good (?:morning|evening|night)|gm|gn|morning|evening"
    r"|lol|lmao|rofl|haha\w*|xd|\+1|same|this|nice|cool|wow|great|perfect|awesome|congrats|congratulations|welcome|gg|brb|ok(?:ay)?"
    r"|yes|yep|yeah|no|nope|np|yw|fixed|solved|works now|it works(?: now)?|that (?:worked|did it)|got it)"
    r"(?:\W+(?:all|everyone|everybody|guys|folks|there|team|again|now|man|mate))*\W*",
    re.IGNORECASE,
)
_ASKS = re.compile(
    r"[?？؟]|\b(?:how|what|why|where|when|which|who|but|however|still|error|fail\w*|crash\w*|broken|stuck|problem\w*|issue\w*"
    r"|can(?:'|’)?t|cannot|doesn(?:'|’)?t|don(?:'|’)?t|won(?:'|’)?t|isn(?:'|’)?t|not|unable|need|help|advance|tried|trying"
    r"|aber|fehler|nicht|wie|warum|wo|hilfe|mais|erreur|pas|comment|pourquoi|pero|no funciona|cómo|por qué|ayuda"
    r"|mas|erro|como|não|ma|errore|non|come|perché|maar|fout|niet|hoe|но|не|как|ошиб\w*)\b",
    re.IGNORECASE,
)
_MOST_WORDS = 20  # of thanks that ask nothing; what is longer may have come to something else


def is_chatter(question: str) -> bool:
    """Thanks, greetings and the like; False says nothing."""
    if _ALONE.fullmatch(question):
        return "?" not in question
    return len(question.split()) <= _MOST_WORDS and bool(_THANKS.search(question)) and not _ASKS.search(question)
