"""Putting a capture into the archive: joined with what its conversation held before, and with secrets masked."""

from __future__ import annotations

from typing import Protocol

from anyio import Lock
from anyio.to_thread import run_sync
from msgspec import structs

from intern.domain import Capture, CapturedPair, ConversationId, MessageId, Turn, by_age
from intern.observe.log import get_logger
from intern.text.masking import mask_secrets

_log = get_logger(__name__)


class Archive(Protocol):
    """The archive of all captures; see `intern.knowledge.archive`."""

    def append(self, capture: Capture, /) -> CapturedPair:
        """The pair, safe on disk."""
        ...

    def latest_of(self, conversation_id: ConversationId, /) -> CapturedPair | None:
        """The newest pair of a conversation."""
        ...

    def conversation_of(self, message_id: MessageId, /) -> ConversationId | None:
        """The conversation that a message was captured in."""
        ...


class Archivist:
    """The one writer of the archive in this process."""

    def __init__(self, archive: Archive, *, mask: bool) -> None:
        self._archive = archive
        self._mask = mask
        self._writing = Lock()

    async def keep(self, capture: Capture) -> CapturedPair | None:
        """The archived pair, or None where the archive holds all of it already. Raises KnowledgeError.

        A message that was captured before keeps its conversation, so a reply chain that grows stays one conversation.
        The pair holds the union of all captured messages of its conversation, in time order.
        """
        async with self._writing:
            return await run_sync(self._keep, capture)

    def _keep(self, capture: Capture) -> CapturedPair | None:
        if self._mask:
            capture = _masked(capture)
        home = next(filter(None, map(self._archive.conversation_of, capture.message_ids)), capture.conversation_id)
        before = self._archive.latest_of(home)
        if before is None:
            return self._archive.append(structs.replace(capture, conversation_id=home))
        joined = _union(before, capture)
        if joined.message_ids == before.message_ids and joined.turns == before.turns:
            return None
        return self._archive.append(joined)


def _union(before: CapturedPair, capture: Capture) -> Capture:
    # Turns and ids run side by side in all that we wrote; where an archive from elsewhere differs, the newer wins.
    aligned = len(before.turns) == len(before.message_ids)
    known = dict(zip(before.message_ids, before.turns, strict=True)) if aligned else {}
    known.update(zip(capture.message_ids, capture.turns, strict=True))
    ids = tuple(sorted(known, key=by_age))
    return Capture(
        conversation_id=before.conversation_id,
        turns=tuple(known[message_id] for message_id in ids),
        message_ids=ids,
        answered_at=max(capture.answered_at, before.answered_at),
        guild_id=capture.guild_id or before.guild_id,
        channel_id=capture.channel_id or before.channel_id,
        replaces=before.qa_id,
    )


def _masked(capture: Capture) -> Capture:
    turns: list[Turn] = []
    kinds: dict[str, int] = {}
    for turn in capture.turns:
        masked = mask_secrets(turn.text)
        turns.append(Turn(turn.speaker, masked.text))
        for kind, count in masked.kinds.items():
            kinds[kind] = kinds.get(kind, 0) + count
    if kinds:
        _log.warning("secrets_masked", conversation_id=capture.conversation_id, kinds=kinds)
    return structs.replace(capture, turns=tuple(turns))
