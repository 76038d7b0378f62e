"""The classifier finds the topic of each archived pair, and the integrator files it: the only writer of topics."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from functools import partial
from typing import Protocol

from anyio import (
    CancelScope,
    EndOfStream,
    WouldBlock,
    create_memory_object_stream,
    create_task_group,
    get_cancelled_exc_class,
    sleep,
)
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from structlog.contextvars import bound_contextvars

from intern.actors.events import Events
from intern.actors.loops import (
    Backoff,
    DueLog,
    Log,
    exponential_backoff,
    follow,
    patient,
    persistently,
    surviving,
    wake,
)
from intern.core.errors import InternError, KnowledgeError, ModelError, ModelUnavailableError
from intern.core.flow import Archived, Decided, Failed, Filing, Skip, SourceChanged, Topic, Withdrawal
from intern.core.ids import MessageId, QAId, TopicName
from intern.core.log import get_logger
from intern.core.records import CapturedPair, Decision, PairDecision
from intern.learning.attempts import Attempts, begun
from intern.learning.classifying import GivenUp, failed
from intern.learning.prompts import CLASSIFY

_log = get_logger(__name__)

Choose = Callable[[CapturedPair], Awaitable[Topic | Skip | Failed]]
"""Returns the topic of a pair, or why there is none. Raises the ModelError and KnowledgeError families."""


async def classifier(
    archive: Log[QAId, CapturedPair],
    wakeups: MemoryObjectReceiveStream[Archived],
    filings: MemoryObjectSendStream[Filing],
    *,
    after: QAId | None,
    choose: Choose,
    events: Events,
    again: DueLog[CapturedPair] | None = None,
    settles_in: Callable[[CapturedPair], float] = lambda _: 0.0,
    attempts: Attempts,
    backoff: Backoff = exponential_backoff,
) -> None:
    """File each pair after `after`, in order, until the wakeups end; then let the integrator finish too.

    A pair `settles_in` some seconds, for its conversation may go on; until then it waits, with all behind it.
    In between, those that are due `again`: approved, or parked a while ago.

    An attempt on a pair is open from here until the integrator, given the same `attempts`, has its decision. A pair
    with MOST_ATTEMPTS open ones is given up.
    """
    followed = follow(
        archive,
        wakeups,
        after=after,
        position_of=lambda pair: pair.qa_id,
        again=patient(again, "retries_delayed") if again else None,
        settles_in=settles_in,
    )
    async with wakeups, filings, aclosing(followed) as pairs:
        given_up = False
        async for pair in pairs:
            if given_up:
                # It was in work beside that one whenever the process ended, and is not to blame for it.
                await forget_attempts(attempts, pair.qa_id)
            async with forgotten_when_cancelled(attempts, pair.qa_id):
                with bound_contextvars(qa_id=pair.qa_id):  # for the calls of the model, which know of no pair
                    filing = Filing(pair=pair, choice=await _choice(pair, choose, attempts, backoff))
                given_up = isinstance(filing.choice, GivenUp)
                events.classified(filing)
                await filings.send(filing)


async def _choice(pair: CapturedPair, choose: Choose, attempts: Attempts, backoff: Backoff) -> Topic | Skip | Failed:
    waits = backoff()
    while True:
        try:
            return await begun(attempts, pair.qa_id) or await choose(pair)
        except InternError as error:
            if isinstance(error, ModelError) and not isinstance(error, ModelUnavailableError):
                _log.warning("llm_classification_failed", qa_id=pair.qa_id, reason=str(error))
                return failed(CLASSIFY.name, error)
            pause = next(waits)
            event = "llm_classification_failed" if isinstance(error, ModelError) else "classification_delayed"
            _log.warning(event, qa_id=pair.qa_id, reason=str(error), again_in_seconds=pause)
            # The pairs behind would fail in the same way; the archive holds them all until it works again.
            await forget_attempts(attempts, pair.qa_id)
            await sleep(pause)


async def forget_attempts(attempts: Attempts, qa_id: QAId) -> None:
    """Work on a pair came to an end that was no crash."""
    with surviving("attempts", qa_id=qa_id):
        await attempts.clear(qa_id)


@asynccontextmanager
async def forgotten_when_cancelled(attempts: Attempts, qa_id: QAId) -> AsyncGenerator[None]:
    """A calm shutdown in the midst of a pair is no fault of the pair."""
    try:
        yield
    except get_cancelled_exc_class():
        with CancelScope(shield=True):
            await forget_attempts(attempts, qa_id)
        raise


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
