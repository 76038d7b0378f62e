"""What came of a backtest: each question's outcome, and their sum."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import datetime
from typing import Literal

from msgspec import Struct

from intern.core.ids import MessageId
from intern.lab.judging import Bars, Likeness
from intern.lab.timeline import by_reason
from intern.models.usage import Meter

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


class Outcome(Struct, frozen=True, kw_only=True, omit_defaults=True):
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
    def likeness(self) -> Likeness:
        """How like the team's answer."""
        return Likeness(words=self.likeness_words, vectors=self.likeness_vectors)


class Silences(Struct, frozen=True, kw_only=True):
    """Questions that got no answer for one reason."""

    reason: str
    questions: int
    team_answered: int
    """Of these, those that the team answered."""


class Spent(Struct, frozen=True, kw_only=True):
    """What models took."""

    calls: int
    tokens: int
    cost: float


class Totals(Struct, frozen=True, kw_only=True):
    """The sum of it."""

    questions: int
    verdicts: dict[str, int]
    silences: tuple[Silences, ...]
    could_not_look: dict[str, int]
    team_answered: int
    """Questions that the team answered."""
    team_was_first: int
    """Answers that the bot would have kept to itself, since the team was quicker."""
    answering: Spent
    learning: Spent
    tokens_by_prompt: dict[str, int]
    """Of answering."""


class Learned(Struct, frozen=True, kw_only=True):
    """What was taught on the way."""

    conversations: int
    topics: int
    delayed: int
    """How often a model could not be asked, so that learning waited for the next question."""
    untold: int
    """Captures that came after the last question, and were not learned."""


class Backtest(Struct, frozen=True, kw_only=True):
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
    bars: Bars
    notes: tuple[str, ...]
    totals: Totals
    learned: Learned
    outcomes: tuple[Outcome, ...]


def totals_of(outcomes: Sequence[Outcome], learning: Meter) -> Totals:
    """The sum of them."""
    verdicts = Counter(outcome.verdict for outcome in outcomes)
    silent = [outcome for outcome in outcomes if outcome.verdict == "silent"]
    prompts: Counter[str] = Counter()
    for outcome in outcomes:
        prompts.update(outcome.tokens_by_prompt)
    return Totals(
        questions=len(outcomes),
        verdicts={verdict: verdicts[verdict] for verdict in VERDICTS if verdicts[verdict]},
        silences=tuple(
            Silences(
                reason=reason,
                questions=number,
                team_answered=sum(each.team is not None for each in silent if each.reason == reason),
            )
            for reason, number in by_reason(Counter(each.reason for each in silent)).items()
        ),
        could_not_look=by_reason(Counter(each.reason for each in outcomes if each.verdict == "could_not_look")),
        team_answered=sum(each.team is not None for each in outcomes),
        team_was_first=sum(each.team_was_first and each.reply is not None for each in outcomes),
        answering=Spent(
            calls=sum(each.calls for each in outcomes),
            tokens=sum(each.tokens for each in outcomes),
            cost=round(sum(each.cost for each in outcomes), 6),
        ),
        learning=Spent(calls=learning.calls, tokens=learning.tokens, cost=round(learning.cost, 6)),
        tokens_by_prompt=dict(prompts),
    )
