"""Orders to a model: text that bids its reader to change a reply, a role or instructions. Also names that say too much.

No ordinary document speaks of the reader's reply. The patterns were fitted on half of the categories of 118 known
injections, and on half of 27,000 passages of manuals, FAQs and chats; `tests/eval/test_poison.py` has the figures.
"""

from __future__ import annotations

import re
from itertools import pairwise

from intern.core.text.fences import remove_invisible
from intern.core.text.lookalikes import normalise_lookalikes
from intern.core.text.passages import GAP
from intern.core.text.patterns import regex

_NEAR = r"\b(?:(?![.?!](?:\s|\Z)).){0,100}?\b"  # in one sentence
_REPLY = r"(?:responses?|repl(?:y|ies)|answers?)"
_SAY = r"(?:say|print|output|repeat|respond|reply|answer|write|translate)"
_SNIPPET = r"code (?:snippet|excerpt|block|section)s?"
_PROGRAM = r"(?:your|more) (?:\w+ )?(?:code(?:base)?|algorithm|implementation|solution)"
_ORDER = regex(
    r"\b(?:"
    # To leave its instructions, also in German, French and Spanish.
    r"(?:ignor(?:e|iere?|ez|a)|disregard|forget(?! to)|override|bypass|vergiss|oublie[zr]?|olvida) (?:"
    r"(?:the |any )?(?:instructions?|directives)(?= and\b| ?[^\w\s]| ?\Z)|(?:[\w'’-]+,? ){0,6}?(?:"
    r"(?:all|any|every|other|earlier|former|initial|original|preceding|previous|prior|above|system|these|your)"
    r" (?:[\w'’-]+,? ){0,3}?(?:instructions?|directives)|(?:instructions?|directives) (?:above|before|given|you)|"
    r"(?:earlier|preceding|previous|prior|above|system|your) (?:\w+ ){0,2}?(?:directions|prompts?|guidelines)|"
    r"(?:directions|prompts?|guidelines) (?:above|before)|anweisungen|consignes|instrucciones))\b|"
    # To make something of its reply.
    r"(?:add|append|attach|augment|display|encod|enhanc|includ|incorporat|insert|integrat|invert|jumbl|mention|modif|provid"
    rf"|represent|revers|rewrit|scrambl|substitut|translat)(?:e|es|ed|ing|y)?{_NEAR}your (?:\w+ )?{_REPLY}|"
    rf"(?:invert|jumble|reverse|scramble|translate|encode){_NEAR}your (?:words|message)|"
    rf"(?:in|into|from) your (?:\w+ )?{_REPLY}|"
    rf"(?:begin|start|end|finish|close) (?:the|your|every|each|all) (?:\w+ )?{_REPLY} (?:with|by)|"
    # To say the text that follows.
    r"(?:just|instead) (?:say|print|output|repeat|reply|respond) (?:\w+ ){0,3}?[\"“:]\w|"
    rf"{_SAY} (?:this|the(?: following)?) (?:sentence|text|words?|phrase)s?(?: as\b|:)|"
    # To take another role; and texts that say for which programs they are.
    r"you(?:'re| are) (?:now )?(?:an?|the|my|now) (?:[\w-]+ ){0,2}?(?:ai|model|assistant|bot|character|prompt)\b"
    r"(?! (?:admin|operator|owner|user)s?\b)|"
    rf"{_SAY}\b[^.?!\n]{{0,30}} without (?:any )?(?:restriction|filter|limit)|"
    r"(?:note|message|instructions?) (?:to|for) (?:(?:an?|the|all|any|other|large|language) ){0,3}"
    r"(?:ai|llms?|models?|assistants?|chatbots?|automated (?:\w+ ){0,2}software)\b|"
    # To use code that the text contains.
    rf"{_SNIPPET}{_NEAR}{_PROGRAM}|{_PROGRAM}{_NEAR}{_SNIPPET})"
)
# Requests that helpers make to a member.
_REPORT = regex(
    r"\b(?:add|attach|include|mention|post|provide|put) (?:(?:the|your|any|all|full|exact|relevant) ){0,3}"
    rf"(?:output|logs?|versions?|traceback|screenshots?)\b{_NEAR}(?:in|to|with) your {_REPLY}\b"
)
_MARKUP = regex(r"[*_`~\s-]+")
# An address, also without its scheme or with other slashes, as file names have them; a command; a second sentence.
_SPEECH = regex(
    r"[a-z][a-z0-9+.-]{1,30}:(?=[^\s:])|//|\w@\w|\bwww\.|\.(?:com|org|gg|dev|info|xyz)\b"
    r"|(?<!\S)(?:sudo|doas|curl|wget|\$)\s|\s--?[a-z]|&&|;\s|`[^`\s]+\s[^`]*`"
    r"|[^\W_]{3}[.!?]\s+\S|\bplease\b",
    re.IGNORECASE,
)
# A sentence ends with a stop, a paragraph, an item of a list, a row or a turn.
_BORDER = regex(r"[.!?。！？][\"'*_`)\]]*\s+|\n\s*\n|\n(?=[ \t]*(?:[-*+|>#]|\d{1,3}[.)]|\w+:[ ]))")


def has_prompt_injection(text: str) -> bool:
    """Return whether a text gives an order to a model, however it is written."""
    plain = _MARKUP.sub(" ", normalise_lookalikes(remove_invisible(text)).text.casefold())
    return _ORDER.search(_REPORT.sub(" ", plain)) is not None


def is_plain_name(text: str) -> bool:
    """Return whether a title or a file name only names: it holds no address, command, order or second sentence."""
    return not (_SPEECH.search(remove_invisible(text)) or has_prompt_injection(text))


def remove_prompt_injection(text: str) -> str:
    """Return a text without the sentences that give orders to a model, by themselves or with those beside them."""
    if not has_prompt_injection(text):
        return text
    borders = [0, *(border.end() for border in _BORDER.finditer(text)), len(text)]
    sentences, width = [text[start:end] for start, end in pairwise(borders)], 1
    while has_prompt_injection("".join(sentences)):
        windows = ("".join(sentences[n : n + width]) for n in range(len(sentences)))
        found = {n + k for n, window in enumerate(windows) if has_prompt_injection(window) for k in range(width)}
        sentences = [GAP if n in found else sentence for n, sentence in enumerate(sentences)]
        width *= 2
    return GAP.join(filter(None, map(str.strip, "".join(sentences).split(GAP))))
