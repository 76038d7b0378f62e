"""Estimate the cost of a backtest before a model is asked: count questions, measure or bound their prompts."""

from __future__ import annotations

from functools import cache

from msgspec import Struct

from intern.core.records import Capture
from intern.lab.timeline import Taught, Timeline, by_reason
from intern.service import Settings
from intern.service.intern import Asked as Question, asked, is_chatter
from intern.service.models import PROMPTS, LlmOptions, Meter, estimated_tokens, measure
from intern.service.prompt_checks import bare_example

_REPLY = 40  # tokens of a decision's reply, generously
_CHECK = 150  # tokens of the reply that checks a fused answer, generously
_QUOTES = 3 * 400  # characters that a decision may quote
_CHARS_PER_TOKEN = 3.6
_PROMPTS = {prompt.name: prompt for prompt in PROMPTS}


class Range(Struct, frozen=True, kw_only=True):
    """Between these two."""

    least: float
    most: float


class Estimate(Struct, frozen=True, kw_only=True):
    """What there is to do, and about what it takes: least where hardly anything is answered, most where all is.

    With `ai.steps = "fused"`, a question that nothing known fits costs no call; its first call is counted all the same.
    """

    questions: int
    team_answered: int
    """Of these, those that the team answered."""
    conversations: int
    """To be learned on the way."""
    left_out: dict[str, int]
    calls: Range
    tokens: Range
    cost: Range
    currency: str
    priced: bool


def estimate_backtest(settings: Settings, timeline: Timeline) -> Estimate:
    """Count and measure; descriptions of new documents come on top. Asks no model. Raises ConfigError. Blocks."""
    least, most = Meter(), Meter()
    answering, learning = _Sum(settings, settings.llm, least, most), _Sum(settings, settings.kb_model, least, most)
    for each in timeline.asked:
        if not each.known:
            _question(answering, settings, asked(each.request.conversation, addressed=each.request.addressed))
    seen: set[str] = set()
    for step in timeline.steps:
        for capture in step.captures if isinstance(step, Taught) else ():
            _capture(learning, settings, capture, again=capture.conversation_id in seen)
            seen.add(capture.conversation_id)
    return Estimate(
        questions=len(timeline.asked),
        team_answered=sum(bool(each.team) for each in timeline.asked),
        conversations=len(seen),
        left_out=by_reason(timeline.left_out),
        calls=Range(least=least.calls, most=most.calls),
        tokens=Range(least=least.tokens, most=most.tokens),
        cost=Range(least=round(least.cost, 4), most=round(most.cost, 4)),
        currency=settings.llm.currency,
        priced=settings.priced,
    )


class _Sum:
    """Adds up calls, tokens and cost, at least and at most; nothing where rules answer."""

    def __init__(self, settings: Settings, options: LlmOptions, least: Meter, most: Meter) -> None:
        self._tokens_of = measure(settings, options)
        self._price = options.price
        self._asks = options.kind == "endpoint"
        self._least = least
        self._most = most
        self._own = cache(self._measured)

    def add(self, prompt: str, tokens: int, *, reply: int = _REPLY, least: int | None = None) -> None:
        """Count a call with at most so many tokens beside its template's own. `least`: those of one that is sure."""
        if not self._asks:
            return
        self._most.take(self._call(prompt, tokens, reply))
        if least is not None:
            self._least.take(self._call(prompt, least, _REPLY))

    def _measured(self, name: str) -> int:
        return self._tokens_of(_PROMPTS[name], bare_example(_PROMPTS[name]))

    def _call(self, prompt: str, tokens: int, reply: int) -> Meter:
        tokens += self._own(prompt)
        return Meter(1, tokens, reply, self._price.of(tokens, reply))


def _question(answering: _Sum, settings: Settings, question: Question) -> None:
    said = estimated_tokens(question.question + question.history)
    answer = _tokens(settings.ai.max_answer_chars)
    if settings.ai.steps == "fused":
        if is_chatter(question.question) and not question.addressed:
            return
        passages = _tokens(settings.ai.max_passage_chars)
        answering.add("decide", said + passages, reply=answer + _tokens(_QUOTES), least=said)
        # Only an answer is checked; with `ai.verify = "unsure"`, perhaps not even that.
        answering.add("confirm", said + passages + answer, reply=_CHECK)
        return
    sources = _tokens(settings.ai.max_source_chars)
    answering.add("gate", said, least=said)
    answering.add("select", said + _tokens(settings.ai.max_index_chars))
    answering.add("answer", said + sources, reply=answer)
    answering.add("verify", said + sources + answer)


def _capture(learning: _Sum, settings: Settings, capture: Capture, *, again: bool) -> None:
    options = settings.learning
    said = sum(len(turn.text) for turn in capture.turns)
    pair = _tokens(min(said, options.max_pair_chars))
    if not again:
        learning.add("classify", pair + _tokens(options.max_index_chars), least=pair)
    learning.add("integrate", pair + _tokens(options.max_blocks_chars))
    learning.add("summarize_topic", _tokens(options.max_topic_chars), reply=200)
    if settings.extraction.auto:
        learning.add("extract", _tokens(said), reply=600)


def _tokens(chars: int) -> int:
    return int(chars / _CHARS_PER_TOKEN) + 1
