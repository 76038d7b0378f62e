"""Captures of exported history, planned and archived.

An import archives each conversation once, in its fullest version: each further version would cost a model call. So an
import is rehearsed first: the captures go through the same rules with an archive in memory.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import chain

from anyio import to_thread
from msgspec import Struct

from intern.core.captures import Capture, copy_capture
from intern.core.ids import ConversationId, UserId
from intern.core.progress import report_progress
from intern.learning.archivist import Archivist, iter_author_names
from intern.learning.rehearsal_archive import RehearsalArchive
from intern.stores.archive import Archive


class ImportCounts(Struct, frozen=True, kw_only=True):
    """The results of an import, in conversations."""

    archived: int = 0
    """Conversations that are new to the archive."""
    joined: int = 0
    """Conversations that were known in part before."""
    known: int = 0
    """Conversations that were known before, or withdrawn."""

    def __add__(self, other: ImportCounts) -> ImportCounts:
        return ImportCounts(**{each: getattr(self, each) + getattr(other, each) for each in self.__struct_fields__})

    @property
    def model_calls(self) -> int:
        """The most model calls for filing them. Each topic that changes costs a description besides."""
        # For a new conversation, a topic is chosen, and its blocks are looked at. A known one has its topic.
        return 2 * self.archived + self.joined


class ImportPlan(Struct, frozen=True, kw_only=True):
    """The results of a rehearsal."""

    captures: tuple[Capture, ...]
    """The captures to archive, one for each conversation, oldest answer first."""
    would: ImportCounts
    masked: Mapping[str, int] = {}
    """The numbers of secrets to mask, by kind."""


async def plan_import(
    captures: Sequence[Capture], archive: Archive, rehearsal: RehearsalArchive, keeper: Archivist
) -> ImportPlan:
    """Plan an import: archive the captures, in their order, in memory. `keeper` writes into the `rehearsal`.

    Raises KnowledgeError if the archive cannot be read.
    """
    homes: dict[ConversationId, None] = {}
    for n, capture in enumerate(captures):
        report_progress("Comparing {total} conversations with the archive", n, len(captures))
        holder = await to_thread.run_sync(_find_holder, capture, archive)
        home = holder or keeper.choose_conversation(capture)
        homes[home] = None
        if holder is None:
            await keeper.archive_capture(_assign_conversation(capture, home), imported=True)
    names = dict(chain.from_iterable(map(iter_author_names, captures)))
    added = sorted(rehearsal.newest.values(), key=lambda pair: (pair.answered_at, pair.timestamp))
    joined = sum(archive.latest_capture(pair.conversation_id) is not None for pair in added)
    return ImportPlan(
        captures=tuple(_assign_conversation(pair, pair.conversation_id, names) for pair in added),
        would=ImportCounts(archived=len(added) - joined, joined=joined, known=len(homes) - len(added)),
    )


async def archive_imported(captures: Sequence[Capture], archive: Archive, keeper: Archivist) -> ImportCounts:
    """Archive rehearsed captures. A repetition archives nothing. Raises KnowledgeError."""
    counts = Counter[str]()
    for capture in captures:
        joins = archive.latest_capture(capture.conversation_id) is not None
        pair = await keeper.archive_capture(capture, imported=True)
        counts["known" if pair is None else "joined" if joins else "archived"] += 1
    return ImportCounts(**counts)


def _find_holder(capture: Capture, archive: Archive) -> ConversationId | None:
    """Return the conversation that already holds all of the capture; None without one.

    If conversations share messages, the home of a capture depends on the order of capturing, and an import has another
    order. Because of this check, a second import finds all conversations where the first one put them.
    """
    ids = set(capture.message_ids)
    for conversation in archive.find_conversations(capture.message_ids[0]):
        pair = archive.latest_capture(conversation)
        if pair is not None and ids.issubset(pair.message_ids):
            return conversation
    return None


def _assign_conversation(
    capture: Capture, home: ConversationId, names: Mapping[UserId, tuple[str, ...]] | None = None
) -> Capture:
    author_names = tuple(names.get(each, ()) for each in capture.author_ids) if names else ()
    return copy_capture(capture, conversation_id=home, author_names=author_names, replaces=None)
