"""A status page over a seeded data folder: real stores, rules as a model, the job worker at work; no Discord."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import httpx
from anyio import create_task_group, fail_after
from anyio.to_thread import run_sync
from msgspec.structs import replace

from intern.actors.job_worker import do_jobs_forever
from intern.actors.pipeline import BATCHES, EVENTS, StreamMonitor
from intern.answering.answerer import Answerer
from intern.answering.posted_answers import PostedAnswers
from intern.chat.checkpoints import Checkpoints
from intern.core.captures import CapturedPair
from intern.core.decisions import PairParked, PairReviewRequested
from intern.core.errors import ModelUnavailableError
from intern.core.flow import Reply
from intern.core.ids import (
    ChannelId,
    ConversationId,
    FactId,
    GuildId,
    MessageId,
    NuggetId,
    SourceId,
    UserId,
    position_at,
)
from intern.core.knowledge import Fact, FactOccurrence, Nugget
from intern.core.messages import AnswerResult, Channel, Citation, Conversation, Image, Message, RequestContext
from intern.core.text.secret_values import Secret
from intern.frontends.http.metrics import Metrics
from intern.frontends.http.server import serve_pages
from intern.models.prompt import InT, OfflineModel, OutT, Prompt
from intern.models.usage import UsageMeter
from intern.service.calibration import describe_setup
from intern.service.gateway_watch import GatewayWatch
from intern.service.health import HealthCheck, HealthMonitor
from intern.service.models import collect_offline_rules, load_templates
from intern.service.recordings import Recordings, ReplayedRecording
from intern.service.status_page import StatusPage
from intern.service.writer import Writer
from intern.settings.settings import PageOptions, Settings
from intern.sources.catalogue import Catalogue
from intern.sources.library import Library
from intern.stores.database import Transaction
from intern.stores.engines.sqlite.database import SqliteDatabase
from intern.stores.folder_lock import FolderLock
from intern.stores.source_cache import Index
from intern.stores.tables.answers import AnswerStore
from intern.stores.tables.checkpoints import CheckpointStore, StoredCheckpoints
from intern.stores.tables.daily_counts import DailyCounts
from intern.stores.tables.facts import add_fact, add_update
from intern.stores.tables.feedback import FeedbackStore
from intern.stores.tables.judgements import Judgement
from intern.stores.tables.nuggets import replace_nuggets
from intern.stores.tables.usage import UsageLog
from tests.service.writers import open_writer
from tests.worlds import samples
from tests.worlds.bot import settings_in
from tests.worlds.clock import HandClock

QUESTIONS = ("How do I purge the spool?", "Where do the agents keep their keys?", "How is a tenant quota raised?")
OPEN = ("How do I rotate the certificate?", "how can I rotate a certificate", "Is there a dark mode?")
OLD_FACT, NEW_FACT = "The spool holds one day.", "The spool holds two days."
SECRET_FACT = "The spool's password is on the yellow note."
NUGGET = "The spool keeps what the backend did not take."
ANSWERED = "Which port does the relay listen on?"
TEAM = UserId("990")
OUTDATED = "The quota is raised in the console."
ANSWER = "Run `relay spool purge`, then restart the relay."


INDICES: tuple[Index, ...] = ("kb", "team")


@dataclass
class Outside:
    """States that a test sets by hand: whether Discord is connected, and the model's problem."""

    is_open: bool = True
    model: HealthCheck = field(default_factory=lambda: HealthCheck(name="model", ok=True))


@dataclass(kw_only=True)
class Site:
    """A page that is served, and what it shows."""

    address: str
    settings: Settings
    running: StatusPage
    writer: Writer
    db: SqliteDatabase
    clock: HandClock
    overheard: GatewayWatch
    checkpoints: Checkpoints
    outside: Outside
    waiting: list[CapturedPair] = field(default_factory=list[CapturedPair])
    parked: list[CapturedPair] = field(default_factory=list[CapturedPair])

    def client(self) -> httpx.AsyncClient:
        """Somebody with a browser that follows nothing by itself."""
        return httpx.AsyncClient(base_url=self.address, timeout=30, verify=False)  # nothing is encrypted here


class Rules:
    """Rules as a model, which is unavailable if a test wants a broken one."""

    def __init__(self) -> None:
        self._rules = OfflineModel(collect_offline_rules())

    async def ask(self, prompt: Prompt[InT, OutT], given: InT, *, images: Sequence[Image] = ()) -> OutT:
        if prompt.name == "summarize_source" and "only a broken model" in str(given):
            raise ModelUnavailableError("the endpoint is <i>away</i>")
        return await self._rules.ask(prompt, given, images=images)


Answers = Callable[[Conversation], Awaitable[AnswerResult]]


class Asked:
    """Answers by rules, or as a test wants it."""

    def __init__(self, real: Answerer, wanted: Answers | None) -> None:
        self._real = real
        self._wanted = wanted

    async def answer(
        self, conversation: Conversation, context: RequestContext, *, addressed: bool = False
    ) -> AnswerResult:
        if self._wanted is not None:
            return await self._wanted(conversation)
        return await self._real.answer(conversation, context, addressed=addressed)


@asynccontextmanager
async def site(
    folder: Path,
    *,
    texts: Sequence[str] = (),
    answers: Answers | None = None,
    metrics: Metrics | None = None,
    token: str = "",
    empty: bool = False,
    past: bool = False,
    patience: float | None = 60,
    looked_within: float = 3,
    llm: dict[str, Any] | None = None,
) -> AsyncGenerator[Site]:
    """Serve the page of a folder with a little of everything in it; `texts` are in all places for people's words."""
    settings, clock = settings_in(folder, llm=llm, guild_ids=["100"], team_member_ids=[TEAM]), HandClock()
    model, fill, outside = Rules(), StreamMonitor(), Outside()
    with FolderLock(settings.data.dir) as lock:
        async with await SqliteDatabase.open(settings.paths.database) as db, create_task_group() as tg:
            writer = await run_sync(open_writer, settings, db, model, clock)
            overheard = GatewayWatch(clock)
            checkpoints = Checkpoints(StoredCheckpoints(), baseline=MessageId("0"))
            library = Library(
                indices=[Catalogue(writer.stores.knowledge, each) for each in INDICES],
                sources=writer.stores.sources,
                topics=writer.stores.knowledge,
                archive=writer.stores.archive,
                pages=writer.stores.pages,
            )
            answerer = Answerer(model, library, settings.ai)
            checks = HealthMonitor(
                db,
                lock,
                clock=clock,
                is_open=lambda: outside.is_open,
                elsewhere=lambda: (outside.model,),
                within=looked_within,
            )
            desk = StatusPage(
                stores=writer.stores,
                answerer=Asked(answerer, answers),
                posted=PostedAnswers(writer.stores.cited, library, writer.stores.knowledge),
                overheard=overheard,
                checkpoints=checkpoints,
                fill=fill,
                checks=checks,
                replay=partial(_replayed, writer, answerer),
                usage=None,
                breakers={},
            )
            made = Site(
                address="",
                settings=settings,
                running=desk,
                writer=writer,
                db=db,
                clock=clock,
                overheard=overheard,
                checkpoints=checkpoints,
                outside=outside,
            )
            if not empty:
                await seeded(made, texts)
                await _answered(made, answerer)
            if past:
                await _past(made)
            tg.start_soon(partial(do_jobs_forever, writer.stores.jobs, handlers=writer.handlers))
            events, heard = EVENTS.open(fill)
            batches, routed = BATCHES.open(fill)
            options = PageOptions(enabled=True, port=0, token=Secret(token))
            with fail_after(patience), events, heard, batches, routed:
                async with serve_pages(options, desk, metrics=metrics) as address:
                    made.address = address
                    yield made
            tg.cancel_scope.cancel()


async def seeded(made: Site, texts: Sequence[str]) -> None:
    """Topics, captures that wait, parked pairs, open questions, traces, counts and a source that cannot be read."""
    writer, clock = made.writer, made.clock
    told = [*QUESTIONS, *texts]
    for n, question in enumerate(told):
        clock.turn(minutes=1)
        await writer.learning.keep(samples.capture(question, f"{ANSWER}\n{question}", n=n + 1))
    await writer.learning.catch_up()
    clock.turn(days=2)
    for n, question in enumerate(("Which port does the agent use?", "May I run two relays?", *texts[:20])):
        clock.turn(minutes=1)
        pair = await writer.learning.keep(samples.capture(question, "Port 7480.\nAnd one each.", n=1_000 + n))
        assert pair is not None
        made.waiting.append(pair)
    waiting = [PairReviewRequested(qa_id=pair.qa_id, at=clock.now()) for pair in made.waiting]
    await writer.stores.knowledge.change(lambda db: db.decide(*waiting))
    pair = await writer.learning.keep(samples.capture("Why is the spool full?", "It waits for the backend.", n=2_000))
    assert pair is not None
    made.parked.append(pair)
    parked = PairParked(qa_id=pair.qa_id, at=clock.now(), reason="the endpoint gave <b>nothing</b> usable")
    await writer.stores.knowledge.change(lambda db: db.decide(parked))
    await writer.stores.attempts.end(parked)
    await _questions(made, [*OPEN, *texts])
    await _outdated(made, [OUTDATED, *texts])
    await _facts(made, texts)
    (made.settings.paths.sources / "broken.md").write_text("# Agents\n\nWhat only a broken model reads.\n")
    await writer.indexing.refresh()


async def _past(made: Site) -> None:
    """Record questions, votes, judgements and costs of the four weeks before, more of them week by week."""
    db, now, setup = made.db, made.clock.now(), describe_setup(made.settings)
    judged = list[Judgement]()
    for ago in reversed(range(1, 29)):
        clock = HandClock(now - timedelta(days=ago))
        counts, votes, usage = DailyCounts(db, clock=clock), FeedbackStore(db, clock=clock), UsageLog(db)
        records = AnswerStore(db, clock=clock)
        answered = 3 + (29 - ago) // 4 + ago % 3
        counts.add("questions_answered", answered)
        counts.add("questions_silent", 2 + ago % 4)
        await counts.store()
        for n in range(answered):
            asked = MessageId(str(1_000_000 + 100 * ago + n))
            wrong = (n + ago) % 7 == 0
            judged.append(
                Judgement(
                    question_id=asked,
                    judge="backtest",
                    setup=setup,
                    score=round(0.55 + (0.05 if wrong else 0.15) * ((n * ago) % 11) / 5, 3),
                    wrong=wrong,
                    at=clock.now(),
                )
            )
            said = samples.message(QUESTIONS[n % 3], n=-100 * ago - n)
            await samples.save_question(records, [said], seconds=3 + (n * ago) % 17 / 4, tokens=6_200, cost=0.0042)
            if n % 3 == 0:
                await votes.vote(asked, UserId("7"), up=not wrong)
        for prompt, calls in (("decide", answered + 4), ("confirm", answered), ("classify", ago % 3)):
            await usage.add(
                clock.now().date(), prompt, UsageMeter(calls, 2_900 * calls, 210 * calls, 0.0021 * calls, 900)
            )
    await made.writer.stores.judgements.add(judged)


async def _outdated(made: Site, texts: Sequence[str]) -> None:
    """Record answers whose source is gone; people's words are in question, title and quote."""
    posts = made.writer.stores.posts
    for n, text in enumerate(texts):
        asked = samples.message(text, n=40_000 + n)
        cited = Citation(source_id=SourceId("kb:gone.md"), title=text, quote=text)
        await posts.begin(Reply(question=asked, target="in_place", text="so", citations=(cited,), asked=text), ["so"])
        await posts.save_sent_part(asked.id, 0, position_at(asked.at, 1).id)
        await posts.mark_finished(asked.id)
        known = await made.writer.stores.cited.find_citations(cited.source_id)
        gone = [replace(each, digest="-", state="gone") for each in known if each.question_id == asked.id]
        await made.writer.stores.cited.save_comparisons(gone)


async def _facts(made: Site, texts: Sequence[str]) -> None:
    """A chain of two facts and a secret one, the same conversation's nugget, and one more fact for each text."""
    now = made.clock.now()
    talk = ConversationId("thread_900")

    def known(db: Transaction) -> None:
        db.run(
            "insert into conversations"
            " (community, id, agent_id, origin, message_ids, last_message_at, content_hash)"
            " values (:community, ?, '100', 'capture', '[]', 0, '')",
            (talk,),
        )
        whole = "\n".join([NUGGET, *texts[:5]])
        replace_nuggets(
            db,
            talk,
            [
                Nugget(
                    id=NuggetId("nugget:1"),
                    conversation_id=talk,
                    topic="spool",
                    timestamp=now,
                    topic_summary=f"About the spool: {NUGGET}",
                    detailed_analysis=whole,
                    status="FACT",
                    keywords=("spool", *texts[5:7]),
                )
            ],
        )

    await made.db.write(known)

    def fact(n: int, content: str, **more: Any) -> Fact:
        return Fact(
            id=FactId(f"fact:{n}"),
            agent_id="100",
            category="technical",
            content=content,
            first_seen_at=now + timedelta(seconds=n),
            last_seen_at=now + timedelta(seconds=n),
            **more,
        )

    def said(n: int, snippet: str) -> FactOccurrence:
        at = now + timedelta(seconds=n)
        return FactOccurrence(
            id=f"said:{n}", fact_id=FactId(f"fact:{n}"), conversation_id=talk, timestamp=at, context_snippet=snippet
        )

    def told(db: Transaction) -> None:
        add_fact(db, fact(1, OLD_FACT), said(1, "it was so"))
        add_update(db, fact(2, NEW_FACT, supersedes=FactId("fact:1")), said(2, "by now"))
        add_fact(db, fact(3, SECRET_FACT, visibility="secret"), said(3, SECRET_FACT))
        for n, text in enumerate(texts[:20], start=10):
            add_fact(db, fact(n, text), said(n, text))

    await made.db.write(told)


async def _answered(made: Site, answerer: Answerer) -> None:
    """An answered question in a channel of its own: posted, recorded, with votes."""
    stores = made.writer.stores
    asked = samples.message(ANSWERED, n=30_000, channel="201")
    said = Message(role="user", text=ANSWERED, author_id=asked.author.id, id=asked.id)
    context = RequestContext(guild_id=asked.guild_id, channel_id=asked.channel_id, message_id=asked.id)
    recorded = stores.recorder.wrap_answerer(answerer, "offline")
    result = await recorded.answer(Conversation((said,)), context, addressed=True)
    assert result.should_reply
    await stores.recorder.store()
    channel = Channel(id=asked.channel_id, guild_id=asked.guild_id, kind="channel", name="help")
    figures: Any = {"seconds": 1.25, "tokens": 1_234, "cost": 0.0042}
    came: Any = {"outcome": "answer posted", "debug": result.debug}
    await samples.save_question(stores.answers, [asked], "", channel, **came, **figures)
    text = result.reply_text or ""
    reply = Reply(question=asked, target="in_place", text=text, citations=result.citations, asked=ANSWERED)
    await stores.posts.begin(reply, [text])
    await stores.posts.save_sent_part(asked.id, 0, position_at(asked.at, 1).id)
    await stores.posts.mark_finished(asked.id)
    for n, up in enumerate((True, True, False)):
        await FeedbackStore(made.db, clock=made.clock).vote(asked.id, UserId(f"70{n}"), up=up)


async def _replayed(writer: Writer, answerer: Answerer, name: str) -> Sequence[ReplayedRecording]:
    stores = writer.stores
    recordings, templates = Recordings(stores.db, stores.archive, stores.knowledge), load_templates(stores.settings)
    return await recordings.replay(name, answerer=answerer, learning=answerer.model, templates=templates, offline=False)


async def _questions(made: Site, texts: Sequence[str]) -> None:
    records, counts = made.writer.stores.answers, DailyCounts(made.db, clock=made.clock)
    for n, text in enumerate(texts):
        made.clock.turn(seconds=1)
        asked = samples.message(text, n=10_000 + n)
        channel = Channel(id=asked.channel_id, guild_id=asked.guild_id, kind="channel", name=texts[-1][:90])
        counts.add("questions_silent")
        await samples.save_question(
            records,
            [asked],
            "no_sources",
            channel,
            outcome="silent",
            debug={"gate": {"kind": "question", "seconds": 0.1}, "select": {"sources": [], "said": text}},
        )
    answered = position_at(made.clock.now() - timedelta(hours=1)).id
    await records.save([answered], ChannelId("200"), outcome="posted", debug={"answer": {"tokens": 120}})
    counts.add("questions_answered", 4)
    await counts.store()
    await UsageLog(made.db).add(made.clock.now().date(), "answer", UsageMeter(3, 3_000, 450, 0.0375, 2_048))
    await CheckpointStore(made.db).load_or_create([GuildId("100")], position_at(made.clock.now()).id)
