"""The prompts of learning, their bounds, and the material that is put into them.

The first two prompts name their fields as the team knowledge spec does. Pairs, topics and the index are shown whole if
they fit, else the parts most like the pair. Everything is bounded, so prompts stay small even if the knowledge grows.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import datetime
from itertools import accumulate, chain
from operator import attrgetter
from typing import Annotated

from msgspec import Meta, Struct, structs

from intern.core.captures import CapturedPair, TopicBlock, Turn, extract_question
from intern.core.knowledge import IndexEntry
from intern.core.text.passages import even_share
from intern.core.text.similarity import text_similarity
from intern.core.text.words import LastBatchCache, shorten_to_line, stem_set, word_weight
from intern.facts.segments import IsWithdrawn, has_user_and_team, remove_withdrawn
from intern.models.prompt import Choices, Prompt
from intern.stores.block_format import format_topic_block
from intern.stores.source_cache import format_index

_Name = Annotated[str, Meta(max_length=64)]
_Id = Annotated[str, Meta(max_length=64)]
_Ids = tuple[_Id, ...]
_Reason = Annotated[str, Meta(max_length=300)]
"""The reason comes before the verdict, because small models then decide better. For the log only."""
_CONCLUDED = re.compile(r"\bso (keep|add|skip)\W*\Z", re.IGNORECASE)
_SHOWN_ID = re.compile(r"^id:[ \t]*(\S+)[ \t]*$", re.MULTILINE)


class LearningOptions(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Bounds of the prompts and effects of one capture. They hold even if the knowledge grows."""

    review: bool = False
    """New pairs wait for the team's approval. Before it, no model sees them."""
    max_removals: Annotated[int, Meta(ge=0)] = 3
    """The most blocks that one new pair may remove, so that one bad reply cannot empty a topic."""
    max_index_chars: Annotated[int, Meta(ge=1)] = 1800
    """Characters of the team index in the classifier's prompt; the entries most like the pair are chosen."""
    max_blocks_chars: Annotated[int, Meta(ge=1)] = 1800
    """Characters of a topic in the integrator's prompt; the blocks most like the pair are chosen."""
    max_pair_chars: Annotated[int, Meta(ge=1)] = 6000
    """Characters of the pair in either prompt."""
    max_topic_chars: Annotated[int, Meta(ge=1)] = 20_000
    """The most characters of a topic file. Longer topics are split in two."""
    max_outline_chars: Annotated[int, Meta(ge=1)] = 8000
    """Characters of the questions in the prompt that splits a topic."""


class ClassifyIn(Struct, frozen=True, kw_only=True):
    """The input of the classifier."""

    index: str
    """The team index in its file format, or its best entries; empty when there is no topic yet."""
    pair: str
    """The pair in the format of a topic file."""


class ClassifyOut(Struct, frozen=True, kw_only=True):
    """Where the pair goes."""

    reason: Annotated[_Reason, Meta(description="What was asked and answered, then: so keep, or: so skip.")] = ""
    skip: Annotated[bool, Meta(description="True if the pair cannot guide a future answer.")]
    topic_name: Annotated[
        _Name, Meta(description="The topic's identifier, such as node-startup-issues; empty when skip is true.")
    ]

    @property
    def contradiction(self) -> str:
        """The contradiction within the reply; empty without one."""
        if self.skip and self.topic_name.strip():
            return "it skips the pair and names a topic"
        return _find_contradiction(self.reason, skip=self.skip)


class IntegrateIn(Struct, frozen=True, kw_only=True):
    """The input of the integrator."""

    topic: str
    """The topic's name."""
    blocks: str
    """The topic file, or its blocks most like the pair, oldest answer first."""
    pair: str
    """The pair in the format of a topic file."""


class IntegrateOut(Struct, frozen=True, kw_only=True):
    """The changes that the pair makes to its topic."""

    reason: Annotated[_Reason, Meta(description="What is new in the pair, then: so add, or: so skip.")] = ""
    skip: Annotated[bool, Meta(description="True if the existing blocks already say all of it.")]
    remove_ids: Annotated[
        _Ids, Meta(max_length=64, description="Ids of existing blocks that the new pair makes wrong or pointless.")
    ]

    @property
    def contradiction(self) -> str:
        """The contradiction within the reply; empty without one."""
        if self.skip and self.remove_ids:
            return "it skips the pair and removes blocks for it"
        return _find_contradiction(self.reason, skip=self.skip)


class SplitIn(Struct, frozen=True, kw_only=True):
    """The input for splitting a topic that has grown too long."""

    topic: str
    """The topic's name."""
    questions: str
    """One line for each block, oldest answer first: its id, then the beginning of its question."""


class SplitOut(Struct, frozen=True, kw_only=True):
    """Which blocks leave for a topic of their own."""

    topic_name: Annotated[_Name, Meta(description="The new topic's identifier, such as gpu-drivers.")]
    move_ids: Annotated[
        _Ids, Meta(max_length=1000, description="Ids of the blocks that move to the new topic; the others stay.")
    ]


class ImagePlace(Struct, frozen=True, kw_only=True):
    """The place of an image."""

    message_id: str
    image_index: int
    """Its number among the images of its message, from 0."""


class ImagesIn(Struct, frozen=True, kw_only=True):
    """The text beside the images."""

    conversation: str
    """The conversation, oldest message first, each after its speaker; lines mark the places of images."""
    images: tuple[ImagePlace, ...]
    """In the order in which the images are given."""


class ImageSummary(Struct, frozen=True, kw_only=True):
    """One image in words."""

    message_id: Annotated[_Id, Meta(description="Exactly as listed.")]
    image_index: Annotated[int, Meta(description="Exactly as listed.")]
    summary: Annotated[str, Meta(max_length=800, description="One paragraph of plain text.")]


class ImagesOut(Struct, frozen=True, kw_only=True):
    """The images in words."""

    summaries: Annotated[tuple[ImageSummary, ...], Meta(max_length=100, description="One for each listed image.")]


def _find_contradiction(reason: str, *, skip: bool) -> str:
    """Return how a reason's last verdict contradicts the given one; a reason without a verdict agrees."""
    found = _CONCLUDED.search(reason)
    if found is None or (found[1].lower() == "skip") == skip:
        return ""
    return f"it concludes {found[1].lower()!r} and says skip={str(skip).lower()}"


def _offer_removable_ids(given: IntegrateIn) -> Choices:
    return {"remove_ids": _SHOWN_ID.findall(given.blocks)}


def _offer_movable_ids(given: SplitIn) -> Choices:
    return {"move_ids": [line.partition(" ")[0] for line in given.questions.split("\n") if line]}


def _offer_image_ids(given: ImagesIn) -> Choices:
    return {"message_id": [image.message_id for image in given.images]}


CLASSIFY = Prompt("classify", takes=ClassifyIn, gives=ClassifyOut)
INTEGRATE = Prompt("integrate", takes=IntegrateIn, gives=IntegrateOut, offers=_offer_removable_ids)
SPLIT_TOPIC = Prompt("split_topic", takes=SplitIn, gives=SplitOut, offers=_offer_movable_ids)
SUMMARIZE_IMAGES = Prompt("summarize_images", takes=ImagesIn, gives=ImagesOut, offers=_offer_image_ids)


# Similarity of two questions, or of two answers. In a support channel, 99 in 100 pairs of unrelated questions are below
# it; of 77 real updates of an entry, none is. Of 70 questions and their duplicates, 57 reach it.
_ALIKE = 0.05
# A pair with fewer words ("still?", "yes") may be about anything.
_TELLING_WORDS = 6
# A turn cut shorter than this is not worth its line.
_LEAST_TURN = 120
# Characters of an index entry, except the best one: its subject and a line about it.
_BRIEF_ENTRY = 240
# Characters of the shortest entry, with the separator.
_LEAST_ENTRY = 9
# Only this many of the best are tried, so a prompt costs the same with ten thousand topics.
_MOST_RANKED = 200


def build_block(pair: CapturedPair) -> TopicBlock:
    """Return the pair as a topic's block."""
    return TopicBlock(
        qa_id=pair.qa_id,
        timestamp=pair.timestamp,
        turns=pair.turns,
        conversation_id=pair.conversation_id,
        answered_at=pair.answered_at,
    )


def strip_withdrawn(pair: CapturedPair, is_withdrawn: IsWithdrawn) -> CapturedPair | None:
    """Return the pair without withdrawn and emptied messages; None once its question or its answer is gone.

    A pair that lost nothing is returned unchanged.
    """
    left = remove_withdrawn(pair, is_withdrawn)
    turns = tuple(turn for turn in left.turns if turn.text.strip())
    if not has_user_and_team(turns):
        return None
    return pair if turns == pair.turns else structs.replace(left, turns=turns)


def answer_time(block: TopicBlock) -> datetime:
    """Return the time of the answer. Files of other programs lack it; then it is the time of archiving."""
    return block.answered_at or block.timestamp


def join_texts(turns: Iterable[Turn]) -> str:
    """Join all texts, without their authors."""
    return "\n".join(turn.text for turn in turns)


def render_block(block: TopicBlock, max_chars: int) -> str:
    """Render a block in the format of a topic file. If it is longer than `max_chars`, its turns are cut."""
    # The conversation's id tells the model nothing more than the block's id.
    bare = structs.replace(block, extra_headers=(), conversation_id=None)
    whole = format_topic_block(bare)
    if len(whole) <= max_chars:
        return whole.rstrip("\n")
    room = max_chars - len(format_topic_block(structs.replace(bare, turns=(Turn("User", ""),))))
    return format_topic_block(
        structs.replace(bare, turns=_shorten_turns(bare.turns, max(room, 2 * _LEAST_TURN)))
    ).rstrip("\n")


def render_index(entries: Sequence[IndexEntry], query: str, max_chars: int) -> str:
    """Render the index in its file format, or the entries most like `query`; at least one, if there are any.

    In a selection, only the best entry is whole, and the others are cut: a choice of many topics matters more than the
    details of a few.
    """
    if all(size <= max_chars for size in accumulate(map(_entry_size, entries))):
        return format_index(entries).rstrip("\n")
    shown, left = list[IndexEntry](), max_chars
    entries = sorted(entries, key=attrgetter("source_id"))
    for n in _rank_texts(_entry_words(entries), query)[: max(_MOST_RANKED, max_chars // _LEAST_ENTRY)]:
        brief = entry = entries[n]
        if shown:
            brief = structs.replace(entry, description=shorten_to_line(entry.description, _BRIEF_ENTRY))
        if _entry_size(brief) <= left or not shown:
            shown.append(brief)
            left -= _entry_size(brief)
    return format_index(shown).rstrip("\n")


# Each capture needs all entries, and few change in between.
_entry_words = LastBatchCache[IndexEntry, frozenset[str]](
    lambda entry: stem_set(f"{entry.source_id}\n{entry.description}")
)


def _entry_size(entry: IndexEntry) -> int:
    return len(entry.source_id) + len(entry.description) + len("\n\n\n")


def render_blocks(blocks: Sequence[TopicBlock], query: str, max_chars: int) -> str:
    """Render the blocks in the format of a topic file, oldest first, or those most like `query`."""
    in_order = sorted(blocks, key=lambda block: (answer_time(block), block.timestamp))
    # No block may take all the room: the block to replace is seldom the only one.
    texts = [render_block(block, max_chars // 3) for block in in_order]
    if sum(len(text) + 2 for text in texts) > max_chars:
        held = [stem_set(join_texts(block.turns)) for block in in_order]
        texts = [
            texts[n] for n in _choose_fitting(_rank_texts(held, query), [len(text) + 2 for text in texts], max_chars)
        ]
    return "\n\n".join(texts)


def is_alike(blocks: Iterable[TopicBlock], pair: CapturedPair) -> bool:
    """Whether the pair may repeat or replace one of the blocks, so that a model call is useful."""
    return any(_are_alike(block.turns, pair.turns) for block in blocks)


def _are_alike(one: Sequence[Turn], other: Sequence[Turn]) -> bool:
    if min(len(stem_set(join_texts(turns))) for turns in (one, other)) < _TELLING_WORDS:
        return True
    return (
        max(
            text_similarity(extract_question(one), extract_question(other)),
            text_similarity(team_text(one), team_text(other)),
        )
        >= _ALIKE
    )


def team_text(turns: Iterable[Turn]) -> str:
    """Return the team's texts."""
    return "\n".join(turn.text for turn in turns if turn.speaker == "Team")


def _rank_texts(held: Sequence[frozenset[str]], query: str) -> list[int]:
    """Return the places of the texts, the best match of the query first; equals stay in their order."""
    asked = stem_set(query)
    shared = [asked & words for words in held]  # seldom any
    weights = {word: word_weight(count, len(held)) for word, count in Counter(chain.from_iterable(shared)).items()}
    # Sorted: floating point sums depend on the order, and sets have no stable one.
    scores = [sum([weights[word] for word in sorted(words)]) if words else 0.0 for words in shared]
    return sorted(range(len(held)), key=scores.__getitem__, reverse=True)


def _choose_fitting(ranked: Sequence[int], sizes: Sequence[int], max_chars: int) -> list[int]:
    """Keep the best that fit, in the order of their places; always the first one."""
    kept: list[int] = []
    left = max_chars
    for n in ranked:
        if sizes[n] <= left or not kept:
            kept.append(n)
            left -= sizes[n]
    return sorted(kept)


def _shorten_turns(turns: Sequence[Turn], room: int) -> tuple[Turn, ...]:
    """Fit the turns into `room` characters: keep the first and the last, and cut long ones at the same length."""
    most = max(room // _LEAST_TURN, 2)
    if len(turns) > most:
        turns = (*turns[: most // 2], *turns[-(most - most // 2) :])
    # A turn's line has a speaker and a newline. White space is folded, so there are no indented lines.
    folded = [" ".join(turn.text.split()) for turn in turns]
    limit = even_share([len(text) + len("User: \n") for text in folded], room) - len("User: \n")
    cut = (text if len(text) <= limit else f"{text[: max(limit - 1, 0)]}…" for text in folded)
    return tuple(Turn(turn.speaker, text) for turn, text in zip(turns, cut, strict=True))
