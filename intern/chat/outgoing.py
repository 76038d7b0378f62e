"""Replies between the model and Discord, for as long as they can still be taken back."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal

from anyio import Event

from intern.core.flow import AnswerRequest
from intern.core.ids import MessageId

TakenBack = Literal["superseded", "withdrawn"]


@dataclass
class _Entry:
    request: AnswerRequest
    gone: bool = False
    taken: TakenBack | None = None
    told: Event = field(default_factory=Event)


class Outgoing:
    """Whoever leaves or takes back first wins: nothing is both posted and asked anew.

    For one event loop: no method but `hold` and `resumed` waits, so nothing comes between a look and what follows.
    """

    def __init__(self) -> None:
        self._entries: dict[MessageId, _Entry] = {}
        self._closed = False
        self._resuming: Event | None = None

    @contextmanager
    def resuming(self) -> Generator[None]:
        """Meanwhile, what an earlier process left half posted is finished; nobody can take that back."""
        over = self._resuming = Event()
        try:
            yield
        finally:
            self._resuming = None
            over.set()

    async def resumed(self) -> None:
        """Until nothing more is finished of what an earlier process left."""
        if self._resuming is not None:
            await self._resuming.wait()

    def hand_over(self, request: AnswerRequest) -> None:
        """The reply to this question is on its way. Followed by `done`, whatever becomes of it."""
        self._entries[request.batch.last.id] = _Entry(request)

    def take_back(self, reason: TakenBack, wanted: Callable[[AnswerRequest], bool]) -> tuple[AnswerRequest, ...]:
        """The questions that are `wanted` and whose reply has not left; it will not leave any more."""
        taken = [e for e in self._entries.values() if not e.gone and e.taken is None and wanted(e.request)]
        for entry in taken:
            entry.taken = reason
            entry.told.set()
        return tuple(entry.request for entry in taken)

    def taken_back(self, question_id: MessageId) -> TakenBack | None:
        """Why a reply must not leave any more; None where it may."""
        entry = self._entries.get(question_id)
        return entry.taken if entry else None

    def leave(self, question_id: MessageId) -> bool:
        """Right before Discord first hears of a reply: true where it may leave, and then nobody takes it back."""
        entry = self._entries.get(question_id)
        if entry and entry.taken is None:
            entry.gone = True
        return entry is None or entry.gone

    async def hold(self, question_id: MessageId) -> None:
        """Until the reply is taken back, or nobody will take back anything any more."""
        entry = self._entries.get(question_id)
        if entry and not self._closed:
            await entry.told.wait()

    def done(self, question_id: MessageId) -> None:
        """Nothing more will happen to the reply."""
        self._entries.pop(question_id, None)

    def close(self) -> None:
        """Nobody will take back anything any more: there is nothing to hold a reply for."""
        self._closed = True
        for entry in self._entries.values():
            entry.told.set()
