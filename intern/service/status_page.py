"""The data of the status page from the stores of the running bot, and the page's few actions.

Reads the stores that the process holds; opens no others, and delays no actor.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from platform import python_version
from types import MappingProxyType
from typing import Literal

from anyio import current_time, move_on_after
from anyio.to_thread import run_sync
from msgspec import Struct

from intern import __version__
from intern.answering.answerer import QuestionAnswerer
from intern.answering.posted_answers import OutdatedAnswerReport, PostedAnswers
from intern.chat.checkpoints import Checkpoints
from intern.core.decisions import PairParked
from intern.core.errors import ConfigError
from intern.core.ids import FactId, MessageId, QAId, parse_position
from intern.core.messages import LOOKUP_FAILURES, AnswerResult, Conversation, Message, RequestContext
from intern.facts.reconciliation import FactRetirement
from intern.learning.review import Review
from intern.search.embedder import Embedder
from intern.service import job_kinds as kinds
from intern.service.archive_reader import parse_topic_name
from intern.service.bot_gauges import BotGauges
from intern.service.calibration import check_calibration
from intern.service.embedding import embedding_model
from intern.service.health import HealthMonitor
from intern.service.home_figures import AttentionItem, Budget, HomeFigures, NeedKind, PeriodFigures, SystemPage
from intern.service.knowledge_browser import KnowledgeBrowser
from intern.service.questions import AskedQuestions
from intern.service.recordings import Recordings, ReplayedRecording
from intern.service.review_queue import ReviewQueue
from intern.service.source_status import SourceStatus, read_source_statuses
from intern.service.status import SHED
from intern.service.stores import build_message_link
from intern.stores.tables.answers import AnswerRecord
from intern.stores.tables.attempts import find_retry
from intern.stores.tables.citations import OutdatedAnswer
from intern.stores.tables.daily_counts import DailyCounts
from intern.stores.tables.jobs import GivesT, JobKind, TakesT

DAYS = 14  # days in the table of costs
_FEW = 5  # on the front page
_FEW_LEFT_OUT = 20
_MOST_SHOWN = 50  # captures with all that was said
_DONE_WITHIN = 10.0  # seconds; a person waits. Longer work goes on, and the page says so


class HomePage(Struct, frozen=True, kw_only=True):
    """The front page: items that need a person, and the figures of the bot."""

    needs: tuple[AttentionItem, ...]
    """The most urgent first."""
    figures: PeriodFigures
    gaps: tuple[tuple[AnswerRecord, ...], ...]
    """The largest groups of questions without an answer."""


class OutdatedAnswerList(Struct, frozen=True, kw_only=True):
    """The newest outdated answers, each with its link on Discord, if it is known."""

    answers: tuple[tuple[OutdatedAnswerReport, str], ...]
    total: int
    retracts: bool
    """Whether `ai.retract` is on."""


class AskResult(Struct, frozen=True, kw_only=True):
    """The answer to a question on the page."""

    question: str
    result: AnswerResult
    seconds: float
    could_not_look: bool


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
        db, clock = self.stores.db, self.clock
        self._began = clock.now()
        recordings = Recordings(db, self.stores.archive, self.stores.knowledge)
        self.asked = AskedQuestions(self.settings, db, recordings, self._run_job, clock)
        self._counts, self._overview = DailyCounts(db, clock=clock), HomeFigures(self.stores)
        self.reviewing, self.browsing = ReviewQueue(self.stores), KnowledgeBrowser(self.stores, self.embedder)

    async def renew(self) -> None:
        """Read changes of other processes again. A running bot knows of every change."""

    async def home(self, days: int) -> HomePage:
        """Return the data of the front page, with figures of the last days."""
        gaps = await self.asked.gaps(_FEW)
        return HomePage(
            needs=tuple([each async for each in self._find_needs(gaps.total)]),
            figures=await self._overview.figures(days),
            gaps=gaps.groups,
        )

    async def _find_needs(self, gaps: int) -> AsyncGenerator[AttentionItem]:
        stores, health = self.stores, await self.checks.health()
        for check in sorted(health.checks, key=lambda each: each.ok):
            if not check.ok or check.note:
                yield AttentionItem(
                    kind="health", name=check.name, detail=check.detail or check.note, is_urgent=not check.ok
                )
        retries = await stores.attempts.read_retries()
        today = await self._counts.read_day(self.clock.now().date())
        states = [source.state for source in await self._read_sources()]
        numbers: dict[NeedKind, int] = {
            "review": len(stores.knowledge.list_awaiting_review()),
            "gaps": gaps,
            "parked": sum(find_retry(each, retries).next_at is None for each in stores.knowledge.list_parked()),
            "outdated": await stores.cited.count_outdated(),
            "sources": states.count("failed"),
            "dropped": today.get(SHED, 0),
        }
        for kind, number in numbers.items():
            if number:
                yield AttentionItem(kind=kind, number=number)

    async def system(self) -> SystemPage:
        """Return the work and the cost of the process."""
        rest, stores = self.checkpoints.count_unfinished(), self.stores
        usage = await self._overview.usage(DAYS)
        today, options = usage.get(self.clock.now().date(), ()), self.settings.llm
        cost = sum(each.cost for each in today)
        left_out = [each for each in await self._read_sources() if each.state == "skipped"]
        return SystemPage(
            since=self._began,
            health=await self.checks.health(),
            last_message_at=self.overheard.last_message_at,
            unhandled=rest,
            oldest_at=None if rest.oldest is None else parse_position(rest.oldest).time,
            streams=tuple(self.fill.read_fills()),
            budget=Budget(
                tokens=sum(each.tokens for each in today),
                token_budget=options.daily_token_budget,
                cost=cost if cost or self.settings.priced else None,
                cost_budget=options.daily_cost_budget,
                currency=options.currency,
            ),
            usage=usage,
            days=DAYS,
            versions=await run_sync(self._versions),
            stored={
                "captures": len(stores.archive),
                "topics": len(await run_sync(stores.knowledge.topic_names)),
                **await self._overview.count_stored(),
            },
            left_out=tuple(left_out[:_FEW_LEFT_OUT]),
            left_out_total=len(left_out),
            calibration=await check_calibration(stores.db, self.settings),
        )

    async def list_outdated_answers(self) -> OutdatedAnswerList:
        """List posted answers that their sources no longer support, newest first."""

        def link(answer: OutdatedAnswer) -> str:
            return build_message_link(self.settings, answer.guild_id, answer.place, answer.message_id)

        return OutdatedAnswerList(
            answers=tuple((each, link(each.answer)) for each in await self.posted.list_outdated(_MOST_SHOWN)),
            total=await self.stores.cited.count_outdated(),
            retracts=self.settings.ai.retract,
        )

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
            qa_ids = await run_sync(self.reviewing.add_older_versions, qa_ids)
        name = parse_topic_name(topic) if topic else None
        review = Review(action=action, qa_ids=qa_ids, topic=name, edited=dict(edited))
        reviewed = await self._run_job(kinds.REVIEW, review)
        return "waiting" if reviewed == "waiting" else "done"

    async def retry(self, qa_id: QAId) -> ReviewOutcome:
        """Try to file one of them, as `intern retry` does."""
        decided = self.stores.knowledge.last_decision(qa_id)
        if not isinstance(decided, PairParked):
            raise ConfigError(f"{qa_id[:80]} is not parked any more")
        if await self._run_job(kinds.RETRY, (qa_id,)) == "waiting":
            return "waiting"
        return "parked" if isinstance(self.stores.knowledge.last_decision(qa_id), PairParked) else "done"

    async def retire(self, fact_id: FactId, why: str) -> ReviewOutcome:
        """Mark a fact as outdated, as `intern facts retire` does."""
        retired = await self._run_job(kinds.RETIRE_FACT, FactRetirement(fact_id=fact_id, why=why))
        return "waiting" if retired == "waiting" else "done"

    async def ask(self, question: str) -> AskResult:
        """Answer as if a member had mentioned the bot."""
        began = current_time()
        conversation = Conversation((Message(role="user", text=question),))
        result = await self.answerer.answer(conversation, RequestContext(platform="page"), addressed=True)
        seconds, unseen = current_time() - began, result.reason in LOOKUP_FAILURES
        return AskResult(question=question, result=result, seconds=seconds, could_not_look=unseen)

    async def _run_job(self, kind: JobKind[TakesT, GivesT], given: TakesT) -> GivesT | Literal["waiting"]:
        """Post a job, as commands do, and wait for a while; return its result, or "waiting" if it takes longer."""
        job_id = await self.stores.jobs.submit(kind, given)
        with move_on_after(_DONE_WITHIN):
            done = await self.stores.jobs.wait(kind, job_id)
            await self.renew()
            return done
        return "waiting"

    async def _read_sources(self) -> tuple[SourceStatus, ...]:
        return await run_sync(lambda: read_source_statuses(self.settings, self.stores.knowledge, clock=self.clock))

    # From here on: worker threads.

    def _versions(self) -> dict[str, str]:
        llm, search = self.settings.llm, embedding_model(self.settings)
        return {
            "intern": __version__,
            "Python": python_version(),
            "model": "offline rules" if llm.kind == "offline" else llm.model,
            "embeddings": search or "none: search compares words",
        }
