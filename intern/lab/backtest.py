"""Backtest: a community's own history, asked again question by question, each with only the knowledge before it.

All work is done in a temporary folder. The backtest reads the documents of the operator's own folder, with their
descriptions, but not the lessons of the bot there. Nothing is posted.
"""

from __future__ import annotations

import shutil
from collections.abc import Awaitable, Callable, Iterable, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic
from typing import Final

import anyio
from anyio.to_thread import run_sync
from msgspec import Struct
from msgspec.structs import replace

from intern.core.captures import Capture
from intern.core.clock import SystemClock
from intern.core.errors import (
    ConfigError,
    KnowledgeError,
    ModelAccessError,
    ModelBudgetError,
    ModelError,
    ModelUnavailableError,
)
from intern.core.ids import MessageId
from intern.core.log import get_logger
from intern.core.messages import LOOKUP_FAILURES, AnswerResult, Image
from intern.core.tasks import open_task_group
from intern.lab.outcomes import (
    NOTES,
    TEAM_ANSWERED,
    VERSION,
    AgreementThresholds,
    AnswerSimilarity,
    BacktestLearning,
    BacktestOutcome,
    BacktestReport,
    Verdict,
    cosine,
    measure_shared_words,
    sum_backtest_outcomes,
)
from intern.lab.timeline import QuestionStep, TeachingStep, Timeline, build_timeline, sample_questions, sort_by_count
from intern.service import DataSection, KbSection, Settings
from intern.service.embedding import embedding_model
from intern.service.history_import import Exports, ImportRequest as Import, read_exports, resolve_team
from intern.service.intern import Intern, tokens_by_prompt
from intern.service.models import (
    Embedder,
    InT,
    Model,
    Models,
    OutT,
    Prompt,
    UsageMeter,
    measure_usage,
    open_embedder,
    open_models,
)
from intern.service.opening import open_intern
from intern.service.writer import Writer

_log = get_logger(__name__)

_AWAY = frozenset({"model_unavailable", "over_budget"})
"""Reasons that are independent of the question: asked later, it may find an answer."""
_MOST_CHARS = 2000  # of each text in the report


PAUSES: Final = (5.0, 10.0, 20.0, 40.0, 60.0)
"""Seconds between two attempts; a restarted endpoint is back by then."""


class Patience:
    """Waits for an unavailable model, a pause after each attempt; without pauses, it neither waits nor gives up."""

    def __init__(self, pauses: Sequence[float], say: Callable[[str], None]) -> None:
        self._pauses = pauses
        self._say = say
        self.last: ModelUnavailableError | None = None
        """The latest reason why a model could not be asked."""
        self.gave_up = ""
        """The reason why it gave up; empty if it did not."""

    def wrap_models(self, models: Models) -> Models:
        """Wrap the models to hear their errors: an answer does not say whether waiting helps."""
        return models._replace(
            answering=_PatientModel(models.answering, self), learning=_PatientModel(models.learning, self)
        )

    async def retry_until(self, succeeds: Callable[[], Awaitable[bool]]) -> bool:
        """Try until one attempt succeeds, and return whether one did. Errors of attempts are raised."""
        for pause in (*self._pauses, None):
            if await succeeds():
                return True
            # Waiting fixes neither a wrong key nor a spent budget.
            if pause is None or isinstance(self.last, ModelAccessError | ModelBudgetError):
                break
            self._say(f"waiting {pause:g} s for the model: {self.last}")
            await anyio.sleep(pause)
        if self._pauses:
            self.gave_up = str(self.last)
        return False


class _PatientModel:
    def __init__(self, model: Model, patience: Patience) -> None:
        self._model = model
        self._patience = patience

    async def ask(self, prompt: Prompt[InT, OutT], given: InT, *, images: Sequence[Image] = ()) -> OutT:
        try:
            return await self._model.ask(prompt, given, images=images)
        except ModelUnavailableError as error:
            self._patience.last = error
            raise


class BacktestRequest(Import, frozen=True, kw_only=True):
    """The options of a replay. Questions before `since` are not asked; answers before it count."""

    until: datetime | None = None
    limit: int | None = None
    """The maximum number of questions, spread evenly."""
    documents: bool = True
    """Whether answers may draw on the documents of the settings' folder."""
    concurrency: int = 1
    """The number of questions at a time, between which nothing is learned."""


class PreparedBacktest(Struct, frozen=True, kw_only=True):
    """A history that is ready to be replayed."""

    wanted: BacktestRequest
    exports: Exports
    timeline: Timeline


class ReplayClock:
    """The time of the history that is replayed; it never goes back."""

    def __init__(self, now: datetime) -> None:
        self._now = now

    def now(self) -> datetime:
        """Return the current moment of the replay."""
        return self._now

    def advance(self, moment: datetime) -> None:
        """Advance to a moment, unless it is in the past."""
        self._now = max(self._now, moment)


async def prepare_backtest(settings: Settings, wanted: BacktestRequest) -> PreparedBacktest:
    """Read the exports and put them in order. Asks no model. Raises ConfigError if it cannot be replayed."""
    exports = await run_sync(read_exports, wanted.files, resolve_team(settings, wanted))
    timeline = await build_timeline(exports, settings, since=wanted.since, until=wanted.until)
    if not timeline.asked:
        raise ConfigError(
            f"the exports hold no question to replay: of {exports.messages} messages, none is one that the bot would "
            "look at; name other files, or widen --since and --until"
        )
    return PreparedBacktest(wanted=wanted, exports=exports, timeline=sample_questions(timeline, wanted.limit))


class BacktestRun:
    """A replay of a history; `report` can be called at any time."""

    def __init__(
        self,
        settings: Settings,
        prepared: PreparedBacktest,
        *,
        watch: Callable[[Models, ReplayClock], Models] = lambda models, _: models,
        tell: Callable[[BacktestOutcome], None] = lambda _: None,
        say: Callable[[str], None] = lambda _: None,
        pauses: Sequence[float] = (),
    ) -> None:
        """Report each question to `tell`; `watch` may wrap the models of the replay.

        The replay waits for an unavailable model for these `pauses`, and then gives up; without pauses, it goes on.
        """
        self._settings = settings
        self._prepared = prepared
        self._watch = watch
        self._tell = tell
        self._say = say
        self._patience = Patience(pauses, say)
        self._spent: dict[MessageId, UsageMeter] = {}
        self._clock = ReplayClock(prepared.timeline.steps[0].moment.at)
        self._outcomes: dict[MessageId, BacktestOutcome] = {}
        self._pending: list[TeachingStep] = []
        self._known: set[str] = set()
        self._topics = self._delayed = 0
        self._documents: int | None = None
        self._learning = UsageMeter()
        self._began = monotonic()
        self._finished = False

    async def run(self) -> None:
        """Replay all of it. Raises ConfigError, and KnowledgeError where the temporary folder cannot be used."""
        with TemporaryDirectory(prefix="intern-backtest-") as folder:
            settings = await run_sync(
                _build_replay_settings, self._settings, Path(folder), self._prepared.wanted.documents
            )
            # In real time: budgets are of real days and real money. Each replay has budgets of its own: to share the
            # bot's, it would have to write into the operator's folder.
            real = SystemClock()
            async with (
                open_models(settings, None, real) as models,
                open_embedder(settings, None, real, models.usage) as embedder,
                open_intern(
                    settings, clock=self._clock, models=self._patience.wrap_models(self._watch(models, self._clock))
                ) as intern,
            ):
                writer = await intern.acquire_writer()
                with measure_usage() as meter:
                    await self._index_documents(intern, writer)
                self._learning.add_counts(meter)
                await self._replay_steps(intern, writer, embedder)
        self._finished = not self._patience.gave_up

    def report(self) -> BacktestReport:
        """Return the results so far."""
        settings, prepared = self._settings, self._prepared
        order = [asked.request.batch.last.id for asked in prepared.timeline.asked]
        outcomes = tuple(self._outcomes[each] for each in order if each in self._outcomes)
        refused = prepared.exports.refused
        read = (path for path in prepared.wanted.files if not any(why.startswith(f"{path} ") for why in refused))
        return BacktestReport(
            version=VERSION,
            finished=self._finished,
            stopped=self._patience.gave_up,
            made_at=datetime.now(UTC),
            seconds=round(monotonic() - self._began, 1),
            model=settings.llm.display_name,
            learning_model=settings.kb_model.display_name,
            embeddings=embedding_model(settings),
            currency=settings.llm.currency,
            priced=settings.priced,
            files=tuple(path.name for path in read),
            refused=refused,
            channels=len(prepared.exports.channels),
            messages=prepared.exports.messages,
            team_replies=prepared.timeline.team_replies,
            since=prepared.wanted.since,
            until=prepared.wanted.until,
            documents=self._documents,
            questions=len(order),
            left_out=sort_by_count(prepared.timeline.left_out),
            bars=AgreementThresholds(),
            notes=NOTES,
            totals=sum_backtest_outcomes(outcomes, self._learning),
            learned=BacktestLearning(
                conversations=len(self._known),
                topics=self._topics,
                delayed=self._delayed,
                untold=sum(len(taught.captures) for taught in self._pending),
            ),
            outcomes=outcomes,
            max_wrong=settings.ai.max_wrong,
        )

    async def _index_documents(self, intern: Intern, writer: Writer) -> None:
        if not self._prepared.wanted.documents:
            return
        self._say("looking at the documents")
        await writer.indexing.refresh()
        # The data folder has vectors of the same documents.
        await writer.indexing.take_over_vectors(self._settings)
        await writer.indexing.make_vectors()
        self._documents = len(await intern.entries())

    async def _replay_steps(self, intern: Intern, writer: Writer, embedder: Embedder | None) -> None:
        together: list[QuestionStep] = []
        for step in self._prepared.timeline.steps:
            if isinstance(step, TeachingStep):
                self._pending.append(step)
                continue
            # Earlier questions must not know the lessons that follow.
            if self._pending or len(together) >= self._prepared.wanted.concurrency:
                await self._answer_all(together, intern, embedder)
                together = []
            if self._pending and not self._patience.gave_up:
                await self._learn(writer)
            if self._patience.gave_up:
                return
            self._clock.advance(step.moment.at)
            together.append(step)
        await self._answer_all(together, intern, embedder)

    # Learning.

    async def _learn(self, writer: Writer) -> None:
        """Learn the lessons since the last question, as the running bot does."""
        with measure_usage() as meter:
            for taught, captures in _select_fullest_captures(self._pending):
                self._clock.advance(taught.moment.at)
                for capture in captures:
                    pair = await writer.learning.keep(capture)
                    if pair is not None:
                        self._known.add(pair.conversation_id)
            self._pending.clear()
            if not await self._patience.retry_until(partial(self._try_learning, writer)):
                # The archived captures are safe, and are learned before the next question with new lessons.
                self._delayed += 1
            await writer.indexing.make_vectors()
        self._learning.add_counts(meter)
        self._topics = len(writer.stores.knowledge.topic_names())

    async def _try_learning(self, writer: Writer) -> bool:
        """Try to learn all archived captures, and return whether that worked."""
        try:
            await writer.learning.catch_up()
            await writer.indexing.refresh()
            await writer.extraction.extractor.repair_search()
            await writer.extraction.catch_up()
        except ModelUnavailableError as error:
            _log.warning("backtest_learning_delayed", reason=str(error))
            self._patience.last = error
            return False
        return True

    # Answering.

    async def _answer_all(self, asked: Sequence[QuestionStep], intern: Intern, embedder: Embedder | None) -> None:
        """Answer them all at once; while patience lasts, repeat those that no model answered."""
        failed: dict[MessageId, tuple[QuestionStep, BacktestOutcome]] = {}

        async def answer(each: QuestionStep) -> None:
            outcome = await self._answer(each, intern, embedder)
            failed.pop(outcome.message_id, None)
            if outcome.reason in _AWAY:
                failed[outcome.message_id] = (each, outcome)
            else:
                self._settle(outcome)

        async def answer_each(those: Sequence[QuestionStep]) -> None:
            async with open_task_group() as tg:
                for each in those:
                    tg.start_soon(answer, each)

        async def succeeds() -> bool:
            if failed:
                # The first retry is a single call: all others would be refused while the model is unavailable.
                first, *rest = [each for each, _ in failed.values()]
                await answer_each([first])
                if first.request.batch.last.id not in failed:
                    await answer_each(rest)
            else:
                await answer_each(asked)
            return not failed

        if not await self._patience.retry_until(succeeds):
            for _, outcome in failed.values():
                self._settle(outcome)

    def _settle(self, outcome: BacktestOutcome) -> None:
        self._outcomes[outcome.message_id] = outcome
        self._tell(outcome)

    async def _answer(self, asked: QuestionStep, intern: Intern, embedder: Embedder | None) -> BacktestOutcome:
        began = monotonic()
        outcome = self._build_outcome(asked)
        if not asked.known:
            with measure_usage() as meter:
                request = asked.request
                result = await intern.answer(request.conversation, request.context, addressed=request.addressed)
            outcome = await self._judge(_add_result(outcome, result), embedder)
            # Failed attempts cost tokens, too.
            spent = self._spent.setdefault(outcome.message_id, UsageMeter())
            spent.add_counts(meter)
            outcome = replace(outcome, calls=spent.calls, tokens=spent.tokens, cost=spent.cost)
        return replace(outcome, seconds=round(monotonic() - began, 3))

    def _build_outcome(self, asked: QuestionStep) -> BacktestOutcome:
        batch, team = asked.request.batch, asked.team
        return BacktestOutcome(
            message_id=batch.last.id,
            link=asked.link,
            asked_at=batch.last.at,
            question=self._shorten("\n".join(message.text for message in batch.messages)),
            verdict="silent",
            reason=TEAM_ANSWERED if asked.known else "",
            team=self._shorten("\n".join(reply.text for reply in team)) if team else None,
            team_link=team[0].link if team else None,
            team_after_seconds=round((team[0].moment.at - batch.last.at).total_seconds(), 1) if team else None,
            team_was_first=asked.was_first,
            knew=len(self._known),
        )

    async def _judge(self, outcome: BacktestOutcome, embedder: Embedder | None) -> BacktestOutcome:
        """Compare an answer with the team's."""
        if outcome.reply is None:
            return outcome
        if outcome.team is None:
            return replace(outcome, verdict="team_silent")
        vectors: float | None = None
        if embedder is not None:
            try:
                vectors = cosine(*await embedder.compute_vectors([outcome.reply, outcome.team]))
            except ModelError as error:
                _log.warning("backtest_not_compared", reason=str(error))
        likeness = AnswerSimilarity(words=measure_shared_words(outcome.reply, outcome.team), vectors=vectors)
        agrees = likeness.agrees(AgreementThresholds())
        verdict: Verdict = "not_comparable" if agrees is None else "agreed" if agrees else "differed"
        return replace(outcome, verdict=verdict, likeness_words=likeness.words, likeness_vectors=likeness.vectors)

    def _shorten(self, text: str) -> str:
        """Mask secrets in a text for the report, and cut it."""
        masked = self._settings.kb.mask_text(text)
        return masked if len(masked) <= _MOST_CHARS else masked[:_MOST_CHARS] + " […]"


def _add_result(outcome: BacktestOutcome, result: AnswerResult) -> BacktestOutcome:
    """Add the result of the answering."""
    debug = result.debug or {}
    could_not_look = result.reason in LOOKUP_FAILURES
    return replace(
        outcome,
        verdict="could_not_look" if could_not_look else "silent",
        reason=result.reason,
        error=str(debug.get("error", "")) if could_not_look else "",
        reply=result.reply_text if result.should_reply else None,
        citations=tuple(str(citation.source_id) for citation in result.citations),
        score=debug.get("confidence", {}).get("score"),
        setup=debug.get("confidence", {}).get("setup", ""),
        tokens_by_prompt=tokens_by_prompt(debug),
    )


def _select_fullest_captures(pending: Sequence[TeachingStep]) -> Iterable[tuple[TeachingStep, Sequence[Capture]]]:
    """Drop captures that a later one of the same conversation contains: no question came in between."""
    held: dict[str, set[MessageId]] = {}
    kept: list[tuple[TeachingStep, list[Capture]]] = []
    for taught in reversed(pending):
        fuller = [
            each for each in taught.captures if not held.get(each.conversation_id, set()).issuperset(each.message_ids)
        ]
        for capture in fuller:
            held.setdefault(capture.conversation_id, set()).update(capture.message_ids)
        kept.append((taught, fuller))
    return kept[::-1]


def _build_replay_settings(settings: Settings, folder: Path, documents: bool) -> Settings:  # noqa: FBT001 - run in a thread
    """Point the settings at a temporary folder, with the original documents and copies of their descriptions.

    Blocks. Raises KnowledgeError.
    """
    mine = settings.paths
    documents = documents and mine.sources.is_dir()
    # The paths are the temporary folder's. There is no reviewer, and no archived pair to ignore.
    own = {name: "" for name in KbSection.__struct_fields__ if name.endswith(("_dir", "_path", "_id"))}
    own |= {"sources_dir": str(mine.sources.absolute())} if documents else {}
    moved = replace(
        settings,
        data=DataSection(dir=folder),
        search=replace(settings.search, vectors="local"),
        kb=replace(settings.kb, review=False, **own),
        # Discovered files are in the operator's own database.
        discovery=replace(settings.discovery, answer=False),
    )
    theirs = moved.paths
    try:
        theirs.index.parent.mkdir(parents=True)
        if documents:
            for here, there in ((mine.index, theirs.index), (mine.index_cache, theirs.index_cache)):
                if here.is_file():
                    shutil.copyfile(here, there)
            if mine.web_cache.is_dir():
                shutil.copytree(mine.web_cache, theirs.web_cache)
        else:
            theirs.sources.mkdir()
    except (OSError, shutil.Error) as error:
        raise KnowledgeError(
            f"the documents cannot be copied for the backtest ({error}); check rights and space"
        ) from error
    return moved
