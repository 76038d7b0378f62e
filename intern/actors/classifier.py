"""The classifier follows the archive and finds the topic of each pair, in order, however long the model takes."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager

from anyio import CancelScope, get_cancelled_exc_class, sleep
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from structlog.contextvars import bound_contextvars

from intern.actors.events import Witness
from intern.actors.guard import Pauses, growing_pauses, surviving
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
    nudges: MemoryObjectReceiveStream[Archived],
    filings: MemoryObjectSendStream[Filing],
    *,
    after: QAId | None,
    choose: Choose,
    witness: Witness,
    again: DueLog[CapturedPair] | None = None,
    settles_in: Callable[[CapturedPair], float] = lambda _: 0.0,
    attempts: Attempts,
    pauses: Pauses = growing_pauses,
) -> None:
    """File each pair after `after`, in order, until the nudges end; then let the integrator finish too.

    A pair `settles_in` some seconds, for its conversation may go on; until then it waits, with all behind it.
    In between, those that are due `again`: approved, or parked a while ago.

    An attempt on a pair is open from here until the integrator, given the same `attempts`, has its decision. A pair
    with MOST_ATTEMPTS open ones is given up.
    """
    followed = follow(
        archive,
        nudges,
        after=after,
        position_of=lambda pair: pair.qa_id,
        again=patient(again, "retries_delayed") if again else None,
        settles_in=settles_in,
    )
    async with nudges, filings, aclosing(followed) as pairs:
        given_up = False
        async for pair in pairs:
            if given_up:
                # It was in work beside that one whenever the process ended, and is not to blame for it.
                await forget_attempts(attempts, pair.qa_id)
            async with forgotten_when_cancelled(attempts, pair.qa_id):
                with bound_contextvars(qa_id=pair.qa_id):  # for the calls of the model, which know of no pair
                    filing = Filing(pair=pair, choice=await _choice(pair, choose, attempts, pauses))
                given_up = isinstance(filing.choice, GivenUp)
                witness.classified(filing)
                await filings.send(filing)


async def _choice(pair: CapturedPair, choose: Choose, attempts: Attempts, pauses: Pauses) -> Topic | Skip | Failed:
    waits = pauses()
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
            # Whoever comes behind would meet the same closed door; the archive holds them all until it opens.
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
