"""The actor that files each classified pair under its topic."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from anyio import CancelScope, EndOfStream, WouldBlock
from anyio.streams.memory import MemoryObjectReceiveStream as Receiver, MemoryObjectSendStream as Sender
from structlog.contextvars import bound_contextvars

from intern.actors import loops
from intern.actors.activity import ActivityReporter
from intern.actors.classifier import forget_attempts_on_error
from intern.core.decisions import PairDecision
from intern.core.errors import InternError, KnowledgeError, ModelError
from intern.core.flow import DecisionRecorded, FilingDecision, MessageWithdrawal, SourceChanged
from intern.core.ids import MessageId
from intern.core.log import failure_level, get_logger
from intern.core.tasks import open_task_group
from intern.learning.attempts import AttemptCounter, AttemptsExhausted
from intern.learning.withdrawing import MessageRemoval

_log = get_logger(__name__)


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
