"""An archive in memory, for an import that is only planned."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from msgspec import structs

from intern.core.captures import Capture, CapturedPair
from intern.core.ids import ConversationId, MessageId
from intern.stores.archive import Archive
from intern.stores.qa_ids import make_qa_id


class RehearsalArchive:
    """An archive in memory on top of the real one, which it only reads."""

    def __init__(self, archive: Archive) -> None:
        self._archive = archive
        self.newest: dict[ConversationId, CapturedPair] = {}
        """The newest pair of each conversation that gained something."""
        self._conversations: dict[MessageId, dict[ConversationId, None]] = {}
        self._serial = 0

    def append(self, capture: Capture) -> CapturedPair:
        """Keep a pair in memory."""
        self._serial += 1
        timestamp = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=self._serial)
        pair = CapturedPair(qa_id=make_qa_id(timestamp), timestamp=timestamp, **structs.asdict(capture))
        self.newest[pair.conversation_id] = pair
        for message_id in pair.message_ids:
            self._conversations.setdefault(message_id, {})[pair.conversation_id] = None
        return pair

    def latest_capture(self, conversation_id: ConversationId) -> CapturedPair | None:
        """Return the newest pair of a conversation, rehearsed or real."""
        return self.newest.get(conversation_id) or self._archive.latest_capture(conversation_id)

    def find_conversations(self, message_id: MessageId) -> tuple[ConversationId, ...]:
        """Return the conversations of a message, the real ones first."""
        rehearsed = self._conversations.get(message_id, {})
        return tuple(dict.fromkeys((*self._archive.find_conversations(message_id), *rehearsed)))
