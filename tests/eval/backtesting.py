"""A backtest of real chat: how fast it goes, what rules would have answered, and that its judge is hard to please."""

from __future__ import annotations

import time
from pathlib import Path
from random import Random
from typing import NamedTuple

from intern.lab.backtest import BacktestRequest, BacktestRun, prepare_backtest
from intern.lab.outcomes import AgreementThresholds, AnswerSimilarity, BacktestReport, measure_shared_words
from intern.settings.loading import load_settings
from tests.eval.chats import chat_lines, exchanges
from tests.eval.irc_export import export

UNRELATED_BAR = 0.99
_OTHERS = 8
"""Answers to other questions that each answer is held against."""


class Measured(NamedTuple):
    """The results of a backtest of the IRC logs."""

    done: BacktestReport
    cpu_seconds: float
    unrelated: int
    """Pairs of answers to different questions."""
    unlike: int
    """Of these, those that do not count as agreeing."""


async def measure(folder: Path) -> Measured:
    """All of it, by rules and words alone."""
    exported = export(folder)
    overrides = {
        "data": {"dir": str(folder / "data")},
        "llm": {"provider": "offline"},
        "embeddings": {"provider": "none"},
    }
    settings = load_settings(environ={}, overrides=overrides)
    begun = time.process_time()
    prepared = await prepare_backtest(
        settings, BacktestRequest(files=exported.files, team_ids=exported.team_ids, documents=False)
    )
    replay = BacktestRun(settings, prepared)
    await replay.run()
    cpu = time.process_time() - begun
    unrelated, unlike = _judged_by_words()
    return Measured(done=replay.report(), cpu_seconds=cpu, unrelated=unrelated, unlike=unlike)


def _judged_by_words() -> tuple[int, int]:
    lines = chat_lines()
    answers = [" ".join(lines[each].text for each in exchange.answer_ids) for exchange in exchanges()]
    answers = [answer for answer in answers if answer]
    random, bars = Random(1), AgreementThresholds()
    pairs = [
        (answers[one], answers[other])
        for one in range(len(answers))
        for other in random.sample(range(len(answers)), _OTHERS)
        if one != other
    ]
    likenesses = (AnswerSimilarity(words=measure_shared_words(one, other)) for one, other in pairs)
    return len(pairs), sum(likeness.agrees(bars) is not True for likeness in likenesses)
