"""The classifier finds the topic of each archived pair, and the integrator files it there."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from anyio import CancelScope, EndOfStream, WouldBlock, get_cancelled_exc_class
from anyio.streams.memory import MemoryObjectReceiveStream as Receiver, MemoryObjectSendStream as Sender
from structlog.contextvars import bound_contextvars

from intern.actors import loops
from intern.actors.events import ActivityReporter
from intern.core.errors import InternError, KnowledgeError, ModelError, ModelUnavailableError
from intern.core.flow import (
    CaptureArchived,
    DecisionRecorded,
    FailedChoice,
    FilingDecision,
    MessageWithdrawal,
    SkipChoice,
    SourceChanged,
    TopicChoice,
)
from intern.core.ids import MessageId, QAId
from intern.core.log import failure_level, get_logger
from intern.core.records import CapturedPair, PairDecision
from intern.core.tasks import open_task_group
from intern.learning.classifying import AttemptCounter, AttemptsExhausted, count_attempt, describe_failure
from intern.learning.filing import MessageRemoval
from intern.learning.prompts import CLASSIFY
from intern.stores.sqlite.store import save_record

_log = get_logger(__name__)

Choose = Callable[[CapturedPair], Awaitable[TopicChoice | SkipChoice | FailedChoice]]
"""Returns the topic of a pair, or why there is none. Raises the ModelError and KnowledgeError families."""


@dataclass(frozen=True, kw_only=True)
class Classifier:
    """Follows the archive, and hands each pair to the integrator with its topic.

    An attempt on a pair is open from here until the integrator, given the same `attempts`, has its decision. A pair
    with MOST_ATTEMPTS open ones is given up.
    """

    archive: loops.Log[QAId, CapturedPair]
    after: QAId | None
    """The newest decided pair."""
    choose: Choose
    attempts: AttemptCounter
    events: ActivityReporter
    again: loops.DueLog[CapturedPair] | None = None
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


class PairFiler(Protocol):
    """Files pairs and withdraws messages, and records both."""

    async def file(self, filing: FilingDecision, /) -> PairDecision:
        """File the pair, and return the decision. It is on disk already.

        Raises ModelUnavailableError while the model is away, KnowledgeError if the disk fails. Then nothing is decided,
        and the same filing may come again.
        """
        ...

    async def withdraw(self, message_ids: Sequence[MessageId], /) -> MessageRemoval | None:
        """Withdraw these messages and take them out of topics; None if they were withdrawn before.

        No pair that is filed later holds them. Raises KnowledgeError.
        """


@dataclass(kw_only=True)
class Integrator:
    """Carries out filings and withdrawals.

    It skips no filing: the cursor would move past it, and no later start would retry it.
    """

    filer: PairFiler
    attempts: AttemptCounter
    """The attempts that the classifier began."""
    events: ActivityReporter
    backoff: loops.Backoff = loops.exponential_backoff

    async def run(
        self,
        inbox: Receiver[FilingDecision],
        gone: Receiver[MessageWithdrawal],
        changed: Sender[SourceChanged],
        done: Sender[DecisionRecorded],
    ) -> None:
        """Carry out each filing, in order, and each withdrawal, until both inboxes end.

        A withdrawal is saved at once, even during a model call or a regeneration, because Discord reports a deletion
        only once. Withdrawals that arrived before a cancellation are saved, too.
        """
        self._changed, self._decided = changed, done
        async with inbox, gone, changed, done, open_task_group() as tg:
            tg.start_soon(self._withdraw_messages, gone)
            async for filing in inbox:
                qa_id = filing.pair.qa_id
                async with forget_attempts_on_error(self.attempts, qa_id):
                    with bound_contextvars(qa_id=qa_id):
                        decision = await self._file_pair(filing)
                self.events.report_decision(decision)
                loops.wake(done, DecisionRecorded())
                loops.wake(changed, SourceChanged())

    async def _file_pair(self, filing: FilingDecision) -> PairDecision:
        qa_id = filing.pair.qa_id
        is_counted = True  # by the classifier

        async def act() -> PairDecision:
            nonlocal is_counted
            async with forget_attempts_on_error(self.attempts, qa_id, InternError):
                if not is_counted:
                    await self.attempts.begin(qa_id)
                is_counted = False
                return await self.filer.file(filing)

        def log_delay(error: InternError, pause: float) -> None:
            event = "llm_integration_failed" if isinstance(error, ModelError) else "filing_delayed"
            _log.log(failure_level(error), event, qa_id=qa_id, reason=str(error), again_in_seconds=pause)

        decision = await loops.retry(act, InternError, backoff=self.backoff(), delayed=log_delay)
        with loops.surviving("attempts", qa_id=qa_id):  # once: ending a parked pair twice would count two tries
            await self.attempts.end(decision, again=not isinstance(filing.choice, AttemptsExhausted))
        return decision

    async def _withdraw_messages(self, withdrawals: Receiver[MessageWithdrawal]) -> None:
        delayed = loops.make_delay_logger(_log, "withdrawal_delayed", level=logging.ERROR)
        try:
            async for withdrawal in withdrawals:
                act = partial(self._record_withdrawal, withdrawal)
                await loops.retry(act, KnowledgeError, backoff=self.backoff(), delayed=delayed)
        finally:
            with loops.surviving("integrator"), suppress(WouldBlock, EndOfStream):
                while True:
                    await self._record_withdrawal(withdrawals.receive_nowait())

    async def _record_withdrawal(self, withdrawal: MessageWithdrawal) -> None:
        cleared = None
        with CancelScope(shield=True):  # one transaction, so it is soon done
            if (cleared := await self.filer.withdraw(withdrawal.message_ids)) is not None:
                self.events.report_decision(cleared.decision)
                loops.wake(self._decided, DecisionRecorded())
                if cleared.topics:
                    loops.wake(self._changed, SourceChanged())
