"""What the pages show, as plain values (see `intern.service.running`). All texts in them are strangers'."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date, datetime
from typing import Any, Literal

from msgspec import Struct

from intern.core.ids import ChannelId, MessageId, QAId
from intern.core.messages import AIResult
from intern.core.records import Fact, Nugget, Occurrence, PairDecision
from intern.service.reading import TopicText, WaitingPair


class Check(Struct, frozen=True, kw_only=True):
    """One thing that has to be well."""

    name: str
    ok: bool
    note: str = ""
    """What anybody may hear, also where all is well: it names no path and no address."""
    detail: str = ""
    """What is the matter, and what to do; for who was let in."""


class Health(Struct, frozen=True, kw_only=True):
    """How the process is. It is live where it can say so at all."""

    checks: tuple[Check, ...]
    looked_seconds_ago: float | None
    """Since the last look at the disk and the folder; None where there was none: then their checks are left out."""

    @property
    def ready(self) -> bool | None:
        """It can work; waiting work goes on by itself. None before the first look, if no check fails."""
        if not all(check.ok for check in self.checks):
            return False
        return None if self.looked_seconds_ago is None else True

    @property
    def notes(self) -> dict[str, str]:
        """What anybody may hear, by the name of the check."""
        return {check.name: check.note for check in self.checks if check.note}


class Stream(Struct, frozen=True, kw_only=True):
    """How full a stream between two actors is."""

    name: str
    kinds: tuple[str, ...]
    waiting: int
    size: int
    """0: it hands over from hand to hand."""
    taking: Literal["waits", "busy", "gone"]
    """Who takes from it waits for more, is busy with what was taken, or has left."""


class Actor(Struct, frozen=True, kw_only=True):
    """An actor, and how full the streams are that it takes from."""

    name: str
    takes: tuple[Stream, ...]

    @property
    def state(self) -> Literal["waits", "busy", "gone"]:
        """Busy where anything that it takes from is not waited for."""
        states = {stream.taking for stream in self.takes}
        return "busy" if "busy" in states else "waits" if "waits" in states else "gone"


class Number(Struct, frozen=True, kw_only=True):
    """A figure, and where to read more."""

    label: str
    value: int
    href: str = ""


class Series(Struct, frozen=True, kw_only=True):
    """One kind of thing, counted by the day."""

    label: str
    values: tuple[int, ...]


class Plot(Struct, frozen=True, kw_only=True):
    """Counts of the last days; each series has a value for each day."""

    title: str
    days: tuple[date, ...]
    series: tuple[Series, ...]


class PromptCost(Struct, frozen=True, kw_only=True):
    """What a prompt took today."""

    prompt: str
    calls: int
    tokens: int
    cost: float = 0.0
    cached_tokens: int = 0
    """Of the prompts', those that the endpoint says it had in its cache."""


class Budget(Struct, frozen=True, kw_only=True):
    """What today (UTC) has cost so far."""

    prompts: tuple[PromptCost, ...]
    tokens: int
    token_budget: int
    """0: none."""
    cost: float | None = None
    """None where no prices are set."""
    cost_budget: float = 0.0
    """0: none."""
    currency: str = ""


class Unhandled(Struct, frozen=True, kw_only=True):
    """What was seen on Discord, or is to be read there, and is not handled yet."""

    messages: int
    """Seen, and in work."""
    oldest_at: datetime | None
    """When the oldest of them was written."""
    channels: int
    """Where something older may still be unread."""


class Overview(Struct, frozen=True, kw_only=True):
    """The front page."""

    since: datetime
    """Start of the process."""
    version: str
    health: Health
    last_message_at: datetime | None
    """When the gateway last told of a message, since the start."""
    unhandled: Unhandled
    numbers: tuple[Number, ...]
    actors: tuple[Actor, ...]
    streams: tuple[Stream, ...]
    plots: tuple[Plot, ...]
    budget: Budget


class OpenQuestion(Struct, frozen=True, kw_only=True):
    """A question that found no answer."""

    question_id: MessageId
    at: datetime
    reason: str
    text: str
    has_trace: bool
    """How that came about can be looked up: traces do not last as long as questions may."""


class QuestionGroup(Struct, frozen=True, kw_only=True):
    """Questions that ask the same, newest first."""

    questions: tuple[OpenQuestion, ...]


class OpenQuestions(Struct, frozen=True, kw_only=True):
    """The most frequent groups, and how many there are in all."""

    groups: tuple[QuestionGroup, ...]
    total: int
    questions: int
    """In all groups."""


class Waiting(Struct, frozen=True, kw_only=True):
    """The oldest captures that wait, and how many there are in all."""

    captures: tuple[WaitingPair, ...]
    total: int
    review: bool
    """Whether captures wait at all (`kb.review`)."""


class ParkedCapture(Struct, frozen=True, kw_only=True):
    """A pair that could not be filed."""

    qa_id: QAId
    at: datetime
    reason: str
    tries: int
    next_at: datetime | None
    """None: it waits for a person."""
    question: str


class ParkedCaptures(Struct, frozen=True, kw_only=True):
    """The newest pairs that could not be filed, and how many there are in all."""

    captures: tuple[ParkedCapture, ...]
    total: int


class TopicPage(Struct, frozen=True, kw_only=True):
    """A topic with all that happened to it."""

    topic: TopicText
    history: tuple[PairDecision, ...]
    """Newest first."""


class SourceRow(Struct, frozen=True, kw_only=True):
    """A source of answers."""

    source_id: str
    kind: str
    state: Literal["ok", "pending", "failed", "gone"]
    described_at: datetime | None
    last_error: str
    next_check: datetime | None


class LeftOutRow(Struct, frozen=True, kw_only=True):
    """A document or a line of the list of links that is no source."""

    path: str
    reason: str
    since: datetime


class Sources(Struct, frozen=True, kw_only=True):
    """The sources, those that are stale first; some of what was left out, and how much there is of that in all."""

    sources: tuple[SourceRow, ...]
    left_out: tuple[LeftOutRow, ...]
    left_out_total: int


class SourceChange(Struct, frozen=True, kw_only=True):
    """A source that a posted answer cites, and that does not say so any more."""

    source_id: str
    title: str
    state: Literal["changed", "extended", "gone"]
    since: datetime | None
    before: str
    """What the answer stood on; empty where that is forgotten, or nothing was quoted."""
    now: str
    """What the source says now; empty where it was withdrawn."""


class OutdatedRow(Struct, frozen=True, kw_only=True):
    """A posted answer whose sources do not back it any more."""

    question_id: MessageId
    at: datetime
    asked: str
    link: str
    """To the answer on Discord; empty where it is unknown."""
    retracted: str
    """`retracted` once the answer was edited to a note, `dropped` where it could not be; else empty or `open`."""
    changes: tuple[SourceChange, ...]


class OutdatedAnswers(Struct, frozen=True, kw_only=True):
    """The newest such answers, and how many there are in all."""

    answers: tuple[OutdatedRow, ...]
    total: int
    retracts: bool
    """`ai.retract` is on."""


class AnswerRow(Struct, frozen=True, kw_only=True):
    """What became of a question."""

    question_id: MessageId
    channel_id: ChannelId
    at: datetime
    outcome: str
    reason: str


class AnswerPage(Struct, frozen=True, kw_only=True):
    """How that came about, step by step."""

    row: AnswerRow
    steps: Mapping[str, Any]
    question: str
    """In its own words, where they are kept."""
    link: str
    """To the message on Discord; empty where there is none, as for a command, or it is unknown."""


class Listed(Struct, frozen=True, kw_only=True):
    """Some rows of many."""

    rows: tuple[AnswerRow, ...]
    total: int
    offset: int


class Answered(Struct, frozen=True, kw_only=True):
    """What the box to ask gave."""

    question: str
    result: AIResult
    seconds: float
    could_not_look: bool


class FactPage(Struct, frozen=True, kw_only=True):
    """A fact with its chain, oldest first, and the conversations in which it was said."""

    fact: Fact
    chain: tuple[Fact, ...]
    occurrences: tuple[Occurrence, ...]
    nuggets: tuple[Nugget, ...]


class Facts(Struct, frozen=True, kw_only=True):
    """Some facts of many."""

    facts: tuple[Fact, ...]
    total: int
    offset: int


class Nuggets(Struct, frozen=True, kw_only=True):
    """Some nuggets of many, newest first."""

    nuggets: tuple[Nugget, ...]
    total: int
    offset: int


Done = Literal["done", "parked", "waiting"]
"""`parked`: it was tried and could not be filed; `waiting`: it is in work, and takes its time."""
