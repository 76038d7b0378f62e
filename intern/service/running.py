"""What the status page shows, put together from the stores of the running bot, and the little that it can do.

Reads the stores that the process holds; opens none anew, and delays no actor.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from hashlib import sha256
from itertools import islice
from typing import Literal

import msgspec
from anyio import current_time, move_on_after, sleep
from anyio.to_thread import run_sync

from intern import __version__
from intern.actors.streams import Fill, StreamFill
from intern.answering.posted_answers import Outdated, PostedAnswers
from intern.answering.workflow import Answers
from intern.chat.checkpoints import Checkpoints
from intern.core.clock import Clock
from intern.core.errors import ConfigError, KnowledgeError
from intern.core.ids import ChannelId, FactId, MessageId, QAId, position_of
from intern.core.messages import COULD_NOT_LOOK, Conversation, Message, RequestContext
from intern.core.records import Fact, Nugget, Parked
from intern.core.text.words import grouped
from intern.learning.review import Review
from intern.service.monitoring import Overheard
from intern.service.reading import Reading, TopicLine
from intern.service.status import SHED, SourceStatus, sources_of
from intern.service.stores import Stores
from intern.service.views import (
    Actor,
    Answered,
    AnswerPage,
    AnswerRow,
    Budget,
    Done,
    FactPage,
    Facts,
    Health,
    LeftOutRow,
    Listed,
    Nuggets,
    Number,
    OpenQuestion,
    OpenQuestions,
    OutdatedAnswers,
    OutdatedRow,
    Overview,
    ParkedCapture,
    ParkedCaptures,
    Plot,
    PromptCost,
    QuestionGroup,
    Series,
    SourceChange,
    SourceRow,
    Sources,
    Stream,
    TopicPage,
    Unhandled,
    Waiting,
)
from intern.settings.loading import Settings
from intern.sources.library import message_link
from intern.stores.sqlite.database import Database
from intern.stores.sqlite.extractions import NuggetStore
from intern.stores.sqlite.facts import FactFilter, FactStore
from intern.stores.sqlite.traces import Counts, FeedbackStore, Trace, TraceStore, UnansweredQuestion
from intern.stores.sqlite.usage import UsageLog
from intern.stores.sqlite.work import Retry, retry_of

DAYS = 14
_ROWS = 100  # on a page
_MOST_SHOWN = 50  # captures with all that was said
_DONE_WITHIN = 10.0  # seconds; a person waits. Longer work goes on, and the page says so
_POLL_SECONDS = 0.1
_STALE_FIRST = ("failed", "gone", "pending", "ok")
_OLD_NUGGETS = 5  # conversations of a fact whose nuggets are shown


@dataclass(frozen=True, kw_only=True)
class Looked:
    """What the page looks at."""

    settings: Settings
    db: Database
    stores: Stores
    answers: Answers
    posted: PostedAnswers
    overheard: Overheard
    checkpoints: Checkpoints
    fill: Fill
    clock: Clock
    health: Callable[[], Awaitable[Health]]
    known_health: Callable[[], Health]


class Running:
    """A running bot, as its page sees it.

    Raises KnowledgeError where a store cannot be read or written, ConfigError where what was asked for is not there or
    cannot be done.
    """

    def __init__(self, looked: Looked) -> None:
        self._at = looked
        self._began = looked.clock.now()
        self._traces = TraceStore(looked.db, clock=looked.clock)
        self._counts = Counts(looked.db, clock=looked.clock)
        self._usage = UsageLog(looked.db)
        self._facts = FactStore(looked.db, clock=looked.clock)
        self._nuggets = NuggetStore(looked.db)

    async def health(self) -> Health:
        """How the process is."""
        return await self._at.health()

    def known_health(self) -> Health:
        """The health as of the last look."""
        return self._at.known_health()

    async def overview(self) -> Overview:
        """The front page."""
        today = self._at.clock.now().date()
        days = tuple(today - timedelta(days=n) for n in reversed(range(DAYS)))
        counts = await self._counts.since(days[0])
        captures = await run_sync(self._captures_by_day, days)
        filled = self._at.fill.now()
        return Overview(
            since=self._began,
            version=__version__,
            health=await self.health(),
            last_message_at=self._at.overheard.last_message_at,
            unhandled=self._unhandled(),
            numbers=await self._numbers(),
            actors=tuple(
                Actor(name=name, takes=tuple(_stream(each) for each in filled if each.to == name))
                for name in dict.fromkeys(each.to for each in filled)
            ),
            streams=tuple(map(_stream, filled)),
            plots=(
                Plot(title="Captures", days=days, series=(Series(label="captures", values=captures),)),
                Plot(
                    title="Questions",
                    days=days,
                    series=tuple(
                        Series(label=label, values=tuple(counts.get(day, {}).get(name, 0) for day in days))
                        for label, name in (("answered", "questions_answered"), ("silent", "questions_silent"))
                    ),
                ),
            ),
            budget=await self._budget(today),
        )

    async def _numbers(self) -> tuple[Number, ...]:
        stores = self._at.stores
        votes = await FeedbackStore(self._at.db, clock=self._at.clock).all()
        today = await self._counts.of(self._at.clock.now().date())
        topics = await run_sync(stores.topics.names)
        states = [source.state for source in await self._sources()]
        left_out = states.count("left_out")
        stale = len(states) - states.count("ok") - left_out
        return (
            Number(label="Captures archived", value=len(stores.archive)),
            Number(label="Topics", value=len(topics), href="/topics"),
            Number(label="Wait for review", value=len(stores.decisions.awaiting()), href="/review"),
            Number(label="Parked", value=len(stores.decisions.parked()), href="/parked"),
            Number(label="Open questions", value=len(await self._open()), href="/unanswered"),
            Number(label="Outdated answers", value=await self._at.stores.cited.count(), href="/outdated"),
            Number(label="Questions shed today", value=today.get(SHED, 0)),
            Number(label="Stale sources", value=stale, href="/sources"),
            Number(label="Documents and links left out", value=left_out, href="/sources"),
            Number(label="Votes: helpful", value=votes.up),
            Number(label="Votes: not helpful", value=votes.down),
        )

    def _unhandled(self) -> Unhandled:
        rest = self._at.checkpoints.unhandled()
        return Unhandled(
            messages=rest.messages,
            oldest_at=None if rest.oldest is None else position_of(rest.oldest).time,
            channels=rest.channels,
        )

    async def _budget(self, today: date) -> Budget:
        prompts, options = await self._usage.of(today), self._at.settings.llm
        cost = sum(each.cost for each in prompts)
        return Budget(
            prompts=tuple(
                PromptCost(
                    prompt=each.prompt,
                    calls=each.calls,
                    tokens=each.tokens,
                    cost=each.cost,
                    cached_tokens=each.cached_tokens,
                )
                for each in prompts
            ),
            tokens=sum(each.tokens for each in prompts),
            token_budget=options.daily_token_budget,
            cost=cost if cost or self._at.settings.priced else None,
            cost_budget=options.daily_cost_budget,
            currency=options.currency,
        )

    async def unanswered(self) -> OpenQuestions:
        """Questions without an answer, the most frequent first."""
        questions = await self._open()
        groups = await run_sync(grouped, [each.text for each in questions])
        traced = await self._traces.having([each.question_id for each in questions])
        return OpenQuestions(
            groups=tuple(
                QuestionGroup(questions=tuple(_open_question(questions[place], traced) for place in places))
                for places in groups[:_ROWS]
            ),
            total=len(groups),
            questions=len(questions),
        )

    async def _open(self) -> tuple[UnansweredQuestion, ...]:
        return await self._at.stores.unanswered.all()

    async def outdated(self) -> OutdatedAnswers:
        """Posted answers whose sources do not back them any more, the newest first."""
        found = await self._at.posted.outdated(_MOST_SHOWN)
        return OutdatedAnswers(
            answers=tuple(map(self._outdated, found)),
            total=await self._at.stores.cited.count(),
            retracts=self._at.settings.ai.retract,
        )

    def _outdated(self, found: Outdated) -> OutdatedRow:
        answer = found.answer
        return OutdatedRow(
            question_id=answer.question_id,
            at=answer.at,
            asked=answer.asked,
            link=self._link(answer.place, answer.message_id),
            retracted=answer.retracted,
            changes=tuple(
                SourceChange(
                    source_id=each.cited.source_id,
                    title=each.cited.title,
                    state=each.cited.state or "changed",
                    since=each.cited.since,
                    before=each.cited.quote,
                    now=each.now,
                )
                for each in found.changes
            ),
        )

    def _link(self, channel_id: ChannelId, message_id: MessageId) -> str:
        servers = self._at.settings.discord.guild_ids
        server = servers[0] if len(servers) == 1 else None
        return message_link(server, channel_id, message_id, self._at.settings.discord.site) or ""

    async def waiting(self) -> Waiting:
        """Captures that wait for the team."""
        waiting = await run_sync(lambda: self._reading().awaiting(self._at.clock.now()))
        return Waiting(captures=waiting[:_MOST_SHOWN], total=len(waiting), review=self._at.settings.kb.review)

    async def review(self, action: Literal["approve", "reject"], qa_id: QAId) -> Done:
        """Approve or reject a capture, as `intern review` does it."""
        return await self._have_done("review", msgspec.json.encode(Review(action=action, qa_ids=(qa_id,))))

    async def parked(self) -> ParkedCaptures:
        """Pairs that could not be filed, the newest first."""
        retries = await self._at.stores.attempts.retries()
        parked = sorted(self._at.stores.decisions.parked(), key=lambda each: each.at, reverse=True)
        captures = await run_sync(lambda: [self._parked(each, retry_of(each, retries)) for each in parked[:_ROWS]])
        return ParkedCaptures(captures=tuple(captures), total=len(parked))

    async def retry(self, qa_id: QAId) -> Done:
        """Try to file one of them, as `intern retry` does it."""
        decided = self._at.stores.decisions.of(qa_id)
        if not isinstance(decided, Parked):
            raise ConfigError(f"{qa_id[:80]} is not parked any more")
        done = await self._have_done("retry", msgspec.json.encode((qa_id,)))
        return "parked" if done == "done" and isinstance(self._at.stores.decisions.of(qa_id), Parked) else done

    async def topics(self) -> Sequence[TopicLine]:
        """All topics, by name."""
        return await run_sync(lambda: self._reading().topics())

    async def topic(self, name: str) -> TopicPage:
        """One of them, with all that was decided about its pairs, newest first."""
        return await run_sync(self._topic, name)

    async def sources(self) -> Sources:
        """All sources, those that are stale first, and what was left out."""
        now = self._at.clock.now()
        known = await self._sources()
        left_out = [each for each in known if each.state == "left_out"]
        rows = [
            SourceRow(
                source_id=each.source_id if each.type != "page" else each.path,
                kind=each.type,
                state=each.state,
                described_at=now - timedelta(seconds=each.age_seconds) if each.is_described else None,
                last_error=each.last_error or _why(each),
                next_check=each.next_check,
            )
            for each in known
            if each.state != "left_out"
        ]
        return Sources(
            sources=tuple(sorted(rows, key=lambda row: _STALE_FIRST.index(row.state))),
            left_out=tuple(
                LeftOutRow(
                    path=each.path, reason=each.last_error or "", since=now - timedelta(seconds=each.age_seconds)
                )
                for each in left_out[:_ROWS]
            ),
            left_out_total=len(left_out),
        )

    async def answers(self, offset: int) -> Listed:
        """What became of questions, newest first."""
        traces = await self._traces.newest(_ROWS, offset)
        return Listed(rows=tuple(map(_row_of, traces)), total=await self._traces.count(), offset=offset)

    async def answer(self, question_id: MessageId) -> AnswerPage:
        """How that came about for one question, met by any of its messages."""
        trace = await self._traces.of(question_id)
        if trace is None:
            raise ConfigError(f"nothing is kept of a question {question_id[:40]!r}")
        texts = {each.question_id: each.text for each in await self._open()}
        return AnswerPage(
            row=_row_of(trace),
            steps=trace.debug,
            question=texts.get(trace.question_id, ""),
            # What came by a command has the command's id, which leads nowhere.
            link="" if trace.outcome.endswith("for one member") else self._link(trace.channel_id, trace.question_id),
        )

    async def facts(self, offset: int) -> Facts:
        """Facts but for the secret ones, newest first."""
        found = await self._facts.all(FactFilter(active=None), offset + _ROWS + 1)
        return Facts(facts=found[offset : offset + _ROWS], total=len(found), offset=offset)

    async def fact(self, fact_id: FactId) -> FactPage:
        """One of them with its chain."""
        links = [link for link in await self._facts.history(fact_id) if link.fact.visibility != "secret"]
        chain: tuple[Fact, ...] = tuple(link.fact for link in links)
        for link in links:
            if link.fact.id == fact_id:
                said_in = dict.fromkeys(each.conversation_id for each in reversed(link.occurrences))
                nuggets: list[Nugget] = []
                for conversation in islice(said_in, _OLD_NUGGETS):
                    nuggets += await self._nuggets.of_conversation(conversation)
                return FactPage(
                    fact=link.fact,
                    chain=chain,
                    occurrences=tuple(islice(reversed(link.occurrences), _ROWS)),
                    nuggets=tuple(nuggets),
                )
        raise ConfigError(f"there is no fact {fact_id[:80]!r}")

    async def nuggets(self, offset: int) -> Nuggets:
        """Nuggets, newest first."""
        found = await self._nuggets.all(limit=_ROWS, offset=offset)
        return Nuggets(nuggets=found, total=await self._nuggets.count(), offset=offset)

    async def ask(self, question: str) -> Answered:
        """An answer as a member would get it, who called the bot."""
        began = current_time()
        conversation = Conversation((Message(role="user", text=question),))
        result = await self._at.answers.answer(conversation, RequestContext(platform="page"), addressed=True)
        return Answered(
            question=question,
            result=result,
            seconds=current_time() - began,
            could_not_look=result.reason in COULD_NOT_LOOK,
        )

    async def _have_done(self, kind: str, payload: bytes) -> Done:
        """A job, done by the clerk as for a command: told once it is done, or that it is in work."""
        jobs = self._at.stores.jobs
        job_id = await jobs.submit(kind, payload, key=sha256(payload).hexdigest())
        with move_on_after(_DONE_WITHIN):
            while True:
                outcome = await jobs.result(job_id)
                if outcome is None:
                    await sleep(_POLL_SECONDS)
                    continue
                if outcome.error is not None:
                    wrong = outcome.exit_code == ConfigError.exit_code
                    raise (ConfigError if wrong else KnowledgeError)(outcome.error)
                return "done"
        return "waiting"

    async def _sources(self) -> tuple[SourceStatus, ...]:
        return await run_sync(lambda: sources_of(self._at.settings, clock=self._at.clock))

    # From here on: worker threads.

    def _reading(self) -> Reading:
        return Reading(self._at.settings, self._at.stores)

    def _captures_by_day(self, days: Sequence[date]) -> tuple[int, ...]:
        counted = dict.fromkeys(days, 0)
        for pair in self._at.stores.archive.after(QAId(f"qa_{days[0]:%Y%m%d}_000000")):
            day = pair.timestamp.date()
            counted[day] = counted.get(day, 0) + 1
        return tuple(counted[day] for day in days)

    def _parked(self, parked: Parked, retry: Retry) -> ParkedCapture:
        pair = self._at.stores.archive.get(parked.qa_id)
        return ParkedCapture(
            qa_id=parked.qa_id,
            at=parked.at,
            reason=parked.reason,
            tries=retry.tries,
            next_at=retry.next_at,
            question="" if pair is None else pair.question,
        )

    def _topic(self, name: str) -> TopicPage:
        reading = self._reading()
        topic = reading.topic(name)
        try:
            history = reading.history(topic.name)
        except ConfigError:
            history = ()  # the file was put there by hand
        return TopicPage(topic=topic, history=history[::-1])


def _stream(fill: StreamFill) -> Stream:
    return Stream(name=fill.name, kinds=fill.kinds, waiting=fill.waiting, size=fill.size, taking=fill.taking)


def _why(source: SourceStatus) -> str:
    """Why a source is stale that no try has failed for."""
    match source.state:
        case "pending" if source.type == "page":
            return "its present text is not fetched or not described yet"
        case "pending":
            return "its present text is not described yet; the next look at the folder does that"
        case "gone":
            return "it is not there any more; the next look at the folder forgets it"
        case _:
            return ""


def _row_of(trace: Trace) -> AnswerRow:
    return AnswerRow(
        question_id=trace.question_id,
        channel_id=trace.channel_id,
        at=trace.at,
        outcome=trace.outcome,
        reason=trace.reason,
    )


def _open_question(question: UnansweredQuestion, traced: Collection[MessageId]) -> OpenQuestion:
    return OpenQuestion(
        question_id=question.question_id,
        at=question.at,
        reason=question.reason,
        text=question.text,
        has_trace=question.question_id in traced,
    )
