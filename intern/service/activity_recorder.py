"""The actors' work, counted by day in the database."""

from __future__ import annotations

from typing import Final

from intern.actors.activity import ActivityCounters
from intern.core.flow import DeclineReason
from intern.core.messages import SILENCES, AnswerResult
from intern.facts.extraction import ExtractionOutcome
from intern.stores.tables.daily_counts import DailyCounts

ASKED: Final = ("questions_answered", "questions_silent", "messages_without_question")
"""The counters of messages that members asked, or might have asked."""


class ActivityRecorder(ActivityCounters):
    """Counts events by name and day."""

    def __init__(self, counts: DailyCounts) -> None:
        self._counts = counts

    def count_answer(self, result: AnswerResult, /) -> None:
        """Count a question that was answered or met with silence."""
        silent = "messages_without_question" if result.reason == "not_a_question" else "questions_silent"
        self._counts.add("questions_answered" if result.should_reply else silent)

    def count_decline(self, reason: DeclineReason, /) -> None:
        """Count a question that was declined."""
        self._counts.add(f"questions_{SILENCES[reason].counter}")

    def count_extraction(self, outcome: ExtractionOutcome, /) -> None:
        """Count a conversation that was read."""
        if outcome in {"extracted", "failed"}:
            self._counts.add(f"extractions_{outcome}")
