"""Rules that answer instead of a model.

They understand nothing. So the closest passage is quoted, with a line that says so, and only if the search is sure of
it (`closest_passage.SURE`); otherwise there is silence. Deterministic.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from intern.answering import prompts
from intern.answering.question_text import without_mentions
from intern.answering.quotes import has_quote
from intern.core.text.words import split_sentences, stem_words

# Added to the threshold for a message that is not addressed to the bot.
_UNASKED = 0.05

_ASKING = re.compile(
    r"""(?imx)[?？؟]
    | (^|[.!,;:]\s)\W{0,5}(how|what|why|where|when|which|who|whose)\b
    | \b(how|what|why|where|when|which|who)\ (to|do|does|did|can|could|should|would|is|are|many|much|long|often)\b
    | ^\W{0,5}(is|are|was|were|do|does|did|can|could|would|should|will|has|have|may|any(one|body)?)\b
    | \b((can|could|does|do|did|is|are|was|wo|would|has)(n['’]?t|\ not|not)|unable\ to|fail(s|ed|ing)?)\b
    | \b(errors?|exception|traceback|crash(es|ed|ing)?|stuck|broken|refuse[sd]?|no\ idea|help|problems?|issues?)\b
    | \b(need|want|looking|trying|tried)\ (to|for)\b
    """,
)
_THANKS = re.compile(r"\W*(many\ )?(thanks|thank you|thx|ty|cheers|great|perfect|never ?mind|solved)\b", re.IGNORECASE)


def is_question(text: str, *, addressed: bool) -> bool:
    """Recognise a question by its mark or its words, or by two informative words if it is addressed to the bot."""
    telling = stem_words(text)
    thanks = _THANKS.match(text) and "?" not in text
    asks = bool(_ASKING.search(text)) or (addressed and len(telling) > 1)
    return asks and bool(telling) and not thanks


def decide(given: prompts.DecideIn) -> prompts.AnswerDecision:
    """Decide whether it is a question, and quote the closest passage if it is sure enough."""
    asks, closest = is_question(without_mentions(given.question), addressed=given.addressed), given.closest
    if not asks or closest is None or closest.surplus < (0 if given.addressed else _UNASKED):
        return prompts.AnswerDecision(quotes=(), kind="not_covered" if asks else "chatter", answer=None)
    passage = closest.passage
    lines = (line[: prompts.MAX_LINE] for line in split_sentences(closest.text))
    line = next((line for line in lines if has_quote(passage.text, line)), "")
    return prompts.AnswerDecision(
        quotes=(prompts.Quote(source=passage.alias, line=line),),
        kind="answer",
        answer=closest.text,
        citations=(passage.alias,),
    )


def confirm(given: prompts.ConfirmIn) -> prompts.Confirmation:
    """Accept the answer: it is a quote, and code has compared each quote with its passage."""
    claims = tuple(prompts.Claim(claim="as quoted", quote=1) for _ in given.quotes[:1])
    asked, told = given.question[:200], "A quote, word for word."
    return prompts.Confirmation(asked=asked, told=told, verdict="answered", claims=claims)


RULES: Mapping[str, Callable[[Any], Any]] = {prompts.DECIDE.name: decide, prompts.CONFIRM.name: confirm}
"""The rules of `OfflineModel` for the steps of `fused`, which need no others."""
