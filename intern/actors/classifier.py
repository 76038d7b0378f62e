"""The classifier follows the archive and finds the topic of each pair, in order, however long the model takes."""

from __future__ import annotations

from contextlib import aclosing
from typing import Protocol

from anyio import sleep
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream

from intern.actors.nudges import Log, follow
from intern.actors.pauses import Pauses, growing_pauses
from intern.actors.witness import Witness
from intern.domain import Archived, CapturedPair, Failed, Filing, QAId, Skip, Topic
from intern.errors import KnowledgeError, ModelError, ModelUnavailableError
from intern.observe.log import get_logger

_log = get_logger(__name__)


class TopicChooser(Protocol):
    """Decides where a pair belongs."""

    async def choose_topic(self, pair: CapturedPair, /) -> Topic | Skip | Failed:
        """The topic, or the reason why there is none. Raises the ModelError and KnowledgeError families."""
        ...


async def classifier(
    archive: Log[CapturedPair, QAId],
    nudges: MemoryObjectReceiveStream[Archived],
    filings: MemoryObjectSendStream[Filing],
    *,
    after: QAId | None,
    chooser: TopicChooser,
    witness: Witness,
    pauses: Pauses = growing_pauses,
) -> None:
    """File each pair after `after`, in order, until the nudges end; then let the integrator finish too."""
    followed = follow(archive, nudges, after=after, position_of=lambda pair: pair.qa_id)
    async with nudges, filings, aclosing(followed) as pairs:
        async for pair in pairs:
            filing = Filing(pair=pair, choice=await _choice(pair, chooser, pauses))
            witness.classified(filing)
            await filings.send(filing)


async def _choice(pair: CapturedPair, chooser: TopicChooser, pauses: Pauses) -> Topic | Skip | Failed:
    for pause in pauses():
        try:
            return await chooser.choose_topic(pair)
        except ModelUnavailableError as error:
            # Whoever comes behind would meet the same closed door; the archive holds them all until it opens.
            _log.warning("llm_classification_failed", qa_id=pair.qa_id, reason=str(error), again_in_seconds=pause)
            await sleep(pause)
        except (ModelError, KnowledgeError) as error:
            return Failed(reason=str(error))
    raise AssertionError("the pauses never end")
