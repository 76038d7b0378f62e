"""Orders to a model: text that bids its reader to change a reply, a role or instructions. Also names that say too much.

No ordinary document speaks of the reader's reply. The patterns were fitted on half of the categories of 118 known
injections, and on half of 27,000 passages of manuals, FAQs and chats; `tests/eval/test_poison.py` holds the figures.
"""

from __future__ import annotations

import re

from intern.core.text.masking import without_invisible
from intern.core.text.passages import GAP, passages
from intern.core.text.patterns import regex
from intern.core.text.words import look_of

_NEAR = r"\b(?:(?![.?!](?:\s|\Z)).){0,100}?\b"  # in one sentence
_REPLY = r"(?:responses?|repl(?:y|ies)|answers?)"
_SAY = r"(?:say|print|output|repeat|respond|reply|answer|write|translate)"
_SNIPPET = r"code (?:snippet|excerpt|block|section)s?"
_PROGRAM = r"(?:your|more) (?:\w+ )?(?:code(?:base)?|algorithm|implementation|solution)"
_ORDER = regex(
    r"\b(?:"
    # To leave its instructions, also in German, French and Spanish.
    r"(?:ignor(?:e|iere?|ez|a)|disregard|forget|override|bypass|vergiss|oublie[zr]?|olvida) (?:[\w'’-]+,? ){0,6}?"
    r"(?:instructions?|directions|directives|prompts?|guidelines|anweisungen|consignes|instrucciones)|"
    # To make something of its reply.
    r"(?:add|append|attach|augment|display|encod|enhanc|includ|incorporat|insert|integrat|invert|jumbl|mention|modif|provid"
    rf"|represent|revers|rewrit|scrambl|substitut|translat)(?:e|es|ed|ing|y)?{_NEAR}your (?:\w+ )?{_REPLY}|"
    rf"(?:invert|jumble|reverse|scramble|translate|encode){_NEAR}your (?:words|message)|"
    rf"(?:in|into|from) your (?:\w+ )?{_REPLY}|"
    rf"(?:begin|start|end|finish|close) (?:the|your|every|each|all) (?:\w+ )?{_REPLY} (?:with|by)|"
    # To say what stands there.
    r"(?:just|instead) (?:say|print|output|repeat|reply|respond) (?:\w+ ){0,3}?[\"“:]\w|"
    rf"{_SAY} (?:this|the(?: following)?) (?:sentence|text|words?|phrase)s?(?: as\b|:)|"
    # To take another role; and texts that say for which programs they are.
    r"you(?:'re| are) (?:now )?(?:an?|the|my|now) (?:[\w-]+ ){0,2}?(?:ai|model|assistant|bot|character|prompt)\b|"
    rf"{_SAY}\b[^.?!\n]{{0,30}} without (?:any )?(?:restriction|filter|limit)|"
    r"(?:note|message|instructions?) (?:to|for) (?:\w+ ){0,3}(?:ai|llms?|models?|assistants?|chatbots?|software)\b|"
    # To take code that it brings.
    rf"{_SNIPPET}{_NEAR}{_PROGRAM}|{_PROGRAM}{_NEAR}{_SNIPPET})"
)
_MARKUP = regex(r"[*_`~\s-]+")
# An address, also without its scheme or with other slashes, as file names have them; a command; a second sentence.
_SPEECH = regex(
    r"[a-z][a-z0-9+.-]+:(?=[^\s:])|//|\w@\w|\bwww\.|\.(?:com|org|gg|dev|info|xyz)\b"
    r"|(?<!\S)(?:sudo|doas|curl|wget|\$)\s|\s--?[a-z]|&&|;\s|`[^`\s]+\s[^`]*`"
    r"|[^\W_]{3}[.!?]\s+\S|\bplease\b",
    re.IGNORECASE,
)
_PIECE = 1000  # characters


def gives_orders(text: str) -> bool:
    """Return whether a text gives an order to a model, however it is written."""
    return _ORDER.search(_MARKUP.sub(" ", look_of(without_invisible(text)).text.casefold())) is not None


def is_name(text: str) -> bool:
    """Return whether a title or a file name only names: it holds no address, command, order or second sentence."""
    return not (_SPEECH.search(without_invisible(text)) or gives_orders(text))


def without_orders(text: str) -> str:
    """Return a text without its pieces that give orders to a model, and those beside them, into which one may reach."""
    if not gives_orders(text):
        return text
    pieces = [piece.text for piece in passages(text, _PIECE)]
    near = ("\n".join(pieces[max(n - 1, 0) : n + 2]) for n in range(len(pieces)))
    return GAP.join(piece for piece, around in zip(pieces, near, strict=True) if not gives_orders(around))
