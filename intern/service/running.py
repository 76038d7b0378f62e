"""What the status page shows, put together from the stores of the running bot, and the little that it can do.

Reads the stores that the process holds; opens none anew, and delays no actor.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from platform import python_version
from types import MappingProxyType
from typing import Literal

import msgspec
from anyio import current_time, move_on_after, sleep
from anyio.to_thread import run_sync
from msgspec import Struct

from intern import __version__
from intern.answering.posted_answers import Outdated, PostedAnswers
from intern.answering.workflow import Answers
from intern.chat.checkpoints import Checkpoints
from intern.core.errors import ConfigError
from intern.core.ids import FactId, MessageId, QAId, position_of
from intern.core.messages import COULD_NOT_LOOK, AIResult, Conversation, Message, RequestContext
from intern.core.records import Parked
from intern.core.text.masking import encoded
from intern.facts.reconciling import Retirement
from intern.learning.review import Review
from intern.search.finding import Embedder
from intern.service.browsing import Browsing
from intern.service.calibration import look
from intern.service.embedding import embedding_model
from intern.service.monitoring import HealthChecks, Standing
from intern.service.overview import Budget, Figures, Need, NeedKind, Overview, System
from intern.service.questions import AskedQuestions
from intern.service.reading import named_topic
from intern.service.replaying import Again, Recordings
from intern.service.reviewing import Reviewing
from intern.service.status import SHED, SourceStatus, sources_of
from intern.service.stores import link_to
from intern.service.writer import given_by
from intern.stores.sqlite.outbox import OutdatedAnswer
from intern.stores.sqlite.questions import Question
from intern.stores.sqlite.traces import Counts
from intern.stores.sqlite.work import retry_of

DAYS = 14  # whose costs are listed
_FEW = 5  # on the front page
_FEW_LEFT_OUT = 20
_MOST_SHOWN = 50  # captures with all that was said
_DONE_WITHIN = 10.0  # seconds; a person waits. Longer work goes on, and the page says so
_POLL_SECONDS = 0.1


class Home(Struct, frozen=True, kw_only=True):
    """The front page: what needs a person, and how the bot does."""

    needs: tuple[Need, ...]
    """The most urgent first."""
    figures: Figures
    gaps: tuple[tuple[Question, ...], ...]
    """The largest groups of questions without an answer."""


class OutdatedAnswers(Struct, frozen=True, kw_only=True):
    """The newest outdated answers, each with its link on Discord, if it is known."""

    answers: tuple[tuple[Outdated, str], ...]
    total: int
    retracts: bool
    """`ai.retract` is on."""


class Answered(Struct, frozen=True, kw_only=True):
    """What the box to ask gave."""

    question: str
    result: AIResult
    seconds: float
    could_not_look: bool


Done = Literal["done", "parked", "waiting"]
"""`parked`: it was tried and could not be filed; `waiting`: it is in work, and takes its time."""


@dataclass(kw_only=True)
class Running(Standing):
    """A running bot, as its page sees it.

    Raises KnowledgeError where a store cannot be read or written, ConfigError where what was asked for is not there or
    cannot be done.
    """

    answerer: Answers
    posted: PostedAnswers
    checkpoints: Checkpoints
    checks: HealthChecks
    replay: Callable[[str], Awaitable[Sequence[Again]]]
    """Works out again what was recorded about a name; also raises the ModelError family."""
    embedder: Embedder | None = None
    """Finds paraphrases where the page searches."""

    def __post_init__(self) -> None:
        super().__post_init__()
        db, clock = self.stores.db, self.clock
        self._began = clock.now()
        recordings = Recordings(db, self.stores.archive, self.stores.knowledge)
        self.asked = AskedQuestions(self.settings, db, recordings, self._job, clock)
        self._counts, self._overview = Counts(db, clock=clock), Overview(self.stores)
        self.reviewing, self.browsing = Reviewing(self.stores), Browsing(self.stores, self.embedder)

    async def renew(self) -> None:
        """Read again what another process may have changed. A running bot knows of every change."""

    async def home(self, days: int) -> Home:
        """Return the data of the front page, with figures of the last so many days."""
        gaps = await self.asked.gaps(_FEW)
        return Home(
            needs=tuple([each async for each in self._needs(gaps.total)]),
            figures=await self._overview.figures(days),
            gaps=gaps.groups,
        )

    async def _needs(self, gaps: int) -> AsyncGenerator[Need]:
        stores, health = self.stores, await self.checks.health()
        for check in sorted(health.checks, key=lambda each: each.ok):
            if not check.ok or check.note:
                yield Need(kind="health", name=check.name, detail=check.detail or check.note, is_urgent=not check.ok)
        retries = await stores.attempts.retries()
        today = await self._counts.of(self.clock.now().date())
        states = [source.state for source in await self._known_sources()]
        numbers: dict[NeedKind, int] = {
            "review": len(stores.knowledge.awaiting()),
            "gaps": gaps,
            "parked": sum(retry_of(each, retries).next_at is None for each in stores.knowledge.parked()),
            "outdated": await stores.cited.count(),
            "sources": states.count("failed"),
            "dropped": today.get(SHED, 0),
        }
        for kind, number in numbers.items():
            if number:
                yield Need(kind=kind, number=number)

    async def system(self) -> System:
        """Return how the process works, and what it costs."""
        rest, stores = self.checkpoints.unhandled(), self.stores
        usage = await self._overview.usage(DAYS)
        today, options = usage.get(self.clock.now().date(), ()), self.settings.llm
        cost = sum(each.cost for each in today)
        left_out = [each for each in await self._known_sources() if each.state == "left_out"]
        return System(
            since=self._began,
            health=await self.checks.health(),
            last_message_at=self.overheard.last_message_at,
            unhandled=rest,
            oldest_at=None if rest.oldest is None else position_of(rest.oldest).time,
            streams=tuple(self.fill.now()),
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
                "topics": len(await run_sync(stores.knowledge.names)),
                **await self._overview.stored(),
            },
            left_out=tuple(left_out[:_FEW_LEFT_OUT]),
            left_out_total=len(left_out),
            calibration=await look(stores.db, self.settings),
        )

    async def outdated(self) -> OutdatedAnswers:
        """List posted answers that their sources do not support any more, newest first."""

        def link(answer: OutdatedAnswer) -> str:
            return link_to(self.settings, answer.guild_id, answer.place, answer.message_id)

        return OutdatedAnswers(
            answers=tuple((each, link(each.answer)) for each in await self.posted.outdated(_MOST_SHOWN)),
            total=await self.stores.cited.count(),
            retracts=self.settings.ai.retract,
        )

    async def review(
        self,
        action: Literal["approve", "reject"],
        qa_ids: tuple[QAId, ...],
        *,
        topic: str = "",
        edited: Mapping[MessageId, str] = MappingProxyType({}),
    ) -> Done:
        """Approve or reject captures, as `intern review` does it. A rejection is of earlier versions, too."""
        if action == "reject":
            qa_ids = await run_sync(self.reviewing.with_older, qa_ids)
        name = named_topic(topic) if topic else None
        review = Review(action=action, qa_ids=qa_ids, topic=name, edited=dict(edited))
        return await self._have_done("review", review)

    async def retry(self, qa_id: QAId) -> Done:
        """Try to file one of them, as `intern retry` does it."""
        decided = self.stores.knowledge.of(qa_id)
        if not isinstance(decided, Parked):
            raise ConfigError(f"{qa_id[:80]} is not parked any more")
        done = await self._have_done("retry", (qa_id,))
        return "parked" if done == "done" and isinstance(self.stores.knowledge.of(qa_id), Parked) else done

    async def retire(self, fact_id: FactId, why: str) -> Done:
        """Have a fact believed no more, as `intern facts retire` does it."""
        return await self._have_done("retire_fact", Retirement(fact_id=fact_id, why=why))

    async def ask(self, question: str) -> Answered:
        """Answer as if a member had mentioned the bot."""
        began = current_time()
        conversation = Conversation((Message(role="user", text=question),))
        result = await self.answerer.answer(conversation, RequestContext(platform="page"), addressed=True)
        seconds, unseen = current_time() - began, result.reason in COULD_NOT_LOOK
        return Answered(question=question, result=result, seconds=seconds, could_not_look=unseen)

    async def _have_done(self, kind: str, given: object) -> Done:
        return "waiting" if await self._job(kind, given) == "waiting" else "done"

    async def _job(self, kind: str, given: object) -> object:
        """Submit a job, as commands do, and wait for a while; return its result, or "waiting" if it takes longer."""
        jobs, payload = self.stores.jobs, encoded(given)
        job_id = await jobs.submit(kind, payload, key=sha256(payload).hexdigest())
        with move_on_after(_DONE_WITHIN):
            while (outcome := await jobs.result(job_id)) is None:  # noqa: ASYNC110 another process may have done it
                await sleep(_POLL_SECONDS)
            done = msgspec.json.decode(given_by(outcome))
            await self.renew()
            return done
        return "waiting"

    async def _known_sources(self) -> tuple[SourceStatus, ...]:
        return await run_sync(lambda: sources_of(self.settings, self.stores.knowledge, clock=self.clock))

    # From here on: worker threads.

    def _versions(self) -> dict[str, str]:
        llm, search = self.settings.llm, embedding_model(self.settings)
        return {
            "intern": __version__,
            "Python": python_version(),
            "model": "offline rules" if llm.kind == "offline" else llm.model,
            "embeddings": search or "none: search compares words",
        }
