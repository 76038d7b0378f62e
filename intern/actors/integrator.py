"""The integrator is the only writer of topic files and decisions."""

from __future__ import annotations

from typing import Protocol

from anyio import sleep
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream

from intern.actors.guard import surviving
from intern.actors.nudges import nudge
from intern.actors.pauses import Pauses, growing_pauses
from intern.actors.witness import Witness
from intern.domain import Decision, Filing, SourceChanged
from intern.errors import ModelUnavailableError
from intern.observe.log import get_logger

_log = get_logger(__name__)


class Filer(Protocol):
    """Puts a pair where it belongs, and records what was done."""

    async def file(self, filing: Filing, /) -> Decision:
        """What was done, on disk already. Raises ModelUnavailableError while the model is away."""
        ...


async def integrator(
    inbox: MemoryObjectReceiveStream[Filing],
    changed: MemoryObjectSendStream[SourceChanged],
    *,
    filer: Filer,
    witness: Witness,
    pauses: Pauses = growing_pauses,
) -> None:
    """Carry out each filing, in order, until the inbox ends."""
    async with inbox, changed:
        async for filing in inbox:
            with surviving("integrator", qa_id=filing.pair.qa_id):
                witness.decided(await _file(filing, filer, pauses))
                nudge(changed, SourceChanged())


async def _file(filing: Filing, filer: Filer, pauses: Pauses) -> Decision:
    for pause in pauses():
        try:
            return await filer.file(filing)
        except ModelUnavailableError as error:
            _log.warning("llm_integration_failed", qa_id=filing.pair.qa_id, reason=str(error), again_in_seconds=pause)
            await sleep(pause)
    raise AssertionError("the pauses never end")
