"""Forgetting: a member's messages, or single ones, out of all that was learned from them, and out of the archive.

A tombstone comes first. From then on nothing that is read, archived, filed or regenerated brings the messages back, and
whoever is killed in between does the rest when asked again. Each step bears repetition.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

from msgspec import Struct
from msgspec.structs import replace

from intern.core.clock import Clock
from intern.core.errors import ConfigError
from intern.core.ids import ConversationId, MessageId, QAId, TopicName, UserId
from intern.core.records import CapturedPair, Filed, Forgotten, Moved, Removed
from intern.facts.segments import IsWithdrawn
from intern.learning.material import left_of
from intern.stores.archive import Archive, Erased
from intern.stores.blocks import bare, time_of, without_blocks
from intern.stores.decisions import DecisionLog
from intern.stores.files import FileLayer
from intern.stores.topics import TopicLibrary

_MEMBER = re.compile(r"[0-9]{1,20}")
# Other programs may have put something before or behind a number.
_MESSAGE = re.compile(r"(?=.*[0-9])[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")

# A line this long is hardly anybody else's.
_TELLING = 12

# Captures of unknown authors that are named; an archive from elsewhere may hold nothing else.
_NAMED = 1000


class Forget(Struct, frozen=True, kw_only=True):
    """What is to be forgotten: either all that a member wrote until now, or these messages."""

    user_id: UserId | None = None
    message_ids: tuple[MessageId, ...] = ()
    erase: bool = False
    """Also from the archive, and from what the disk still holds of deleted rows."""

    def checked(self) -> Forget:
        """Itself. Raises ConfigError where it cannot be meant."""
        if (self.user_id is None) == (not self.message_ids):
            raise ConfigError("say what to forget: a member (--user ID) or messages (--message ID)")
        asked: list[tuple[re.Pattern[str], str]] = [(_MESSAGE, each) for each in self.message_ids]
        if self.user_id is not None:
            asked.append((_MEMBER, self.user_id))
        for pattern, each in asked:
            if not pattern.fullmatch(each):
                raise ConfigError(
                    f"{each[:80]!r} is no id; on Discord, developer mode lets you copy ids by a right click"
                )
        return self


class Forgot(Struct, frozen=True, kw_only=True):
    """What was forgotten."""

    found: bool
    """False where nothing was held of it, nor had been. It will be left out all the same, should it be read again."""
    messages: int
    captures: int
    """Pairs in the archive that hold, or held, one of the messages."""
    topics: tuple[TopicName, ...]
    """Those that changed."""
    nameless: tuple[QAId, ...] = ()
    """Captures that do not say who wrote in them, so that the member's messages may be among them; not all of very
    many."""
    nameless_count: int = 0
    erased: Erased | None = None


class Forgets(Protocol):
    """A store that is derived from what people wrote, or holds it for a while, and can let go of messages."""

    async def forget(self, message_ids: Collection[MessageId]) -> None:
        """Keep nothing of these messages, nor of what was made from them. Bears repetition; raises KnowledgeError."""
        ...


class Search(NamedTuple):
    """What a wish to be forgotten concerns."""

    message_ids: tuple[MessageId, ...]
    fresh: tuple[MessageId, ...]
    """Of these, those without a tombstone yet."""
    captures: tuple[QAId, ...]
    topics: frozenset[TopicName]
    """Where one of the captures was ever filed: its description may come from there."""
    traces: tuple[bytes, ...]
    """What gives a piece of text away that is no block any more: ids, and lines of the messages."""
    nameless: tuple[QAId, ...]
    buried: bool
    """Whether a tombstone for it stands already."""


def search(asked: Forget, archive: Archive, decisions: DecisionLog, also: Collection[MessageId] = ()) -> Search:
    """Find what is to be forgotten; `also` are messages of the member that others know of. Blocks.

    Nobody may archive meanwhile, nor until the tombstone stands. Raises KnowledgeError.
    """
    wanted = dict.fromkeys((*asked.message_ids, *also))
    earlier = [each for each in decisions.all() if isinstance(each, Forgotten) and _concerns(each, asked)]
    nameless: tuple[QAId, ...] = ()
    if asked.user_id is not None:
        wanted.update(dict.fromkeys(message_id for each in earlier for message_id in each.message_ids))
        own, nameless = _of_member(asked.user_id, archive)
        wanted.update(own)
    gone = frozenset(map(bare, wanted))
    buried = {bare(message_id) for each in earlier for message_id in each.message_ids}
    captures: dict[QAId, None] = {}
    conversations: dict[ConversationId, None] = {}
    lines: dict[str, None] = {}
    for pair in archive.after(None):
        if not gone.isdisjoint(map(bare, pair.message_ids)):
            captures[pair.qa_id] = conversations[pair.conversation_id] = None
            lines.update(dict.fromkeys(_telling(pair, gone)))
    return Search(
        message_ids=tuple(wanted),
        fresh=tuple(each for each in wanted if bare(each) not in buried),
        captures=tuple(captures),
        topics=_ever_filed(captures, decisions),
        traces=tuple(each.encode() for each in (*captures, *conversations, *lines)),
        nameless=nameless,
        buried=bool(earlier),
    )


def bury(asked: Forget, found: Search, decisions: DecisionLog, clock: Clock) -> None:
    """Set the tombstone: from now on nothing new is made of the messages. Blocks; raises KnowledgeError.

    A member's counts for all that they wrote until now, so it is set anew each time.
    """
    if asked.user_id is not None or found.fresh:
        reason = "all that a member wrote" if asked.user_id is not None else "single messages"
        decisions.append(Forgotten(message_ids=found.fresh, user_id=asked.user_id, reason=reason, at=clock.now()))


def clear(
    library: TopicLibrary,
    folder: Path,
    found: Search,
    archive: Archive,
    is_withdrawn: IsWithdrawn,
) -> dict[TopicName, list[QAId]]:
    """Take the messages out of a library in `folder`, its damaged copies included.

    Gives the topics that changed, each with the blocks of which nothing is left. Blocks; raises KnowledgeError.
    """
    doomed = {time_of(qa_id) for qa_id in found.captures}
    changed: dict[TopicName, list[QAId]] = {}
    for name in library.names():
        for block in library.read(name):
            if time_of(block.qa_id) not in doomed:
                continue
            pair = archive.get(block.qa_id)
            left = None if pair is None else left_of(pair, is_withdrawn)
            if left is None:
                changed.setdefault(name, []).append(block.qa_id)
            elif block.turns != left.turns:
                changed.setdefault(name, [])
                library.update(name, replace(block, turns=left.turns))
        if changed.get(name):
            library.update(name, None, changed[name])
    _clear_damaged(folder, found.traces)
    return changed


def removed(changed: Iterable[Sequence[QAId]], decisions: DecisionLog, clock: Clock) -> None:
    """Write down which pairs stand in no topic any more. Blocks; raises KnowledgeError."""
    for qa_id in (each for blocks in changed for each in blocks):
        if not isinstance(decisions.of(qa_id), Removed):
            decisions.append(Removed(qa_id=qa_id, reason="its question or its answer was forgotten", at=clock.now()))


def told(found: Search, *, held: bool, topics: Collection[TopicName], erased: Erased | None) -> Forgot:
    """What came of it; `held` where something was found outside of archive and topics."""
    return Forgot(
        found=bool(held or topics or found.captures or found.buried),
        messages=len(found.message_ids),
        captures=len(found.captures),
        topics=tuple(sorted(topics)),
        nameless=found.nameless[:_NAMED],
        nameless_count=len(found.nameless),
        erased=erased,
    )


def _concerns(tombstone: Forgotten, asked: Forget) -> bool:
    if asked.user_id is not None:
        return tombstone.user_id == asked.user_id
    return not set(map(bare, asked.message_ids)).isdisjoint(map(bare, tombstone.message_ids))


def _of_member(user_id: UserId, archive: Archive) -> tuple[dict[MessageId, None], tuple[QAId, ...]]:
    """A member's messages, and the captures that hold messages of which no capture says who wrote them."""
    own: dict[MessageId, None] = {}
    nameless: dict[str, QAId] = {}
    for pair in archive.after(None):
        authors = pair.author_ids or (UserId(""),) * len(pair.message_ids)
        for message_id, author in zip(pair.message_ids, authors, strict=True):
            if author == user_id:
                own[message_id] = None
            if author:
                nameless.pop(bare(message_id), None)  # what an older version archived, a newer capture may explain
            else:
                nameless.setdefault(bare(message_id), pair.qa_id)
    return own, tuple(dict.fromkeys(nameless.values()))


def _telling(pair: CapturedPair, gone: Collection[str]) -> Iterator[str]:
    """The lines of a pair by which a message that is to be forgotten can be known again."""
    aligned = len(pair.turns) == len(pair.message_ids)
    for n, turn in enumerate(pair.turns):
        if not aligned or bare(pair.message_ids[n]) in gone:
            yield from (line for line in map(str.strip, turn.text.split("\n")) if len(line) >= _TELLING)


def _ever_filed(captures: Collection[QAId], decisions: DecisionLog) -> frozenset[TopicName]:
    times = {time_of(qa_id) for qa_id in captures}
    return frozenset(
        each.topic for each in decisions.all() if isinstance(each, Filed | Moved) and time_of(each.qa_id) in times
    )


def _clear_damaged(folder: Path, traces: Sequence[bytes]) -> None:
    """Of what was kept of damaged topic files, the pieces in which something of it stands go."""
    layer = FileLayer()
    for copy in sorted(folder.glob(".*.damaged")) if traces else ():
        data = layer.read(copy) or b""
        left = without_blocks(data, lambda piece: any(trace in piece for trace in traces))
        if not left:
            layer.remove(copy)
        elif left != data:
            layer.write_atomically(copy, left)
