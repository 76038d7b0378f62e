"""A running bot for the page and a monitoring system: its subjects, from the stores that it holds, and a few actions.

Reads the stores that the process holds; opens no others, and delays no actor.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from anyio import move_on_after
from anyio.to_thread import run_sync

from intern.answering.answerer import QuestionAnswerer
from intern.answering.posted_answers import OutdatedAnswerReport, PostedAnswers
from intern.chat.checkpoints import Checkpoints
from intern.core.decisions import PairParked
from intern.core.errors import ConfigError
from intern.core.ids import FactId, MessageId, QAId
from intern.core.messages import AnswerResult, Conversation, Message, RequestContext
from intern.facts.reconciliation import FactRetirement
from intern.learning.review import Review
from intern.search.embedder import Embedder
from intern.service import job_kinds as kinds
from intern.service.captured_pairs import CapturedPairs
from intern.service.facts import LearnedFacts
from intern.service.figures import BotFigures
from intern.service.health import HealthMonitor
from intern.service.knowledge_search import KnowledgeSearch
from intern.service.metrics import BotGauges
from intern.service.paging import PagedList
from intern.service.questions import AskedQuestions
from intern.service.recordings import Recordings, ReplayedRecording
from intern.service.stores import build_message_link
from intern.service.topics import Topics, parse_topic_name
from intern.stores.tables.jobs import GivesT, JobKind, TakesT

_OUTDATED = 50  # answers on a page, with all that was said
_DONE_WITHIN = 10.0  # seconds; a person waits. Longer work goes on, and the page says so

ReviewOutcome = Literal["done", "parked", "waiting"]
"""`parked`: filing was tried and failed; `waiting`: it is in work, and takes its time."""


@dataclass(kw_only=True)
class StatusPage(BotGauges):
    """A running bot, as its page sees it.

    Raises KnowledgeError if a store cannot be read or written, ConfigError if the requested item is missing or the
    action is impossible.
    """

    answerer: QuestionAnswerer
    posted: PostedAnswers
    checkpoints: Checkpoints
    checks: HealthMonitor
    replay: Callable[[str], Awaitable[Sequence[ReplayedRecording]]]
    """Replays the recordings of a name; also raises the ModelError family."""
    embedder: Embedder | None = None
    """Finds paraphrases when the page searches."""

    def __post_init__(self) -> None:
        super().__post_init__()
        stores, settings, clock = self.stores, self.settings, self.clock
        db, knowledge, archive = stores.db, stores.knowledge, stores.archive
        self.began = clock.now()
        self.figures, self.facts = BotFigures(stores, self.sources), LearnedFacts(db, clock)
        self.topics = Topics(knowledge, archive)
        self.captures = CapturedPairs(settings, knowledge, archive, stores.search)
        self.search = KnowledgeSearch(settings, knowledge, stores.search, self.embedder, clock)
        recordings = Recordings(db, archive, knowledge)
        self.questions = AskedQuestions(settings, db, recordings, self._run_job, clock)

    async def renew(self) -> None:
        """Read changes of other processes again. A running bot knows of every change."""

    async def list_outdated_answers(self) -> PagedList[tuple[OutdatedAnswerReport, str]]:
        """List posted answers that their sources no longer support, newest first, with the links that are known."""
        found = [(each, each.answer) for each in await self.posted.list_outdated(_OUTDATED)]
        rows = [
            (report, build_message_link(self.settings, answer.guild_id, answer.place, answer.message_id))
            for report, answer in found
        ]
        return PagedList(rows=tuple(rows), total=await self.stores.cited.count_outdated(), size=_OUTDATED)

    async def review(
        self,
        action: Literal["approve", "reject"],
        qa_ids: tuple[QAId, ...],
        *,
        topic: str = "",
        edited: Mapping[MessageId, str] = MappingProxyType({}),
    ) -> ReviewOutcome:
        """Approve or reject captures, as `intern review` does. A rejection includes earlier versions."""
        if action == "reject":
            qa_ids = await run_sync(self.captures.add_older_versions, qa_ids)
        name = parse_topic_name(topic) if topic else None
        review = Review(action=action, qa_ids=qa_ids, topic=name, edited=dict(edited))
        reviewed = await self._run_job(kinds.REVIEW, review)
        return "waiting" if reviewed == "waiting" else "done"

    async def retry(self, qa_id: QAId) -> ReviewOutcome:
        """Try to file one of them, as `intern retry` does."""
        if not self._is_parked(qa_id):
            raise ConfigError(f"{qa_id[:80]} is not parked any more")
        if await self._run_job(kinds.RETRY, (qa_id,)) == "waiting":
            return "waiting"
        return "parked" if self._is_parked(qa_id) else "done"

    def _is_parked(self, qa_id: QAId) -> bool:
        return isinstance(self.stores.knowledge.last_decision(qa_id), PairParked)

    async def retire(self, fact_id: FactId, why: str) -> ReviewOutcome:
        """Mark a fact as outdated, as `intern facts retire` does."""
        retired = await self._run_job(kinds.RETIRE_FACT, FactRetirement(fact_id=fact_id, why=why))
        return "waiting" if retired == "waiting" else "done"

    async def ask(self, question: str) -> AnswerResult:
        """Answer as if a member had mentioned the bot."""
        conversation = Conversation((Message(role="user", text=question),))
        return await self.answerer.answer(conversation, RequestContext(platform="page"), addressed=True)

    async def _run_job(self, kind: JobKind[TakesT, GivesT], given: TakesT) -> GivesT | Literal["waiting"]:
        """Post a job, as commands do, and wait for a while; return its result, or "waiting" if it takes longer."""
        job_id = await self.stores.jobs.submit(kind, given)
        with move_on_after(_DONE_WITHIN):
            done = await self.stores.jobs.wait(kind, job_id)
            await self.renew()
            return done
        return "waiting"
