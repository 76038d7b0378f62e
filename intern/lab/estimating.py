"""What a backtest would cost, told before a model is asked: questions are counted, prompts measured or bounded."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from intern.answering.offline import is_chatter
from intern.answering.prompts import ANSWER, CONFIRM, DECIDE, GATE, MAX_LINE, SELECT, VERIFY
from intern.answering.working import Asked as Question, asked
from intern.core.records import Capture
from intern.facts.prompts import EXTRACT
from intern.lab.timeline import Taught, Timeline, by_reason
from intern.learning.prompts import CLASSIFY, INTEGRATE
from intern.models.chat import chat_request
from intern.models.options import LlmOptions, Price
from intern.models.prompt import Prompt
from intern.models.usage import estimated_tokens
from intern.service.models import templates_of
from intern.service.prompt_checks import bare_example
from intern.service.settings import Settings
from intern.sources.descriptions import SUMMARIZE_TOPIC

_REPLY = 40  # tokens of a decision's reply, generously
_CHECK = 150  # tokens of the reply that checks a fused answer, generously
_QUOTES = 3 * MAX_LINE  # characters that a decision may quote
_CHARS_PER_TOKEN = 3.6


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
    answering, learning = _Sum(settings, settings.llm), _Sum(settings, settings.kb_model)
    for each in timeline.asked:
        question = asked(each.request.conversation, addressed=each.request.addressed)
        _question(answering, settings, question, known=each.known)
    seen: set[str] = set()
    for step in timeline.steps:
        for capture in step.captures if isinstance(step, Taught) else ():
            _capture(learning, settings, capture, again=capture.conversation_id in seen)
            seen.add(capture.conversation_id)
    sums = (answering, learning)
    return Estimate(
        questions=len(timeline.asked),
        team_answered=sum(bool(each.team) for each in timeline.asked),
        conversations=len(seen),
        left_out=by_reason(timeline.left_out),
        calls=Range(least=sum(each.least_calls for each in sums), most=sum(each.most_calls for each in sums)),
        tokens=Range(least=sum(each.least_tokens for each in sums), most=sum(each.most_tokens for each in sums)),
        cost=Range(
            least=round(sum(each.least_cost for each in sums), 4), most=round(sum(each.most_cost for each in sums), 4)
        ),
        currency=settings.llm.currency,
        priced=settings.priced,
    )


class _Sum:
    """Calls, tokens and cost, at least and at most; nothing where rules answer."""

    def __init__(self, settings: Settings, options: LlmOptions) -> None:
        self._templates = templates_of(settings)
        self._options = options
        self._price: Price = options.price
        self._asks = options.kind == "endpoint"
        self._bare: dict[str, int] = {}
        self.least_calls = self.most_calls = self.least_tokens = self.most_tokens = 0
        self.least_cost = self.most_cost = 0.0

    def add(self, prompt: Prompt[Any, Any], tokens: int, *, reply: int = _REPLY, least: int | None = None) -> None:
        """Count a call with at most so many tokens beside its template's own. `least`: those of one that is sure."""
        if not self._asks:
            return
        own = self._own(prompt)
        self.most_calls += 1
        self.most_tokens += own + tokens + reply
        self.most_cost += self._price.of(own + tokens, reply)
        if least is not None:
            self.least_calls += 1
            self.least_tokens += own + least + _REPLY
            self.least_cost += self._price.of(own + least, _REPLY)

    def _own(self, prompt: Prompt[Any, Any]) -> int:
        if prompt.name not in self._bare:
            given = bare_example(prompt)
            text = self._templates.render(prompt, given)
            self._bare[prompt.name] = chat_request(prompt, given, text, (), self._options).prompt_tokens
        return self._bare[prompt.name]


def _question(answering: _Sum, settings: Settings, question: Question, *, known: bool) -> None:
    if known:
        return
    said = estimated_tokens(question.question + question.history)
    answer = _tokens(settings.ai.max_answer_chars)
    if settings.ai.steps == "fused":
        if is_chatter(question.question) and not question.addressed:
            return
        passages = _tokens(settings.ai.max_passage_chars)
        answering.add(DECIDE, said + passages, reply=answer + _tokens(_QUOTES), least=said)
        # Only an answer is checked; with `ai.verify = "unsure"`, perhaps not even that.
        answering.add(CONFIRM, said + passages + answer, reply=_CHECK)
        return
    sources = _tokens(settings.ai.max_source_chars)
    answering.add(GATE, said, least=said)
    answering.add(SELECT, said + _tokens(settings.ai.max_index_chars))
    answering.add(ANSWER, said + sources, reply=answer)
    answering.add(VERIFY, said + sources + answer)


def _capture(learning: _Sum, settings: Settings, capture: Capture, *, again: bool) -> None:
    options = settings.learning
    said = sum(len(turn.text) for turn in capture.turns)
    pair = _tokens(min(said, options.max_pair_chars))
    if not again:
        learning.add(CLASSIFY, pair + _tokens(options.max_index_chars), least=pair)
    learning.add(INTEGRATE, pair + _tokens(options.max_blocks_chars))
    learning.add(SUMMARIZE_TOPIC, _tokens(options.max_topic_chars), reply=200)
    if settings.extraction.auto:
        learning.add(EXTRACT, _tokens(said), reply=600)


def _tokens(chars: int) -> int:
    return int(chars / _CHARS_PER_TOKEN) + 1
