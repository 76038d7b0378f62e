"""Events of the actors' work, for the log and for observers: `intern try` shows them in the margin."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

from intern.core.captures import CapturedPair
from intern.core.decisions import Decision
from intern.core.flow import AnswerRequest, Batch, DeclineReason, FilingDecision, QuestionDeclined, Reply
from intern.core.ids import ChannelId, ConversationId, MessageId
from intern.core.log import get_logger
from intern.core.messages import AnswerResult
from intern.facts.extraction import ExtractionOutcome
from intern.sources.refresh import RefreshReport

_log = get_logger("intern.actors")


class ActivityCounters:
    """Counters of the actors' work, which neither wait nor raise: for a monitoring system, or in the database.

    A subclass counts what it wants to.
    """

    def count_answer(self, result: AnswerResult, /) -> None:
        """Count a question that was answered or met with silence."""

    def count_decline(self, reason: DeclineReason, /) -> None:
        """Count a question that was declined."""

    def count_post(self, outcome: str, /) -> None:
        """Count a reply that was posted, withheld or failed."""

    def count_capture(self, pair: CapturedPair, /) -> None:
        """Count a team answer in the archive."""

    def count_decision(self, decision: Decision, /) -> None:
        """Count a decision about a capture."""

    def count_extraction(self, outcome: ExtractionOutcome, /) -> None:
        """Count a conversation that was read for nuggets and facts."""


class ActivityReporter:
    """Logs the actors' work, with ids rather than text, and hands it to the counters that subscribed.

    A subclass may observe it too; it must neither wait nor raise.
    """

    def __init__(self, *counters: ActivityCounters) -> None:
        self._counters = counters

    @contextmanager
    def subscribe(self, *counters: ActivityCounters) -> Generator[None]:
        """Let these count the work, too, until the block is left."""
        before = self._counters
        self._counters = (*before, *counters)
        try:
            yield
        finally:
            self._counters = before

    def report_ignored_batch(self, batch: Batch) -> None:
        """Report a batch that concerns no actor."""
        _log.debug("batch_ignored", channel_id=batch.channel_id, message_id=batch.last.id)

    def report_answer(self, request: AnswerRequest, result: AnswerResult) -> None:  # noqa: ARG002 subclasses show it
        """Report the answer to a question, or silence with a reason."""
        self.report_private_answer(result)

    def report_private_answer(self, result: AnswerResult) -> None:
        """Report the answer to a question that only its asker sees, as with `/ask`: its words are never kept."""
        for each in self._counters:
            each.count_answer(result)

    def report_decline(self, declined: QuestionDeclined) -> None:
        """Report a declined question: too many wait already, a limit is reached, or it is too old or spoken."""
        batch = declined.request.batch
        self.report_private_decline(declined.reason)
        _log.warning("question_declined", channel_id=batch.channel_id, message_id=batch.last.id, reason=declined.reason)

    def report_no_reply(self, request: AnswerRequest) -> None:
        """Report that no reply follows, after the question was answered with silence or declined."""

    def report_private_decline(self, reason: DeclineReason) -> None:
        """Report a declined question that only its asker sees, as with `/ask`."""
        for each in self._counters:
            each.count_decline(reason)

    def report_post(self, reply: Reply, outcome: str) -> None:
        """Report that a reply was posted, or withheld for a reason, or failed until the next start."""
        self.report_resumed_post(reply.question.id, reply.question.channel_id, outcome)

    def report_resumed_post(self, question_id: MessageId, channel_id: ChannelId, outcome: str) -> None:
        """Report the outcome of a reply that an earlier run left half posted."""
        for each in self._counters:
            each.count_post(outcome)
        _log.info("reply_posted", message_id=question_id, channel_id=channel_id, outcome=outcome)

    def report_capture(self, pair: CapturedPair) -> None:
        """Report a team answer that is safe in the archive."""
        for each in self._counters:
            each.count_capture(pair)
        _log.info("qa_pair_captured", qa_id=pair.qa_id, conversation_id=pair.conversation_id, turns=len(pair.turns))

    def report_classification(self, filing: FilingDecision) -> None:
        """Report that a pair has a topic or is skipped, or that classifying it failed."""

    def report_decision(self, decision: Decision) -> None:
        """Report a decision about a pair. It is on disk already."""
        for each in self._counters:
            each.count_decision(decision)

    def report_extraction(self, conversation_id: ConversationId, came: ExtractionOutcome) -> None:
        """Report that a conversation was read for nuggets and facts."""
        for each in self._counters:
            each.count_extraction(came)
        _log.debug("conversation_looked_at", conversation_id=conversation_id, came=came)

    def report_index_refresh(self, refreshed: RefreshReport) -> None:
        """Report that the indices are up to date again."""
