"""The integrator is the only writer of topic files and decisions."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Protocol

from anyio import CancelScope, EndOfStream, WouldBlock, create_memory_object_stream, create_task_group, sleep
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from structlog.contextvars import bound_contextvars

from intern.actors.classifier import forget_attempts, forgotten_when_cancelled
from intern.actors.events import Events
from intern.actors.guard import Backoff, exponential_backoff, persistently, surviving
from intern.actors.wakeups import wake
from intern.core.errors import InternError, KnowledgeError, ModelError
from intern.core.flow import Decided, Filing, SourceChanged, Withdrawal
from intern.core.ids import MessageId, TopicName
from intern.core.log import get_logger
from intern.core.records import Decision, PairDecision
from intern.learning.attempts import Attempts
from intern.learning.classifying import GivenUp

_log = get_logger(__name__)


class Filer(Protocol):
    """Puts a pair where it belongs, and records what was done."""

    async def file(self, filing: Filing, /) -> PairDecision:
        """What was done, on disk already.

        Raises ModelUnavailableError while the model is away, KnowledgeError where the disk fails; nothing is decided
        then, and the same filing may come again.
        """
        ...

    async def withdraw(self, message_ids: Sequence[MessageId], /) -> Decision | None:
        """Write down that messages teach nothing any more; None where that is known. Soon done; raises KnowledgeError.

        Nothing that is filed afterwards holds them.
        """
        ...

    async def clear_withdrawn(self) -> Sequence[TopicName]:
        """Take what was withdrawn out of the topics, and say which changed. May wait long; raises KnowledgeError."""
        ...


async def integrator(
    inbox: MemoryObjectReceiveStream[Filing],
    withdrawals: MemoryObjectReceiveStream[Withdrawal],
    changed: MemoryObjectSendStream[SourceChanged],
    decided: MemoryObjectSendStream[Decided],
    *,
    filer: Filer,
    events: Events,
    attempts: Attempts,
    backoff: Backoff = exponential_backoff,
) -> None:
    """Carry out each filing, in order, and each withdrawal, until both inboxes end.

    No filing is passed over: the cursor would pass it, too, and nobody would look for it again. `attempts` are those
    that the classifier began.

    A withdrawal is written down at once, whatever a model or a regeneration is busy with, for Discord tells of a
    deletion only once. Those that came before a cancellation are, too.
    """
    withdrawn, to_clear = create_memory_object_stream[None](1)
    wake(withdrawn, None)  # a killed run may have left something undone
    async with inbox, withdrawals, changed, decided, withdrawn, to_clear, create_task_group() as tg:
        tg.start_soon(
            partial(_write_down, withdrawals, withdrawn, decided, filer=filer, events=events, backoff=backoff)
        )
        tg.start_soon(partial(_clear, to_clear, changed, filer, backoff))
        async for filing in inbox:
            qa_id = filing.pair.qa_id
            async with forgotten_when_cancelled(attempts, qa_id):
                with bound_contextvars(qa_id=qa_id):
                    decision = await _file(filing, filer, attempts, backoff)
            events.decided(decision)
            wake(decided, Decided())
            wake(changed, SourceChanged())


async def _file(filing: Filing, filer: Filer, attempts: Attempts, backoff: Backoff) -> PairDecision:
    qa_id = filing.pair.qa_id
    is_counted, waits = True, backoff()  # counted by the classifier
    while True:
        try:
            if not is_counted:
                await attempts.begin(qa_id)
                is_counted = True
            decision = await filer.file(filing)
        except InternError as error:
            event = "llm_integration_failed" if isinstance(error, ModelError) else "filing_delayed"
            pause = next(waits)
            _log.warning(event, qa_id=qa_id, reason=str(error), again_in_seconds=pause)
            await forget_attempts(attempts, qa_id)
            is_counted = False
            await sleep(pause)
        else:
            with surviving("attempts", qa_id=qa_id):
                await attempts.end(decision, again=not isinstance(filing.choice, GivenUp))
            return decision


async def _write_down(
    withdrawals: MemoryObjectReceiveStream[Withdrawal],
    withdrawn: MemoryObjectSendStream[None],
    decided: MemoryObjectSendStream[Decided],
    *,
    filer: Filer,
    events: Events,
    backoff: Backoff,
) -> None:
    async def note(withdrawal: Withdrawal) -> None:
        with CancelScope(shield=True):  # an append, so it is soon done
            if (decision := await filer.withdraw(withdrawal.message_ids)) is not None:
                events.decided(decision)
                wake(withdrawn, None)
                wake(decided, Decided())

    with withdrawn:
        try:
            async for withdrawal in withdrawals:
                await persistently(partial(note, withdrawal), KnowledgeError, backoff=backoff(), delayed=_delayed)
        finally:
            with surviving("integrator"), suppress(WouldBlock, EndOfStream):
                while True:
                    await note(withdrawals.receive_nowait())


async def _clear(
    to_clear: MemoryObjectReceiveStream[None],
    changed: MemoryObjectSendStream[SourceChanged],
    filer: Filer,
    backoff: Backoff,
) -> None:
    async for _ in to_clear:
        if await persistently(filer.clear_withdrawn, KnowledgeError, backoff=backoff(), delayed=_delayed):
            wake(changed, SourceChanged())


def _delayed(error: InternError, pause: float) -> None:
    _log.error("withdrawal_delayed", reason=str(error), again_in_seconds=pause)
