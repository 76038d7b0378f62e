"""What a regeneration will cost, told before a model is asked: pairs are counted, some of their prompts measured.

What a regeneration would cost, for `intern regenerate --dry-run`: it takes no lock and writes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain
from math import ceil
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from intern.core.ids import QAId, SourceId, TopicName
from intern.core.records import CapturedPair, IndexEntry
from intern.learning.draft import Draft, Journal, awaiting_review, planned, still_begins_with, upcoming
from intern.learning.prompts import (
    CLASSIFY,
    INTEGRATE,
    ClassifyIn,
    IntegrateIn,
    LearningOptions,
    block_material,
    block_of,
    blocks_material,
    index_material,
    left_of,
    text_of,
)
from intern.learning.regenerating import Describe, fingerprint
from intern.models.chat import chat_request
from intern.models.options import LlmOptions
from intern.models.prompt import Prompt
from intern.service.models import templates_of, what_decides_topics
from intern.settings.loading import Settings
from intern.sources.descriptions import describe_by_rules
from intern.stores.archive import Archive
from intern.stores.decisions import DecisionLog
from intern.stores.files import FileLayer
from intern.stores.library import TopicLibrary

TokensOf = Callable[[Prompt[Any, Any], Any], int]
"""About how many tokens a prompt has with this input."""

_REPLY = 40  # tokens of a reply to either prompt, generously
_SAMPLE = 100  # pairs whose prompts are measured; the others are taken to be like them
_PER_TOPIC = 6  # conversations, where no library tells


class Estimate(Struct, frozen=True, kw_only=True):
    """What there is to do."""

    pairs: int
    """Captures in the archive."""
    conversations: int
    """To be decided; what waits for review or was rejected is not."""
    decided: int
    """Of these, what a regeneration that was stopped has done already."""
    calls: int
    """Of the model, about."""
    tokens: int
    """Of prompts and replies, about."""


def estimate(
    archive: Archive,
    decisions: DecisionLog,
    topics_dir: Path,
    *,
    describe: Describe,
    tokens_of: TokensOf,
    options: LearningOptions,
    basis: str,
    awaits_review: Callable[[QAId], bool] = lambda _: False,
) -> Estimate:
    """Count and measure, and change nothing. Raises KnowledgeError. Blocks."""
    layer, folder = FileLayer(), upcoming(topics_dir)
    journal = Journal(folder, layer)
    resumes = journal.basis == fingerprint(basis, options) and still_begins_with(archive, journal.rounds)
    rounds = journal.rounds if resumes else []
    draft = Draft(folder, decisions, layer) if resumes else None
    rounds = [*rounds, planned(archive, rounds[-1].last if rounds else None, decisions, awaits_review)]
    order = list(chain(*(each.order for each in rounds)))
    left = [qa_id for qa_id in order if draft is None or draft.of(qa_id) is None]
    unclassified = [qa_id for qa_id in left if not resumes or qa_id not in journal.first]

    topics = TopicLibrary(topics_dir)
    known = len(topics.names()) or ceil(len(order) / _PER_TOPIC)
    opened = min(max(known - len(TopicLibrary(folder).names() if resumes else ()), 0), len(unclassified))
    # A topic's first pair is classified twice, but for the first of an epoch, and needs no integrating.
    classified, integrated = len(unclassified) + opened, len(left) - opened
    measured = _Measured(topics, describe, tokens_of, options)
    sample = [archive.get(qa_id) for qa_id in left[:: ceil(len(left) / _SAMPLE) or 1]]
    pairs = [each for pair in sample if pair is not None and (each := left_of(pair, decisions.is_withdrawn))]
    return Estimate(
        pairs=sum(each.pairs for each in rounds),
        conversations=len(order),
        decided=len(order) - len(left),
        calls=classified + integrated,
        tokens=classified * _mean([measured.classify(pair) for pair in pairs])
        + integrated * _mean([measured.integrate(pair) for pair in pairs]),
    )


class _Measured:
    """Prompts as the library of today would make them, on average: a new one starts small, and grows as large."""

    def __init__(self, topics: TopicLibrary, describe: Describe, tokens_of: TokensOf, options: LearningOptions) -> None:
        self._topics = topics
        self._tokens_of = tokens_of
        self._options = options
        self._entries = [
            IndexEntry(SourceId(f"team:{name}.txt"), describe(topics.read(name))) for name in topics.names()
        ]

    def classify(self, pair: CapturedPair) -> int:
        """Tokens of the call that chooses its topic."""
        index = index_material(self._entries, text_of(pair.turns), self._options.max_index_chars)
        return self._tokens_of(CLASSIFY, ClassifyIn(index=index, pair=self._material(pair))) + _REPLY

    def integrate(self, pair: CapturedPair) -> int:
        """Tokens of the call that puts it into its topic: half of the blocks come before it."""
        topic = self._topic(pair)
        blocks = self._topics.read(topic) if topic is not None else ()
        others = [block for block in blocks if block.conversation_id != pair.conversation_id]
        shown = blocks_material(others[: len(others) // 2 + 1], text_of(pair.turns), self._options.max_blocks_chars)
        given = IntegrateIn(topic=topic or "new-topic", blocks=shown, pair=self._material(pair))
        return self._tokens_of(INTEGRATE, given) + _REPLY

    def _topic(self, pair: CapturedPair) -> TopicName | None:
        places = self._topics.of_conversation(pair.conversation_id)
        return places[-1][0] if places else None

    def _material(self, pair: CapturedPair) -> str:
        return block_material(block_of(pair), self._options.max_pair_chars)


def _mean(numbers: Sequence[int]) -> int:
    return ceil(sum(numbers) / len(numbers)) if numbers else 0


def estimate_regeneration(settings: Settings) -> Estimate:
    """Count and measure. Raises KnowledgeError and ConfigError. Blocks.

    Without a model, nothing is asked: there are no calls then.
    """
    paths = settings.paths
    decisions = DecisionLog(paths.decisions)
    topics, passed_over = TopicLibrary(paths.topics), QAId(settings.kb.qa_raw_last_processed_id) or None
    unreviewed = awaiting_review(decisions, passed_over, topics)
    asks = settings.kb_model.kind == "endpoint"
    estimated = estimate(
        Archive(paths.raw),
        decisions,
        paths.topics,
        describe=describe_by_rules,
        tokens_of=measure(settings, settings.kb_model) if asks else lambda _prompt, _given: 0,
        options=settings.learning,
        basis=what_decides_topics(settings),
        awaits_review=unreviewed if settings.kb.review else lambda _: False,
    )
    return estimated if asks else replace(estimated, calls=0, tokens=0)


def measure(settings: Settings, model: LlmOptions) -> TokensOf:
    """How long prompts are with a model and the templates of the settings. Raises ConfigError."""
    templates = templates_of(settings)

    def tokens_of(prompt: Prompt[Any, Any], given: Any) -> int:
        return chat_request(prompt, given, templates.render(prompt, given), (), model).prompt_tokens

    return tokens_of
