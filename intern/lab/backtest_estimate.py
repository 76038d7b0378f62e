"""Estimate the cost of a backtest before a model is asked: count questions, measure or bound their prompts."""

from __future__ import annotations

from functools import cache

from msgspec import Struct

from intern.core.captures import Capture
from intern.lab.timeline import TeachingStep, Timeline, sort_by_count
from intern.service import Settings
from intern.service.intern import PreparedQuestion as Question, is_chatter, prepare_question
from intern.service.models import PROMPTS, LlmOptions, UsageMeter, estimate_tokens
from intern.service.prompt_examples import build_bare_example
from intern.service.regeneration_estimate import build_token_counter

_REPLY = 40  # tokens of a decision's reply, generously
_CHECK = 150  # tokens of the reply that checks a fused answer, generously
_QUOTES = 3 * 400  # characters that a decision may quote
_CHARS_PER_TOKEN = 3.6
_PROMPTS = {prompt.name: prompt for prompt in PROMPTS}


class EstimateRange(Struct, frozen=True, kw_only=True):
    """A range with its two ends."""

    least: float
    most: float


class BacktestEstimate(Struct, frozen=True, kw_only=True):
    """The work of a backtest and its estimated cost: least if hardly any question is answered, most if all are.

    With `ai.steps = "fused"`, a question without matching knowledge costs no call; its first call is counted all the
    same.
    """

    questions: int
    team_answered: int
    """The questions among them that the team answered."""
    conversations: int
    """The captures to learn on the way."""
    left_out: dict[str, int]
    calls: EstimateRange
    tokens: EstimateRange
    cost: EstimateRange
    currency: str
    priced: bool


def estimate_backtest(settings: Settings, timeline: Timeline) -> BacktestEstimate:
    """Count and measure; descriptions of new documents come on top. Asks no model. Raises ConfigError. Blocks."""
    least, most = UsageMeter(), UsageMeter()
    answering, learning = (
        _UsageSum(settings, settings.llm, least, most),
        _UsageSum(settings, settings.kb_model, least, most),
    )
    for each in timeline.asked:
        if not each.known:
            _add_question(
                answering, settings, prepare_question(each.request.conversation, addressed=each.request.addressed)
            )
    seen: set[str] = set()
    for step in timeline.steps:
        for capture in step.captures if isinstance(step, TeachingStep) else ():
            _add_capture(learning, settings, capture, again=capture.conversation_id in seen)
            seen.add(capture.conversation_id)
    return BacktestEstimate(
        questions=len(timeline.asked),
        team_answered=sum(bool(each.team) for each in timeline.asked),
        conversations=len(seen),
        left_out=sort_by_count(timeline.left_out),
        calls=EstimateRange(least=least.calls, most=most.calls),
        tokens=EstimateRange(least=least.tokens, most=most.tokens),
        cost=EstimateRange(least=round(least.cost, 4), most=round(most.cost, 4)),
        currency=settings.llm.currency,
        priced=settings.priced,
    )


class _UsageSum:
    """Adds up calls, tokens and cost, at least and at most; all are 0 if rules answer."""

    def __init__(self, settings: Settings, options: LlmOptions, least: UsageMeter, most: UsageMeter) -> None:
        self._tokens_of = build_token_counter(settings, options)
        self._price = options.price
        self._asks = options.kind == "endpoint"
        self._least = least
        self._most = most
        self._own = cache(self._measure_template)

    def add(self, prompt: str, tokens: int, *, reply: int = _REPLY, least: int | None = None) -> None:
        """Count a call with at most so many tokens besides its template's own; `least`: those of a certain call."""
        if not self._asks:
            return
        self._most.add_counts(self._call(prompt, tokens, reply))
        if least is not None:
            self._least.add_counts(self._call(prompt, least, _REPLY))

    def _measure_template(self, name: str) -> int:
        return self._tokens_of(_PROMPTS[name], build_bare_example(_PROMPTS[name]))

    def _call(self, prompt: str, tokens: int, reply: int) -> UsageMeter:
        tokens += self._own(prompt)
        return UsageMeter(1, tokens, reply, self._price.compute_cost(tokens, reply))


def _add_question(answering: _UsageSum, settings: Settings, question: Question) -> None:
    said = estimate_tokens(question.question + question.history)
    answer = _estimate_tokens(settings.ai.max_answer_chars)
    if settings.ai.steps == "fused":
        if is_chatter(question.question) and not question.addressed:
            return
        passages = _estimate_tokens(settings.ai.max_passage_chars)
        answering.add("decide", said + passages, reply=answer + _estimate_tokens(_QUOTES), least=said)
        # Only an answer is checked; with `ai.verify = "unsure"`, perhaps not even that.
        answering.add("confirm", said + passages + answer, reply=_CHECK)
        return
    sources = _estimate_tokens(settings.ai.max_source_chars)
    answering.add("gate", said, least=said)
    answering.add("select", said + _estimate_tokens(settings.ai.max_index_chars))
    answering.add("answer", said + sources, reply=answer)
    answering.add("verify", said + sources + answer)


def _add_capture(learning: _UsageSum, settings: Settings, capture: Capture, *, again: bool) -> None:
    options = settings.learning
    said = sum(len(turn.text) for turn in capture.turns)
    pair = _estimate_tokens(min(said, options.max_pair_chars))
    if not again:
        learning.add("classify", pair + _estimate_tokens(options.max_index_chars), least=pair)
    learning.add("integrate", pair + _estimate_tokens(options.max_blocks_chars))
    learning.add("summarize_topic", _estimate_tokens(options.max_topic_chars), reply=200)
    if settings.extraction.auto:
        learning.add("extract", _estimate_tokens(said), reply=600)


def _estimate_tokens(chars: int) -> int:
    return int(chars / _CHARS_PER_TOKEN) + 1
