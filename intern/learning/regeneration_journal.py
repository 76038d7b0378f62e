"""The draft of a regenerated library: its plan, its choices, and the order of its decisions.

The plan, the model's choices and the drafted decisions are in the database before they are used. So a regeneration
continues after a crash without repeating a model call. The order never depends on which call was faster.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from hashlib import sha256
from math import inf
from typing import NamedTuple

import msgspec
from anyio.to_thread import run_sync
from msgspec import Struct

from intern.core.decisions import PairDecision, PairMoved, PairRejected, PairReplaced, PairReviewRequested
from intern.core.ids import ConversationId, QAId
from intern.learning.classifying import Choice
from intern.learning.filing import ADDS_NOTHING
from intern.stores.archive import Archive
from intern.stores.qa_ids import qa_id_time
from intern.stores.tables.knowledge import KnowledgeChange, KnowledgeStore

EPOCH = 32
"""The number of pairs that are classified with the same index."""


class _JournalLine(Struct, frozen=True, kw_only=True, tag_field="line"):
    pass


class RegenerationRound(_JournalLine, frozen=True, kw_only=True, tag="round"):
    """The pairs of one reading of the archive. A further round takes the pairs that were archived meanwhile."""

    pairs: int
    """The number of pairs, with older captures of the same conversations, and those that are held back."""
    order: tuple[QAId, ...]
    """The most complete pair of each conversation, oldest answer first."""
    replaced: tuple[tuple[QAId, QAId], ...]
    """Older captures, each with the pair that replaces it."""
    last: QAId | None
    digest: str
    """The hash of the pairs that were read."""


class RegenerationBegun(_JournalLine, frozen=True, kw_only=True, tag="begun"):
    """The first line. `basis` identifies everything that determines the result, except the archive."""

    basis: str


class PairClassified(_JournalLine, frozen=True, kw_only=True, tag="chosen"):
    """The choice for a pair."""

    qa_id: QAId
    choice: Choice
    again: bool = False
    """Chosen a second time, with the topics that the epoch opened before."""


class EpochClassified(_JournalLine, frozen=True, kw_only=True, tag="classified"):
    """All pairs of an epoch have a choice; from here on the library changes."""

    epoch: int


class EpochFinished(_JournalLine, frozen=True, kw_only=True, tag="finished"):
    """All pairs of an epoch are decided. Calls and tokens are those of all epochs so far."""

    epoch: int
    calls: int
    tokens: int


JournalLine = RegenerationBegun | RegenerationRound | PairClassified | EpochClassified | EpochFinished
_DECODER: msgspec.json.Decoder[JournalLine] = msgspec.json.Decoder(JournalLine)


class RegenerationJournal:
    """The progress of a regeneration, in append-only lines. Raises KnowledgeError."""

    def __init__(self, knowledge: KnowledgeStore) -> None:
        """Read the existing lines. Blocks."""
        self._knowledge = knowledge
        self.basis: str | None = None
        """None if no regeneration was started."""
        self.rounds: list[RegenerationRound] = []
        self.classified = 0
        """Epochs whose pairs have a choice."""
        self.finished = 0
        """Epochs whose pairs are decided."""
        self.calls = 0
        self.tokens = 0
        self.first: dict[QAId, Choice] = {}
        """The choices of the current epoch."""
        self.again: dict[QAId, Choice] = {}
        """The second choices of the current epoch."""
        for line in knowledge.read_journal():
            self._apply_line(_DECODER.decode(line))

    async def write(self, line: JournalLine) -> None:
        """Add a line, durably."""
        await self._knowledge.write_journal(msgspec.json.encode(line).decode())
        self._apply_line(line)

    @property
    def epochs(self) -> list[tuple[QAId, ...]]:
        """The pairs of all planned epochs."""
        return [each.order[start : start + EPOCH] for each in self.rounds for start in range(0, len(each.order), EPOCH)]

    @property
    def total(self) -> int:
        """The number of planned conversations."""
        return sum(len(each.order) for each in self.rounds)

    def _apply_line(self, line: JournalLine) -> None:
        match line:
            case RegenerationBegun():
                self.basis = line.basis
            case RegenerationRound():
                self.rounds.append(line)
            case PairClassified():
                (self.again if line.again else self.first)[line.qa_id] = line.choice
            case EpochClassified():
                self.classified = line.epoch + 1
            case EpochFinished():
                self.finished, self.calls, self.tokens = line.epoch + 1, line.calls, line.tokens
                self.first.clear()
                self.again.clear()


async def open_journal(knowledge: KnowledgeStore, archive: Archive, *, basis: str) -> RegenerationJournal:
    """Open the journal of the unfinished regeneration if it can continue, else of a new one with an empty draft.

    It can continue if `basis` is the same, and the archive still has the pairs that were read. Raises KnowledgeError.
    """
    journal = await run_sync(RegenerationJournal, knowledge)
    if journal.basis == basis and await run_sync(is_archive_unchanged, archive, journal.rounds):
        return journal
    await knowledge.change(KnowledgeChange.discard_draft)
    journal = await run_sync(RegenerationJournal, knowledge)
    await journal.write(RegenerationBegun(basis=basis))
    return journal


class _CaptureVersion(NamedTuple):
    """A capture of a conversation. The greatest one is kept."""

    messages: int
    """Without the withdrawn ones."""
    archived: datetime
    answered: datetime
    qa_id: QAId


def plan_round(
    archive: Archive, after: QAId | None, decisions: KnowledgeStore, awaits_review: Callable[[QAId], bool]
) -> RegenerationRound:
    """Plan the round after the pair `after`, without pairs that wait for review or were rejected. Blocks."""
    versions: defaultdict[ConversationId, list[_CaptureVersion]] = defaultdict(list)
    pairs, last, digest = 0, after, sha256()
    for pair in archive.pairs_after(after):
        pairs, last = pairs + 1, pair.qa_id
        digest.update(msgspec.json.encode(pair))
        if not is_held_back(pair.qa_id, decisions) and not awaits_review(pair.qa_id):
            messages = len(pair.message_ids) - sum(map(decisions.is_withdrawn, pair.message_ids))
            version = _CaptureVersion(messages, pair.timestamp, pair.answered_at, pair.qa_id)
            versions[pair.conversation_id].append(version)
    kept = sorted(map(max, versions.values()), key=lambda version: (version.answered, version.archived))
    replaced = [(version.qa_id, max(group).qa_id) for group in versions.values() for version in sorted(group)[:-1]]
    order = tuple(version.qa_id for version in kept)
    return RegenerationRound(pairs=pairs, order=order, replaced=tuple(replaced), last=last, digest=digest.hexdigest())


def is_held_back(qa_id: QAId, decisions: KnowledgeStore) -> bool:
    """Whether the pair waits for review, was rejected, or adds nothing to an older version of its conversation."""
    decided = decisions.last_decision(qa_id)
    return isinstance(decided, PairReviewRequested | PairRejected) or (
        decided is not None and decided.reason == ADDS_NOTHING
    )


def make_review_check(knowledge: KnowledgeStore, passed_over: QAId | None) -> Callable[[QAId], bool]:
    """Return a function that says whether a pair still needs review. For use with `kb.review`.

    All pairs without a decision do, but those up to `passed_over`, which the operator wants to skip.
    """
    known = None if passed_over is None else qa_id_time(passed_over)
    return lambda qa_id: knowledge.last_decision(qa_id) is None and (known is None or qa_id_time(qa_id) > known)


def is_archive_unchanged(archive: Archive, rounds: Iterable[RegenerationRound]) -> bool:
    """Whether the archive still has the pairs that these rounds read, unchanged. Blocks."""
    after: QAId | None = None
    for each in rounds:
        digest = sha256()
        for pair in archive.pairs_after(after):
            if each.last is None or qa_id_time(pair.qa_id) > qa_id_time(each.last):
                break
            digest.update(msgspec.json.encode(pair))
        if digest.hexdigest() != each.digest:
            return False
        after = each.last
    return True


def sort_decisions(decisions: Iterable[PairDecision], epochs: Sequence[Sequence[QAId]]) -> list[PairDecision]:
    """Sort the decisions as if the pairs had been decided one by one.

    The decisions of a pair stay in their order, and those of a topic come in the order of its pairs.
    """
    places = {qa_id_time(qa_id): (n, float(at)) for n, epoch in enumerate(epochs) for at, qa_id in enumerate(epoch)}
    told: dict[datetime, tuple[int, float]] = {}
    now = 0
    placed: list[tuple[tuple[int, float], PairDecision]] = []
    for each in decisions:
        about = [qa_id_time(each.qa_id), *([qa_id_time(each.by)] if isinstance(each, PairReplaced) else ())]
        # Moves come one by one at the end of an epoch.
        known = [] if isinstance(each, PairMoved) else [places[time] for time in about if time in places]
        place = max([max(known, default=(now, inf)), *(told[time] for time in about if time in told)])
        now = max(now, place[0])
        told[about[0]] = place
        placed.append((place, each))
    return [each for _, each in sorted(placed, key=lambda item: item[0])]
