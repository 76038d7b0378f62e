"""What a regeneration would cost, for `intern regenerate --dry-run`: it takes no lock and writes nothing."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from intern.app.models import templates_of, what_decides_topics
from intern.domain import QAId
from intern.indexing.offline import describe_by_rules
from intern.knowledge.archive import Archive
from intern.knowledge.decisions import DecisionLog
from intern.knowledge.topics import TopicLibrary
from intern.learning.estimating import Estimate, TokensOf, estimate
from intern.learning.rounds import awaiting_review
from intern.llm.chat import chat_request
from intern.llm.prompt import Prompt
from intern.settings import Settings


def estimate_regeneration(settings: Settings) -> Estimate:
    """Count and measure. Raises KnowledgeError and ConfigError. Blocks.

    Without a model, nothing is asked: there are no calls then.
    """
    paths = settings.paths
    decisions = DecisionLog(paths.decisions)
    topics, passed_over = TopicLibrary(paths.topics), QAId(settings.kb.qa_raw_last_processed_id) or None
    unreviewed = awaiting_review(decisions, passed_over, lambda qa_id: topics.topic_of(qa_id) is not None)
    asks = settings.kb_model.kind == "endpoint"
    estimated = estimate(
        Archive(paths.raw),
        decisions,
        paths.topics,
        describe=describe_by_rules,
        tokens_of=measure(settings) if asks else lambda _prompt, _given: 0,
        options=settings.learning,
        basis=what_decides_topics(settings),
        awaits_review=unreviewed if settings.kb.review else lambda _: False,
    )
    return estimated if asks else replace(estimated, calls=0, tokens=0)


def measure(settings: Settings) -> TokensOf:
    """How long prompts are with the model and the templates of the settings. Raises ConfigError."""
    templates, model = templates_of(settings), settings.kb_model

    def tokens_of(prompt: Prompt[Any, Any], given: Any) -> int:
        return chat_request(prompt, given, templates.render(prompt, given), (), model).prompt_tokens

    return tokens_of
