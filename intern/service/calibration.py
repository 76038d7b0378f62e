"""The calibration of a data folder: its judgements, the score that answers must reach, and whether it still holds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import partial

from msgspec import Struct

from intern.answering.thresholds import (
    LINKS,
    JudgedAnswer,
    Threshold,
    ThresholdPoint,
    build_curve,
    enough_answers,
    find_threshold,
    is_bound_unreachable,
    is_drifting,
    least_answers,
)
from intern.core.ids import MessageId
from intern.service.embedding import embedding_model
from intern.settings.settings import Settings
from intern.stores.database import Database, Transaction
from intern.stores.tables.judgements import Calibration, Judgement, JudgementStore, read_calibration, read_judgements

_SCORE = "score 1"  # changes with the signs and weights of `intern.answering.confidence`


class CalibrationStatus(Struct, frozen=True, kw_only=True):
    """The state of the calibration."""

    max_wrong: float
    """`ai.max_wrong`; 0: no score decides."""
    setup: str
    """The models and steps that scores belong to; judgements made with others do not count."""
    judged: int
    wrong: int
    judges: Mapping[str, int]
    """The number of judged answers by kind of judge."""
    needed: int
    """The number of right answers, with no wrong one, that is enough to show the bound."""
    enough: int
    """The number of judged answers from which on no answers are given unless a score keeps to the bound."""
    found: Threshold | None
    """The least score that keeps to the bound by the present judgements; None if none can be shown to."""
    none_keeps: bool
    """There are enough judgements to say that no score keeps to the bound."""
    links: float | None
    """The least score for links by the present judgements."""
    current: Calibration | None
    """The score in use."""
    other: bool
    """A calibration is stored, but for another setup or another bound."""
    recent: int
    """Answers judged since the calibration, except those of backtests."""
    recent_wrong: int
    drifted: bool
    """These are wrong more often than the bound allows."""
    curve: tuple[ThresholdPoint, ...]

    @property
    def missing(self) -> int:
        """Return how many more judged answers it takes at least."""
        return max(0, self.needed - self.judged)

    @property
    def gives_none(self) -> bool:
        """Whether no answers are given at present, since no score keeps to the bound."""
        return self.current is not None and self.current.score is None

    @property
    def problem(self) -> str:
        """Return the problem that an operator should know, in one line; empty if there is none."""
        if self.drifted:
            wrong = f"{self.recent_wrong} of {self.recent} answers judged since the calibration were wrong"
            return f"{wrong}, more than ai.max_wrong allows; run: intern backtest, then: intern calibrate"
        if self.other:
            return "the calibration is for another model, other steps or another ai.max_wrong; run: intern calibrate"
        wrong = f"{self.wrong} of {self.judged} judged answers were wrong"
        if self.gives_none:
            return (
                f"no answers are given: {wrong}, and no score keeps to ai.max_wrong = {self.max_wrong:g}; add "
                "documents and run: intern backtest; or raise ai.max_wrong (0: no bound)"
            )
        if self.max_wrong and not self.missing and self.found is None and self.current is None:
            what = f"{wrong}; no score can be shown to keep to ai.max_wrong = {self.max_wrong:g}"
            return f"{what}; run: intern calibrate" if self.none_keeps else what
        return ""


def describe_setup(settings: Settings) -> str:
    """Describe the setup that scores belong to."""
    llm, ai = settings.llm, settings.ai
    model = "offline" if llm.kind == "offline" else llm.model
    return ", ".join((_SCORE, ai.steps, f"verify {ai.verify}", model, embedding_model(settings) or "words alone"))


def make_backtest_judgement(
    question_id: MessageId, *, setup: str, score: float, wrong: bool, at: datetime
) -> Judgement:
    """Return the judgement of a backtest."""
    return Judgement(question_id=question_id, judge="backtest", setup=setup, score=score, wrong=wrong, at=at)


def simulate_calibration(max_wrong: float, judgements: Sequence[Judgement]) -> CalibrationStatus:
    """Return the status that a calibration by these judgements alone would have, all of one setup. Blocks."""
    return _build_calibration_status(max_wrong, judgements[0].setup if judgements else "", judgements, None)


def read_calibration_status(db: Transaction, settings: Settings) -> CalibrationStatus:
    """Return the status of the calibration. Blocks."""
    setup = describe_setup(settings)
    return _build_calibration_status(settings.ai.max_wrong, setup, read_judgements(db, setup), read_calibration(db))


async def check_calibration(db: Database, settings: Settings) -> CalibrationStatus:
    """Return the status of the calibration. Raises KnowledgeError."""
    return await db.read(partial(read_calibration_status, settings=settings))


async def calibrate(store: JudgementStore, settings: Settings, more: Sequence[Judgement] = ()) -> CalibrationStatus:
    """Store more judgements and the score that they call for. Raises KnowledgeError.

    No answers are given from now on if there are enough judgements and no score keeps to the bound. With fewer, nothing
    changes. After a drift, the older judgements are deleted: they would count again with the next calibration.
    """
    await store.add(more)
    stands = await check_calibration(store.db, settings)
    found = stands.found
    if found is not None or stands.none_keeps:
        kept = Calibration(
            setup=stands.setup,
            max_wrong=stands.max_wrong,
            score=None if found is None else found.score,
            links=stands.links,
            judged=stands.judged,
            answered=0 if found is None else found.answered,
            wrong=0 if found is None else found.wrong,
            at=store.clock.now(),
        )
        before = stands.current if stands.drifted else None
        await store.save_calibration(kept, None if before is None else before.at)
        return await check_calibration(store.db, settings)
    return stands


def _build_calibration_status(
    bound: float, setup: str, judgements: Sequence[Judgement], kept: Calibration | None
) -> CalibrationStatus:
    current = kept if kept is not None and kept.applies_to(setup, bound) else None
    later = [each for each in judgements if current is not None and each.at > current.at]
    least = None if current is None else current.score
    recent = [each.wrong for each in later if each.judge != "backtest" and least is not None and each.score >= least]
    has_drifted = current is not None and is_drifting(recent, current.max_wrong)
    # Older judgements are no evidence: answers are different now.
    counting = later if has_drifted else judgements
    judged = [JudgedAnswer(score=each.score, wrong=each.wrong) for each in counting]
    found, links = find_threshold(judged, bound) if bound else None, find_threshold(judged, LINKS)
    return CalibrationStatus(
        max_wrong=bound,
        setup=setup,
        judged=len(judged),
        wrong=sum(each.wrong for each in judged),
        judges=Counter(each.judge for each in counting),
        needed=least_answers(bound) if bound else 0,
        enough=enough_answers(bound) if bound else 0,
        found=found,
        none_keeps=bool(bound) and is_bound_unreachable(judged, bound),
        links=None if links is None else links.score,
        current=current,
        other=bool(bound) and kept is not None and (kept.setup != setup or kept.max_wrong != bound),
        recent=len(recent),
        recent_wrong=sum(recent),
        drifted=has_drifted,
        curve=build_curve(judged),
    )
