"""Ask the model for the topic of a pair, or how to split a long topic.

The replies are checked. A pair gets an existing topic, a new one, or none. A split moves some blocks of the topic, but
not all, to a topic with a valid name.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import count
from typing import NamedTuple

import anyio.to_thread
from structlog.contextvars import bound_contextvars

from intern.core import errors
from intern.core.captures import CapturedPair, TopicBlock, extract_question
from intern.core.flow import FailedChoice, SkipChoice, TopicChoice
from intern.core.ids import QAId, SourceId, TopicName
from intern.core.knowledge import IndexEntry
from intern.core.log import get_logger
from intern.core.text.topic_names import MAX_LENGTH, make_topic_name
from intern.core.text.words import (
    collapse_whitespace,
    truncate_text,
)
from intern.learning import prompts
from intern.models.prompt import Model
from intern.stores.qa_ids import qa_id_time, qa_id_times
from intern.stores.source_cache import topic_id

_log = get_logger(__name__)

Choice = TopicChoice | SkipChoice | FailedChoice

OF_ONE_PAIR: tuple[type[errors.ModelError], ...] = (errors.ModelReplyError, errors.ModelRefusedError)
"""Errors that concern one pair, so the next pair may succeed. All other model errors are outages."""

# The first matching kind counts, so subclasses come first.
_FAILURES: tuple[tuple[type[errors.ModelError], str], ...] = (
    (
        errors.ModelPromptTooLongError,
        "the prompt of {} does not fit into what the model takes; the log says what to lower",
    ),
    (errors.ModelBudgetTooSmallError, "a call of {} fits into no day's budget; the log says what to raise"),
    (errors.ModelSchemaError, "the model cannot hold its reply to the form of {}; the log says what to set"),
    (errors.ModelRefusedError, "the model refused {}; the log holds its words"),
    (errors.ModelReplyCutError, "the model's reply to {} was cut off by length; the log says which setting bounds it"),
    (errors.ModelReplyError, "the model's reply did not fit {}; the log says how"),
    (errors.ModelError, "the model could not do {}; the log says why"),
)


async def choose_topic(
    model: Model, pair: CapturedPair, entries: Mapping[SourceId, IndexEntry], options: prompts.LearningOptions
) -> TopicChoice | SkipChoice:
    """Ask the model under which topic to file a pair. `entries` is the team's index.

    Topics are compared by their slugs, so the model's spelling does not matter. Raises the ModelError family;
    ModelReplyError for a reply that neither skips nor names a topic, or that contradicts itself.
    """
    topics = tuple(entries.values())
    # In a thread: ranking ten thousand topics would delay heartbeats.
    query = prompts.join_texts(pair.turns)
    index = await anyio.to_thread.run_sync(prompts.render_index, topics, query, options.max_index_chars)
    given = prompts.ClassifyIn(
        index=index, pair=prompts.render_block(prompts.build_block(pair), options.max_pair_chars)
    )
    with bound_contextvars(qa_id=pair.qa_id):
        choice = _parse_choice(await model.ask(prompts.CLASSIFY, given))
    topic: dict[str, object] = {}
    if isinstance(choice, TopicChoice):
        topic = {"topic_name": choice.name, "is_new": topic_id(choice.name) not in entries}
    _log.info("topic_classified", qa_id=pair.qa_id, skip=not topic, **topic)
    return choice


def _parse_choice(out: prompts.ClassifyOut) -> TopicChoice | SkipChoice:
    if out.contradiction:
        raise errors.ModelReplyError(f"classify contradicts itself: {out.contradiction}")
    if out.skip:
        return SkipChoice(reason="the classifier found nothing in it that could guide a future answer")
    try:
        return TopicChoice(name=make_topic_name(out.topic_name))
    except ValueError as error:
        raise errors.ModelReplyError(f"classify neither skips the pair nor names its topic: {error}") from error


# The beginning of a question needs no more characters than this…
_LONGEST_QUESTION = 160
# …and says nothing with fewer than this.
_SHORTEST_QUESTION = 40


class TopicSplit(NamedTuple):
    """The checked split of a topic."""

    name: TopicName
    """The proposed name of the new topic; see `free_name`."""
    moves: tuple[QAId, ...]
    """The blocks that move to it."""


async def choose_split(
    model: Model, topic: TopicName, blocks: Sequence[TopicBlock], options: prompts.LearningOptions
) -> TopicSplit:
    """Ask the model how to split a topic.

    The prompt is bounded: of too many blocks, only some are shown, and the others stay. Raises the ModelError family;
    ModelReplyError for a reply that moves nothing or everything, or that names no topic.
    """
    outline = await anyio.to_thread.run_sync(format_outline, blocks, options.max_outline_chars)
    reply = await model.ask(prompts.SPLIT_TOPIC, prompts.SplitIn(topic=topic, questions=outline))
    return _parse_split(reply, topic, blocks)


def free_name(name: TopicName, taken: Collection[TopicName]) -> TopicName:
    """Return the name. If it is taken, append the first free number from 2."""
    if name not in taken:
        return name
    numbered = (TopicName(f"{name[: MAX_LENGTH - len(f'-{n}')].strip('-')}-{n}") for n in count(2))
    return next(each for each in numbered if each not in taken)


def format_outline(blocks: Sequence[TopicBlock], max_chars: int) -> str:
    """List the blocks, one a line: the id and the beginning of the question, cut so that all fit.

    Of too many blocks, every nth is listed, and at least two if there are two.
    """
    overhead = max((len(block.qa_id) for block in blocks), default=0) + len(" \n")
    most = max(max_chars // (overhead + _SHORTEST_QUESTION), 2)
    shown = [blocks[n * len(blocks) // most] for n in range(most)] if len(blocks) > most else list(blocks)
    limit = max(min(max_chars // max(len(shown), 1) - overhead, _LONGEST_QUESTION), 1)
    return "\n".join(
        f"{block.qa_id} {truncate_text(collapse_whitespace(extract_question(block.turns)), limit)}" for block in shown
    )


def _parse_split(reply: prompts.SplitOut, topic: TopicName, blocks: Sequence[TopicBlock]) -> TopicSplit:
    try:
        name = make_topic_name(reply.topic_name)
    except ValueError as error:
        raise errors.ModelReplyError(f"split_topic names no topic: {error}") from error
    ours = {qa_id_time(block.qa_id): block.qa_id for block in blocks}
    moves = tuple(dict.fromkeys(ours[time] for time in qa_id_times(reply.move_ids) if time in ours))
    if not moves or len(moves) == len(ours):
        done = f"of {len(ours)}, it moves {len(moves)}"
        raise errors.ModelReplyError(f"split_topic must leave some blocks in {topic} and move others: {done}")
    return TopicSplit(name, moves)


def describe_failure(prompt_name: str, error: errors.ModelError) -> FailedChoice:
    """Return the lasting record of a failure: its kind only. The error's text goes into the log.

    An error may quote the reply, and a reply may quote messages. Decisions are never rewritten, so they must not hold
    texts that may have to be forgotten.
    """
    return FailedChoice(reason=next(words for kind, words in _FAILURES if isinstance(error, kind)).format(prompt_name))
