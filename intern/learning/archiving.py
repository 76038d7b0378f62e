"""Putting a capture into the archive: joined with what its conversation held before, and with secrets masked.

What its author deleted is not archived again. What stands in the archive stays there: it is never rewritten.
"""

from __future__ import annotations

from itertools import chain
from typing import Protocol

from anyio import Lock
from anyio.to_thread import run_sync
from msgspec import structs

from intern.domain import Capture, CapturedPair, ConversationId, MessageId, Turn, by_age
from intern.errors import ConfigError
from intern.learning.material import IsWithdrawn, is_whole, without_withdrawn
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

    def conversations_of(self, message_id: MessageId, /) -> tuple[ConversationId, ...]:
        """The conversations that a message was captured with, the first one first."""
        ...


class Archivist:
    """The one writer of the archive in this process."""

    def __init__(self, archive: Archive, *, mask: bool, is_withdrawn: IsWithdrawn) -> None:
        self._archive = archive
        self._mask = mask
        self._is_withdrawn = is_withdrawn
        self._writing = Lock()

    async def keep(self, capture: Capture) -> CapturedPair | None:
        """The archived pair, or None where the archive gains nothing by it. Raises KnowledgeError.

        A message that was captured before keeps its conversation, so a reply chain that grows stays one conversation.
        The pair holds the union of all captured messages of its conversation, in time order, less those that were
        withdrawn; of a message that was captured before, the newer text. So an edited message may come by itself. A
        conversation without a question or without an answer is not kept. Raises ConfigError for a capture that no
        archive can hold: times without a zone, ids that would break its format, turns and ids that do not match.
        """
        async with self._writing:
            try:
                return await run_sync(self._keep, _checked(capture))
            except ValueError as error:
                raise ConfigError(
                    f"the capture of conversation {capture.conversation_id[:80]!r} cannot be archived: {error}"
                ) from error

    def _keep(self, capture: Capture) -> CapturedPair | None:
        if self._mask:
            capture = _masked(capture)
        home = self._home_of(capture)
        before = self._archive.latest_of(home)
        joined = structs.replace(capture, conversation_id=home) if before is None else _union(before, capture)
        joined = without_withdrawn(joined, self._is_withdrawn)
        if not is_whole(joined.turns):
            return None
        if before is not None:
            held = without_withdrawn(before, self._is_withdrawn)
            if joined.message_ids == held.message_ids and joined.turns == held.turns:
                return None
        return self._archive.append(joined)

    def _home_of(self, capture: Capture) -> ConversationId:
        known = list(chain.from_iterable(map(self._archive.conversations_of, capture.message_ids)))
        return capture.conversation_id if not known or capture.conversation_id in known else known[0]


def _checked(capture: Capture) -> Capture:
    """The capture. Raises ValueError where it could not be joined with another."""
    if len(capture.turns) != len(capture.message_ids):
        raise ValueError(f"it has {len(capture.turns)} turns and {len(capture.message_ids)} message ids")
    if capture.answered_at.tzinfo is None:
        raise ValueError(f"answered_at {capture.answered_at} has no time zone")
    return capture


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
