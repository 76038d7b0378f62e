"""What the server asks of whoever knows the stores."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol

from intern.domain import FactId, MessageId, QAId
from intern.page.views import (
    Answered,
    AnswerPage,
    FactPage,
    Facts,
    Health,
    Listed,
    Nuggets,
    OpenQuestions,
    OutdatedAnswers,
    Overview,
    ParkedCaptures,
    Sources,
    TopicPage,
    TopicRow,
    Waiting,
)

Done = Literal["done", "parked", "waiting"]
"""`parked`: it was tried and could not be filed; `waiting`: it is in work, and takes its time."""


class Desk(Protocol):
    """All that the pages show, and the little that can be done on them.

    Raises KnowledgeError where a store cannot be read or written, ConfigError where what was asked for is not there
    or cannot be done.
    """

    async def health(self) -> Health:
        """How the process is; soon said, and raises nothing."""
        ...

    def known_health(self) -> Health:
        """The same as it was when somebody looked last; said at once."""
        ...

    async def overview(self) -> Overview:
        """The front page."""
        ...

    async def unanswered(self) -> OpenQuestions:
        """What nobody could answer, the most frequent first."""
        ...

    async def outdated(self) -> OutdatedAnswers:
        """Posted answers whose sources do not back them any more, the newest first."""
        ...

    async def waiting(self) -> Waiting:
        """Captures that wait for the team."""
        ...

    async def review(self, action: Literal["approve", "reject"], qa_id: QAId, /) -> Done:
        """Take somebody's word on a capture."""
        ...

    async def parked(self) -> ParkedCaptures:
        """Pairs that could not be filed, the newest first."""
        ...

    async def retry(self, qa_id: QAId, /) -> Done:
        """Try to file one of them."""
        ...

    async def topics(self) -> Sequence[TopicRow]:
        """All topics, by name."""
        ...

    async def topic(self, name: str, /) -> TopicPage:
        """One of them."""
        ...

    async def sources(self) -> Sources:
        """All sources, and what is left out."""
        ...

    async def answers(self, offset: int, /) -> Listed:
        """What became of questions, newest first."""
        ...

    async def answer(self, question_id: MessageId, /) -> AnswerPage:
        """How that came about for one of them, met by any of its messages."""
        ...

    async def facts(self, offset: int, /) -> Facts:
        """Facts but for the secret ones, newest first."""
        ...

    async def fact(self, fact_id: FactId, /) -> FactPage:
        """One of them; of a secret one, that there is none."""
        ...

    async def nuggets(self, offset: int, /) -> Nuggets:
        """Nuggets, newest first."""
        ...

    async def ask(self, question: str, /) -> Answered:
        """An answer as a member would get it; raises nothing."""
        ...
