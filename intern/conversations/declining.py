"""Questions that nobody works on: each is accounted for, and who called the bot is told why, though not at every turn.

What is said costs no model. One member is told a thing once in a while, or who asks too much would make us a nuisance.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from types import MappingProxyType
from typing import Final, Protocol

from intern.conversations.replying import Wording, notice
from intern.domain import ChannelId, Declined, DeclineReason, MessageId, Reply, UserId
from intern.errors import KnowledgeError
from intern.observe.clock import Clock
from intern.observe.log import get_logger

_log = get_logger(__name__)

# How long what was said to a member holds for all that they ask. A full house empties soon, and who asks again then is
# owed a new word.
_TOLD_FOR: Final[Mapping[DeclineReason, timedelta]] = MappingProxyType(
    {"asked too much": timedelta(hours=1), "too old": timedelta(hours=1), "shed": timedelta(minutes=1)}
)


class Traces(Protocol):
    """Remembers what became of questions; see `intern.knowledge.traces`."""

    async def keep(
        self, message_ids: Sequence[MessageId], channel_id: ChannelId, /, *, outcome: str, reason: str = ""
    ) -> None:
        """Keep what became of a question, whose id is the last of `message_ids`. Raises KnowledgeError."""
        ...


class Declining:
    """Says no. Remembers whom it told what, for as long as that holds."""

    def __init__(self, wording: Wording, *, traces: Traces, clock: Clock) -> None:
        self._texts: Mapping[DeclineReason, str] = {
            "asked too much": wording.limit,
            "too old": wording.late,
            "shed": wording.busy,
        }
        self._traces = traces
        self._clock = clock
        self._told: dict[DeclineReason, OrderedDict[UserId, datetime]] = {each: OrderedDict() for each in self._texts}

    async def account_for(self, declined: Declined) -> None:
        """Keep why there is no answer, for whoever asks later."""
        batch = declined.request.batch
        try:
            await self._traces.keep(
                [message.id for message in batch.messages],
                batch.channel_id,
                outcome="shed" if declined.reason == "shed" else "passed over",
                reason=declined.reason,
            )
        except KnowledgeError as error:  # an account that is missing changes nothing for anybody
            _log.warning("trace_not_kept", message_id=batch.last.id, reason=str(error))

    def word(self, declined: Declined) -> Reply | None:
        """What to say, counted as said; None to who did not call the bot, or was told before."""
        if not declined.request.called or self._told_before(declined.reason, declined.request.batch.author.id):
            return None
        return notice(declined.request, self._texts[declined.reason])

    def _told_before(self, reason: DeclineReason, user_id: UserId) -> bool:
        told, now = self._told[reason], self._clock.now()
        # In the order of telling, so that what holds no longer stands in front. The clock may have been put back.
        while told and not abs(now - next(iter(told.values()))) < _TOLD_FOR[reason]:
            told.popitem(last=False)
        if user_id in told:
            return True
        told[user_id] = now
        return False
