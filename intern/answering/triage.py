"""Tell thanks and greetings without a model, among messages that are not addressed to the bot. Pure."""

from __future__ import annotations

import re

# Thanks in languages whose questions `_ASKS` knows; they may stand behind "ah brilliant,".
_THANKS = re.compile(
    r"\b(?:thanks|thank you|thank u|thx|tysm|ty|cheers|never ?mind|danke|dankeschön|merci|gracias|obrigad[oa]|grazie"
    r"|bedankt|dank je|спасибо|благодарю)\b",
    re.IGNORECASE,
)
# Said by itself it asks nothing.
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
_MOST_WORDS = 20  # of thanks that ask nothing; what is longer may have come to something else


def is_chatter(question: str) -> bool:
    """Thanks, greetings and the like; False says nothing."""
    if not question or _MARK.search(question):
        return False
    if not _SAID.search(question) or _ALONE.fullmatch(question):
        return True
    return len(question.split()) <= _MOST_WORDS and bool(_THANKS.search(question)) and not _ASKS.search(question)
