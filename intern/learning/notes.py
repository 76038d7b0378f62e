"""Notes as conversations: each file is one in which the team speaks, and the same rules hold. Pure.

A file is known by its folder and its path in there. One that is too long for a call is several conversations.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from datetime import datetime
from hashlib import sha256

from msgspec import Struct

from intern.domain import ConversationId, MessageId, Turn
from intern.learning.distilling import MAX_CONVERSATION_CHARS, Segment
from intern.text.masking import mask_secrets
from intern.text.passages import passages

# Characters of a section, and of a part of a note: it has to fit into a prompt, with what stands around each section.
_SECTION = 2000
_PART = MAX_CONVERSATION_CHARS - 2000


class Note(Struct, frozen=True, kw_only=True):
    """A file of notes as it stands on disk."""

    path: str
    """In its folder, with `/` between folders."""
    text: str
    at: datetime
    """When it was last written (UTC)."""


def folder_prefix(folder: str) -> str:
    """How the ids of a folder's notes begin."""
    return f"note_{_hash(folder, 8)}"


def segments_of(note: Note, folder: str) -> tuple[Segment, ...]:
    """The conversations that a note is, none where it says nothing; secrets are masked."""
    text = mask_secrets(note.text.replace("\r\n", "\n")).text
    parts: list[list[str]] = []
    for passage in passages(text, _SECTION):
        if not parts or sum(map(len, parts[-1])) + len(passage.text) > _PART:
            parts.append([])
        parts[-1].append(passage.text)
    name = f"{folder_prefix(folder)}{_hash(note.path, 16)}"
    ids = [name if n == 0 else f"{name}_{n + 1}" for n in range(len(parts))]
    return tuple(
        Segment(
            id=ConversationId(part_id),
            origin="note",
            turns=tuple(Turn("Team", section) for section in sections),
            message_ids=tuple(MessageId(f"{part_id}_s{n + 1}") for n in range(len(sections))),
            last_message_at=note.at,
        )
        for part_id, sections in zip(ids, parts, strict=True)
    )


def gone(known: Iterable[ConversationId], folder: str, present: Collection[ConversationId]) -> list[ConversationId]:
    """Of the conversations that something was learned from, those of this folder's notes that are no more."""
    prefix = folder_prefix(folder)
    return [each for each in known if each.startswith(prefix) and each not in present]


def _hash(text: str, digits: int) -> str:
    return sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:digits]
