"""The actors' work, counted by day and question in the database."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from intern.actors.activity import ActivityCounters
from intern.answering.answer_trace import list_steps
from intern.answering.triage import is_chatter
from intern.core.flow import AnswerRequest, DeclineReason
from intern.core.messages import SILENCES, AnswerResult
from intern.facts.extraction import ExtractionOutcome
from intern.stores.tables.daily_counts import DailyCounts
from intern.stores.tables.questions import NOT_ASKED, QuestionStore

ASKED: Final = ("questions_answered", "questions_silent", "messages_without_question")
"""The counters of messages that members asked, or might have asked."""


class ActivityRecorder(ActivityCounters):
    """Counts events by name and day, and stores the words of questions, but not of chatter."""

    def __init__(self, counts: DailyCounts, questions: QuestionStore) -> None:
        self._counts, self._questions = counts, questions

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

    def count_question(self, request: AnswerRequest, reason: str, debug: Mapping[str, Any], /) -> None:
        """Store the words of a question, but not of chatter."""
        messages, steps, seconds = request.batch.messages, list_steps(debug), debug.get("seconds", 0.0)
        if reason == NOT_ASKED and (not request.called or is_chatter("\n".join(each.text for each in messages))):
            return
        tokens, cost = (sum(step.get(name, 0) for step in steps) for name in ("tokens", "cost"))
        # The wait of its author, including the pause that shows that the question is complete.
        seconds = max(seconds, (self._questions.clock.now() - messages[-1].at).total_seconds())
        self._questions.add(messages, reason, request.channel, seconds=seconds, tokens=tokens, cost=cost)
