"""The outcome of each question of a backtest, compared with the team's answer by words and by vectors, and the totals.

Similarity is not truth: "yes, do that" and "no, never do that" are similar. It sorts the examples for reading.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime
from math import fsum
from typing import Literal

from msgspec import Struct

from intern.core.ids import MessageId
from intern.core.text.words import stem_set
from intern.lab.timeline import sort_by_count
from intern.service.calibration import Judgement, make_backtest_judgement
from intern.service.models import UsageMeter


class AgreementThresholds(Struct, frozen=True, kw_only=True):
    """The least similarity of two answers that counts as agreement; either value is enough.

    Measured on 228 answers of support channels' teams, each compared with eight answers to other questions: of 1,817
    such pairs, 12 share this many words, and 2 have vectors this similar. Of 77 updates of the same entry, 74 share
    this many words, and all have vectors this similar.
    """

    words: float = 0.4
    vectors: float = 0.5


class AnswerSimilarity(Struct, frozen=True, kw_only=True):
    """The similarity of two answers."""

    words: float | None
    """The share of the shorter one's words that the other has; None if it has no meaningful words."""
    vectors: float | None = None
    """The cosine of their vectors; None without an embedder."""

    @property
    def best(self) -> float:
        """The larger value, for sorting examples."""
        return max(self.words or 0.0, self.vectors or 0.0)

    def agrees(self, bars: AgreementThresholds) -> bool | None:
        """Whether that counts as agreement; None if it is unknown."""
        if self.words is None and self.vectors is None:
            return None
        return (self.words or 0.0) >= bars.words or (self.vectors or 0.0) >= bars.vectors


def measure_shared_words(one: str, other: str) -> float | None:
    """Return the share of common words, from 0 to 1; None if one of the texts is only small talk."""
    first, second = stem_set(one), stem_set(other)
    fewer = min(len(first), len(second))
    return round(len(first & second) / fewer, 4) if fewer else None


def cosine(one: bytes, other: bytes) -> float:
    """Return the cosine of two unit vectors of float32."""
    return round(fsum(a * b for a, b in zip(_unpack_vector(one), _unpack_vector(other), strict=True)), 4)


def _unpack_vector(vector: bytes) -> Sequence[float]:
    return struct.unpack(f"<{len(vector) // 4}f", vector)


VERSION = 1
"""The version of the report's format: a reader of one version may not know the fields of the next."""

Verdict = Literal["agreed", "differed", "not_comparable", "team_silent", "silent", "could_not_look"]

VERDICTS: dict[Verdict, str] = {
    "agreed": "answered, like the team",
    "differed": "answered, unlike the team",
    "not_comparable": "answered; what the team said cannot be compared",
    "team_silent": "answered, the team never did",
    "silent": "stayed silent",
    "could_not_look": "could not look",
}
"""The verdicts in words."""

TEAM_ANSWERED = "team_answered"
"""The reason if no message was left to ask: the team had answered by then."""

NOTES: tuple[str, ...] = (
    "Documents have no history: answers draw on them as they are now, also for old questions.",
    (
        "An export holds a message's last text only. What was edited is taken to be unknown until the edit. A question"
        " that was edited after its author's pause is left out. What was deleted is in no export."
    ),
    "Who is of the team now counts as of the team always.",
    (
        "Each question is asked once, by itself: no reply of the bot's changes how people went on. Images are not"
        " looked at, a reviewer's consent is taken as given, and limits per member do not count."
    ),
    (
        "What the team answered is what replies to the question, or came next in its thread or chain of replies."
        " Answers without a reply cannot be told from other talk; who got no other counts as never answered."
    ),
    "Whether two answers agree is judged by likeness, not by truth: read the examples.",
)
"""The limits of a backtest."""


class BacktestOutcome(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The outcome that a question would have had."""

    message_id: MessageId
    link: str
    asked_at: datetime
    question: str
    verdict: Verdict
    reason: str = ""
    """The reason for a silence or a failure."""
    error: str = ""
    reply: str | None = None
    citations: tuple[str, ...] = ()
    team: str | None = None
    """The team's answer; None if it never answered."""
    team_link: str | None = None
    team_after_seconds: float | None = None
    team_was_first: bool = False
    """Whether the team had answered before the asker's pause was over: the bot would not have posted its reply."""
    score: float | None = None
    """The confidence of the answer; None without an answer, or without data for a score."""
    setup: str = ""
    """The setup that the score belongs to."""
    likeness_words: float | None = None
    likeness_vectors: float | None = None
    knew: int = 0
    """The number of conversations learned by then."""
    calls: int = 0
    tokens: int = 0
    tokens_by_prompt: dict[str, int] = {}
    cost: float = 0.0
    seconds: float = 0.0

    @property
    def likeness(self) -> AnswerSimilarity:
        """The similarity to the team's answer."""
        return AnswerSimilarity(words=self.likeness_words, vectors=self.likeness_vectors)


class SilenceCount(Struct, frozen=True, kw_only=True):
    """Questions that got no answer for one reason."""

    reason: str
    questions: int
    team_answered: int
    """The questions among them that the team answered."""


class BacktestUsage(Struct, frozen=True, kw_only=True):
    """The usage of models."""

    calls: int
    tokens: int
    cost: float


class BacktestTotals(Struct, frozen=True, kw_only=True):
    """The totals of a backtest."""

    questions: int
    verdicts: dict[str, int]
    silences: tuple[SilenceCount, ...]
    could_not_look: dict[str, int]
    team_answered: int
    """The number of questions that the team answered."""
    team_was_first: int
    """Answers that the bot would not have posted, since the team was quicker."""
    answering: BacktestUsage
    learning: BacktestUsage
    tokens_by_prompt: dict[str, int]
    """The usage of answering."""


class BacktestLearning(Struct, frozen=True, kw_only=True):
    """The lessons of a backtest."""

    conversations: int
    topics: int
    delayed: int
    """The number of delays, when no model was available and learning waited for the next question."""
    untold: int
    """Captures after the last question, which were not learned."""


class BacktestReport(Struct, frozen=True, kw_only=True):
    """The complete report."""

    version: int
    finished: bool
    """False if it was stopped early: then the report covers only the questions asked so far."""
    stopped: str = ""
    """The reason why it gave up early; empty if it did not, or a person stopped it."""
    made_at: datetime
    seconds: float
    model: str
    learning_model: str
    embeddings: str | None
    currency: str
    priced: bool
    """Whether the settings contain prices."""
    files: tuple[str, ...]
    refused: tuple[str, ...]
    """Files that were left out, each with the reason."""
    channels: int
    messages: int
    team_replies: int
    since: datetime | None
    until: datetime | None
    documents: int | None
    """The number of documents; None if answers were not to use them."""
    questions: int
    """The number of questions to ask; `totals` has the number of questions asked."""
    left_out: dict[str, int]
    bars: AgreementThresholds
    notes: tuple[str, ...]
    totals: BacktestTotals
    learned: BacktestLearning
    outcomes: tuple[BacktestOutcome, ...]
    max_wrong: float = 0.0
    """`ai.max_wrong`."""

    @property
    def judgements(self) -> tuple[Judgement, ...]:
        """The judgement of each answer that has a score and could be compared."""
        return tuple(
            make_backtest_judgement(each.message_id, setup=each.setup, score=each.score, wrong=wrong, at=self.made_at)
            for each in self.outcomes
            if (wrong := _WRONG.get(each.verdict)) is not None and each.score is not None
        )


_WRONG: Mapping[Verdict, bool] = {"agreed": False, "differed": True}


def sum_backtest_outcomes(outcomes: Sequence[BacktestOutcome], learning: UsageMeter) -> BacktestTotals:
    """Add up the outcomes."""
    verdicts = Counter(outcome.verdict for outcome in outcomes)
    silent = [outcome for outcome in outcomes if outcome.verdict == "silent"]
    prompts: Counter[str] = Counter()
    for outcome in outcomes:
        prompts.update(outcome.tokens_by_prompt)
    return BacktestTotals(
        questions=len(outcomes),
        verdicts={verdict: verdicts[verdict] for verdict in VERDICTS if verdicts[verdict]},
        silences=tuple(
            SilenceCount(
                reason=reason,
                questions=number,
                team_answered=sum(each.team is not None for each in silent if each.reason == reason),
            )
            for reason, number in sort_by_count(Counter(each.reason for each in silent)).items()
        ),
        could_not_look=sort_by_count(Counter(each.reason for each in outcomes if each.verdict == "could_not_look")),
        team_answered=sum(each.team is not None for each in outcomes),
        team_was_first=sum(each.team_was_first and each.reply is not None for each in outcomes),
        answering=BacktestUsage(
            calls=sum(each.calls for each in outcomes),
            tokens=sum(each.tokens for each in outcomes),
            cost=round(sum(each.cost for each in outcomes), 6),
        ),
        learning=BacktestUsage(calls=learning.calls, tokens=learning.tokens, cost=round(learning.cost, 6)),
        tokens_by_prompt=dict(prompts),
    )
