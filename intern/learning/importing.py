"""Bringing history into the archive: each conversation once, in its fullest version, and nothing that stands there.

What was captured while it happened would have been archived version by version, each of which costs the model a look.
So an import is rehearsed first: the same captures go through the same rules over an archive in memory.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from itertools import chain
from typing import Protocol

from anyio.to_thread import run_sync
from msgspec import Struct

from intern.core.ids import ConversationId, MessageId, UserId
from intern.core.progress import tell
from intern.core.records import Capture, CapturedPair
from intern.stores.archive import Erased
from intern.stores.blocks import qa_id_of

_CALLS_FOR_NEW = 2  # a topic is chosen, and the topic's blocks are looked at
_CALLS_FOR_JOINED = 1  # the conversation has its topic already

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Archived(Protocol):
    """What the archive holds; see `intern.stores.archive`."""

    def latest_of(self, conversation_id: ConversationId, /) -> CapturedPair | None:
        """The newest pair of a conversation."""
        ...

    def conversations_of(self, message_id: MessageId, /) -> tuple[ConversationId, ...]:
        """The conversations that a message was captured with, the first one first."""
        ...


class Keeper(Protocol):
    """The writer of an archive; see `intern.learning.archiving`."""

    def home_of(self, capture: Capture, /) -> ConversationId:
        """The conversation that a capture goes with."""
        ...

    async def keep(self, capture: Capture, /, *, imported: bool = False) -> CapturedPair | None:
        """The archived pair, or None where the archive gains nothing by it."""
        ...


class Kept(Struct, frozen=True, kw_only=True):
    """What became of captures that were imported."""

    archived: int = 0
    """Conversations that the archive did not know."""
    joined: int = 0
    """Conversations of which it knew a part."""
    known: int = 0
    """Conversations of which it knew all, or which may teach nothing any more."""

    def __add__(self, other: Kept) -> Kept:
        return Kept(
            archived=self.archived + other.archived, joined=self.joined + other.joined, known=self.known + other.known
        )

    @property
    def model_calls(self) -> int:
        """How many calls filing them takes at most; each topic that changes is described anew besides."""
        return _CALLS_FOR_NEW * self.archived + _CALLS_FOR_JOINED * self.joined


class Rehearsed(Struct, frozen=True, kw_only=True):
    """What an import would do."""

    captures: tuple[Capture, ...]
    """What the archive lacks: a capture a conversation, the one that was answered first coming first."""
    would: Kept
    masked: Mapping[str, int] = {}
    """Secrets that are kept out of the archive, by kind."""


class Rehearsal:
    """An archive in memory over the real one, which is only read."""

    def __init__(self, archive: Archived) -> None:
        self._archive = archive
        self._newest: dict[ConversationId, CapturedPair] = {}
        self._conversations: dict[MessageId, dict[ConversationId, None]] = {}
        self._serial = 0

    def append(self, capture: Capture) -> CapturedPair:
        """The pair, in memory."""
        self._serial += 1
        timestamp = _EPOCH + timedelta(seconds=self._serial)
        pair = CapturedPair(
            qa_id=qa_id_of(timestamp),
            timestamp=timestamp,
            conversation_id=capture.conversation_id,
            turns=capture.turns,
            message_ids=capture.message_ids,
            author_ids=capture.author_ids,
            answered_at=capture.answered_at,
            guild_id=capture.guild_id,
            channel_id=capture.channel_id,
        )
        self._newest[pair.conversation_id] = pair
        for message_id in pair.message_ids:
            self._conversations.setdefault(message_id, {})[pair.conversation_id] = None
        return pair

    def latest_of(self, conversation_id: ConversationId) -> CapturedPair | None:
        """The newest pair of a conversation, rehearsed or real."""
        return self._newest.get(conversation_id) or self._archive.latest_of(conversation_id)

    def conversations_of(self, message_id: MessageId) -> tuple[ConversationId, ...]:
        """The conversations of a message, the real ones first."""
        rehearsed = self._conversations.get(message_id, {})
        return tuple(dict.fromkeys((*self._archive.conversations_of(message_id), *rehearsed)))

    def erase(self, message_ids: Collection[MessageId]) -> Erased:
        """Nothing is ever erased in a rehearsal. Raises AssertionError."""
        raise AssertionError(f"a rehearsal was asked to erase {len(message_ids)} messages")

    def added(self) -> Sequence[CapturedPair]:
        """The newest pair of each conversation that gained something."""
        return tuple(self._newest.values())


async def rehearse(captures: Sequence[Capture], archive: Archived, rehearsal: Rehearsal, keeper: Keeper) -> Rehearsed:
    """What keeping the captures, in their order, would add to the archive. `keeper` writes into the `rehearsal`.

    Raises KnowledgeError where the archive cannot be read.
    """
    homes: dict[ConversationId, None] = {}
    for n, capture in enumerate(captures):
        tell("Comparing {total} conversations with the archive", n, len(captures))
        holder = await run_sync(_holder_of, capture, archive)
        home = holder or keeper.home_of(capture)
        homes[home] = None
        if holder is None:
            await keeper.keep(_with_home(capture, home), imported=True)
    names = dict(chain.from_iterable(map(names_of, captures)))
    added = sorted(rehearsal.added(), key=lambda pair: (pair.answered_at, pair.timestamp))
    joined = sum(archive.latest_of(pair.conversation_id) is not None for pair in added)
    return Rehearsed(
        captures=tuple(_with_home(pair, pair.conversation_id, names) for pair in added),
        would=Kept(archived=len(added) - joined, joined=joined, known=len(homes) - len(added)),
    )


async def keep_imported(captures: Sequence[Capture], archive: Archived, keeper: Keeper) -> Kept:
    """Archive what was rehearsed. Doing it again archives nothing. Raises KnowledgeError."""
    counts: Mapping[str, int] = {"archived": 0, "joined": 0, "known": 0}
    for capture in captures:
        name = "archived" if archive.latest_of(capture.conversation_id) is None else "joined"
        pair = await keeper.keep(capture, imported=True)
        counts = {**counts, (name if pair else "known"): counts[name if pair else "known"] + 1}
    return Kept(**counts)


def _holder_of(capture: Capture, archive: Archived) -> ConversationId | None:
    """The conversation that holds all of the capture already; None where none does.

    Where conversations share messages, the home of a part depends on what was captured first, and an import archives
    them in another order. So this alone makes sure that a second import finds everything where the first put it.
    """
    ids = set(capture.message_ids)
    for conversation in archive.conversations_of(capture.message_ids[0]):
        pair = archive.latest_of(conversation)
        if pair is not None and ids.issubset(pair.message_ids):
            return conversation
    return None


def names_of(capture: Capture) -> Iterator[tuple[UserId, tuple[str, ...]]]:
    """What its authors are called, as far as it tells."""
    return ((author, names) for author, names in zip(capture.author_ids, capture.author_names, strict=False) if author)


def _with_home(
    capture: Capture, home: ConversationId, names: Mapping[UserId, tuple[str, ...]] | None = None
) -> Capture:
    return Capture(
        conversation_id=home,
        turns=capture.turns,
        message_ids=capture.message_ids,
        author_ids=capture.author_ids,
        author_names=tuple(names.get(each, ()) for each in capture.author_ids) if names else (),
        answered_at=capture.answered_at,
        guild_id=capture.guild_id,
        channel_id=capture.channel_id,
    )
