"""The topic of a captured pair: the model's choice among the existing ones, a new one, or none."""

from __future__ import annotations

from collections.abc import Mapping

import anyio.to_thread

from intern.domain import CapturedPair, IndexEntry, Skip, SourceId, Topic
from intern.errors import ModelReplyError
from intern.learning.material import block_material, block_of, index_material, text_of
from intern.learning.options import LearningOptions
from intern.learning.prompts import CLASSIFY, ClassifyIn, ClassifyOut
from intern.llm.prompt import Model
from intern.observe.log import get_logger
from intern.text.slugs import topic_name

_log = get_logger(__name__)


async def choose_topic(
    model: Model, pair: CapturedPair, entries: Mapping[SourceId, IndexEntry], options: LearningOptions | None = None
) -> Topic | Skip:
    """Ask the model under which topic to file a pair. `entries` is the team's index.

    An existing topic is met by its slug, however the model writes it. Raises the ModelError family; a reply that
    neither skips nor names a topic, or that contradicts itself, is a ModelReplyError.
    """
    bounds = options or LearningOptions()
    topics = tuple(entries.values())
    # In a thread: ten thousand topics take longer to rank than a heartbeat may wait.
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
