"""The actor that finds the topic of each archived pair."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from functools import partial

from anyio import CancelScope, get_cancelled_exc_class
from anyio.streams.memory import MemoryObjectReceiveStream as Receiver, MemoryObjectSendStream as Sender
from structlog.contextvars import bound_contextvars

from intern.actors import loops
from intern.actors.activity import ActivityReporter
from intern.core.captures import CapturedPair
from intern.core.errors import InternError, ModelError, ModelUnavailableError
from intern.core.flow import CaptureArchived, FailedChoice, FilingDecision, SkipChoice, TopicChoice
from intern.core.ids import QAId
from intern.core.log import get_logger
from intern.learning.attempts import AttemptCounter, AttemptsExhausted, count_attempt
from intern.learning.classifying import describe_failure
from intern.learning.prompts import CLASSIFY
from intern.stores.tables.store import save_record

_log = get_logger(__name__)

Choose = Callable[[CapturedPair], Awaitable[TopicChoice | SkipChoice | FailedChoice]]
"""Returns the topic of a pair, or why there is none. Raises the ModelError and KnowledgeError families."""


@dataclass(frozen=True, kw_only=True)
class Classifier:
    """Follows the archive, and hands each pair to the integrator with its topic.

    An attempt on a pair is open from here until the integrator, given the same `attempts`, has its decision. A pair
    with MOST_ATTEMPTS open ones is given up.
    """

    archive: loops.ReadAfter[QAId, CapturedPair]
    after: QAId | None
    """The newest decided pair."""
    choose: Choose
    attempts: AttemptCounter
    events: ActivityReporter
    again: loops.FindNextDue[CapturedPair] | None = None
    """Returns older pairs that are due: approved, or parked a while ago."""
    backoff: loops.Backoff = loops.exponential_backoff

    async def run(self, wakeups: Receiver[CaptureArchived], filings: Sender[FilingDecision]) -> None:
        """Classify each pair behind `after`, in order, until the wakeups end; then let the integrator finish too."""
        followed = loops.follow(
            self.archive,
            wakeups,
            after=self.after,
            position_of=lambda pair: pair.qa_id,
            again=loops.tolerate_read_errors(self.again, "retries_delayed") if self.again else None,
        )
        async with wakeups, filings, aclosing(followed) as pairs:
            given_up = False
            async for pair in pairs:
                if given_up:
                    # This pair was in work beside that one, so each crash also hit it.
                    await forget_attempts(self.attempts, pair.qa_id)
                async with forget_attempts_on_error(self.attempts, pair.qa_id):
                    with bound_contextvars(qa_id=pair.qa_id):  # for the log of model calls, which know no pair
                        filing = FilingDecision(pair=pair, choice=await self._choose_topic(pair))
                    given_up = isinstance(filing.choice, AttemptsExhausted)
                    self.events.report_classification(filing)
                    await filings.send(filing)

    async def _choose_topic(self, pair: CapturedPair) -> TopicChoice | SkipChoice | FailedChoice:
        async def act() -> TopicChoice | SkipChoice | FailedChoice:
            # The next pairs would fail in the same way; the archive holds them all until it works again.
            async with forget_attempts_on_error(self.attempts, pair.qa_id, InternError):
                try:
                    return await count_attempt(self.attempts, pair.qa_id) or await self.choose(pair)
                except ModelUnavailableError:
                    raise
                except ModelError as error:
                    _log.warning("llm_classification_failed", qa_id=pair.qa_id, reason=str(error))
                    return describe_failure(CLASSIFY.name, error)

        def log_delay(error: InternError, pause: float) -> None:
            event = "llm_classification_failed" if isinstance(error, ModelError) else "classification_delayed"
            _log.warning(event, qa_id=pair.qa_id, reason=str(error), again_in_seconds=pause)

        return await loops.retry(act, InternError, backoff=self.backoff(), delayed=log_delay)


async def forget_attempts(attempts: AttemptCounter, qa_id: QAId) -> None:
    """Note that the work on a pair ended without a crash."""
    await save_record(partial(attempts.clear, qa_id), qa_id=qa_id)


@asynccontextmanager
async def forget_attempts_on_error(
    attempts: AttemptCounter, qa_id: QAId, *errors: type[InternError]
) -> AsyncGenerator[None]:
    """Forget the attempts if the block is cancelled or fails with one of `errors`: the pair did not cause that."""
    try:
        yield
    except (*errors, get_cancelled_exc_class()):
        with CancelScope(shield=True):
            await forget_attempts(attempts, qa_id)
        raise
