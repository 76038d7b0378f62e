"""Ask the model for the topic of a pair, or how to split a long topic.

The replies are checked. A pair gets an existing topic, a new one, or none. A split moves some blocks of the topic, but
not all, to a topic with a valid name.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from itertools import count
from typing import NamedTuple

import anyio.to_thread

from intern.core.errors import (
    ModelBudgetTooSmallError,
    ModelError,
    ModelPromptTooLongError,
    ModelRefusedError,
    ModelReplyCutError,
    ModelReplyError,
    ModelSchemaError,
)
from intern.core.flow import Failed, Skip, Topic
from intern.core.ids import QAId, SourceId, TopicName
from intern.core.log import get_logger
from intern.core.records import CapturedPair, IndexEntry, TopicBlock, question_of
from intern.core.text.words import MAX_LENGTH, topic_name
from intern.learning.material import block_material, block_of, index_material, text_of
from intern.learning.options import LearningOptions
from intern.learning.prompts import CLASSIFY, SPLIT_TOPIC, ClassifyIn, ClassifyOut, SplitIn, SplitOut
from intern.models.prompt import Model
from intern.stores.blocks import time_of

_log = get_logger(__name__)

Choice = Topic | Skip | Failed

OF_ONE_PAIR: tuple[type[ModelError], ...] = (ModelReplyError, ModelRefusedError)
"""Errors that concern one pair, so the next pair may succeed. All other model errors are outages."""

# The first matching kind counts, so subclasses come first.
_FAILURES: tuple[tuple[type[ModelError], str], ...] = (
    (ModelPromptTooLongError, "the prompt of {} does not fit into what the model takes; the log says what to lower"),
    (ModelBudgetTooSmallError, "a call of {} fits into no day's budget; the log says what to raise"),
    (ModelSchemaError, "the model cannot hold its reply to the form of {}; the log says what to set"),
    (ModelRefusedError, "the model refused {}; the log holds its words"),
    (ModelReplyCutError, "the model's reply to {} was cut off by length; the log says which setting bounds it"),
    (ModelReplyError, "the model's reply did not fit {}; the log says how"),
    (ModelError, "the model could not do {}; the log says why"),
)


class GivenUp(Failed, frozen=True, kw_only=True):
    """All attempts at the pair crashed. It is parked without another, even if its conversation has a topic."""


async def choose_topic(
    model: Model, pair: CapturedPair, entries: Mapping[SourceId, IndexEntry], options: LearningOptions | None = None
) -> Topic | Skip:
    """Ask the model under which topic to file a pair. `entries` is the team's index.

    Topics are compared by their slugs, so the model's spelling does not matter. Raises the ModelError family;
    ModelReplyError for a reply that neither skips nor names a topic, or that contradicts itself.
    """
    bounds = options or LearningOptions()
    topics = tuple(entries.values())
    # In a thread: ranking ten thousand topics would delay heartbeats.
    index = await anyio.to_thread.run_sync(index_material, topics, text_of(pair.turns), bounds.max_index_chars)
    given = ClassifyIn(index=index, pair=block_material(block_of(pair), bounds.max_pair_chars))
    choice = _choice(await model.ask(CLASSIFY, given))
    if isinstance(choice, Skip):
        _log.info("topic_classified", qa_id=pair.qa_id, skip=True)
    else:
        known = f"team:{choice.name}.txt" in entries
        _log.info("topic_classified", qa_id=pair.qa_id, skip=False, topic_name=choice.name, is_new=not known)
    return choice


def _choice(out: ClassifyOut) -> Topic | Skip:
    if out.contradiction:
        raise ModelReplyError(f"classify contradicts itself: {out.contradiction}")
    if out.skip:
        return Skip(reason="the classifier found nothing in it that could guide a future answer")
    try:
        return Topic(name=topic_name(out.topic_name))
    except ValueError as error:
        raise ModelReplyError(f"classify neither skips the pair nor names its topic: {error}") from error


# The beginning of a question needs no more characters than this…
_LONGEST_QUESTION = 160
# …and says nothing with fewer than this.
_SHORTEST_QUESTION = 40


class Split(NamedTuple):
    """The checked split of a topic."""

    name: TopicName
    """The proposed name of the new topic; see `free_name`."""
    moves: tuple[QAId, ...]
    """The blocks that move to it."""


async def choose_split(
    model: Model,
    topic: TopicName,
    blocks: Sequence[TopicBlock],
    options: LearningOptions | None = None,
) -> Split:
    """Ask the model how to split a topic.

    The prompt is bounded: of too many blocks, only some are shown, and the others stay. Raises the ModelError family;
    ModelReplyError for a reply that moves nothing or everything, or that names no topic.
    """
    bounds = options or LearningOptions()
    outline = await anyio.to_thread.run_sync(outline_of, blocks, bounds.max_outline_chars)
    reply = await model.ask(SPLIT_TOPIC, SplitIn(topic=topic, questions=outline))
    return _checked(reply, topic, blocks)


def free_name(name: TopicName, taken: Collection[TopicName]) -> TopicName:
    """Return the name. If it is taken, append the first free number from 2."""
    if name not in taken:
        return name
    numbered = (TopicName(f"{name[: MAX_LENGTH - len(f'-{n}')].strip('-')}-{n}") for n in count(2))
    return next(each for each in numbered if each not in taken)


def outline_of(blocks: Sequence[TopicBlock], max_chars: int) -> str:
    """List the blocks, one a line: the id and the beginning of the question, cut so that all fit.

    Of too many blocks, every nth is listed, and at least two if there are two.
    """
    overhead = max((len(block.qa_id) for block in blocks), default=0) + len(" \n")
    most = max(max_chars // (overhead + _SHORTEST_QUESTION), 2)
    shown = [blocks[n * len(blocks) // most] for n in range(most)] if len(blocks) > most else list(blocks)
    limit = min(max_chars // max(len(shown), 1) - overhead, _LONGEST_QUESTION)
    return "\n".join(f"{block.qa_id} {_beginning(block, max(limit, 1))}" for block in shown)


def _beginning(block: TopicBlock, limit: int) -> str:
    question = " ".join(question_of(block.turns).split())
    return question if len(question) <= limit else f"{question[: limit - 1]}…"


def _checked(reply: SplitOut, topic: TopicName, blocks: Sequence[TopicBlock]) -> Split:
    try:
        name = topic_name(reply.topic_name)
    except ValueError as error:
        raise ModelReplyError(f"split_topic names no topic: {error}") from error
    ours = {time_of(block.qa_id): block.qa_id for block in blocks}
    moves = tuple(dict.fromkeys(ours[time] for time in times_of(reply.move_ids) if time in ours))
    if not moves or len(moves) == len(ours):
        raise ModelReplyError(
            f"split_topic must leave some blocks in {topic} and move others: of {len(ours)}, it moves {len(moves)}"
        )
    return Split(name, moves)


def failed(prompt_name: str, error: ModelError) -> Failed:
    """Return the lasting record of a failure: its kind only. The error's text goes into the log.

    An error may quote the reply, and a reply may quote messages. Decisions are never rewritten, so they must not hold
    texts that may have to be forgotten.
    """
    return Failed(reason=next(words for kind, words in _FAILURES if isinstance(error, kind)).format(prompt_name))


def times_of(ids: Iterable[str]) -> Iterator[datetime]:
    """Yield the times of valid ids. A model may name anything, so skip the others."""
    for qa_id in ids:
        with suppress(ValueError):
            yield time_of(QAId(qa_id))
