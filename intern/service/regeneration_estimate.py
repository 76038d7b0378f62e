"""The cost of a regeneration, estimated."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain
from math import ceil
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from intern.core.captures import CapturedPair
from intern.core.ids import QAId
from intern.core.knowledge import IndexEntry
from intern.learning import prompts
from intern.learning.regenerating import fingerprint
from intern.learning.regeneration_journal import (
    RegenerationJournal,
    is_archive_unchanged,
    make_review_check,
    plan_round,
)
from intern.models.endpoint import build_chat_request
from intern.models.options import LlmOptions
from intern.models.prompt import Prompt
from intern.service.databases import open_learned
from intern.service.models import describe_regeneration_basis, load_templates
from intern.settings.settings import Settings
from intern.sources.descriptions import describe_by_rules
from intern.stores.archive import Archive
from intern.stores.source_cache import topic_id
from intern.stores.tables.knowledge import KnowledgeDraft, KnowledgeStore

TokensOf = Callable[[Prompt[Any, Any], Any], int]
"""The estimated tokens of a prompt with this input."""

_REPLY = 40  # tokens of a reply to either prompt, generously
_SAMPLE = 100  # pairs whose prompts are measured; the others are assumed to be alike
_PER_TOPIC = 6  # conversations, if no library gives their number


class RegenerationEstimate(Struct, frozen=True, kw_only=True):
    """The work that a regeneration has to do."""

    pairs: int
    """Captures in the archive."""
    conversations: int
    """Captures to be decided, without those that wait for review or were rejected."""
    decided: int
    """The captures among them that an interrupted regeneration has decided already."""
    calls: int
    """The estimated calls of the model."""
    tokens: int
    """The estimated tokens of prompts and replies."""


def estimate_from_archive(
    archive: Archive,
    knowledge: KnowledgeStore,
    *,
    tokens_of: TokensOf,
    options: prompts.LearningOptions,
    basis: str,
    awaits_review: Callable[[QAId], bool] = lambda _: False,
) -> RegenerationEstimate:
    """Count and measure without changing anything. Raises KnowledgeError. Blocks."""
    journal = RegenerationJournal(knowledge)
    resumes = journal.basis == fingerprint(basis, options) and is_archive_unchanged(archive, journal.rounds)
    rounds = journal.rounds if resumes else []
    draft = KnowledgeDraft(knowledge) if resumes else None
    rounds = [*rounds, plan_round(archive, rounds[-1].last if rounds else None, knowledge, awaits_review)]
    order = list(chain(*(each.order for each in rounds)))
    left = [qa_id for qa_id in order if draft is None or draft.last_decision(qa_id) is None]
    unclassified = [qa_id for qa_id in left if not resumes or qa_id not in journal.first]

    known = len(knowledge.topic_names()) or ceil(len(order) / _PER_TOPIC)
    opened = min(max(known - len(draft.topic_names() if draft else ()), 0), len(unclassified))
    # A topic's first pair is classified twice, except the first of an epoch, and needs no integration.
    classified, integrated = len(unclassified) + opened, len(left) - opened
    measured = _PromptEstimator(knowledge, tokens_of, options)
    sample = [archive.get(qa_id) for qa_id in left[:: ceil(len(left) / _SAMPLE) or 1]]
    pairs = [
        each for pair in sample if pair is not None and (each := prompts.strip_withdrawn(pair, knowledge.is_withdrawn))
    ]
    return RegenerationEstimate(
        pairs=sum(each.pairs for each in rounds),
        conversations=len(order),
        decided=len(order) - len(left),
        calls=classified + integrated,
        tokens=classified * _mean([measured.classification_tokens(pair) for pair in pairs])
        + integrated * _mean([measured.integration_tokens(pair) for pair in pairs]),
    )


class _PromptEstimator:
    """Averages of prompts as today's library would make them: a new one starts small, and grows as large."""

    def __init__(self, of: KnowledgeStore, count: TokensOf, options: prompts.LearningOptions) -> None:
        self._topics, self._tokens_of, self._options = of, count, options
        names = of.topic_names()
        self._entries = [IndexEntry(topic_id(name), describe_by_rules(of.read_topic(name))) for name in names]

    def classification_tokens(self, pair: CapturedPair) -> int:
        """Tokens of the call that chooses its topic."""
        index = prompts.render_index(self._entries, prompts.join_texts(pair.turns), self._options.max_index_chars)
        return self._tokens_of(prompts.CLASSIFY, prompts.ClassifyIn(index=index, pair=self._material(pair))) + _REPLY

    def integration_tokens(self, pair: CapturedPair) -> int:
        """Tokens of the call that puts it into its topic: half of the blocks come before it."""
        topic = self._topics.find_conversation_topic(pair.conversation_id)
        blocks = self._topics.read_topic(topic) if topic is not None else ()
        others = [block for block in blocks if block.conversation_id != pair.conversation_id]
        half, words = others[: len(others) // 2 + 1], prompts.join_texts(pair.turns)
        shown = prompts.render_blocks(half, words, self._options.max_blocks_chars)
        given = prompts.IntegrateIn(topic=topic or "new-topic", blocks=shown, pair=self._material(pair))
        return self._tokens_of(prompts.INTEGRATE, given) + _REPLY

    def _material(self, pair: CapturedPair) -> str:
        return prompts.render_block(prompts.build_block(pair), self._options.max_pair_chars)


def _mean(numbers: Sequence[int]) -> int:
    return ceil(sum(numbers) / len(numbers)) if numbers else 0


def estimate_regeneration(settings: Settings) -> RegenerationEstimate:
    """Count and measure. Raises KnowledgeError and ConfigError. Blocks.

    Without a model, there are no calls.
    """
    knowledge, archive = open_learned(settings)
    unreviewed = make_review_check(knowledge, QAId(settings.kb.qa_raw_last_processed_id) or None)
    asks = settings.kb_model.kind == "endpoint"
    estimated = estimate_from_archive(
        archive,
        knowledge,
        tokens_of=build_token_counter(settings, settings.kb_model) if asks else lambda _prompt, _given: 0,
        options=settings.learning,
        basis=describe_regeneration_basis(settings),
        awaits_review=unreviewed if settings.kb.review else lambda _: False,
    )
    return estimated if asks else replace(estimated, calls=0, tokens=0)


def build_token_counter(settings: Settings, model: LlmOptions) -> TokensOf:
    """Return a function that estimates prompt tokens for a model and the settings' templates. Raises ConfigError."""
    templates = load_templates(settings)

    def count_tokens(prompt: Prompt[Any, Any], given: Any) -> int:
        return build_chat_request(prompt, given, templates.render(prompt, given), (), model).prompt_tokens

    return count_tokens
