"""What the status page shows, put together from the stores of the running bot, and the little that it can do.

Reads the stores that the process holds; opens none anew, and delays no actor.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from hashlib import sha256
from itertools import chain
from platform import python_version
from typing import Generic, Literal, TypeVar

import msgspec
from anyio import current_time, move_on_after, sleep
from anyio.to_thread import run_sync
from msgspec import Struct

from intern import __version__
from intern.answering.posted_answers import Outdated, PostedAnswers
from intern.answering.workflow import Answers
from intern.chat.checkpoints import Checkpoints
from intern.core.errors import ConfigError
from intern.core.ids import ChannelId, FactId, MessageId, QAId, position_of
from intern.core.messages import COULD_NOT_LOOK, AIResult, Conversation, Message, RequestContext
from intern.core.records import Fact, Nugget, Occurrence, PairDecision, Parked
from intern.core.text.masking import encoded
from intern.learning.review import Review
from intern.service.calibration import look
from intern.service.models import embedding_model
from intern.service.monitoring import HealthChecks, Standing
from intern.service.overview import Budget, Figures, Need, NeedKind, Overview, System
from intern.service.questions import AskedQuestions
from intern.service.reading import Reading, TopicLine, TopicText, WaitingPair
from intern.service.replaying import Again, Recordings
from intern.service.status import SHED, SourceStatus, sources_of
from intern.service.writer import given_by
from intern.sources.library import message_link
from intern.stores.sqlite.extractions import NuggetStore
from intern.stores.sqlite.facts import FactFilter, FactStore
from intern.stores.sqlite.questions import Question
from intern.stores.sqlite.traces import Counts
from intern.stores.sqlite.work import Retry, retry_of

T = TypeVar("T")

DAYS = 14  # whose costs are listed
_FEW = 5  # on the front page
_FEW_LEFT_OUT = 20
_ROWS = 100  # on a page
_MOST_SHOWN = 50  # captures with all that was said
_DONE_WITHIN = 10.0  # seconds; a person waits. Longer work goes on, and the page says so
_POLL_SECONDS = 0.1
_STALE_FIRST = ("failed", "gone", "pending", "ok")
_OLD_NUGGETS = 5  # conversations of a fact whose nuggets are shown


class Home(Struct, frozen=True, kw_only=True):
    """The front page: what needs a person, and how the bot does."""

    needs: tuple[Need, ...]
    """The most urgent first."""
    figures: Figures
    gaps: tuple[tuple[Question, ...], ...]
    """The largest groups of questions without an answer."""


class Listed(Struct, Generic[T], frozen=True, kw_only=True):
    """Some rows of many."""

    rows: tuple[T, ...]
    total: int
    offset: int = 0


class Waiting(Struct, frozen=True, kw_only=True):
    """The oldest captures that wait, and how many there are in all."""

    captures: tuple[WaitingPair, ...]
    total: int
    review: bool
    """Whether captures wait at all (`kb.review`)."""


class ParkedCapture(Struct, frozen=True, kw_only=True):
    """A pair that could not be filed."""

    parked: Parked
    retry: Retry
    question: str


class TopicPage(Struct, frozen=True, kw_only=True):
    """A topic with all that happened to it."""

    topic: TopicText
    history: tuple[PairDecision, ...]
    """Newest first."""


class Sources(Struct, frozen=True, kw_only=True):
    """The sources, stale ones first; some of what was left out, and how much was left out in all."""

    sources: tuple[SourceStatus, ...]
    left_out: tuple[SourceStatus, ...]
    left_out_total: int
    now: datetime


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


class FactPage(Struct, frozen=True, kw_only=True):
    """A fact with its chain, oldest first, and the conversations in which it was said."""

    fact: Fact
    chain: tuple[Fact, ...]
    occurrences: tuple[Occurrence, ...]
    nuggets: tuple[Nugget, ...]


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

    def __post_init__(self) -> None:
        super().__post_init__()
        db, clock = self.stores.db, self.clock
        self._began = clock.now()
        recordings = Recordings(db, self.stores.archive, self.stores.knowledge)
        self.asked = AskedQuestions(self.settings, db, recordings, self._job, clock)
        self._counts, self._overview = Counts(db, clock=clock), Overview(self.stores)
        self._facts, self._nuggets = FactStore(db, clock=clock), NuggetStore(db)

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
            calibration=await look(stores.judgements, self.settings),
        )

    async def outdated(self) -> OutdatedAnswers:
        """List posted answers that their sources do not support any more, newest first."""
        found = await self.posted.outdated(_MOST_SHOWN)
        return OutdatedAnswers(
            answers=tuple((each, self._link(each.answer.place, each.answer.message_id)) for each in found),
            total=await self.stores.cited.count(),
            retracts=self.settings.ai.retract,
        )

    def _link(self, channel_id: ChannelId, message_id: MessageId) -> str:
        servers = self.settings.discord.guild_ids
        server = servers[0] if len(servers) == 1 else None
        return message_link(server, channel_id, message_id, self.settings.discord.site) or ""

    async def waiting(self) -> Waiting:
        """List captures that wait for the team."""
        waiting = await run_sync(lambda: self._reading().awaiting(self.clock.now()))
        return Waiting(captures=waiting[:_MOST_SHOWN], total=len(waiting), review=self.settings.kb.review)

    async def review(self, action: Literal["approve", "reject"], qa_id: QAId) -> Done:
        """Approve or reject a capture, as `intern review` does it."""
        return await self._have_done("review", Review(action=action, qa_ids=(qa_id,)))

    async def parked(self) -> Listed[ParkedCapture]:
        """Pairs that could not be filed, the newest first."""
        retries = await self.stores.attempts.retries()
        parked = sorted(self.stores.knowledge.parked(), key=lambda each: each.at, reverse=True)
        captures = await run_sync(lambda: [self._parked(each, retry_of(each, retries)) for each in parked[:_ROWS]])
        return Listed(rows=tuple(captures), total=len(parked))

    async def retry(self, qa_id: QAId) -> Done:
        """Try to file one of them, as `intern retry` does it."""
        decided = self.stores.knowledge.of(qa_id)
        if not isinstance(decided, Parked):
            raise ConfigError(f"{qa_id[:80]} is not parked any more")
        done = await self._have_done("retry", (qa_id,))
        return "parked" if done == "done" and isinstance(self.stores.knowledge.of(qa_id), Parked) else done

    async def topics(self) -> Sequence[TopicLine]:
        """All topics, by name."""
        return await run_sync(lambda: self._reading().topics())

    async def topic(self, name: str) -> TopicPage:
        """One of them, with all that was decided about its pairs, newest first."""
        return await run_sync(self._topic, name)

    async def sources(self) -> Sources:
        """All sources, those that are stale first, and what was left out."""
        known = await self._known_sources()
        left_out = [each for each in known if each.state == "left_out"]
        sources = [each for state in _STALE_FIRST for each in known if each.state == state]
        some, now = tuple(left_out[:_ROWS]), self.clock.now()
        return Sources(sources=tuple(sources), left_out=some, left_out_total=len(left_out), now=now)

    async def facts(self, offset: int) -> Listed[Fact]:
        """Facts but for the secret ones, newest first."""
        found = await self._facts.all(FactFilter(active=None), offset + _ROWS + 1)
        return Listed(rows=found[offset : offset + _ROWS], total=len(found), offset=offset)

    async def fact(self, fact_id: FactId) -> FactPage:
        """One of them with its chain."""
        links = [link for link in await self._facts.history(fact_id) if link.fact.visibility != "secret"]
        link = next((each for each in links if each.fact.id == fact_id), None)
        if link is None:
            raise ConfigError(f"there is no fact {fact_id[:80]!r}")
        latest = link.occurrences[::-1]
        said_in = list(dict.fromkeys(each.conversation_id for each in latest))[:_OLD_NUGGETS]
        nuggets = tuple(chain.from_iterable([await self._nuggets.of_conversation(each) for each in said_in]))
        facts = tuple(each.fact for each in links)
        return FactPage(fact=link.fact, chain=facts, occurrences=latest[:_ROWS], nuggets=nuggets)

    async def nuggets(self, offset: int) -> Listed[Nugget]:
        """Nuggets, newest first."""
        found = await self._nuggets.all(limit=_ROWS, offset=offset)
        return Listed(rows=found, total=await self._nuggets.count(), offset=offset)

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
        return await run_sync(lambda: sources_of(self.settings, clock=self.clock))

    # From here on: worker threads.

    def _reading(self) -> Reading:
        return Reading(self.settings, self.stores)

    def _versions(self) -> dict[str, str]:
        llm, search = self.settings.llm, embedding_model(self.settings)
        return {
            "intern": __version__,
            "Python": python_version(),
            "model": "offline rules" if llm.kind == "offline" else llm.model,
            "embeddings": search or "none: search compares words",
        }

    def _parked(self, parked: Parked, retry: Retry) -> ParkedCapture:
        pair = self.stores.archive.get(parked.qa_id)
        return ParkedCapture(parked=parked, retry=retry, question="" if pair is None else pair.question)

    def _topic(self, name: str) -> TopicPage:
        reading = self._reading()
        topic = reading.topic(name)
        try:
            history = reading.history(topic.name)
        except ConfigError:
            history = ()  # the file was put there by hand
        return TopicPage(topic=topic, history=history[::-1])
