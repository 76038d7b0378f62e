"""Forget a member's messages, or single ones: delete them from the archive and from everything learned.

The tombstone comes first, together with the topics. From then on the messages cannot come back by reading, archiving,
filing or regenerating. Each step is safe to repeat, so a second request finishes the work after a crash.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator
from datetime import datetime
from typing import NamedTuple

from msgspec import Struct

from intern.core.captures import CapturedPair, Turn
from intern.core.decisions import Decision, MessagesForgotten, PairFiled, PairMoved
from intern.core.errors import ConfigError
from intern.core.ids import MessageId, QAId, TopicName, UserId
from intern.facts.segments import IsWithdrawn, remove_withdrawn
from intern.stores.archive import Archive, ArchiveErasure
from intern.stores.qa_ids import bare_message_id, qa_id_time
from intern.stores.tables.knowledge import KnowledgeStore

_MEMBER = re.compile(r"[0-9]{1,20}")
# Other programs may put text before or after the number.
_MESSAGE = re.compile(r"(?=.*[0-9])[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")

# A line this long identifies its message.
_TELLING = 12

# The most captures of unknown authors that a result lists. Other programs' archives may have no others.
_NAMED = 1000


class ForgetRequest(Struct, frozen=True, kw_only=True):
    """A request to forget all messages of a member until now, or these messages."""

    user_id: UserId | None = None
    message_ids: tuple[MessageId, ...] = ()
    erase: bool = False
    """Delete also from the archive, and from the remains of deleted rows on disk."""

    def validate(self) -> ForgetRequest:
        """Return the request. Raises ConfigError if it is invalid."""
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


class ForgetResult(Struct, frozen=True, kw_only=True):
    """The result of a request to forget."""

    found: bool
    """Whether anything was stored, now or before. If not, the messages are still ignored from now on."""
    messages: int
    captures: int
    """Archived pairs that have, or had, one of the messages."""
    topics: tuple[TopicName, ...]
    """The changed topics."""
    nameless: tuple[QAId, ...] = ()
    """Captures without authors, which may have the member's messages. Of very many, only the first."""
    nameless_count: int = 0
    erased: ArchiveErasure | None = None
    owed: str = ""
    """Why the vector engine still holds a copy, which it deletes once it is back; empty where it holds none."""


ForgetMessages = Callable[[Collection[MessageId]], Awaitable[None]]
"""Deletes messages, and everything made from them, in one store. Safe to repeat; raises KnowledgeError."""


class ForgetScope(NamedTuple):
    """The messages, pairs and topics that a request concerns."""

    message_ids: tuple[MessageId, ...]
    fresh: tuple[MessageId, ...]
    """The messages without a tombstone yet."""
    captures: tuple[QAId, ...]
    topics: frozenset[TopicName]
    """The topics in which one of the captures was ever filed; their descriptions may quote it."""
    nameless: tuple[QAId, ...]
    buried: bool
    """Whether an earlier tombstone has some of the messages."""


def find_forget_scope(
    asked: ForgetRequest, archive: Archive, decisions: KnowledgeStore, also: Collection[MessageId] = ()
) -> ForgetScope:
    """Find what a request concerns. `also` lists messages of the member that other stores know. Blocks.

    The caller must prevent archiving meanwhile, and until the tombstone is logged. Raises KnowledgeError.
    """
    wanted = dict.fromkeys((*asked.message_ids, *also))
    earlier = [
        each for each in decisions.read_decisions() if isinstance(each, MessagesForgotten) and _concerns(each, asked)
    ]
    nameless: tuple[QAId, ...] = ()
    if asked.user_id is not None:
        wanted.update(dict.fromkeys(message_id for each in earlier for message_id in each.message_ids))
        own, nameless = _find_member_messages(asked.user_id, archive)
        wanted.update(own)
    gone = frozenset(map(bare_message_id, wanted))
    buried = {bare_message_id(message_id) for each in earlier for message_id in each.message_ids}
    captures = tuple(pair.qa_id for pair in find_affected_pairs(archive, lambda each: bare_message_id(each) in gone))
    return ForgetScope(
        message_ids=tuple(wanted),
        fresh=tuple(each for each in wanted if bare_message_id(each) not in buried),
        captures=captures,
        topics=find_filed_topics(captures, decisions.read_decisions()),
        nameless=nameless,
        buried=bool(earlier),
    )


def find_affected_pairs(archive: Archive, is_gone: IsWithdrawn) -> list[CapturedPair]:
    """Return the pairs with a message that is gone, oldest first. Reads the whole archive; raises KnowledgeError."""
    return [pair for pair in archive.pairs_after(None) if any(map(is_gone, pair.message_ids))]


def find_filed_topics(captures: Collection[QAId], decisions: Iterable[Decision]) -> frozenset[TopicName]:
    """Return the topics in which one of the captures was ever filed; their descriptions may quote it."""
    times = {qa_id_time(qa_id) for qa_id in captures}
    return frozenset(
        each.topic for each in decisions if isinstance(each, PairFiled | PairMoved) and qa_id_time(each.qa_id) in times
    )


def collect_identifying_texts(archive: Archive, is_gone: IsWithdrawn) -> tuple[bytes, ...]:
    """Return the ids of pairs with messages that are gone, and lines that only such messages have.

    These identify pieces of text. Reads the archive; raises KnowledgeError.
    """
    pairs = find_affected_pairs(archive, is_gone)
    ids = {each for pair in pairs for each in (pair.qa_id, pair.conversation_id)}
    lines = {line for pair in pairs for line in _iter_identifying_lines(pair.turns)}
    for pair in archive.pairs_after(None) if lines else ():
        lines.difference_update(_iter_identifying_lines(remove_withdrawn(pair, is_gone).turns))
    return tuple(each.encode() for each in (*ids, *lines))


def make_tombstone(asked: ForgetRequest, found: ForgetScope, now: datetime) -> MessagesForgotten | None:
    """Return the tombstone to log; None if all messages have one.

    A member's tombstone covers all their messages until now, so each request logs a new one.
    """
    if asked.user_id is None and not found.fresh:
        return None
    reason = "all that a member wrote" if asked.user_id is not None else "single messages"
    return MessagesForgotten(message_ids=found.fresh, user_id=asked.user_id, reason=reason, at=now)


def build_forget_result(
    found: ForgetScope, *, held: bool, topics: Collection[TopicName], erased: ArchiveErasure | None, owed: str = ""
) -> ForgetResult:
    """Make the result. `held`: another store had one of the messages, or something made from them."""
    return ForgetResult(
        found=bool(held or topics or found.captures or found.buried),
        messages=len(found.message_ids),
        captures=len(found.captures),
        topics=tuple(sorted(topics)),
        nameless=found.nameless[:_NAMED],
        nameless_count=len(found.nameless),
        erased=erased,
        owed=owed,
    )


def _concerns(tombstone: MessagesForgotten, asked: ForgetRequest) -> bool:
    if asked.user_id is not None:
        return tombstone.user_id == asked.user_id
    return not set(map(bare_message_id, asked.message_ids)).isdisjoint(map(bare_message_id, tombstone.message_ids))


def _find_member_messages(user_id: UserId, archive: Archive) -> tuple[dict[MessageId, None], tuple[QAId, ...]]:
    """Return a member's messages, and the captures with messages whose authors no capture names."""
    own: dict[MessageId, None] = {}
    nameless: dict[str, QAId] = {}
    for pair in archive.pairs_after(None):
        authors = pair.author_ids or (UserId(""),) * len(pair.message_ids)
        for message_id, author in zip(pair.message_ids, authors, strict=True):
            if author == user_id:
                own[message_id] = None
            if author:
                nameless.pop(bare_message_id(message_id), None)  # a newer capture may name the author
            else:
                nameless.setdefault(bare_message_id(message_id), pair.qa_id)
    return own, tuple(dict.fromkeys(nameless.values()))


def _iter_identifying_lines(turns: Iterable[Turn]) -> Iterator[str]:
    """Yield the lines that are long enough to identify a message."""
    return (line for turn in turns for line in map(str.strip, turn.text.split("\n")) if len(line) >= _TELLING)
