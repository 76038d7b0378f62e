"""What a model gets to see of pairs, topics and the index: the whole while it fits, else what is most like the pair.

Everything here is bounded, so a prompt stays the same size however much the team has taught.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set as AbstractSet
from datetime import datetime

from msgspec.structs import replace

from intern.core.records import CapturedPair, IndexEntry, TopicBlock, Turn, question_of
from intern.core.text.passages import even_share
from intern.core.text.similarity import likeness
from intern.core.text.words import Remembering, weight_of, word_set
from intern.facts.segments import IsWithdrawn, is_whole, without_withdrawn
from intern.stores.blocks import format_topic
from intern.stores.indices import format_index

# Likeness of two questions, or of two answers. All but 1 in 100 pairs of unrelated questions of a support channel are
# below it, and of 77 real updates of an entry none is. Of 70 questions and their duplicates, 57 reach it.
_ALIKE = 0.05
# A pair of fewer words ("still?", "yes") may be about anything.
_TELLING_WORDS = 6
# A turn shorter than this says too little to be worth its line.
_LEAST_TURN = 120
# Characters of an index entry that is not the best one: its subject, and a line on what it covers.
_BRIEF_ENTRY = 240


def block_of(pair: CapturedPair) -> TopicBlock:
    """The pair as it stands in a topic file."""
    return TopicBlock(
        qa_id=pair.qa_id,
        timestamp=pair.timestamp,
        turns=pair.turns,
        conversation_id=pair.conversation_id,
        answered_at=pair.answered_at,
    )


def left_of(pair: CapturedPair, is_withdrawn: IsWithdrawn) -> CapturedPair | None:
    """What a pair may still teach: None once its question or its answer is gone, be it from the archive.

    A message whose text was edited away is gone, too. A pair that lost nothing is given back as it is.
    """
    left = without_withdrawn(pair, is_withdrawn)
    turns = tuple(turn for turn in left.turns if turn.text.strip())
    if not is_whole(turns):
        return None
    return pair if turns == pair.turns else replace(left, turns=turns)


def age_of(block: TopicBlock) -> datetime:
    """When its knowledge is from. Files of other programs do not say; there it is the time of archiving."""
    return block.answered_at or block.timestamp


def text_of(turns: Iterable[Turn]) -> str:
    """All that was said, without who said it."""
    return "\n".join(turn.text for turn in turns)


def block_material(block: TopicBlock, max_chars: int) -> str:
    """The block in the format of a topic file; its turns are cut where it is longer than `max_chars`."""
    # Which conversation it was tells a model nothing that its id does not.
    bare = replace(block, extra_headers=(), conversation_id=None)
    whole = format_topic(bare)
    if len(whole) <= max_chars:
        return whole.rstrip("\n")
    room = max_chars - len(format_topic(replace(bare, turns=(Turn("User", ""),))))
    return format_topic(replace(bare, turns=_cut(bare.turns, max(room, 2 * _LEAST_TURN)))).rstrip("\n")


def index_material(entries: Sequence[IndexEntry], query: str, max_chars: int) -> str:
    """The index in its file format, or the entries that share most with `query`; at least one, if there is any.

    Then the best one is whole, and of the others there is the beginning: many topics to choose from matter more than
    all that is said of a few.
    """
    if sum(map(_entry_size, entries)) <= max_chars:
        return format_index(entries).rstrip("\n")
    known = _KNOWN(entries)
    by_id = sorted(range(len(entries)), key=lambda n: entries[n].source_id)
    first, *others = _ranked([held for held, _ in known], query, by_id)
    shown, left = [entries[first]], max_chars - _entry_size(entries[first])
    for n in others:
        brief = known[n][1]
        if _entry_size(brief) <= left:
            shown.append(brief)
            left -= _entry_size(brief)
    return format_index(shown).rstrip("\n")


def _known(entry: IndexEntry) -> tuple[frozenset[str], IndexEntry]:
    """An entry's words, and its beginning."""
    brief = entry
    if len(entry.description) > _BRIEF_ENTRY:
        brief = replace(entry, description=f"{entry.description[: _BRIEF_ENTRY - 1].rpartition(' ')[0]}…")
    return word_set(f"{entry.source_id}\n{entry.description}"), brief


# Each capture looks at all entries, and few have changed since the last one.
_KNOWN = Remembering(_known)


def _entry_size(entry: IndexEntry) -> int:
    return len(entry.source_id) + len(entry.description) + len("\n\n\n")


def blocks_material(blocks: Sequence[TopicBlock], query: str, max_chars: int) -> str:
    """The blocks in the format of a topic file, oldest knowledge first, or those that share most with `query`."""
    in_order = sorted(blocks, key=lambda block: (age_of(block), block.timestamp))
    # No block may take all the room: the one that the pair supersedes is seldom alone.
    texts = [block_material(block, max_chars // 3) for block in in_order]
    if sum(len(text) + 2 for text in texts) > max_chars:
        held = [word_set(text_of(block.turns)) for block in in_order]
        ranked = _ranked(held, query, range(len(held)))
        texts = [texts[n] for n in _fitting(ranked, [len(text) + 2 for text in texts], max_chars)]
    return "\n\n".join(texts)


def is_alike(blocks: Iterable[TopicBlock], pair: CapturedPair) -> bool:
    """Whether the pair may repeat or replace any of the blocks, so that a model is worth asking."""
    return any(_are_alike(block.turns, pair.turns) for block in blocks)


def _are_alike(one: Sequence[Turn], other: Sequence[Turn]) -> bool:
    if min(len(word_set(text_of(turns))) for turns in (one, other)) < _TELLING_WORDS:
        return True
    return max(likeness(question_of(one), question_of(other)), likeness(answer_of(one), answer_of(other))) >= _ALIKE


def answer_of(turns: Iterable[Turn]) -> str:
    """What the team said."""
    return "\n".join(turn.text for turn in turns if turn.speaker == "Team")


def _ranked(held: Sequence[AbstractSet[str]], query: str, places: Iterable[int]) -> list[int]:
    """The places, that first which covers the query best; equals stay in their order."""
    # Sorted: sums of floating point numbers depend on their order, and sets have none that lasts.
    counted = ((word, sum(word in have for have in held)) for word in sorted(word_set(query)))
    weights = [(word, weight_of(count, len(held))) for word, count in counted if count]
    scores = [sum([weight for word, weight in weights if word in have]) for have in held]
    return sorted(places, key=scores.__getitem__, reverse=True)


def _fitting(ranked: Sequence[int], sizes: Sequence[int], max_chars: int) -> list[int]:
    """The best that still fit, in order of their places; the first one always."""
    kept: list[int] = []
    left = max_chars
    for n in ranked:
        if sizes[n] <= left or not kept:
            kept.append(n)
            left -= sizes[n]
    return sorted(kept)


def _cut(turns: Sequence[Turn], room: int) -> tuple[Turn, ...]:
    """The turns within `room` characters: the first and the last of too many, long ones cut at the same length."""
    most = max(room // _LEAST_TURN, 2)
    if len(turns) > most:
        turns = (*turns[: most // 2], *turns[-(most - most // 2) :])
    # A turn's line costs its speaker and its newline. White space is folded, so further lines cost no indent.
    folded = [" ".join(turn.text.split()) for turn in turns]
    limit = even_share([len(text) + len("User: \n") for text in folded], room) - len("User: \n")
    return tuple(
        Turn(turn.speaker, text if len(text) <= limit else f"{text[: max(limit - 1, 0)]}…")
        for turn, text in zip(turns, folded, strict=True)
    )
