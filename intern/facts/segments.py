"""Segments: the parts of conversations that may be learned from.

A segment has no withdrawn messages, and one message id for each turn.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from hashlib import sha256
from typing import TypeVar

import msgspec
from anyio.to_thread import run_sync
from msgspec import Struct
from msgspec.structs import replace

from intern.core.ids import ChannelId, ConversationId, GuildId, MessageId, UserId
from intern.core.records import Capture, CapturedPair, Distilled, Filed, Forgotten, Moved, Origin, Turn, Withdrawn
from intern.facts.pseudonyms import Pseudonyms, others_in
from intern.stores.archive import Archive
from intern.stores.decisions import DecisionLog, Placed
from intern.stores.sqlite.chat import NameStore

CaptureT = TypeVar("CaptureT", bound=Capture)
IsWithdrawn = Callable[[MessageId], bool]


class Segment(Struct, frozen=True, kw_only=True):
    """A conversation to learn from. `turns` and `message_ids` run side by side, oldest first."""

    id: ConversationId
    origin: Origin = "capture"
    turns: tuple[Turn, ...]
    message_ids: tuple[MessageId, ...]
    author_ids: tuple[UserId, ...] = ()
    """The author of each message, or empty; "" for an unknown author."""
    last_message_at: datetime
    guild_id: GuildId | None = None
    channel_id: ChannelId | None = None
    names: Mapping[UserId, tuple[str, ...]] = {}
    """The known names of its authors."""
    others: tuple[str, ...] = ()
    """Names of other people that may occur in it."""
    ours: frozenset[MessageId] = frozenset()
    """Messages of intern itself. They give context; nothing is learned from them."""

    @property
    def text(self) -> str:
        """All texts, without their authors."""
        return "\n".join(turn.text for turn in self.turns)

    @property
    def content_hash(self) -> str:
        """A hash that changes with the texts, the speakers and the message ids."""
        said = [(turn.speaker, turn.text) for turn in self.turns]
        return sha256(msgspec.json.encode((said, self.message_ids))).hexdigest()

    def pseudonyms(self) -> Pseudonyms:
        """Name its people."""
        return Pseudonyms(self.turns, self.author_ids, names=self.names, others=self.others)

    def distilled(self, agent_id: str) -> Distilled:
        """Return the record of the conversation that is stored beside the results."""
        return Distilled(
            id=self.id,
            agent_id=agent_id,
            origin=self.origin,
            guild_id=self.guild_id,
            channel_id=self.channel_id,
            message_ids=tuple(each for each in self.message_ids if each not in self.ours),
            last_message_at=self.last_message_at,
            content_hash=self.content_hash,
        )


def standing_segment(conversation_id: ConversationId, archive: Archive, decisions: DecisionLog) -> Segment | None:
    """Return the newest filed version of a conversation without its withdrawn messages; None without one. Blocks.

    A newer version that waits for the model or for review does not count yet. Raises KnowledgeError.
    """
    pair = archive.latest_of(conversation_id)
    while pair is not None and not isinstance(decisions.of(pair.qa_id), Filed | Moved):
        older = archive.get(pair.replaces) if pair.replaces is not None else None
        pair = older if older is not None and older.timestamp < pair.timestamp else None
    return None if pair is None else segment_of(pair, decisions.is_withdrawn)


def segment_of(pair: CapturedPair, is_withdrawn: IsWithdrawn) -> Segment | None:
    """Return the pair without its withdrawn messages; None if its question or its answer is gone.

    None also if turns and messages do not match (archives of other programs): a nugget could not name its sources.
    """
    if len(pair.turns) != len(pair.message_ids):
        return None
    left = without_withdrawn(pair, is_withdrawn)
    kept = [n for n, turn in enumerate(left.turns) if turn.text.strip()]
    if not is_whole(left.turns[n] for n in kept):
        return None
    return Segment(
        id=pair.conversation_id,
        turns=tuple(left.turns[n] for n in kept),
        message_ids=tuple(left.message_ids[n] for n in kept),
        author_ids=tuple(left.author_ids[n] for n in kept) if left.author_ids else (),
        last_message_at=left.answered_at,
        guild_id=left.guild_id,
        channel_id=left.channel_id,
    )


def without_withdrawn(capture: CaptureT, is_withdrawn: IsWithdrawn) -> CaptureT:
    """Return the capture without its withdrawn messages. Nothing may be left of it."""
    gone = set(filter(is_withdrawn, capture.message_ids))
    if not gone:
        return capture
    if len(capture.turns) != len(capture.message_ids):
        # Other programs' archives may not match turns to messages, and a deleted message must go.
        return replace(capture, turns=(), message_ids=(), author_ids=())
    kept = [n for n, message_id in enumerate(capture.message_ids) if message_id not in gone]
    return replace(
        capture,
        turns=tuple(capture.turns[n] for n in kept),
        message_ids=tuple(capture.message_ids[n] for n in kept),
        author_ids=tuple(capture.author_ids[n] for n in kept) if capture.author_ids else (),
    )


def is_whole(turns: Iterable[Turn]) -> bool:
    """Whether it has turns of a user and of the team."""
    return {turn.speaker for turn in turns} == {"User", "Team"}


async def named(segment: Segment, names: NameStore) -> Segment:
    """Add the known names of its authors, and of the other people that its text names."""
    called = await names.of({each for each in segment.author_ids if each})
    known = {
        each: tuple(dict.fromkeys((*segment.names.get(each, ()), *called.get(each, ()))))
        for each in (*segment.names, *(author for author in called if author not in segment.names))
    }
    text = segment.text
    there = [name for author, name in await names.in_text(text) if author not in known]
    others = await run_sync(others_in, text, there)
    return replace(segment, names=known, others=(*segment.others, *others))


def concerned(placed: Placed, archive: Archive) -> tuple[ConversationId, ...]:
    """Return the conversations that a decision concerns. Blocks; raises KnowledgeError."""
    decision = placed.decision
    if isinstance(decision, Withdrawn | Forgotten):
        found = (each for message_id in decision.message_ids for each in archive.conversations_of(message_id))
        return tuple(dict.fromkeys(found))
    pair = archive.get(decision.qa_id)
    return () if pair is None else (pair.conversation_id,)
