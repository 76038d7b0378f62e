"""The classifier follows the archive and finds the topic of each pair, in order, however long the model takes."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager

from anyio import CancelScope, get_cancelled_exc_class, sleep
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from structlog.contextvars import bound_contextvars

from intern.actors.events import Events
from intern.actors.guard import Backoff, exponential_backoff, surviving
from intern.actors.wakeups import DueLog, Log, follow, patient
from intern.core.errors import InternError, ModelError, ModelUnavailableError
from intern.core.flow import Archived, Failed, Filing, Skip, Topic
from intern.core.ids import QAId
from intern.core.log import get_logger
from intern.core.records import CapturedPair
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
