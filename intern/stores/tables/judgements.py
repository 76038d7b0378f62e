"""Judged answers, each with its score, and the score calibrated from them.

A vote judges an answer, or its deletion, a word of the team's after it, or a backtest; the judgement is kept at once.
Only an answer whose trace holds a score can be judged. Neither words nor people's ids are kept.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from datetime import datetime
from typing import Final, Literal, cast

import msgspec
from msgspec import Struct

from intern.core.ids import MessageId, Position, parse_position
from intern.stores.database import Transaction
from intern.stores.tables.store import (
    GIVEN,
    IN,
    OURS,
    Store,
    Table,
    bare_id_array,
    keep_first,
    reads,
    sortable_time,
    writes,
)

KEPT: Final = 5_000
"""The newest judgements."""

Judge = Literal["team", "deletion", "vote", "backtest"]
"""The judge; of several judges of one answer, the first in this order counts."""
_ORDER: Final[Mapping[str, int]] = {"team": 0, "deletion": 1, "vote": 2, "backtest": 3}


class Judgement(Struct, frozen=True, kw_only=True):
    """Whether an answer was wrong, as far as one judge can tell."""

    question_id: MessageId
    judge: Judge
    setup: str
    """Scores of different setups cannot be compared."""
    score: float
    wrong: bool
    at: datetime


class Calibration(Struct, frozen=True, kw_only=True):
    """The score that an answer must reach, and the answers that it was made from."""

    setup: str
    max_wrong: float
    score: float | None
    """None: no score keeps to the bound, and no answer is given."""
    links: float | None
    """The score from which on links are given; None if it is unknown."""
    judged: int
    """Answers that it was made from."""
    answered: int
    """Those with at least that score."""
    wrong: int
    """The wrong ones of those."""
    at: datetime

    def applies_to(self, setup: str, max_wrong: float) -> bool:
        """Return whether it decides. If it lets no answer through, a larger bound ends it, without any calibration."""
        return max_wrong > 0 and self.setup == setup and (self.score is not None or max_wrong <= self.max_wrong)


_JUDGEMENTS = Table("answer_judgements", Judgement)
_CALIBRATIONS = Table("calibrations", Calibration)


class JudgementStore(Store):
    """The newest KEPT judgements, and the calibration."""

    @writes
    def add(self, db: Transaction, judgements: Iterable[Judgement]) -> None:
        """Keep judgements; one of the same judge on the same question is replaced."""
        db.run_each(_JUDGEMENTS.upsert("question_id", "judge"), map(_JUDGEMENTS.to_row, judgements))
        keep_first(db, "answer_judgements", "question_id, judge", "at desc, question_id desc, judge", KEPT)

    @reads
    def calibration(self, db: Transaction) -> Calibration | None:
        """Return the calibration; None where there was none yet."""
        return read_calibration(db)

    @writes
    def save_calibration(
        self, db: Transaction, calibration: Calibration, drifted_since: datetime | None = None
    ) -> None:
        """Replace the calibration; after a drift, delete the judgements until then."""
        if drifted_since is not None:
            db.run(
                f"delete from answer_judgements {OURS} and setup = ? and at <= ?",
                (calibration.setup, sortable_time(drifted_since)),
            )
        db.run(f"delete from calibrations {OURS}")
        db.run(_CALIBRATIONS.insert, _CALIBRATIONS.to_row(calibration))

    async def judge_corrected(self, message_ids: Collection[MessageId], by: Collection[MessageId]) -> None:
        """Judge the answers to these messages that the team's messages `by` came after: the team corrected them."""
        if by:
            await self._judge_corrected(message_ids, max(map(parse_position, by)))

    @writes
    def _judge_corrected(self, db: Transaction, message_ids: Collection[MessageId], last: Position) -> None:
        rows = cast("list[tuple[str, str]]", db.rows(_PARTS_OF, (bare_id_array(message_ids),)))
        answered = {question: parse_position(part) for question, part in rows}
        for question, position in answered.items():
            if position < last:
                judge_answer(db, MessageId(question), "team", wrong=True, at=self.clock.now())


def read_judgements(db: Transaction, setup: str) -> tuple[Judgement, ...]:
    """Return the judgement of each answer that was made with a setup, oldest first."""
    rows = _JUDGEMENTS.all(db, f"{OURS} and setup = ? order by at, question_id", (setup,))
    best: dict[MessageId, Judgement] = {}
    for each in rows:
        known = best.get(each.question_id)
        if known is None or _ORDER[each.judge] < _ORDER[known.judge]:
            best[each.question_id] = each
    return tuple(sorted(best.values(), key=lambda each: (each.at, each.question_id)))


def read_calibration(db: Transaction) -> Calibration | None:
    """Return the calibration; None if there is none yet."""
    return _CALIBRATIONS.first(db, OURS)


def judge_answer(db: Transaction, question_id: MessageId, by: Judge, *, wrong: bool, at: datetime) -> None:
    """Judge the answer to a question, in the caller's own transaction, if an answer with a score is known."""
    trace = f"select debug from answers {OURS} and question_id = ? and reason = '' and debug is not null"
    traced = db.row(trace, (question_id,))
    scored = msgspec.json.decode(str(traced[0]), type=_TracedSteps).confidence if traced else None
    if scored is not None:
        given = Judgement(question_id=question_id, judge=by, setup=scored.setup, score=scored.score, wrong=wrong, at=at)
        db.run(_JUDGEMENTS.upsert("question_id", "judge"), _JUDGEMENTS.to_row(given))


def judge_deleted(db: Transaction, message_ids: Collection[MessageId], at: datetime) -> None:
    """Judge the answers whose parts are among these deleted messages, in the caller's own transaction."""
    for question in db.texts(_ANSWERED_BY, (bare_id_array(message_ids),)):
        judge_answer(db, MessageId(question), "deletion", wrong=True, at=at)


class _TracedScore(Struct, frozen=True):
    score: float
    setup: str


class _TracedSteps(Struct, frozen=True):
    confidence: _TracedScore | None = None


_PARTS_OF = (
    "select posts.question_id, post_parts.message_id from posts join post_parts using (community, question_id)"
    f" {OURS} and {GIVEN} and post_parts.message_id is not null and posts.question_id in"
    f" (select question_id from post_messages {OURS} and message_id {IN})"
)
_ANSWERED_BY = (
    "select distinct posts.question_id from posts join post_parts using (community, question_id)"
    f" {OURS} and {GIVEN} and post_parts.message_id {IN}"
)
