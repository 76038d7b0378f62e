"""Collaborators of actors that record calls."""

from __future__ import annotations

from intern.core.decisions import PairDecision
from intern.core.ids import QAId


class Uncounted:
    """Attempts that are not counted."""

    async def begin(self, qa_id: QAId, /) -> int:
        return 1

    async def clear(self, qa_id: QAId, /) -> None: ...

    async def end(self, decision: PairDecision, /, *, again: bool = True) -> None: ...


UNCOUNTED = Uncounted()
