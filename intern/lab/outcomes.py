"""The outcome of each question of a backtest, compared with the team's answer by words and by vectors, and the totals.

Similarity is not truth: "yes, do that" and "no, never do that" are similar. It sorts what is worth reading.
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
    """How alike two answers are at least that count as agreeing; either is enough.

    Measured on 228 answers of support channels' teams, each beside eight that were given to other questions: of 1,817
    such pairs, 12 share that many words, and 2 have vectors that much alike. Of 77 updates of the same entry, 74 share
    that many words, and all have vectors that much alike.
    """

    words: float = 0.4
    vectors: float = 0.5


class AnswerSimilarity(Struct, frozen=True, kw_only=True):
    """How alike two answers are."""

    words: float | None
    """The share of the shorter one's words that the other has; None where it has none that say anything."""
    vectors: float | None = None
    """The cosine of their vectors; None where nothing makes vectors."""

    @property
    def best(self) -> float:
        """For putting examples in order."""
        return max(self.words or 0.0, self.vectors or 0.0)

    def agrees(self, bars: AgreementThresholds) -> bool | None:
        """Whether that counts as agreeing; None where it cannot be told."""
        if self.words is None and self.vectors is None:
            return None
        return (self.words or 0.0) >= bars.words or (self.vectors or 0.0) >= bars.vectors


def measure_shared_words(one: str, other: str) -> float | None:
    """From 0 to 1; None where one of the texts says nothing but small talk."""
    first, second = stem_set(one), stem_set(other)
    fewer = min(len(first), len(second))
    return round(len(first & second) / fewer, 4) if fewer else None


def cosine(one: bytes, other: bytes) -> float:
    """Of two unit vectors of float32."""
    return round(fsum(a * b for a, b in zip(_unpack_vector(one), _unpack_vector(other), strict=True)), 4)


def _unpack_vector(vector: bytes) -> Sequence[float]:
    return struct.unpack(f"<{len(vector) // 4}f", vector)


VERSION = 1
"""Of the report's format: a reader of one version may not know the fields of the next."""

Verdict = Literal["agreed", "differed", "not_comparable", "team_silent", "silent", "could_not_look"]

VERDICTS: dict[Verdict, str] = {
    "agreed": "answered, like the team",
    "differed": "answered, unlike the team",
    "not_comparable": "answered; what the team said cannot be compared",
    "team_silent": "answered, the team never did",
    "silent": "stayed silent",
    "could_not_look": "could not look",
}
"""In words."""

TEAM_ANSWERED = "team_answered"
"""The reason where there was nothing left to ask: the team had answered by then."""

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
"""What a backtest cannot know."""


class BacktestOutcome(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What would have become of a question."""

    message_id: MessageId
    link: str
    asked_at: datetime
    question: str
    verdict: Verdict
    reason: str = ""
    """Of a silence, or of a failure to look."""
    error: str = ""
    reply: str | None = None
    citations: tuple[str, ...] = ()
    team: str | None = None
    """What the team said; None where it never answered."""
    team_link: str | None = None
    team_after_seconds: float | None = None
    team_was_first: bool = False
    """The team had answered before the asker's pause was over: the bot would not have posted what it had to say."""
    score: float | None = None
    """How sure the answer was; None where there was none, or nothing to tell it by."""
    setup: str = ""
    """What the score belongs to."""
    likeness_words: float | None = None
    likeness_vectors: float | None = None
    knew: int = 0
    """Conversations that were learned by then."""
    calls: int = 0
    tokens: int = 0
    tokens_by_prompt: dict[str, int] = {}
    cost: float = 0.0
    seconds: float = 0.0

    @property
    def likeness(self) -> AnswerSimilarity:
        """How like the team's answer."""
        return AnswerSimilarity(words=self.likeness_words, vectors=self.likeness_vectors)


class SilenceCount(Struct, frozen=True, kw_only=True):
    """Questions that got no answer for one reason."""

    reason: str
    questions: int
    team_answered: int
    """Of these, those that the team answered."""


class BacktestUsage(Struct, frozen=True, kw_only=True):
    """What models took."""

    calls: int
    tokens: int
    cost: float


class BacktestTotals(Struct, frozen=True, kw_only=True):
    """The sum of it."""

    questions: int
    verdicts: dict[str, int]
    silences: tuple[SilenceCount, ...]
    could_not_look: dict[str, int]
    team_answered: int
    """Questions that the team answered."""
    team_was_first: int
    """Answers that the bot would have kept to itself, since the team was quicker."""
    answering: BacktestUsage
    learning: BacktestUsage
    tokens_by_prompt: dict[str, int]
    """Of answering."""


class BacktestLearning(Struct, frozen=True, kw_only=True):
    """What was taught on the way."""

    conversations: int
    topics: int
    delayed: int
    """How often a model could not be asked, so that learning waited for the next question."""
    untold: int
    """Captures that came after the last question, and were not learned."""


class BacktestReport(Struct, frozen=True, kw_only=True):
    """The whole report."""

    version: int
    finished: bool
    """False where it was stopped before its end: what is there is true of the questions that it has."""
    stopped: str = ""
    """Why it gave up before its end; empty where it did not, or a person stopped it."""
    made_at: datetime
    seconds: float
    model: str
    learning_model: str
    embeddings: str | None
    currency: str
    priced: bool
    """Whether the settings tell what the models take."""
    files: tuple[str, ...]
    refused: tuple[str, ...]
    """Files that were left out, each with the reason."""
    channels: int
    messages: int
    team_replies: int
    since: datetime | None
    until: datetime | None
    documents: int | None
    """How many were there; None where answers were not to draw on them."""
    questions: int
    """How many there were to ask; `totals` tells how many were asked."""
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
        """Whether each answer was wrong: where it could be compared, and had a score."""
        return tuple(
            make_backtest_judgement(each.message_id, setup=each.setup, score=each.score, wrong=wrong, at=self.made_at)
            for each in self.outcomes
            if (wrong := _WRONG.get(each.verdict)) is not None and each.score is not None
        )


_WRONG: Mapping[Verdict, bool] = {"agreed": False, "differed": True}


def sum_backtest_outcomes(outcomes: Sequence[BacktestOutcome], learning: UsageMeter) -> BacktestTotals:
    """Add them up."""
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
